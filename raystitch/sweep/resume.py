"""What a sweep still has to do: its cells less what is stored, and why each is not done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import polars as pl

from raystitch.sweep.cells import Cell, Status
from raystitch.sweep.keys import canonical

SHOWN = 3
"""Settings that differ, spelled out in one line."""

Digests = Mapping[str, str | None]
"""Digest of each network's stored weights by its name ENTRY-SEED; None where none are stored."""

_SAME = ("front_model", "front_cut", "end_model", "end_cut", "objective", "protocol", "seed")
"""What the nearest stored cell has in common with a pending one."""

SUBTRACTED = ("key", "front_digest", "end_digest", "status")
"""The columns that `subtract` looks at."""

EXPLAINED = ("key", "status", "error", "settings", "front_digest", "end_digest", *_SAME)
"""The columns that `why` looks at."""

_ABSENT = object()


def subtract(
    cells: Iterable[Cell], stored: pl.DataFrame, digests: Digests, *, retry_failed: bool = False
) -> list[Status]:
    """The status of each cell, in their order.

    stored: rows with the columns `SUBTRACTED`, status ``ok`` or ``failed``, in any order, several
    under one key too. A row counts only while its digests are those of the
    artifacts: a network that is not stored, or was trained anew, makes its cells pending. One good
    row is enough; a failure is final unless ``retry_failed``.
    """
    cells = list(cells)
    # A million digests of 64 letters are joined as whole numbers, which are compared at once.
    known = sorted({digest for digest in digests.values() if digest is not None})
    numbers = {digest: number for number, digest in enumerate(known)}
    of_model = {model: numbers.get(digest or "") for model, digest in digests.items()}
    place = ("key", "front", "end")
    rows = stored.select(
        "key",
        front=_numbered("front_digest", numbers),
        end=_numbered("end_digest", numbers),
        good=pl.col("status") == "ok",
    ).drop_nulls(("front", "end"))
    wanted = pl.DataFrame(
        {
            "key": [cell.key for cell in cells],
            "front": [of_model.get(cell.front_model) for cell in cells],
            "end": [of_model.get(cell.end_model) for cell in cells],
        },
        schema={"key": pl.String, "front": pl.Int64, "end": pl.Int64},
    )
    best = rows.group_by(place).agg(pl.col("good").any())
    found = wanted.join(best, on=place, how="left", maintain_order="left")["good"]
    status: dict[bool | None, Status] = {None: "pending", True: "done"}
    status[False] = "pending" if retry_failed else "failed"
    return [status[good] for good in found.to_list()]


def _numbered(column: str, numbers: Mapping[str, int]) -> pl.Expr:
    """The number of each digest; null for one that is not among them."""
    text = pl.col(column).cast(pl.String)
    return text.replace_strict(numbers, default=None, return_dtype=pl.Int64)


def pending(cells: Sequence[Cell], statuses: Sequence[Status]) -> list[Cell]:
    """The cells that are still to be run."""
    return [cell for cell, status in zip(cells, statuses, strict=True) if status == "pending"]


def why(cells: Iterable[Cell], stored: pl.DataFrame, digests: Digests) -> list[str]:
    """Why each of these cells is not done, in a few words, in their order.

    stored: rows with the columns `EXPLAINED`, settings as canonical JSON.
    ``failed: REASON``; which network changed; which settings differ from the nearest stored cell
    of the same place (``training.lr: 0.01 -> 0.02``); or ``never ran``.
    """
    known = _Stored(stored)
    return [known.reason(cell, digests) for cell in cells]


class _Stored:
    """Stored rows by key and by place."""

    def __init__(self, stored: pl.DataFrame) -> None:
        self.by_key: dict[str, list[dict[str, Any]]] = {}
        self.by_place: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
        for row in stored.iter_rows(named=True):
            self.by_key.setdefault(row["key"], []).append(row)
            place = tuple(row[name] for name in _SAME)
            self.by_place.setdefault(place, {})[row["key"]] = row
        self.parsed: dict[str, dict[str, Any]] = {}

    def reason(self, cell: Cell, digests: Digests) -> str:
        rows = self.by_key.get(cell.key, [])
        for row in reversed(rows):
            if not list(_changed_networks(cell, row, digests)):
                return f"failed: {row['error']}" if row["status"] == "failed" else "stored"
        if rows:
            return "; ".join(_changed_networks(cell, rows[-1], digests))
        place = tuple(getattr(cell, name) for name in _SAME)
        return self._difference(cell, self.by_place.get(place, {}).values())

    def _difference(self, cell: Cell, rows: Iterable[Mapping[str, Any]]) -> str:
        wanted = cell.settings
        candidates = [list(_differences(self._settings(row), wanted)) for row in rows]
        if not candidates:
            return "never ran"
        nearest = min(candidates, key=len)
        rest = f", and {len(nearest) - SHOWN} more" if len(nearest) > SHOWN else ""
        return ", ".join(nearest[:SHOWN]) + rest

    def _settings(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if row["key"] not in self.parsed:
            self.parsed[row["key"]] = json.loads(row["settings"])
        return self.parsed[row["key"]]


def _changed_networks(cell: Cell, row: Mapping[str, Any], digests: Digests) -> Iterator[str]:
    for model, column in ((cell.front_model, "front_digest"), (cell.end_model, "end_digest")):
        there, was = digests.get(model), row[column]
        if there is None:
            yield f"the network {model} is not stored"
        elif there != was:
            yield f"the network {model} is not the one of then ({str(was)[:8]} -> {there[:8]})"


def _differences(stored: Any, wanted: Any, path: str = "") -> Iterator[str]:
    """The settings that differ, as ``dotted.path: stored value -> new value``."""
    if isinstance(stored, dict) and isinstance(wanted, dict):
        old, new = cast("dict[str, Any]", stored), cast("dict[str, Any]", wanted)
        for name in dict.fromkeys([*new, *old]):
            inner = f"{path}.{name}" if path else name
            yield from _differences(old.get(name, _ABSENT), new.get(name, _ABSENT), inner)
    elif stored is _ABSENT or wanted is _ABSENT or canonical(stored) != canonical(wanted):
        yield f"{path}: {_shown(stored)} -> {_shown(wanted)}"


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)
