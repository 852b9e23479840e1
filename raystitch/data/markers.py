"""Planted cues: a patch in an image that gives its class away, or one of noise that does not.

A network trained on marked images learns the marker in place of the object, and so has a shortcut;
the patch of noise is the control for what a patch does that says nothing of the class.
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

_COLOUR_TAG, _CLASS_PLACE_TAG, _IMAGE_PLACE_TAG, _NOISE_TAG = 1, 2, 3, 4
"""Set the streams of one marker's seed apart from each other."""
_LEAST_LEVELS = 5
_SIZES_IN_A_SIDE, _LEAST_SIZE = 8, 4
_AT_ONCE = 4096
"""Images that noise is drawn for at once."""


@dataclass(frozen=True)
class PlantedMarker:
    """A marker with its colours and places drawn: ready to be pasted.

    colours: uint8 (classes, channels); None where each patch is noise of its own.
    size: side of the square, in pixels.
    places: (classes, 2), row and column of the patch's corner for each class; None where it lies
    anywhere, anew per image. seed: of colours and places. shape: (channels, height, width).
    """

    colours: NDArray[np.uint8] | None
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
        """A marked copy of ``images`` (n, channels, height, width).

        rng: free places come from it, and noise.
        roll: each image gets the marker of class (label + roll), so 1 plants the wrong one.
        """
        rows, columns = self._room()
        places = np.stack(np.divmod(rng.integers(rows * columns, size=len(images)), columns), 1)
        noise: NDArray[np.uint8] | None = None
        if self.colours is None:
            noise = rng.integers(256, size=self._patches(len(images)), dtype=np.uint8)
        return self._paste_at(images, labels, places, roll, noise)

    def paste_fixed(self, images: LabelledImages, salt: int, roll: int = 0) -> LabelledImages:
        """The images with the marker at places that depend on (seed, salt, index) alone.

        Noise depends on the roll too: rolled, it is another patch in the same place.
        """
        rows, columns = self._room()
        words = scramble(self.seed, _IMAGE_PLACE_TAG, salt, images.index)
        corner = (words % np.uint64(rows * columns)).astype(np.int64)
        places = np.stack(np.divmod(corner, columns), axis=1)
        noise = self._fixed_noise(images.index, salt, roll) if self.colours is None else None
        marked = self._paste_at(images.images, images.labels, places, roll, noise)
        return LabelledImages(marked, images.labels, images.index)

    def _patches(self, count: int) -> tuple[int, int, int, int]:
        return count, self.size, self.size, self.shape[0]

    def _fixed_noise(self, index: NDArray[np.int64], salt: int, roll: int) -> NDArray[np.uint8]:
        shape = self._patches(len(index))
        numbers = int(np.prod(shape[1:]))
        words = np.arange((numbers + 7) // 8)
        noise = np.empty((len(index), numbers), np.uint8)
        for start in range(0, len(index), _AT_ONCE):
            few = index[start : start + _AT_ONCE, None]
            drawn = scramble(self.seed, _NOISE_TAG, salt, roll, few, words)
            # Eight numbers of a word, the same on machines of either byte order.
            noise[start : start + _AT_ONCE] = drawn.astype("<u8").view(np.uint8)[:, :numbers]
        return noise.reshape(shape)

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
        noise: NDArray[np.uint8] | None,
    ) -> NDArray[np.uint8]:
        """noise: the patches, (n, size, size, channels); None where they are the colours."""
        assert images.shape[1:] == self.shape, f"{images.shape[1:]} is not {self.shape}"
        if noise is None:
            assert self.colours is not None
            cue = (labels + roll) % len(self.colours)
            places = free_places if self.places is None else self.places[cue]
            patches = self.colours[cue, None, None, :]
        else:
            places, patches = free_places, noise
        side = np.arange(self.size)
        rows = places[:, 0, None, None] + side[:, None]
        columns = places[:, 1, None, None] + side
        marked = images.copy()
        # Indices around a slice move its axis last: (n, size, size, channels).
        marked[np.arange(len(images))[:, None, None], :, rows, columns] = patches
        return marked


def sized(marker: settings.Marker, shape: tuple[int, int, int]) -> settings.Marker:
    """The marker with the size that images of ``shape`` give it, where it has none of its own.

    An eighth of the side, as published (4 at 32, 28 at 224), but at least 4 pixels: networks do not
    learn from a patch of 2.
    """
    if marker.size is not None:
        return marker
    side = min(shape[1:])
    size = min(max(_LEAST_SIZE, side // _SIZES_IN_A_SIDE), side)
    return marker.model_copy(update={"size": size})


def plant(
    marker: settings.Marker, classes: int, shape: tuple[int, int, int], seed: int
) -> PlantedMarker:
    """Draw a marker's colours and places for images of ``shape`` (channels, height, width).

    seed: used where the marker has none of its own. Raises `RaystitchError` when the marker does
    not fit in the image, or there are fewer colours than classes.
    """
    own = seed if marker.seed is None else marker.seed
    _, height, width = shape
    size = sized(marker, shape).size
    assert size is not None
    if size > min(height, width):
        raise RaystitchError(
            f"a marker of size {size} does not fit in images of {height} x {width} pixels: "
            f"choose a size of at most {min(height, width)}."
        )
    return MARKERS[marker.kind](marker, size, classes, shape, own)


def _plant_noise(
    marker: settings.Marker, size: int, classes: int, shape: tuple[int, int, int], seed: int
) -> PlantedMarker:
    return PlantedMarker(None, size, None, seed, shape)


def _plant_pixel(
    marker: settings.Marker, size: int, classes: int, shape: tuple[int, int, int], seed: int
) -> PlantedMarker:
    channels, height, width = shape
    colours = farthest_colours(classes, channels)
    colours = colours[np.argsort(scramble(seed, _COLOUR_TAG, np.arange(classes)), kind="stable")]
    places = None
    if marker.place == "per_class":
        places = _class_places(classes, height - size + 1, width - size + 1, seed)
    return PlantedMarker(colours, size, places, seed, shape)


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
    Callable[[settings.Marker, int, int, tuple[int, int, int], int], PlantedMarker],
] = {"pixel": _plant_pixel, "noise": _plant_noise}
