"""The record of this room: labelled images that remember where they came from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class LabelledImages:
    """Images with their labels.

    images: uint8 (n, channels, height, width); labels: int64 (n,);
    index: int64 (n,), each image's position in its split of the source, kept by every selection.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    index: NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.images.ndim == 4, f"images must be (n, c, h, w), not {self.images.shape}"
        assert self.images.dtype == np.uint8, f"images must be uint8, not {self.images.dtype}"
        for values in (self.labels, self.index):
            assert values.dtype == np.int64, f"labels and index are int64, not {values.dtype}"
            assert values.shape == (len(self.images),), "one label and one index per image"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        _, channels, height, width = self.images.shape
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pixels and their shape; labels are no part of it."""
        shape = repr(self.images.shape).encode()
        total = hashlib.sha256(shape)
        total.update(np.ascontiguousarray(self.images).data)
        return total.hexdigest()

    def select(self, positions: NDArray[Any] | slice) -> LabelledImages:
        """The images at ``positions`` (integers, a mask or a slice), in that order."""
        return LabelledImages(self.images[positions], self.labels[positions], self.index[positions])
