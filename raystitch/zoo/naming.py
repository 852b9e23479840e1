"""Which places of a net are offered as cuts, under which names, and in which sets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import cast

from torch import fx, nn

from raystitch.names import Kind
from raystitch.zoo.blocks import Stage, stages_of
from raystitch.zoo.graph import DataFlow
from raystitch.zoo.layout import kind_of, layouts
from raystitch.zoo.patches import patches_before
from raystitch.zoo.tracing import Call, in_net, module_of, stack_of

IDLE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
"""Modules that hand their input on in evaluation mode."""


@dataclass
class Place:
    """One place where a net can be cut.

    node: whose value the front gives; run: all nodes that hold this value, in any shape.
    patches: rows and columns of the grid that tokens are.
    calls: the module calls that return it, the least deep first, idle ones before others.
    """

    node: fx.Node
    run: list[fx.Node]
    kind: Kind
    shape: tuple[int, ...]
    calls: list[Call]
    patches: tuple[int, int] | None = None
    name: str = ""
    sets: set[str] = field(default_factory=set[str])

    @property
    def aliases(self) -> tuple[str, ...]:
        """The other modules that end here; some return the same values in another shape."""
        return tuple(name for call in self.calls if (name := str(call)) != self.name)


def find_places(flow: DataFlow, arch: str) -> tuple[list[Place], list[str]]:
    """The cuts of a net in data order, named and sorted into sets, and notes for its users.

    Of several nodes that hold one set of values, as a 1×1 map and its vector, one is offered.
    Left out are values whose first axis is no longer the batch and layouts of no known kind.
    """
    known = layouts(flow.trace, flow.probe, flow.data)
    places: list[Place] = []
    multiplied = unknown = 0
    for run in flow.views():
        kept = [node for node in run if flow.probe.keeps_batch(node)]
        fit = [node for node in kept if kind_of(known[node]) is not None]
        if fit:
            node = max(fit, key=lambda n: _preference(n, run, known[n], flow))
            kind = cast(Kind, kind_of(known[node]))
            calls = _calls_that_end(run, flow)
            shape = flow.probe.shape(node)[1:]
            patches = patches_before(flow, known, node) if kind == "tokens" else None
            places.append(Place(node, run, kind, shape, calls, patches))
        multiplied += not kept
        unknown += bool(kept) and not fit
    blocks = _blocks(stages_of(flow.module("")), places)
    _name(places, blocks, flow)
    _sort_into_sets(places, blocks, arch, flow)
    return places, _notes(len(places), multiplied, unknown)


def _calls_that_end(run: list[fx.Node], flow: DataFlow) -> list[Call]:
    """The module calls that return one of these nodes, without the idle beginnings of the next.

    An Identity that the next block begins with returns this value too, but no one would look for
    it there. Idle ones sort first among equals, so that a name is that of a module that computes.
    """
    calls = [call for node in run for call in flow.trace.ends.get(node, [])]
    idle = {call for call in calls if isinstance(flow.module(call.path), IDLE)}
    parents = {_parent(call.path) for call in calls if call not in idle}
    return sorted(
        (c for c in calls if c not in idle or not parents or _parent(c.path) in parents),
        key=lambda call: (call.path.count("."), call not in idle),
    )


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _preference(
    node: fx.Node, run: list[fx.Node], layout: tuple[str, ...], flow: DataFlow
) -> tuple[bool, bool, int, int]:
    """Ranks the nodes of one run: a flattened map last, a pooled vector first, then by module."""
    flattened = layout == ("N", "F")
    depths = [call.path.count(".") for call in flow.trace.ends.get(node, [])]
    return not flattened, layout == ("N", "C"), -min(depths, default=99), run.index(node)


def _blocks(stages: Iterable[Stage], places: list[Place]) -> set[str]:
    """Paths of the modules that count as blocks: those that end at a cut.

    Where none of a stage's blocks does (DenseNet's layers, Inception's branches), the innermost
    module around them that does.
    """
    ending = {call.path for place in places for call in place.calls}
    found: set[str] = set()
    for stage in stages:
        own = ending.intersection(stage.blocks)
        around = stage.path
        while not own and around:
            own = ending & {around}
            around = around.rpartition(".")[0]
        found |= own
    return found


def _name(places: list[Place], blocks: Collection[str], flow: DataFlow) -> None:
    """Give every place a name of its own: a module that ends there, or path and operation."""
    inside = Counter(path for place in places for path in _modules_around(place))
    operations = _operation_names(flow)
    taken: set[str] = set()
    for place in places:
        wanted = _module_name(place, blocks, inside) or operations[place.node]
        name, count = wanted, 0
        while name in taken:
            count += 1
            name = f"{wanted}_{count}"
        taken.add(name)
        place.name = name


def _modules_around(place: Place) -> set[str]:
    return {in_net(key) for key in stack_of(place.node)}


def _module_name(place: Place, blocks: Collection[str], inside: Counter[str]) -> str | None:
    """A block, else the outermost module that holds no other cut, else the innermost one."""
    for call in place.calls:
        if call.path in blocks:
            return str(call)
    alone = [
        call
        for call in place.calls
        if inside[f"{call.path}@{call.count}" if call.count else call.path] <= 1
    ]
    chosen = alone[:1] or place.calls[-1:]
    # Of modules equally deep that end here the last, and an idle one only among its like.
    level = [c for c in alone if c.path.count(".") == chosen[0].path.count(".")] if alone else []
    return str((level or chosen)[-1]) if chosen else None


def _operation_names(flow: DataFlow) -> dict[fx.Node, str]:
    """``layer1.0.add``, and ``_1``, ``_2`` … for the further ones in one module."""
    seen: Counter[str] = Counter()
    names: dict[fx.Node, str] = {}
    for node in flow.data:
        target = node.target
        word = target if isinstance(target, str) else getattr(target, "__name__", "value")
        base = f"{module_of(node)}.{in_net(word).strip('_')}".lstrip(".")
        names[node] = f"{base}_{seen[base]}" if seen[base] else base
        seen[base] += 1
    return names


def _sort_into_sets(
    places: list[Place], blocks: Collection[str], arch: str, flow: DataFlow
) -> None:
    ends = [place for place in places if any(call.path in blocks for call in place.calls)]
    if not ends:
        ends = [place for place in places if _is_activated_map(place, flow)]
    stages = [
        place
        for place, following in zip_longest(ends, ends[1:])
        if following is None or following.shape != place.shape
    ]
    if ends and ends[-1].kind == "tokens" and places[-1].kind == "vector":
        ends, stages = [*ends, places[-1]], [*stages, places[-1]]
    paper = _paper(arch, places, ends)
    for name, members in (("blocks", ends), ("stages", stages), ("paper", paper)):
        for place in members:
            place.sets.add(name)


def _is_activated_map(place: Place, flow: DataFlow) -> bool:
    if place.kind != "map" or place.node.op != "call_module":
        return False
    module = flow.module(in_net(cast(str, place.node.target)))
    return type(module).__module__ == "torch.nn.modules.activation"


def _paper(arch: str, places: list[Place], ends: list[Place]) -> list[Place]:
    """The cuts of the published runs (method: cuts the paper uses); none for other nets."""
    name = arch.partition("/")[2].split(".")[0]
    by_name = {known: place for place in places for known in (*place.aliases, place.name)}
    if arch == "raystitch/cnn5":
        return ends
    if name in ("resnet18", "resnet18_cifar"):
        stem = by_name.get("relu") or by_name.get("act1")
        return [stem, *ends] if stem is not None and len(ends) == 8 else []
    if name == "vgg16_bn":
        wanted = [by_name.get(f"features.{place}") for place in (2, 5, 12, 22, 32, 42)]
        return [place for place in wanted if place is not None] if all(wanted) else []
    if re.match(r"(vit|deit3?)_(tiny|base|b)_", name) and len(ends) == 13:
        return ends if "_tiny_" in name else [*ends[:-1:2], ends[-1]]
    return []


def _notes(cuts: int, multiplied: int, unknown: int) -> list[str]:
    notes: list[str] = []
    if not cuts:
        notes.append("It has no cuts: at no usable place does all data pass through one tensor.")
    if multiplied:
        notes.append(
            f"{multiplied} places are not offered as cuts: their first axis is not the batch."
        )
    if unknown:
        notes.append(
            f"{unknown} places are not offered as cuts: they are no map, tokens or vector."
        )
    return notes
