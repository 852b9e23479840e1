"""Random numbers that depend on their arguments alone, on every machine and every numpy release.

What is drawn here (which images, where a marker lies) decides what a stored row means, and numpy
does not promise that a seeded generator gives the same stream in a later release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def scramble(*parts: int | NDArray[Any]) -> NDArray[np.uint64]:
    """Uniform 64-bit words, one for each element of the parts broadcast together: shape (n,).

    Each part is folded in by one round of SplitMix64 (Steele, Lea & Flood 2014).
    """
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = _mix((state ^ _words(part)) + _GOLDEN)
    return state


def _words(part: int | NDArray[Any]) -> NDArray[np.uint64]:
    if isinstance(part, np.ndarray):
        return np.atleast_1d(part).astype(np.uint64)
    return np.array([int(part) & _WORD], dtype=np.uint64)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))
