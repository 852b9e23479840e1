"""Frozen halves made lean: BatchNorm folded away, channels last, bfloat16, compiled.

The halves of a network share their weights, and lean ones share theirs: what is made of a module is
made once. The network itself is never changed.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from raystitch.compute import Compute

Module = TypeVar("Module", bound=nn.Module)


class Leaner:
    """Makes halves of one network compute as the settings say."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.made: dict[tuple[int, ...], tuple[nn.Module, ...]] = {}

    def __call__(self, half: fx.GraphModule) -> nn.Module:
        """The lean half; one that nothing is asked of is returned as it is."""
        if self.compute.fold_bn:
            self._fold(half)
        if self.compute.layout == "channels_last":
            self._turn(half)
        plain = self.compute.precision == "float32" and not self.compute.compile
        if plain and self.compute.layout == "contiguous":
            return half
        return _Lean(half, self.compute)

    def _fold(self, half: fx.GraphModule) -> None:
        """Put one convolution in the place of each that only a BatchNorm reads."""
        for node in list(half.graph.nodes):
            before = _folds(half, node)
            if before is None:
                continue
            convolution, norm = _called(half, before), _called(half, node)
            fused = self._once(fuse_conv_bn_eval, convolution, norm)
            _put(half, str(before.target), fused.requires_grad_(False))
            node.replace_all_uses_with(before)
            half.graph.erase_node(node)
        half.delete_all_unused_submodules()
        half.recompile()

    def _turn(self, half: fx.GraphModule) -> None:
        """The weights of convolutions with their channels last."""
        for node in half.graph.nodes:
            if node.op == "call_module" and isinstance(_called(half, node), nn.Conv2d):
                _put(half, str(node.target), self._once(_channels_last, _called(half, node)))

    def _once(self, make: Any, *parts: nn.Module) -> nn.Module:
        """What is made of these modules; they are held, so that their identities stay theirs."""
        key = tuple(id(part) for part in parts)
        if key not in self.made:
            self.made[key] = (make(*parts), *parts)
        return self.made[key][0]


class _Lean(nn.Module):
    """A half in another layout or precision: float32 in, float32 out."""

    def __init__(self, half: fx.GraphModule, compute: Compute) -> None:
        super().__init__()
        self.half = half
        self.last = compute.layout == "channels_last"
        self.low = compute.precision == "bfloat16"
        self.run: Any = torch.compile(half) if compute.compile else half

    def forward(self, z: Tensor) -> tuple[Tensor, ...]:
        if self.last and z.dim() == 4:
            z = z.contiguous(memory_format=torch.channels_last)
        if not self.low:
            return self.run(z)
        with torch.autocast(z.device.type, torch.bfloat16):
            return tuple(value.float() for value in self.run(z))


def _folds(half: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    """The convolution that a BatchNorm can be folded into, if ``node`` is such a one."""
    if node.op != "call_module" or not isinstance(_called(half, node), nn.BatchNorm2d):
        return None
    before = node.args[0]
    if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
        return None
    same = [other for other in half.graph.nodes if other.target == before.target]
    once = len(same) == 1 and isinstance(_called(half, before), nn.Conv2d)
    return before if once and _called(half, node).track_running_stats else None


def _called(half: fx.GraphModule, node: fx.Node) -> Any:
    return half.get_submodule(str(node.target))


def _put(half: fx.GraphModule, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(half.get_submodule(parent), name, module)


def _channels_last(part: nn.Module) -> nn.Module:
    return copy.deepcopy(part).to(memory_format=torch.channels_last)  # pyright: ignore
