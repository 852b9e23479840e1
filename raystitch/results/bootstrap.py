"""The 95 % interval over seeds: networks and stitch seeds are drawn again, never single cells.

Cells that share a network or a stitch seed are not independent: three fronts before one end are
three samples, six pairs among three networks are not six. So fronts, ends and seeds are each drawn
with replacement, and a cell counts as often as its front, times its end, times its seed was drawn:
the pigeonhole bootstrap (Owen, *The pigeonhole bootstrap*, Annals of Applied Statistics 2007).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Name = TypeVar("Name", bound=Hashable)

RESAMPLES = 2000
"""Times that seeds are drawn again."""

LEVEL = 0.95
"""Share of those draws whose mean lies within the interval."""

Origin = tuple[str, str, int]
"""Where a value comes from: front model, end model, stitch seed."""


def interval(values: Sequence[float], origins: Sequence[Origin]) -> tuple[float, float] | None:
    """Bootstrap interval (percentile method) of the mean of ``values``, one for each origin.

    Networks that only give fronts, those that only give ends and those that do both are drawn among
    themselves; a network stitched to itself is drawn once. Draws without any cell are left out.
    None where drawing again can give no other mean of cells: with one network and one seed, or two
    networks that are stitched with each other alone. Values that are equal give no width.
    """
    if not values:
        return None
    weights = _weights(_pattern(origins))
    if weights is None:
        return None
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(weights @ np.asarray(values, dtype=float), [tail, 1 - tail])
    return float(low), float(high)


def _pattern(origins: Sequence[Origin]) -> tuple[tuple[int, int, int], ...]:
    """Origins by numbers, so that groups of one design share their draws."""
    networks = _numbered(name for front, end, _ in origins for name in (front, end))
    seeds = _numbered(seed for *_, seed in origins)
    return tuple((networks[front], networks[end], seeds[seed]) for front, end, seed in origins)


def _numbered(names: Iterable[Name]) -> dict[Name, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


@lru_cache(maxsize=64)
def _weights(pattern: tuple[tuple[int, int, int], ...]) -> NDArray[np.float64] | None:
    """The share of each value in each draw: (draws, values), rows adding up to 1."""
    fronts, ends, seeds = np.array(pattern).T
    generator = np.random.default_rng(0)
    taken = np.zeros((RESAMPLES, max(fronts.max(), ends.max()) + 1))
    both = np.intersect1d(fronts, ends)
    for part in (np.setdiff1d(fronts, ends), np.setdiff1d(ends, fronts), both):
        if len(part):
            taken[:, part] = _drawn(generator, len(part))
    of_end = np.where(fronts == ends, 1, taken[:, ends])
    weights = taken[:, fronts] * of_end * _drawn(generator, seeds.max() + 1)[:, seeds]
    weights = weights[weights.any(axis=1)]
    weights /= weights.sum(axis=1, keepdims=True)
    return weights if np.ptp(weights, axis=0).any() else None


def _drawn(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    """How often each of ``count`` is taken when as many are drawn: (draws, count)."""
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
