"""Frozen halves in training mode: on private copies, so that no network moves."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from raystitch.errors import CellError

Module = TypeVar("Module", bound=nn.Module)


def private_copy(half: Module) -> Module:
    """A copy in evaluation mode with buffers of its own, which may drift; parameters are shared."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in half.parameters()}
    return copy.deepcopy(half, memo).eval()


@contextmanager
def training_modes(half: nn.Module, *, bn: bool, dropout: bool) -> Generator[None]:
    """Batch statistics (``bn``) and dropout inside, evaluation mode after."""
    active = (_BatchNorm,) * bn + (_DropoutNd,) * dropout
    parts = [part for part in half.modules() if isinstance(part, active)]
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


def check_dropout(net: nn.Module, arch: str) -> None:
    """Raise `CellError` unless every dropout of the network can be switched on in its halves.

    A network's graph is taken in evaluation mode, and what is no dropout module of torch's is gone
    from it (dropped paths, dropout inside attention).
    """
    for name, part in net.named_modules():
        if _lost_dropout(part):
            raise CellError(
                f"training.dropout: {arch} drops activations in {name!r} "
                f"({type(part).__name__}), which cannot be switched on in a half of the network; "
                "use `dropout: false`, or `kwargs` without it"
            )


def _lost_dropout(part: nn.Module) -> bool:
    """Whether a module drops activations by something else than a dropout module in the graph."""
    if isinstance(part, nn.MultiheadAttention):
        return part.dropout > 0
    inner = getattr(part, "attn_drop", None)
    if isinstance(inner, _DropoutNd):  # timm's attention: its fused form takes the rate alone
        return bool(getattr(part, "fused_attn", False)) and inner.p > 0
    if isinstance(part, _DropoutNd) or any(True for _ in part.children()):
        return False
    rates = ("drop_prob", "p", "dropout", "attn_drop", "drop_rate")
    own = [getattr(part, rate, 0.0) for rate in rates]
    return any(isinstance(rate, float) and rate > 0 for rate in own)
