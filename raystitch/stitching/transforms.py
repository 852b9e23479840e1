"""The stitch: a small affine map from the front's activation to the end's.

Every pair of kinds (map, tokens, vector) is the same in two steps: the front's activation is
brought to the end's positions (`alignment`), then one affine map mixes its channels, shared by all
positions: a 1×1 convolution with bias, or a linear map. So all pairs share one module and one
least-squares start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raystitch.cards import MAP_KINDS, CutCard, refusal
from raystitch.errors import CellError
from raystitch.lstsq import shortage, unknowns
from raystitch.names import Init, Kind
from raystitch.stitching.alignment import aligned


class Stitch(nn.Module):
    """The affine map T from a front's cut to an end's cut.

    weight: (end channels, front channels); bias: (end channels,).
    forward: (batch, *front.shape) -> (batch, *end.shape), in the layout of each side.
    Raises `CellError` for a pair of kinds that cannot be stitched.
    """

    def __init__(self, front: CutCard, end: CutCard, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        if (reason := refusal(front, end)) is not None:
            raise CellError(reason)
        self.front, self.end = front, end
        self.weight = nn.Parameter(torch.zeros(end.channels, front.channels, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(end.channels, dtype=dtype))

    def forward(self, activation: Tensor) -> Tensor:
        placed = self.align(activation)
        if self.end.kind not in MAP_KINDS:
            return F.linear(placed, self.weight, self.bias)
        mixed = F.conv2d(placed, self.weight[:, :, None, None], self.bias)
        return mixed.permute(0, 2, 3, 1) if self.end.kind == "map_last" else mixed

    def align(self, activation: Tensor) -> Tensor:
        """The front's activation at the end's positions: what the affine map mixes.

        To a map: (batch, channels, height, width); to tokens: (batch, tokens, channels); to a
        vector: (batch, channels). The table is in docs/stitches.md.
        """
        return aligned(activation, self.front, self.end)

    def front_rows(self, activation: Tensor) -> Tensor:
        """The aligned front activation as (batch × positions, front channels)."""
        return _rows(self.align(activation), "map" if self.end.kind in MAP_KINDS else self.end.kind)

    def end_rows(self, activation: Tensor) -> Tensor:
        """The end's activation as (batch × positions, end channels); rows as in `front_rows`."""
        return _rows(activation, self.end.kind)


def _rows(activation: Tensor, kind: Kind) -> Tensor:
    last = activation.permute(0, 2, 3, 1) if kind == "map" else activation
    return last.reshape(-1, last.shape[-1])


def start_random(stitch: Stitch, generator: torch.Generator) -> None:
    """The layer's own start: weight and bias uniform in ±1/√(front channels), as torch's layers."""
    bound = 1 / math.sqrt(stitch.front.channels)
    with torch.no_grad():
        for parameter in (stitch.weight, stitch.bias):
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(drawn * 2 * bound - bound)


def start_identity(stitch: Stitch) -> None:
    """T = identity. Raises `CellError` unless both cuts have equal shapes."""
    if stitch.front.shape != stitch.end.shape or stitch.front.kind != stitch.end.kind:
        raise CellError(
            f"init: identity needs equal shapes, but {stitch.front.name} is {stitch.front.kind} "
            f"{stitch.front.shape} and {stitch.end.name} is {stitch.end.kind} {stitch.end.shape}"
        )
    with torch.no_grad():
        stitch.weight.copy_(torch.eye(stitch.weight.shape[0]))
        stitch.bias.zero_()


def start_lstsq(stitch: Stitch, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Least squares with a bias column; rows = image × position.

    pairs: (front activation, end activation) batches, (batch, *shape) each. The rows are reduced by
    QR batch after batch in float64, so memory is bounded and the condition number is not squared;
    a rank-deficient fit takes the solution of least norm.
    Raises `CellError` where there are not more rows than unknowns: the fit would interpolate noise.
    """
    width = unknowns(stitch.front)
    reduced: Tensor | None = None
    images, places = 0, math.prod(stitch.end.shape) // stitch.end.channels
    for left, right in _row_batches(stitch, pairs):
        block = torch.cat([left, left.new_ones(len(left), 1), right], dim=1)
        stacked = block if reduced is None else torch.cat([reduced, block])
        reduced = torch.linalg.qr(stacked, mode="r").R
        images += len(left) // places
    short = shortage(stitch.front, stitch.end, images)
    if reduced is None or short is not None:
        raise CellError(
            f"least squares: {short}; use more images or other cuts, or `init: random` where a "
            "stitch is trained"
        )
    solution = torch.linalg.lstsq(reduced[:, :width], reduced[:, width:], driver="gelsd").solution
    with torch.no_grad():
        stitch.weight.copy_(solution[:-1].T)
        stitch.bias.copy_(solution[-1])


def _row_batches(
    stitch: Stitch, pairs: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[tuple[Tensor, Tensor]]:
    for front, end in pairs:
        # On the CPU in float64: exact everywhere, and `gelsd` exists nowhere else.
        left = stitch.front_rows(front).detach().to("cpu", torch.float64)
        yield left, stitch.end_rows(end).detach().to("cpu", torch.float64)


INITS: tuple[Init, ...] = ("lstsq", "random", "identity")
