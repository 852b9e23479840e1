"""From a network to a graph of its operations, without touching the network itself."""

from __future__ import annotations

import copy
import inspect
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor, fx, nn

from raystitch.errors import RaystitchError

PREFIX = "net"
"""Attribute under which the traced wrapper holds the net; `zoo.models.Network` uses the same."""

_TORCH = str(Path(inspect.getfile(nn.Module)).parents[2])
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


@dataclass(frozen=True)
class Call:
    """One call of a module: its path in the net, and how many calls of it came before."""

    path: str
    count: int

    def __str__(self) -> str:
        return f"{self.path}_{self.count}" if self.count else self.path


@dataclass
class Trace:
    """A traced net.

    root: holds the copy of the net that the graph's targets refer to (``net.layer1.0``).
    ends: for each node the module calls that return it, innermost first.
    """

    label: str
    root: nn.Module
    graph: fx.Graph
    ends: dict[fx.Node, list[Call]] = field(default_factory=dict[fx.Node, list[Call]])

    def fault(self, node: fx.Node, reason: object) -> RaystitchError:
        """The sentence for a network whose node cannot be dealt with."""
        return _cannot_cut(self.label, f"the operation {describe_node(node)}", reason)


def trace(net: nn.Module, label: str) -> Trace:
    """Trace a copy of ``net`` in evaluation mode, as a function of its images alone.

    The copy has its own structure and shares every parameter and buffer. Raises `RaystitchError`
    naming ``label`` and the module in which tracing failed.
    """
    root = _OneInput(own_structure(net).eval())
    tracer = _Tracer()
    try:
        graph = tracer.trace(root)
    except Exception as fault:
        place = in_net(tracer.failed_in or "") or "its own forward"
        raise _cannot_cut(label, f"{place}{_line_of(fault)}", fault) from fault
    _remove_asserts(graph)
    return Trace(label, root, graph, tracer.ends)


def own_structure(net: nn.Module) -> nn.Module:
    """A deep copy that shares every parameter and buffer, and carries no hooks of the user's.

    Hooks would fire while tracing; torch's own, which compute a weight (`weight_norm`), stay.
    """
    tensors = chain(net.parameters(), net.buffers())
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
    for module in net.modules():
        for kind in _HOOKS:
            hooks: dict[int, Any] = getattr(module, kind)
            own = ((key, hook) for key, hook in hooks.items() if _is_torchs(hook))
            memo[id(hooks)] = OrderedDict((key, copy.deepcopy(hook, memo)) for key, hook in own)
    return copy.deepcopy(net, memo)


def stack_of(node: fx.Node) -> dict[str, Any]:
    """The module calls a node was made in, outermost first; a key is ``path`` or ``path@count``."""
    return node.meta.get("nn_module_stack") or {}


def module_of(node: fx.Node) -> str:
    """Path in the net of the innermost module that a node was made in; empty for the net's own."""
    calls = list(stack_of(node).values())
    return in_net(calls[-1][0]) if calls else ""


def in_net(path: str) -> str:
    """A path as the net itself writes it."""
    return path.removeprefix(PREFIX).removeprefix(".")


def describe_node(node: fx.Node) -> str:
    """An operation in words: what it is, and the module it is in."""
    target = node.target if isinstance(node.target, str) else _name_of(node.target)
    place = module_of(node)
    return f"{in_net(target)!r} in {place!r}" if place else f"{in_net(target)!r}"


class _OneInput(nn.Module):
    """A net as a function of images alone: optional arguments would be traced as inputs too."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Any:
        return self.net(images)


class _Tracer(fx.Tracer):
    """Records which module calls return which node, and where tracing failed."""

    def __init__(self) -> None:
        functions, modules = _leaves()
        super().__init__(autowrap_functions=functions, param_shapes_constant=True)
        self._leaf_modules = modules
        self.ends: dict[fx.Node, list[Call]] = {}
        self.failed_in: str | None = None

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaf_modules) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        path = self.path_of_module(m)
        count = self.num_calls.get(path, 0)
        try:
            result = super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed_in = self.failed_in or path
            raise
        # A module that hands its input on (a dropped DropPath) did not make the node.
        key = f"{path}@{count}" if count else path
        if isinstance(result, fx.Proxy) and in_net(path) and key in stack_of(result.node):
            self.ends.setdefault(result.node, []).append(Call(in_net(path), count))
        return result


def _leaves() -> tuple[tuple[Callable[..., Any], ...], tuple[type[nn.Module], ...]]:
    """What fx must not look into: functions, and modules beside torch's own.

    Only libraries that are loaded are asked: a net that uses one has loaded it.
    """
    functions: list[Callable[..., Any]] = []
    modules: list[type[nn.Module]] = []
    if (timm := sys.modules.get("timm.layers")) is not None:
        functions += timm.get_notrace_functions()
        modules += timm.get_notrace_modules()
    if (ops := sys.modules.get("torchvision.ops")) is not None:
        functions += [f for _, f in inspect.getmembers(ops, inspect.isfunction)]
        classes = [c for _, c in inspect.getmembers(ops, inspect.isclass)]
        # `misc` holds plain containers such as Conv2dNormActivation: good places to cut.
        modules += [
            c for c in classes if issubclass(c, nn.Module) and not c.__module__.endswith("ops.misc")
        ]
    return tuple(functions), tuple(modules)


def _remove_asserts(graph: fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if node.op == "call_function" and _name_of(node.target) in ("_assert", "_assert_async"):
            graph.erase_node(node)


def _name_of(target: object) -> str:
    return getattr(target, "__name__", str(target))


def _is_torchs(hook: object) -> bool:
    return type(hook).__module__.startswith("torch.nn.utils")


def _line_of(fault: Exception) -> str:
    """The network's own line of code at which tracing failed."""
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_TORCH, __file__))]
    line = own[-1].line if own else None
    return f" at `{line}`" if line else ""


def _cannot_cut(label: str, place: str, reason: object) -> RaystitchError:
    first = str(reason).strip().split("\n", 1)[0].rstrip(".") or type(reason).__name__
    return RaystitchError(
        f"{label} cannot be cut: torch.fx cannot follow {place}: {first}. A network must run the "
        "same operations whatever its images are; rewrite that part (no branch on values or "
        "shapes, no writing into slices), or take another architecture."
    )
