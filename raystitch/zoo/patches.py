"""Which grid of patches the tokens at a place of a net are."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, fx

from raystitch.zoo.graph import DataFlow
from raystitch.zoo.layout import Layout

MOST_BEFORE = 8
"""Tokens in front of the patches: a class token, one of distillation, 4 or 8 registers in use."""


def patches_before(
    flow: DataFlow, known: Mapping[fx.Node, Layout], node: fx.Node
) -> tuple[int, int] | None:
    """Rows and columns of the last map before ``node`` that its tokens can be, or None.

    There may be tokens in front of the patches, `MOST_BEFORE` and no more than patches.
    """
    count = flow.probe.shape(node)[1]
    for before in reversed(flow.data[: flow.data.index(node)]):
        layout, shape = known[before], _shape(flow, before)
        if layout.count("H") != 1 or layout.count("W") != 1:
            continue
        height, width = (shape[layout.index(letter)] for letter in "HW")
        if 0 <= count - height * width <= min(MOST_BEFORE, height * width):
            return height, width
    return None


def _shape(flow: DataFlow, node: fx.Node) -> tuple[int, ...]:
    """The shape of a node's tensor, or of the first of several, whose layout is the one known."""
    value = flow.probe.values[node][0]
    parts = value if isinstance(value, (tuple, list)) else [value]
    return next((tuple(part.shape) for part in parts if isinstance(part, Tensor)), ())
