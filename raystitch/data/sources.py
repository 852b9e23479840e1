"""Named data sets, as labelled uint8 images.

A new source is one entry of `SOURCES` (and its name in ``raystitch.names``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raystitch import names, settings
from raystitch.data.images import LabelledImages
from raystitch.data.scramble import scramble
from raystitch.errors import RaystitchError

Split = Literal["train", "test"]

DIGITS_FILE = "digits.parquet"
"""The embedded data set, beside this module: made by ``scripts/make_digits.py``."""
DIGITS_SIDE = 8
DIGITS_MAXIMUM = 16

_DRAW_TAG = 0x64726177
"""Sets the stream of `draw` apart from every other use of `scramble`."""


@dataclass(frozen=True)
class SourceFacts:
    """What planning must know of a data set.

    shape: (channels, height, width); train, test: numbers of images.
    """

    shape: tuple[int, int, int]
    classes: int
    train: int
    test: int


@dataclass(frozen=True)
class NamedSource:
    """A data set: its facts, and the function that reads one of its splits."""

    facts: SourceFacts
    read: Callable[[Split], LabelledImages]


def facts(data: settings.Data) -> SourceFacts:
    """Shape, classes and numbers of images, without reading any image.

    Raises `RaystitchError` when ``data`` asks for more images than there are.
    """
    whole = SOURCES[data.source].facts
    for split, wanted, there in (
        ("train", data.train, whole.train),
        ("test", data.test, whole.test),
    ):
        if wanted is not None and wanted > there:
            raise RaystitchError(
                f"data.{split} asks for {wanted} images, but {data.source} has {there}: "
                f"ask for at most {there}, or leave it out to use them all."
            )
    return replace(whole, train=data.train or whole.train, test=data.test or whole.test)


def identity(data: settings.Data) -> dict[str, Any]:
    """All that defines the images, for the keys of what is computed from them.

    Asking for all images of a split is the same data as not asking.
    """
    whole = SOURCES[data.source].facts
    limits = {"train": (data.train, whole.train), "test": (data.test, whole.test)}
    fewer = {name: n for name, (n, there) in limits.items() if n is not None and n != there}
    return {"source": data.source, **fewer}


def load(data: settings.Data, split: Split) -> LabelledImages:
    """The images of one split, or the class-balanced part of it that ``data`` asks for."""
    facts(data)
    return draw(SOURCES[data.source].read(split), data.train if split == "train" else data.test)


def draw(images: LabelledImages, count: int | None) -> LabelledImages:
    """A fixed draw of ``count`` images with as equal classes as possible; all when None.

    The same images whatever the seed of a cell, in source order; a smaller draw is part of a
    larger one. Raises `RaystitchError` when there are fewer than ``count``.
    """
    if count is None:
        return images
    if count > len(images):
        raise RaystitchError(
            f"{count} images are asked for, but there are {len(images)}: ask for fewer."
        )
    order = np.argsort(scramble(_DRAW_TAG, images.index), kind="stable")
    labels = images.labels[order]
    rounds = np.empty(len(images), np.int64)
    for label in np.unique(labels):
        members = labels == label
        rounds[members] = np.arange(np.count_nonzero(members))
    chosen = order[np.lexsort((labels, rounds))[:count]]
    return images.select(np.sort(chosen))


def read_digits_table() -> pa.Table:
    """The embedded digits as stored: index, label, split and 64 pixels of 0..16 in each row."""
    with resources.files("raystitch.data").joinpath(DIGITS_FILE).open("rb") as handle:
        return pq.read_table(handle)


def _digits(split: Split) -> LabelledImages:
    """The digits of one split, 3 x 16 x 16: each pixel doubled, 0..16 scaled to 0..255."""
    table = read_digits_table()
    rows = np.flatnonzero(np.asarray(table["split"].to_pylist()) == split)
    stored: Any = table["pixels"].combine_chunks()
    grey = np.asarray(stored.flatten(), dtype=np.uint8).reshape(-1, DIGITS_SIDE, DIGITS_SIDE)[rows]
    labels = np.asarray(table["label"].to_numpy(), dtype=np.int64)[rows]
    return LabelledImages(_enlarge(grey), labels, np.arange(len(rows), dtype=np.int64))


def _enlarge(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, 8, 8) of 0..16 to (n, 3, 16, 16) of 0..255."""
    scaled = np.rint(grey * (255 / DIGITS_MAXIMUM)).astype(np.uint8)
    doubled = scaled.repeat(2, axis=1).repeat(2, axis=2)
    return np.ascontiguousarray(np.broadcast_to(doubled[:, None], (len(grey), 3, 16, 16)))


SOURCES: dict[names.Source, NamedSource] = {
    "digits": NamedSource(SourceFacts((3, 16, 16), classes=10, train=1437, test=360), _digits),
}
