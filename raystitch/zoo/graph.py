"""Where a traced net can be cut, and the two halves at such a place."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from raystitch.zoo.probing import Constant, Form, OfBatch, OfInput, Probe, Several, probe
from raystitch.zoo.rewriting import refuse_shared_storage, remove_unread, write_out_of_place
from raystitch.zoo.tracing import PREFIX, Trace, trace

# These copy where memory is laid out otherwise, and hold the same values either way.
_SAME_VALUES = frozenset({"reshape", "flatten", "contiguous", "clone"})


@dataclass
class DataFlow:
    """The data of a traced net: what flows from the images to the logits.

    data: every node that carries data and is read, in order, from the images to the logits.
    separators: the nodes that no data passes by, without the images and the logits.
    """

    trace: Trace
    probe: Probe
    data: list[fx.Node]
    separators: list[fx.Node]

    @property
    def images(self) -> fx.Node:
        return self.data[0]

    @property
    def logits(self) -> fx.Node:
        return self.data[-1]

    def module(self, path: str) -> nn.Module:
        """The module at a path of the net (in the traced copy); the net itself for ``""``."""
        return self.trace.root.get_submodule(f"{PREFIX}.{path}" if path else PREFIX)

    def parents(self, node: fx.Node) -> list[fx.Node]:
        """The data that a node reads."""
        carried = set(self.data)
        return [parent for parent in node.all_input_nodes if parent in carried]

    def same_values(self, node: fx.Node, parent: fx.Node) -> bool:
        """Whether ``node`` is nothing but ``parent`` in another shape."""
        old, new = self.probe.tensor(parent), self.probe.tensor(node)
        if old is None or new is None or old.numel() != new.numel():
            return False
        if self.probe.share_storage(node, parent):
            return True
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return node.op != "call_module" and name in _SAME_VALUES

    def views(self) -> list[list[fx.Node]]:
        """Separators grouped by what they hold: one run for one set of values, in order.

        Runs that hold the images or the logits are left out.
        """
        runs: list[list[fx.Node]] = []
        last, cuttable = [self.images], set(self.separators)
        runs.append(last)
        for node in self.data[1:]:
            parents = self.parents(node)
            if len(parents) == 1 and parents[0] is last[-1] and self.same_values(node, parents[0]):
                last.append(node)
            elif node in cuttable or node is self.logits:
                last = [node]
                runs.append(last)
        ends = {self.images, self.logits}
        return [run for run in runs if not ends & set(run)]

    def half(self, start: fx.Node, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """What leads from the value of ``start`` to a tuple of the values of ``outputs``.

        Holds only the modules and weights it needs, shared with the trace. Both ends and all that
        lies between must be separators' own: nothing else may flow in.
        """
        places = {node: place for place, node in enumerate(self.data)}
        last = max(places[node] for node in outputs)
        writer = _HalfWriter(self, start)
        for node in self.data[places[start] + 1 : last + 1]:
            writer.copy(node)
        writer.graph.output(tuple(writer.copied[node] for node in outputs))
        writer.graph.lint()
        return fx.GraphModule(self.trace.root, writer.graph, class_name="Half").eval()

    def flops(self) -> dict[fx.Node, int]:
        """FLOPs per image from the images up to and with each data node."""
        places = {node: place for place, node in enumerate(self.data)}
        own = [0] * len(self.data)
        for node in self.trace.graph.nodes:
            # What only prepares a constant counts where it is first read.
            reached = places.get(node, self._first_reader(node, places))
            if reached is not None:
                own[reached] += self.probe.flops.get(node, 0)
        totals: dict[fx.Node, int] = {}
        total = 0
        for node, count in zip(self.data, own, strict=True):
            totals[node] = total = total + count
        return totals

    def weights_at(self) -> dict[str, list[int]]:
        """For every parameter the places in `data` of the nodes that read it."""
        places = {node: place for place, node in enumerate(self.data)}
        modules = dict(self.trace.root.named_modules())
        names = {id(p): name for name, p in self.trace.root.named_parameters()}
        read: dict[str, list[int]] = {}
        for node in self.trace.graph.nodes:
            place = places.get(node, self._first_reader(node, places))
            readers = [place] if node.op != "get_attr" else self._readers(node, places)
            for tensor in _tensors(node, modules, self.trace.root):
                if id(tensor) in names:
                    read.setdefault(names[id(tensor)], []).extend(
                        reader for reader in readers if reader is not None
                    )
        return read

    def _first_reader(self, node: fx.Node, places: dict[fx.Node, int]) -> int | None:
        return min(self._readers(node, places), default=None)

    def _readers(self, node: fx.Node, places: dict[fx.Node, int]) -> list[int]:
        """Places of the data nodes that read a node, directly or through constants."""
        found: list[int] = []
        waiting, seen = list(node.users), set[fx.Node]()
        while waiting:
            user = waiting.pop()
            if user in places:
                found.append(places[user])
            elif user not in seen:
                seen.add(user)
                waiting += list(user.users)
        return found


def data_flow(net: nn.Module, image_shape: Sequence[int], label: str) -> DataFlow:
    """Trace, clean and probe ``net`` on images (batch, *image_shape), and find its separators.

    Raises `RaystitchError` naming ``label`` and the operation that stands in the way.
    """
    traced = trace(net, label)
    written = write_out_of_place(traced)
    probed = probe(traced, image_shape)
    refuse_shared_storage(traced, written, probed.share_storage)
    remove_unread(traced.graph)
    data = _data(traced, probed)
    return DataFlow(traced, probed, data, _separators(data, probed))


def _data(trace: Trace, probe: Probe) -> list[fx.Node]:
    """The nodes that carry data from the images to the logits, in order."""
    nodes = list(trace.graph.nodes)
    output = nodes[-1]
    logits = output.args[0]
    if not isinstance(logits, fx.Node) or probe.tensor(logits) is None:
        raise trace.fault(output, "it gives several values or none, not one tensor of logits")
    images = nodes[0]
    carries = {images}
    for node in nodes[1:-1]:
        if probe.holds_tensors(node) and not carries.isdisjoint(node.all_input_nodes):
            carries.add(node)
    read = {logits}
    for node in reversed(nodes[:-1]):
        if node in read:
            read.update(parent for parent in node.all_input_nodes if parent in carries)
    if images not in read:
        raise trace.fault(output, "its logits do not depend on the images")
    data = [node for node in nodes if node in carries and node in read]
    # Nothing that is read comes after the logits.
    assert data[-1] is logits
    return data


def _separators(data: list[fx.Node], probe: Probe) -> list[fx.Node]:
    places = {node: place for place, node in enumerate(data)}
    reach = 0
    found: list[fx.Node] = []
    for place, node in enumerate(data[:-1]):
        if place and reach <= place and probe.tensor(node) is not None:
            found.append(node)
        readers = (places[user] for user in node.users if user in places)
        reach = max(reach, *readers)
    return found


class _HalfWriter:
    """Copies nodes into a new graph that begins at one node's value."""

    def __init__(self, flow: DataFlow, start: fx.Node) -> None:
        self.flow = flow
        self.graph = fx.Graph()
        self.input = self.graph.placeholder("z")
        self.copied: dict[fx.Node, Any] = {start: self.input}
        self.carried = set(flow.data)
        self.derived: dict[tuple[object, ...], fx.Node] = {}

    def copy(self, node: fx.Node) -> None:
        args = map_arg(node.args, self.value)
        kwargs = map_arg(node.kwargs, self.value)
        self.copied[node] = self.graph.create_node(
            node.op, node.target, cast(Any, args), cast(Any, kwargs), name=node.name
        )

    def value(self, node: fx.Node) -> Any:
        """What stands for ``node`` in this half: its copy, a constant, or a size of the input."""
        if node in self.copied:
            return self.copied[node]
        assert node not in self.carried, f"{node} flows into a half from outside"
        probe = self.flow.probe
        form = None if probe.holds_tensors(node) else probe.form(node)
        if form is not None:
            return self.write(form)
        if not self.carried.isdisjoint(node.all_input_nodes):
            raise self.flow.trace.fault(
                node, "its value is no constant and no multiple of the batch"
            )
        self.copy(node)
        return self.copied[node]

    def write(self, form: Form) -> Any:
        match form:
            case Constant(value):
                return value
            case Several(items, make):
                return make(self.write(item) for item in items)
            case OfInput(attribute):
                return self.call(getattr, self.input, attribute)
            case OfBatch(scale, offset):
                size = self.call("size", self.input, 0)
                size = size if scale == 1 else self.call(operator.mul, size, scale)
                return size if offset == 0 else self.call(operator.add, size, offset)

    def call(self, target: Any, *args: Any) -> fx.Node:
        """A node for a size or an attribute, made once per half."""
        key = (target, *args)
        if key not in self.derived:
            op = "call_method" if isinstance(target, str) else "call_function"
            self.derived[key] = self.graph.create_node(op, target, args)
        return self.derived[key]


def _tensors(node: fx.Node, modules: dict[str, nn.Module], root: nn.Module) -> Iterable[Tensor]:
    if node.op == "call_module":
        return modules[cast(str, node.target)].parameters()
    if node.op == "get_attr":
        value: Any = root
        for part in cast(str, node.target).split("."):
            value = getattr(value, part)
        return [value] if isinstance(value, Tensor) else []
    return []
