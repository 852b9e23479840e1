"""Which modules of a net are its repeated blocks, read off the tree of modules.

A *stage* holds blocks: a container with compound children (``layer1``), or a module with a
container in which compound children of one class repeat (timm's stages with their ``blocks``). A
*block* is a compound child of a stage that is no stage itself. A plain chain of leaves counts as a
block only where a container holds several of them and nothing better (``raystitch/cnn5``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import nn

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Stage:
    """One stage of a net and the paths of its blocks; the net itself has the path ``""``."""

    path: str
    blocks: tuple[str, ...]


def stages_of(net: nn.Module) -> list[Stage]:
    """The innermost stages of a net in order, each with at least one block.

    >>> [stage.path for stage in stages_of(torchvision.models.resnet18())]  # doctest: +SKIP
    ['layer1', 'layer2', 'layer3', 'layer4']
    """
    staged = {type(module) for module in net.modules() if _repeats_inside(module)}
    return list(_stages(net, "", staged))


def _stages(module: nn.Module, path: str, staged: set[type[nn.Module]]) -> list[Stage]:
    children = {_join(path, name): child for name, child in module.named_children()}
    inner = {where: child for where, child in children.items() if _is_stage(child, staged)}
    if inner:
        return [stage for where, child in inner.items() for stage in _stages(child, where, staged)]
    compound = {where: child for where, child in children.items() if _is_compound(child)}
    if not isinstance(module, _CONTAINERS):
        counts = Counter(type(child) for child in compound.values())
        compound = {where: child for where, child in compound.items() if counts[type(child)] > 1}
    elif not compound:
        chains = {where: child for where, child in children.items() if _is_chain(child)}
        compound = chains if len(chains) > 1 else {}
    return [Stage(path, tuple(compound))] if compound else []


def _is_stage(module: nn.Module, staged: set[type[nn.Module]]) -> bool:
    children = list(module.children())
    if isinstance(module, _CONTAINERS):
        chains = sum(map(_is_chain, children))
        return any(map(_is_compound, children)) or (chains > 1 and chains == len(children))
    others = (child for child in children if not isinstance(child, _CONTAINERS))
    return type(module) in staged or any(_is_stage(child, staged) for child in others)


def _repeats_inside(module: nn.Module) -> bool:
    """Whether a container right inside this module holds compound children of one class twice."""
    if isinstance(module, _CONTAINERS):
        return False
    inside = (child for child in module.children() if isinstance(child, _CONTAINERS))
    counts = (Counter(type(c) for c in box.children() if _is_compound(c)) for box in inside)
    return any(count.most_common(1)[0][1] > 1 for count in counts if count)


def _is_leaf(module: nn.Module) -> bool:
    """No children, or a layer of torch's or made from one (timm's BatchNorm with activation)."""
    if isinstance(module, _CONTAINERS) or not list(module.children()):
        return not list(module.children())
    layers = [c for c in type(module).__mro__ if c.__module__.startswith("torch.nn.modules")]
    return layers != [nn.Module]


def _is_chain(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and all(map(_is_leaf, module)) and len(module) > 0


def _is_compound(module: nn.Module) -> bool:
    return not _is_leaf(module) and not _is_chain(module)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
