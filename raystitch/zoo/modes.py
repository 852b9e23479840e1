"""Frozen halves in training mode: on private copies, so that no network moves."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from raystitch.zoo.tracing import Trace, in_net, module_of, stack_of

Module = TypeVar("Module", bound=nn.Module)

_RATES = ("drop_prob", "p", "dropout", "drop_rate")


def private_copy(half: Module) -> Module:
    """A copy in evaluation mode with buffers of its own, which may drift; parameters are shared."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in half.parameters()}
    return copy.deepcopy(half, memo).eval()


@contextmanager
def training_modes(half: nn.Module, *, bn: bool, dropout: bool) -> Generator[None]:
    """Batch statistics (``bn``) and dropout inside, evaluation mode after."""
    parts = [
        part
        for part in half.modules()
        if (bn and isinstance(part, _BatchNorm)) or (dropout and _drops(part))
    ]
    for part in parts:
        part.train()
    try:
        yield
    finally:
        for part in parts:
            part.eval()


def drifted(half: nn.Module) -> dict[str, Tensor]:
    """The buffers of a private copy that drift: BatchNorm's running statistics."""
    found: dict[str, Tensor] = {}
    for name, part in half.named_modules():
        if isinstance(part, _BatchNorm):
            found |= {f"{name}.{kind}": buffer for kind, buffer in part.named_buffers()}
    return found


def fixed_dropout(trace: Trace) -> tuple[str, ...]:
    """Where a traced network drops activations in training that its halves cannot switch on.

    A graph is taken in evaluation mode and runs only what was called as a module of its own:
    dropped paths that hand their input on and dropout inside attention are gone from it, and a
    function keeps the mode it was called in.
    """
    called = {id(trace.root.get_submodule(str(n.target))) for n in _calls(trace, "call_module")}
    reached = {path for node in trace.graph.nodes for path, _ in stack_of(node).values()}
    found = [
        module_of(node)
        for node in _calls(trace, "call_function")
        if "dropout" in _name(node.target) and _rate_of_call(node) > 0
    ]
    for name, part in trace.root.named_modules():
        if id(part) in called:
            lost = _rate(part) > 0 and not _drops(part)
        else:
            lost = _drops(part) and name.rpartition(".")[0] in reached
        found += [in_net(name)] * lost
    return tuple(dict.fromkeys(found))


def fixed_bn(trace: Trace) -> tuple[str, ...]:
    """Where a traced network normalises by running statistics whatever the mode of its halves."""
    found = [
        module_of(node)
        for node in _calls(trace, "call_function")
        if _name(node.target) == "batch_norm"
    ]
    return tuple(dict.fromkeys(found))


def _calls(trace: Trace, op: str) -> list[fx.Node]:
    return [node for node in trace.graph.nodes if node.op == op]


def _name(function: object) -> str:
    return getattr(function, "__name__", "")


def _rate_of_call(node: fx.Node) -> float:
    rate = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
    return float(rate) if isinstance(rate, int | float) else 0.0


def _drops(part: nn.Module) -> bool:
    """Whether a module of its own drops activations in training mode."""
    return _rate(part) > 0 and (isinstance(part, _DropoutNd) or not list(part.children()))


def _rate(part: nn.Module) -> float:
    rates = [getattr(part, rate, 0.0) for rate in _RATES]
    return max((r for r in rates if isinstance(r, float) and 0 < r <= 1), default=0.0)
