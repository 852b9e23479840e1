"""The network card: what planning must know of a network, as plain facts without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from math import isqrt, prod
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from raystitch.errors import RaystitchError, choices
from raystitch.names import CUT_SETS, Kind

MAP_KINDS: frozenset[Kind] = frozenset({"map", "map_last"})


@dataclass(frozen=True)
class CutCard:
    """One cut of a network.

    index: place among all cuts of the network, from 1 in data order.
    name: stable name, as ``layer2.0.relu_1``; aliases: other modules that end here.
    kind, shape: layout and shape of the activation, without the batch axis.
    flops: floating point operations per image from the input up to and with this cut.
    sets: the named sets it belongs to (``blocks``, ``stages``, ``paper``).
    patches: rows and columns of the grid that tokens are, row by row at their end; None where the
    network's graph does not show it, and for other kinds.
    """

    index: int
    name: str
    kind: Kind
    shape: tuple[int, ...]
    flops: int
    aliases: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    patches: tuple[int, int] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of one image's activation in float32."""
        return 4 * prod(self.shape)

    @property
    def channels(self) -> int:
        """The width that a stitch mixes: channels of a map, embedding of tokens, a vector's."""
        return self.shape[0] if self.kind == "map" else self.shape[-1]


@dataclass(frozen=True)
class TokenGrid:
    """Tokens as a feature map: ``height`` × ``width`` patches, row by row.

    before: tokens in front of the patches: a class token, after it registers and the like.
    """

    height: int
    width: int
    before: int

    @classmethod
    def of(cls, cut: CutCard) -> TokenGrid | None:
        """The grid of a cut of tokens; None where it is not known.

        Where the card does not tell, n² tokens are a square, n² + 1 a square after a class token.
        """
        assert cut.kind == "tokens"
        count = cut.shape[0]
        if cut.patches is not None:
            return cls(*cut.patches, count - prod(cut.patches))
        for before in (0, 1):
            side = isqrt(count - before)
            if side and side * side == count - before:
                return cls(side, side, before)
        return None


def same_tokens(front: CutCard, end: CutCard) -> bool:
    """Whether two cuts hold equally many tokens, and no other patches as far as is known."""
    if not (front.kind == end.kind == "tokens" and front.shape[0] == end.shape[0]):
        return False
    grids = TokenGrid.of(front), TokenGrid.of(end)
    return None in grids or grids[0] == grids[1]


def refusal(front: CutCard, end: CutCard) -> str | None:
    """Why these two cuts cannot be stitched, or None when they can.

    Tokens that meet a map, or other tokens, must be patches of a known grid.
    """
    if same_tokens(front, end):
        return None
    for cut, other in ((front, end), (end, front)):
        placed = other.kind in MAP_KINDS or other.kind == "tokens"
        if cut.kind == "tokens" and placed and TokenGrid.of(cut) is None:
            return (
                f"{front.name} ({_described(front)}) cannot be stitched to {end.name} "
                f"({_described(end)}): {cut.shape[0]} tokens are no square grid, with or without "
                "a class token"
            )
    return None


def _described(cut: CutCard) -> str:
    if cut.kind == "tokens":
        return f"{cut.shape[0]} tokens"
    return "a map, channels last" if cut.kind == "map_last" else f"a {cut.kind}"


@dataclass(frozen=True)
class NetworkCard:
    """What an architecture with its arguments is at one resolution.

    input_shape: (channels, height, width); flops: per image; cuts: in data order.
    notes: what a user should know, as weights shared across a cut.
    linear_head: whether the logits are those of its last linear layer.
    fixed_dropout, fixed_bn: modules whose dropout, or batch normalisation, halves of the network
    cannot put into training mode.
    """

    arch: str
    kwargs: dict[str, Any]
    input_shape: tuple[int, int, int]
    classes: int
    parameters: int
    flops: int
    cuts: tuple[CutCard, ...]
    notes: tuple[str, ...] = ()
    linear_head: bool = True
    fixed_dropout: tuple[str, ...] = ()
    fixed_bn: tuple[str, ...] = ()

    def cut(self, name: str) -> CutCard:
        """The cut of that name or alias; `RaystitchError` names the nearest ones."""
        if name in self._by_name:
            return self._by_name[name]
        raise RaystitchError(f"{self.arch} has no such cut: {choices(name, self._all_names())}.")

    @cached_property
    def _by_name(self) -> dict[str, CutCard]:
        """Cuts by name, and by alias where no other cut has that name; the first one counts."""
        aliases = ((alias, cut) for cut in self.cuts for alias in cut.aliases)
        named = [*((cut.name, cut) for cut in self.cuts), *aliases]
        return dict(reversed(named))

    def select(self, wanted: str | Sequence[str]) -> tuple[CutCard, ...]:
        """Cuts by set name, cut name, alias, glob, or a list of these; in data order, each once.

        >>> card.select(["blocks.0", "blocks.2"])  # doctest: +SKIP
        """
        patterns = [wanted] if isinstance(wanted, str) else list(wanted)
        chosen = {cut.index: cut for pattern in patterns for cut in self._matching(pattern)}
        return tuple(chosen[index] for index in sorted(chosen))

    def _matching(self, pattern: str) -> Iterator[CutCard]:
        if pattern in CUT_SETS:
            found = [cut for cut in self.cuts if pattern == "all" or pattern in cut.sets]
            if not found:
                raise RaystitchError(
                    f"{self.arch} has no cuts in the set {pattern!r}; "
                    f"`raystitch cuts {self.arch}` lists what it has."
                )
            return iter(found)
        if any(character in pattern for character in "*?["):
            found = [
                c for c in self.cuts if any(fnmatchcase(n, pattern) for n in (c.name, *c.aliases))
            ]
            if not found:
                raise RaystitchError(
                    f"no cut of {self.arch} matches {pattern!r}; "
                    f"`raystitch cuts {self.arch}` lists them."
                )
            return iter(found)
        return iter([self.cut(pattern)])

    def _all_names(self) -> list[str]:
        return [name for cut in self.cuts for name in (cut.name, *cut.aliases)]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> NetworkCard:
        return TypeAdapter(cls).validate_json(text)

    @classmethod
    def read(cls, path: Path) -> NetworkCard:
        return cls.from_json(path.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class ModelCard:
    """What is known of one network of the zoo: kept beside its weights as ``card.json``.

    identity: all that defines the network (its part of a cell's settings).
    digest: SHA-256 of its parameters and buffers. Accuracies are in percent on the test images,
    clean, with its marker, with the marker of the wrong class, and under PGD (20 steps of eps / 4);
    null where one does not apply.
    """

    name: str
    key: str
    identity: dict[str, Any]
    digest: str
    parameters: int
    accuracy: float
    marker_accuracy: float | None
    wrong_marker_accuracy: float | None
    robust_accuracy: float | None
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        return TypeAdapter(cls).validate_json(text)

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        return cls.from_json(path.read_text(encoding="utf-8"))
