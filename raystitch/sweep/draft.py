"""A sweep file on its way to a `Sweep`: faulty places are noted, then cut out, until it validates.

Cutting out what is wrong and going on is what lets one reading find all faults of a file: pydantic
checks a whole model only when its fields are right, and a reference only makes sense between parts
that are right themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from raystitch.errors import Fault, nearest
from raystitch.sweep.refusal import REFUSED
from raystitch.sweep.sentences import Path, dotted, model_at, sentence
from raystitch.sweep.spec import Sweep
from raystitch.sweep.zoo_entry import RECIPE_FIELDS

STAND_INS: dict[str, Any] = {"name": "unnamed", "data": "digits", "zoo": {}, "pairs": []}
"""What stands for a required field that is missing or faulty, so that the rest can be read."""

_GONE = object()
"""Stands where a list item was cut out: the positions after it stay those of the file."""


class Draft:
    """The values of a file with the faults found so far; ``values`` is the draft's to change."""

    def __init__(self, values: dict[Any, Any]) -> None:
        self.values = values
        self.faults: list[Fault] = []
        self.touched: set[Path] = set()
        self._order = {key: number for number, key in enumerate(values)}

    def report(self, path: Path, message: str) -> None:
        """Note a fault and cut out its place."""
        self.add(path, message)
        self.cut_out(path)

    def add(self, path: Path, message: str) -> None:
        """Note a fault whose place can stay."""
        self.faults.append(Fault(dotted(path), message))
        self.touched.add(path)

    def cut_out(self, path: Path) -> None:
        """Remove what lies at ``path``, and what cannot stay without it."""
        self.touched.add(path)
        for companion in _companions(path):
            self._remove_item(companion)
        self._remove(path)

    def is_touched(self, start: Path) -> bool:
        """Whether a fault lies at ``start`` or within it."""
        return any(path[: len(start)] == start for path in self.touched)

    def validate(self) -> Sweep | None:
        """The valid part, after reporting the faults of the rest; None where nothing remains."""
        while True:
            try:
                sweep = Sweep.model_validate(_compact(self.values))
            except ValidationError as error:
                before = repr(self.values)
                self._take(error.errors(include_url=False))
                if repr(self.values) == before:
                    return None
            else:
                self._number_pairs(sweep)
                return sweep

    def sorted_faults(self) -> tuple[Fault, ...]:
        """The faults in the order of the file's sections, those of absent ones last."""
        last = len(self._order)

        def section(fault: Fault) -> int:
            return self._order.get(fault.place.partition(".")[0].partition("[")[0], last)

        return tuple(sorted(dict.fromkeys(self.faults), key=section))

    def _take(self, errors: Iterable[ErrorDetails]) -> None:
        # Places are read before anything is cut out, for cutting moves what follows.
        found = [(self._path(error), error) for error in errors]
        misspelt = {_meant(path) for path, e in found if e["type"] == "extra_forbidden"}
        for path, error in found:
            if error["type"] == "missing" and path in misspelt:
                self.cut_out(path)
            elif error["type"] == "too_short" and any(p[:-1] == path for p, _ in found):
                continue  # Its items are faulty, and pydantic does not count them.
            elif error["type"] == "too_short" and any(p[:-1] == path for p in self.touched):
                self.cut_out(path)  # Those of its items that were faulty are no longer there.
            else:
                self.report(path, sentence(error, path))

    def _path(self, error: ErrorDetails) -> Path:
        """The error's place in the file: pydantic's, without tags, in the file's positions."""
        node: Any = self.values
        path: list[str | int] = []
        for part in error["loc"]:
            if isinstance(part, str) and (part.startswith("<") or part == "[key]"):
                continue
            place = _file_position(node, part) if isinstance(part, int) else part
            if not _holds(node, place):
                return (*path, place) if error["type"] == "missing" else tuple(path)
            path.append(place)
            node = node[place]
        field = error.get("ctx", {}).get("field", "") if error["type"] == REFUSED else ""
        return (*path, *field.split(".")) if field else tuple(path)

    def _remove(self, path: Path) -> None:
        """Remove ``path``; its holder where that requires it; the top has stand-ins."""
        if not path:
            return
        model = model_at(path[:-1])
        field = model.model_fields.get(str(path[-1])) if model else None
        if field is None or not field.is_required():
            self._remove_item(path)
        elif len(path) == 1:
            self.values[path[0]] = STAND_INS[str(path[0])]
        else:
            self._remove(path[:-1])

    def _remove_item(self, path: Path) -> None:
        node: Any = self.values
        for part in path[:-1]:
            if not _holds(node, part):
                return
            node = node[part]
        if not _holds(node, path[-1]):
            return
        if isinstance(node, dict):
            del node[path[-1]]
            return
        node[path[-1]] = _GONE
        if all(item is _GONE for item in node):
            self._remove(path[:-1])

    def _number_pairs(self, sweep: Sweep) -> None:
        pairs = self.values["pairs"]
        if isinstance(pairs, list):
            kept = tuple(n for n, pair in enumerate(pairs) if pair is not _GONE)
            if kept != tuple(range(len(kept))):
                sweep.number_pairs(kept)


def _companions(path: Path) -> list[Path]:
    """Places that would be at fault only because ``path`` is cut out."""
    if path[:1] == ("zoo",) and len(path) >= 3:
        entry = path[:2]
        if path[2] == "recipe":
            return [(*entry, field) for field in RECIPE_FIELDS]
        if path[2] in ("mean", "std"):
            return [(*entry, "mean"), (*entry, "std")]
    if path == ("training",) or path[:2] in (("training", "bn"), ("training", "augment")):
        return [("preset",)]
    return []


def _meant(path: Path) -> Path | None:
    """The place that a misspelt field was meant for."""
    model = model_at(path[:-1])
    near = nearest(path[-1], model.model_fields) if model else None
    return None if near is None else (*path[:-1], near)


def _file_position(node: Any, number: int) -> int:
    """The position in the file of what is the ``number``-th of what is left of a list."""
    if not isinstance(node, list):
        return number
    return [n for n, item in enumerate(node) if item is not _GONE][number]


def _holds(node: Any, part: str | int) -> bool:
    if isinstance(node, dict):
        return part in node
    return (
        isinstance(node, list)
        and isinstance(part, int)
        and part < len(node)
        and node[part] is not _GONE
    )


def _compact(node: Any) -> Any:
    """A copy without what was cut out."""
    if isinstance(node, dict):
        return {key: _compact(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_compact(item) for item in node if item is not _GONE]
    return node
