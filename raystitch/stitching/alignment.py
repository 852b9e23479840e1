"""The front's activation at the end's positions, for each of the nine pairs of kinds.

Between maps and tokens the patches among tokens are a feature map, row by row; sizes are met by
bilinear resizing with ``align_corners`` false. A class token stays a class token: where the front
has none it is the mean over positions, where the end has none it is left out. A vector is taken to
every position; to a vector goes the class token, or the mean over positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from raystitch.cards import MAP_KINDS, CutCard, TokenGrid, same_tokens


def aligned(activation: Tensor, front: CutCard, end: CutCard) -> Tensor:
    """(batch, *front.shape) with the front's channels at the end's positions.

    To a map: (batch, channels, height, width), channels first whatever the layout of the end; to
    tokens: (batch, tokens, channels); to a vector: (batch, channels).
    """
    if end.kind in MAP_KINDS:
        return _to_map(activation, front, end.shape[1:] if end.kind == "map" else end.shape[:2])
    return _to_tokens(activation, front, end) if end.kind == "tokens" else _mean(activation, front)


def _to_map(activation: Tensor, front: CutCard, size: tuple[int, ...]) -> Tensor:
    if front.kind == "vector":
        return activation[:, :, None, None].expand(-1, -1, *size)
    return _resized(_grid(activation, front), size)


def _to_tokens(activation: Tensor, front: CutCard, end: CutCard) -> Tensor:
    if same_tokens(front, end):
        return activation
    if front.kind == "vector":
        return activation[:, None].expand(-1, end.shape[0], -1)
    grid = TokenGrid.of(end)
    assert grid is not None, "refused"
    patches = _resized(_grid(activation, front), (grid.height, grid.width)).flatten(2).mT
    return torch.cat([_before(activation, front, grid.before), patches], dim=1)


def _before(activation: Tensor, front: CutCard, count: int) -> Tensor:
    """(batch, count, channels), what goes in front of the patches: one by one the front's own
    where it has as many tokens there, else `_mean` for each.
    """
    own = TokenGrid.of(front) if front.kind == "tokens" else None
    if own is not None and own.before == count:
        return activation[:, :count]
    return _mean(activation, front)[:, None].expand(-1, count, -1)


def _mean(activation: Tensor, front: CutCard) -> Tensor:
    """(batch, channels): the class token where there is one, else the mean over positions."""
    if front.kind == "vector":
        return activation
    if front.kind == "tokens":
        grid = TokenGrid.of(front)
        first = grid is not None and grid.before > 0
        return activation[:, 0] if first else activation.mean(1)
    return activation.mean((2, 3) if front.kind == "map" else (1, 2))


def _grid(activation: Tensor, front: CutCard) -> Tensor:
    """A map or the patches among tokens as (batch, channels, height, width)."""
    if front.kind == "map":
        return activation
    if front.kind == "map_last":
        return activation.permute(0, 3, 1, 2)
    grid = TokenGrid.of(front)
    assert grid is not None, "refused"
    return activation[:, grid.before :].mT.unflatten(2, (grid.height, grid.width))


def _resized(grid: Tensor, size: tuple[int, ...]) -> Tensor:
    if tuple(grid.shape[2:]) == tuple(size):
        return grid
    return F.interpolate(grid, size=list(size), mode="bilinear", align_corners=False)
