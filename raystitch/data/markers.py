"""Planted cues: a patch in an image that gives its class away.

A network trained on marked images learns the marker in place of the object, and so has a shortcut.
A new kind of marker is one entry of `MARKERS` (and its name in ``raystitch.names``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raystitch import names, settings
from raystitch.data.images import LabelledImages
from raystitch.data.scramble import scramble
from raystitch.errors import RaystitchError

_COLOUR_TAG, _CLASS_PLACE_TAG, _IMAGE_PLACE_TAG = 1, 2, 3
"""Set the streams of one marker's seed apart from each other."""
_LEAST_LEVELS = 5


@dataclass(frozen=True)
class PlantedMarker:
    """A marker with its colours and places drawn: ready to be pasted.

    colours: uint8 (classes, channels). size: side of the square, in pixels.
    places: (classes, 2), row and column of the patch's corner for each class; None where it lies
    anywhere, anew per image. seed: of colours and places. shape: (channels, height, width).
    """

    colours: NDArray[np.uint8]
    size: int
    places: NDArray[np.int64] | None
    seed: int
    shape: tuple[int, int, int]

    def paste(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        rng: np.random.Generator,
        roll: int = 0,
    ) -> NDArray[np.uint8]:
        """A marked copy of ``images`` (n, channels, height, width); free places come from ``rng``.

        roll: each image gets the marker of class (label + roll), so 1 plants the wrong one.
        """
        rows, columns = self._room()
        places = np.stack(np.divmod(rng.integers(rows * columns, size=len(images)), columns), 1)
        return self._paste_at(images, labels, places, roll)

    def paste_fixed(self, images: LabelledImages, salt: int, roll: int = 0) -> LabelledImages:
        """The images with the marker at places that depend on (seed, salt, index) alone."""
        rows, columns = self._room()
        words = scramble(self.seed, _IMAGE_PLACE_TAG, salt, images.index)
        corner = (words % np.uint64(rows * columns)).astype(np.int64)
        places = np.stack(np.divmod(corner, columns), axis=1)
        marked = self._paste_at(images.images, images.labels, places, roll)
        return LabelledImages(marked, images.labels, images.index)

    def _room(self) -> tuple[int, int]:
        """How many rows and columns the patch's corner can lie in."""
        _, height, width = self.shape
        return height - self.size + 1, width - self.size + 1

    def _paste_at(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.int64],
        free_places: NDArray[Any],
        roll: int,
    ) -> NDArray[np.uint8]:
        assert images.shape[1:] == self.shape, f"{images.shape[1:]} is not {self.shape}"
        cue = (labels + roll) % len(self.colours)
        places = free_places if self.places is None else self.places[cue]
        side = np.arange(self.size)
        rows = places[:, 0, None, None] + side[:, None]
        columns = places[:, 1, None, None] + side
        marked = images.copy()
        # Indices around a slice move its axis last: (n, size, size, channels).
        marked[np.arange(len(images))[:, None, None], :, rows, columns] = self.colours[
            cue, None, None, :
        ]
        return marked


def plant(
    marker: settings.Marker, classes: int, shape: tuple[int, int, int], seed: int
) -> PlantedMarker:
    """Draw a marker's colours and places for images of ``shape`` (channels, height, width).

    seed: used where the marker has none of its own. Raises `RaystitchError` when the marker does
    not fit in the image, or there are fewer colours than classes.
    """
    own = seed if marker.seed is None else marker.seed
    return MARKERS[marker.kind](marker, classes, shape, own)


def _plant_pixel(
    marker: settings.Marker, classes: int, shape: tuple[int, int, int], seed: int
) -> PlantedMarker:
    channels, height, width = shape
    if marker.size > min(height, width):
        raise RaystitchError(
            f"a marker of size {marker.size} does not fit in images of {height} x {width} pixels: "
            f"choose a size of at most {min(height, width)}."
        )
    colours = farthest_colours(classes, channels)
    colours = colours[np.argsort(scramble(seed, _COLOUR_TAG, np.arange(classes)), kind="stable")]
    places = None
    if marker.place == "per_class":
        places = _class_places(classes, height - marker.size + 1, width - marker.size + 1, seed)
    return PlantedMarker(colours, marker.size, places, seed, shape)


def farthest_colours(classes: int, channels: int) -> NDArray[np.uint8]:
    """``classes`` colours far from each other: uint8 (classes, channels), black the first.

    Each next one is the point of a regular grid farthest from all before it (Gonzalez 1985), the
    darkest in reading order at a tie. Raises `RaystitchError` when there are not so many colours.
    """
    levels = max(_LEAST_LEVELS, int(np.ceil(classes ** (1 / channels) - 1e-9)))
    if levels > 256:
        raise RaystitchError(
            f"{classes} classes need {classes} marker colours, but {channels} channel(s) of 8 bits "
            f"have {256**channels}: use fewer classes or no marker."
        )
    steps = np.rint(np.linspace(0, 255, levels)).astype(np.int64)
    grid = np.array(list(product(steps, repeat=channels)))
    chosen = [0]
    distance = np.square(grid - grid[0]).sum(axis=1)
    while len(chosen) < classes:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.square(grid - grid[chosen[-1]]).sum(axis=1))
    return grid[chosen].astype(np.uint8)


def _class_places(classes: int, rows: int, columns: int, seed: int) -> NDArray[np.int64]:
    """A corner for each class, (classes, 2); no two alike while there is room."""
    order = np.argsort(scramble(seed, _CLASS_PLACE_TAG, np.arange(rows * columns)), kind="stable")
    return np.stack(np.divmod(np.resize(order, classes), columns), axis=1)


MARKERS: dict[
    names.MarkerKind,
    Callable[[settings.Marker, int, tuple[int, int, int], int], PlantedMarker],
] = {"pixel": _plant_pixel}
