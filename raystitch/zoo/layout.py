"""What the axes of an activation are, carried along from the images and not guessed from shapes.

Each axis has a letter: N images, C channels, H and W, T tokens (a grid laid out in a row), F
several kinds of axis laid out in a row, h and w the rows and columns within a patch of H and W;
``?`` where it is not known.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from math import prod
from types import EllipsisType
from typing import Any, cast

from torch import Tensor, fx, nn

from raystitch.names import Kind
from raystitch.zoo.probing import Probe
from raystitch.zoo.tracing import Trace

Layout = tuple[str, ...]

UNKNOWN = "?"
IMAGES: Layout = ("N", "C", "H", "W")
TOKENS: Layout = ("N", "T", "C")

_KINDS: dict[str, Kind] = {"CHW": "map", "HWC": "map_last", "TC": "tokens"}

_PERMUTING = {"permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t"}
_RESHAPING = {"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze"}
# These define that channels come first, whatever was known before.
_CHANNELS_FIRST = (
    nn.Conv2d,
    nn.BatchNorm2d,
    nn.GroupNorm,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
)


def layouts(trace: Trace, probe: Probe, data: Sequence[fx.Node]) -> dict[fx.Node, Layout]:
    """The layout of every data node; a node that gives several tensors has that of the first."""
    reader = _Reader(dict(trace.root.named_modules()), probe)
    for node in data:
        reader.read(node)
    return reader.known


def kind_of(layout: Layout) -> Kind | None:
    """The kind of a cut; None for a layout that no stitch is made for."""
    if layout[:1] != ("N",):
        return None
    return "vector" if len(layout) == 2 else _KINDS.get("".join(layout[1:]))


class _Reader:
    """Goes through the graph in order; `known` holds what it has found."""

    def __init__(self, modules: dict[str, nn.Module], probe: Probe) -> None:
        self.modules = modules
        self.probe = probe
        self.known: dict[fx.Node, Layout] = {}

    def read(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.known[node] = IMAGES
            return
        rank = len(self._shape(node))
        layout = self._read(node)
        if layout is None or len(layout) != rank:
            layout = (UNKNOWN,) * rank
        if self.probe.keeps_batch(node):
            layout = ("N", *layout[1:])
        self.known[node] = layout

    def _read(self, node: fx.Node) -> Layout | None:
        name = _operation(node, self.modules)
        source = _source(node)
        before = self.known.get(source) if source is not None else None
        if source is None or before is None:
            return self._like_inputs(node)
        if name in _PERMUTING or name in ("T", "mT"):
            return _permuted(node, name, before)
        if name in _RESHAPING:
            return regroup(before, self._shape(source), self._shape(node))
        if name == "getitem":
            return self._item(node, source, before)
        if self._puts_channels_first(node):
            return IMAGES
        if name in ("layernorm", "layer_norm") and len(before) == 3 and UNKNOWN in before:
            return TOKENS  # it normalises each token's channels
        return self._like_inputs(node) or self._reduced(node, source, before)

    def _like_inputs(self, node: fx.Node) -> Layout | None:
        """The layout of an input of the same rank: the best known one of the likest shape."""
        shape = self._shape(node)
        inputs = [n for n in node.all_input_nodes if len(self.known.get(n, ())) == len(shape)]

        def likeness(candidate: fx.Node) -> tuple[bool, int]:
            return self._shape(candidate) == shape, -self.known[candidate].count(UNKNOWN)

        return self.known[max(inputs, key=likeness)] if inputs and shape else None

    def _reduced(self, node: fx.Node, source: fx.Node, before: Layout) -> Layout | None:
        """Means and sums over some axes: those that are left."""
        given = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
        axes = [given] if isinstance(given, int) else given
        if not isinstance(axes, (list, tuple)) or not all(isinstance(a, int) for a in axes):
            return None
        gone = {cast(int, axis) % len(before) for axis in axes}
        left = tuple(letter for axis, letter in enumerate(before) if axis not in gone)
        return left if len(left) == len(self._shape(node)) else None

    def _item(self, node: fx.Node, source: fx.Node, before: Layout) -> Layout | None:
        if self.probe.tensor(source) is None:
            return before  # one of several tensors
        index = node.args[1]
        return _indexed(before, cast(Any, index if isinstance(index, tuple) else (index,)))

    def _puts_channels_first(self, node: fx.Node) -> bool:
        if node.op == "call_module" and len(self._shape(node)) == 4:
            return isinstance(self.modules[cast(str, node.target)], _CHANNELS_FIRST)
        return False

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        value = self.probe.values[node][0]
        if isinstance(value, (tuple, list)):
            value = next((part for part in cast(Any, value) if isinstance(part, Tensor)), None)
        return tuple(value.shape) if isinstance(value, Tensor) else ()


def regroup(layout: Layout, old: Sequence[int], new: Sequence[int]) -> Layout:
    """The layout after reshaping ``old`` to ``new``: axes that merge, split or stay.

    >>> regroup(("N", "C", "H", "W"), (2, 8, 4, 4), (2, 8, 16))
    ('N', 'C', 'T')
    """
    if prod(old) != prod(new):
        return (UNKNOWN,) * len(new)
    result: list[str] = []
    for before, after in _groups(old, new):
        letters = [layout[axis] for axis in before if old[axis] != 1 or len(before) == 1]
        result += _split(_merged(letters), [new[axis] for axis in after], letters)
    return tuple(result)


def _groups(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Smallest runs of axes of both shapes that hold equally many values."""
    start_old = start_new = 0
    while start_old < len(old) or start_new < len(new):
        end_old, end_new = min(start_old + 1, len(old)), min(start_new + 1, len(new))
        while (held := prod(old[start_old:end_old])) != (want := prod(new[start_new:end_new])):
            if held < want:
                end_old += 1
            else:
                end_new += 1
        # Axes of size 1 in front of a bigger one belong to no axis of the other side.
        while end_new == len(new) and end_old < len(old) and old[end_old] == 1:
            end_old += 1
        while end_old == len(old) and end_new < len(new) and new[end_new] == 1:
            end_new += 1
        yield list(range(start_old, end_old)), list(range(start_new, end_new))
        start_old, start_new = end_old, end_new


