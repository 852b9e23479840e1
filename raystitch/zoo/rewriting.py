"""In-place operations of a traced net, made out of place.

An activation that is captured or handed to a tail must not be overwritten by what comes next.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx, nn

from raystitch.zoo.tracing import Trace, describe_node

Written = list[tuple[fx.Node, fx.Node]]
"""Pairs of an operation that wrote in place, and the node it wrote into."""


def write_out_of_place(trace: Trace) -> Written:
    """Rewrite every in-place operation of the graph; later readers read the new node.

    Returns what was rewritten, for `refuse_shared_storage`. Raises `RaystitchError` for an
    operation that has no out-of-place twin or that changes a weight.
    """
    modules = dict(trace.root.named_modules())
    written: Written = []
    for node in list(trace.graph.nodes):
        if not _made_out_of_place(trace, node, modules):
            continue
        target = _first_input(node)
        if target is None:
            continue
        if target.op == "get_attr":
            raise trace.fault(node, f"it changes the weight {target.target!r} while it runs")
        _read_from(node, target)
        written.append((node, target))
    _calm_modules(trace, modules)
    return written


def refuse_shared_storage(
    trace: Trace, written: Written, shares: Callable[[fx.Node, fx.Node], bool]
) -> None:
    """Raise where an in-place operation also changed another view that is read later.

    Rewriting would get such a net silently wrong. shares: whether two nodes are one storage.
    """
    order = {node: place for place, node in enumerate(trace.graph.nodes)}
    for node, target in written:
        for other, place in order.items():
            if place >= order[node]:
                break
            if other is target or not shares(other, target):
                continue
            if any(order[user] > order[node] for user in other.users):
                raise trace.fault(
                    node, f"it also writes into {describe_node(other)}, which is read later"
                )


def _made_out_of_place(trace: Trace, node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Turn one node into its out-of-place twin; whether it was in place."""
    if node.op == "call_module":
        return getattr(modules[cast(str, node.target)], "inplace", False) is True
    if node.op == "call_method":
        return _method(trace, node)
    if node.op == "call_function":
        return _function(trace, node)
    return False


def _method(trace: Trace, node: fx.Node) -> bool:
    name = cast(str, node.target)
    if name == "__setitem__":
        node.op, node.target = "call_function", _with_item
        return True
    if not name.endswith("_") or name.endswith("__"):
        return False
    if not hasattr(Tensor, name[:-1]):
        raise trace.fault(node, "it writes in place and has no out-of-place twin")
    node.target = name[:-1]
    return True


def _function(trace: Trace, node: fx.Node) -> bool:
    target = cast(Callable[..., Any], node.target)
    name = getattr(target, "__name__", "")
    if isinstance(node.kwargs.get("out"), fx.Node):
        raise trace.fault(node, "it writes into its argument `out`")
    if target is operator.setitem:
        node.target = _with_item
        return True
    if getattr(operator, name, None) is target and name in _OPERATORS:
        node.target = getattr(operator, _OPERATORS[name])
        return True
    if _inplace_argument(node, target):
        return True
    if name.endswith("_") and not name.endswith("__"):
        twin = getattr(torch, name[:-1], None) or getattr(nn.functional, name[:-1], None)
        if twin is None:
            raise trace.fault(node, "it writes in place and has no out-of-place twin")
        node.target = twin
        return True
    return False


_OPERATORS = {
    f"i{name}": name
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
} | {"iand": "and_", "ior": "or_", "ixor": "xor"}


def _inplace_argument(node: fx.Node, target: Callable[..., Any]) -> bool:
    """Set the argument ``inplace`` of a function to False, if it is True."""
    if node.kwargs.get("inplace") is True:
        node.update_kwarg("inplace", False)
        return True
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # builtin functions have no signature and no such argument
        return False
    place = names.index("inplace") if "inplace" in names else len(node.args)
    if place < len(node.args) and node.args[place] is True:
        node.update_arg(place, False)
        return True
    return False


def _calm_modules(trace: Trace, modules: dict[str, nn.Module]) -> None:
    """Switch `inplace` off in the copies of the modules that the graph calls."""
    for node in trace.graph.nodes:
        if node.op == "call_module":
            for module in modules[cast(str, node.target)].modules():
                if getattr(module, "inplace", False) is True:
                    cast(Any, module).inplace = False


def remove_unread(graph: fx.Graph) -> None:
    """Erase what nobody reads: without in-place operations nothing else has an effect."""
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)


def _first_input(node: fx.Node) -> fx.Node | None:
    values = [*node.args, *node.kwargs.values()]
    return values[0] if values and isinstance(values[0], fx.Node) else None


def _read_from(node: fx.Node, target: fx.Node) -> None:
    """Let all later readers of ``target`` read ``node``."""
    later = node.next
    while later.op != "root":
        later.replace_input_with(target, node)
        later = later.next


def _with_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of ``tensor`` with ``value`` at ``index``: assignment, out of place."""
    changed = tensor.clone()
    changed[index] = value
    return changed
