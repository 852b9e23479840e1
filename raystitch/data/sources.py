"""Named data sets, as labelled uint8 images.

A new source is one entry of `SOURCES` (and its name in ``raystitch.names``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raystitch import names, settings
from raystitch.data.arrays import idx, npz
from raystitch.data.catalogue import (
    Catalogue,
    Split,
    check,
    only_classes,
    read_classes,
    whole,
)
from raystitch.data.cifar import cifar
from raystitch.data.encoded import imagefolder, parquet
from raystitch.data.images import LabelledImages
from raystitch.data.scramble import scramble
from raystitch.errors import RaystitchError

__all__ = ["SOURCES", "SourceFacts", "Split", "draw", "facts", "identity", "load", "look"]

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


def look(data: settings.Data) -> Catalogue:
    """What the source holds, without decoding an image.

    Raises `RaystitchError` where something is missing, damaged or does not fit together.
    """
    found = SOURCES[data.source](data)
    # Folders of other classes were not even looked into.
    if data.source != "imagefolder":
        found = only_classes(found, read_classes(data))
    return check(found, data.path or data.source)


def facts(data: settings.Data, found: Catalogue | None = None) -> SourceFacts:
    """Shape, classes and numbers of images, without reading any image.

    found: what `look` gave. Raises `RaystitchError` when ``data`` asks for more images than there
    are.
    """
    found = found or look(data)
    there = {split: len(labels) for split, labels in found.labels.items()}
    for split, wanted in (("train", data.train), ("test", data.test)):
        if wanted is not None and wanted > there[split]:
            raise RaystitchError(
                f"data.{split} asks for {wanted} images, but {data.source} has {there[split]}: "
                f"ask for at most {there[split]}, or leave it out to use them all."
            )
    return SourceFacts(
        found.shape, len(found.names), data.train or there["train"], data.test or there["test"]
    )


def identity(data: settings.Data, found: Catalogue | None = None) -> dict[str, Any]:
    """All that defines the images, for the keys of what is computed from them.

    Where they lie does not, nor in how many words they were asked for: all images of a split are
    the same data as not asking. found: what `look` gave.
    """
    found = found or look(data)
    limits = {split: (getattr(data, split), len(labels)) for split, labels in found.labels.items()}
    fewer = {name: n for name, (n, there) in limits.items() if n is not None and n != there}
    fitted = {"content": found.content, "resize": data.resize, "crop": data.crop}
    said = {name: value for name, value in fitted.items() if value is not None}
    return {"source": data.source, **said, **fewer}


def load(data: settings.Data, split: Split, found: Catalogue | None = None) -> LabelledImages:
    """The images of one split, or the class-balanced part of it that ``data`` asks for, decoded.

    found: what `look` gave.
    """
    found = found or look(data)
    facts(data, found)
    return read(found, split, chosen(data, split, found))


def chosen(data: settings.Data, split: Split, found: Catalogue) -> NDArray[np.int64]:
    """Which images of a catalogue ``data`` asks for: places in its labels, ascending."""
    count = data.train if split == "train" else data.test
    return draw_places(found.labels[split], found.index[split], count)


def read(found: Catalogue, split: Split, places: NDArray[np.int64]) -> LabelledImages:
    """The images at these places of a catalogue, decoded."""
    index = found.index[split][places]
    return LabelledImages(found.read(split, index), found.labels[split][places], index)


def draw(images: LabelledImages, count: int | None) -> LabelledImages:
    """A fixed draw of ``count`` images with as equal classes as possible; all when None.

    The same images whatever the seed of a cell, in source order; a smaller draw is part of a
    larger one. Raises `RaystitchError` when there are fewer than ``count``.
    """
    if count is None:
        return images
    return images.select(draw_places(images.labels, images.index, count))


def draw_places(
    labels: NDArray[np.int64], index: NDArray[np.int64], count: int | None
) -> NDArray[np.int64]:
    """Where the images of `draw` are, ascending, from labels and positions in the source alone."""
    if count is None:
        return np.arange(len(labels))
    if count > len(labels):
        raise RaystitchError(
            f"{count} images are asked for, but there are {len(labels)}: ask for fewer."
        )
    order = np.argsort(scramble(_DRAW_TAG, index), kind="stable")
    labels = labels[order]
    rounds = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        members = labels == label
        rounds[members] = np.arange(np.count_nonzero(members))
    return np.sort(order[np.lexsort((labels, rounds))[:count]])


def read_digits_table() -> pa.Table:
    """The embedded digits as stored: index, label, split and 64 pixels of 0..16 in each row."""
    with resources.files("raystitch.data").joinpath(DIGITS_FILE).open("rb") as handle:
        # Not read_table, which loads pandas where it is there: a quarter of the time of a plan.
        return pq.ParquetFile(handle).read()


def _digits(data: settings.Data) -> Catalogue:
    """The digits, 3 x 16 x 16: each pixel doubled, 0..16 scaled to 0..255."""
    table = read_digits_table()
    of_split = np.asarray(table["split"].to_pylist())
    stored: Any = table["pixels"].combine_chunks()
    # By DLPack: pyarrow's own way to NumPy loads pandas where it is there.
    grey = np.from_dlpack(stored.flatten()).astype(np.uint8).reshape(-1, DIGITS_SIDE, DIGITS_SIDE)
    label = np.from_dlpack(table["label"].combine_chunks()).astype(np.int64)
    rows: Mapping[str, NDArray[np.intp]] = {
        "train": np.flatnonzero(of_split == "train"),
        "test": np.flatnonzero(of_split == "test"),
    }

    def read(split: Split, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return _enlarge(grey[rows[split][positions]])

    labels = {split: label[of] for split, of in rows.items()}
    return whole((3, 16, 16), tuple("0123456789"), labels, None, read)


def _enlarge(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(n, 8, 8) of 0..16 to (n, 3, 16, 16) of 0..255."""
    scaled = np.rint(grey * (255 / DIGITS_MAXIMUM)).astype(np.uint8)
    doubled = scaled.repeat(2, axis=1).repeat(2, axis=2)
    return np.ascontiguousarray(np.broadcast_to(doubled[:, None], (len(grey), 3, 16, 16)))


SOURCES: dict[names.Source, Callable[[settings.Data], Catalogue]] = {
    "digits": _digits,
    "cifar10": cifar,
    "cifar100": cifar,
    "imagefolder": imagefolder,
    "idx": idx,
    "npz": npz,
    "parquet": parquet,
}