def _merged(letters: list[str]) -> str:
    """The letter of several axes laid out in a row."""
    kinds = set(letters)
    if len(kinds) == 1 and kinds <= {"N", "C", "T"}:
        return letters[0]
    if kinds <= {"H", "W", "T"} and kinds:
        return letters[0] if len(letters) == 1 else "T"
    if letters in (["H", "h"], ["W", "w"]):
        return letters[0]
    if "C" in kinds and kinds <= {"C", "h", "w"}:
        return "C"  # the pixels of a patch become channels
    return "F" if kinds and kinds <= {"C", "H", "W", "T", "F"} else UNKNOWN


def _split(letter: str, sizes: list[int], letters: list[str]) -> list[str]:
    """The letters of the axes that one axis (or a run of them) becomes."""
    wide = [size for size in sizes if size != 1]
    if len(sizes) == len(letters) and len(wide) == len(sizes):
        return letters if len(sizes) == 1 else [UNKNOWN] * len(sizes)
    if len(wide) <= 1 and letter != UNKNOWN:
        return [letter if size != 1 or len(sizes) == 1 else UNKNOWN for size in sizes]
    if letter == "T" and len(sizes) == 2:
        return ["H", "W"]
    if letter in "HW" and len(sizes) == 2:
        return [letter, letter.lower()]
    return ["C"] * len(sizes) if letter == "C" else [UNKNOWN] * len(sizes)


def _permuted(node: fx.Node, name: str, before: Layout) -> Layout | None:
    given = [*node.args[1:], *node.kwargs.values()]
    axes = list(cast(Any, given[0])) if given and isinstance(given[0], (tuple, list)) else given
    rank = len(before)
    if name in ("T", "mT", "t"):
        axes, name = [rank - 2, rank - 1], "transpose"
    if name in ("movedim", "moveaxis") or not all(isinstance(axis, int) for axis in axes):
        return None
    places = [cast(int, axis) % rank for axis in axes]
    if name == "permute":
        return tuple(before[place] for place in places)
    letters = list(before)
    letters[places[0]], letters[places[1]] = letters[places[1]], letters[places[0]]
    return tuple(letters)


def _indexed(before: Layout, index: tuple[Any, ...]) -> Layout | None:
    if any(not isinstance(i, (int, slice, EllipsisType, type(None))) for i in index):
        return None
    taken = sum(1 for i in index if isinstance(i, (int, slice)))
    letters = list(before)
    result: list[str] = []
    for i in index:
        if i is None:
            result.append(UNKNOWN)
        elif isinstance(i, EllipsisType):
            result += [letters.pop(0) for _ in range(len(before) - taken)]
        else:
            letter = letters.pop(0)
            result += [letter] if isinstance(i, slice) else []
    return (*result, *letters)


def _operation(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """What a node does, in one word."""
    if node.op == "call_module":
        return type(modules[cast(str, node.target)]).__name__.lower()
    if node.target is getattr:
        return cast(str, node.args[1])
    if node.target is operator.getitem:
        return "getitem"
    if isinstance(node.target, str):
        return node.target
    return getattr(node.target, "__name__", "")


def _source(node: fx.Node) -> fx.Node | None:
    first = next(iter([*node.args, *node.kwargs.values()]), None)
    return first if isinstance(first, fx.Node) else None
