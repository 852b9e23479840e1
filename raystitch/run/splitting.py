"""Units in parts, so that slots stay full to the end, and in an order that lets them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from raystitch.run.planning import Context
from raystitch.run.work import UnitWork
from raystitch.sweep.cells import Cell
from raystitch.sweep.estimate import estimate

PARTS_PER_SLOT = 2
"""A part costs at most this share of a slot's work: cells end when they will, not as estimated."""


def split(work: Sequence[UnitWork], context: Context, slots: int) -> list[UnitWork]:
    """The work with units that are too large for full slots cut into parts, the costliest first.

    A part computes the front's activations again, so no unit is split without need. Cells of one
    end stay together as far as they can: they share its targets.
    """
    costs = [flops(one, context) for one in work]
    most = sum(costs) / (PARTS_PER_SLOT * slots)
    parts = [
        part
        for one, cost in zip(work, costs, strict=True)
        for part in _parts(one, math.ceil(cost / most) if slots > 1 and most else 1)
    ]
    # `sorted` is stable: among equals, neighbours share a front.
    return sorted(parts, key=lambda part: -flops(part, context))


def flops(one: UnitWork, context: Context) -> int:
    """At most so many floating point operations."""
    facts = context.facts
    found = estimate(one.unit, context.sweep, context.cards, facts.train, facts.test)
    return found.flops


def _parts(one: UnitWork, wanted: int) -> list[UnitWork]:
    cells = sorted(one.unit.cells, key=_neighbours)
    count = min(wanted, len(cells))
    bounds = [len(cells) * place // count for place in range(count + 1)]
    return [
        replace(one, part=part, unit=replace(one.unit, cells=tuple(cells[start:stop])))
        for part, (start, stop) in enumerate(pairwise(bounds))
    ]


def _neighbours(cell: Cell) -> tuple[str, str]:
    return (cell.test_marker or "", cell.end_model)
