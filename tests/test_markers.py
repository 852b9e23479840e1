"""Planted cues: colours, places, rolls."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest

from raystitch import names, settings
from raystitch.data.images import LabelledImages
from raystitch.data.markers import MARKERS, farthest_colours, plant, sized
from raystitch.errors import RaystitchError

SHAPE = (3, 16, 16)
PLACES = get_args(names.MarkerPlace)


def grey_images(count: int = 60) -> LabelledImages:
    """Images of a grey that no marker colour has."""
    images = np.full((count, *SHAPE), 77, np.uint8)
    return LabelledImages(images, np.arange(count) % 10, np.arange(count) + 1000)


def found(image: np.ndarray) -> tuple[int, int, int, tuple[int, ...]]:
    """Row, column, side and colour of the one square that is not grey; fails on anything else."""
    changed = (image != 77).any(axis=0)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    side = len(rows)
    row, column = int(rows[0]), int(columns[0])
    assert changed.sum() == side * side == len(columns) ** 2
    patch = image[:, row : row + side, column : column + side].reshape(3, -1)
    assert (patch == patch[:, :1]).all()
    return row, column, side, tuple(int(v) for v in patch[:, 0])


def test_the_registry_has_every_name():
    assert tuple(MARKERS) == names.MARKER_KINDS


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [1, 4, 16])
def test_a_marker_is_one_square_of_its_classs_colour(place, size):
    images = grey_images()
    planted = plant(settings.Marker(size=size, place=place), 10, SHAPE, seed=3)
    marked = planted.paste(images.images, images.labels, np.random.default_rng(0))
    assert (images.images == 77).all(), "the images given are left as they were"
    for image, label in zip(marked, images.labels, strict=True):
        _, _, side, colour = found(image)
        assert side == size
        assert colour == tuple(planted.colours[label])


def test_random_places_are_fresh_and_reach_every_corner():
    images = grey_images(3000)
    planted = plant(settings.Marker(size=4), 10, SHAPE, seed=0)
    rng = np.random.default_rng(0)
    first, second = (planted.paste(images.images, images.labels, rng) for _ in range(2))
    assert (first != second).any()
    places = {found(image)[:2] for image in first}
    assert {(0, 0), (0, 12), (12, 0), (12, 12)} <= places
    assert len(places) == 13 * 13


def test_class_places_are_distinct_and_stay():
    images = grey_images()
    planted = plant(settings.Marker(size=4, place="per_class"), 10, SHAPE, seed=0)
    marked = planted.paste(images.images, images.labels, np.random.default_rng(0))
    places = [found(image)[:2] for image in marked]
    assert len(set(places)) == 10
    assert (
        places[:10]
        == places[10:20]
        == [found(i)[:2] for i in planted.paste_fixed(images, 1).images[:10]]
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_roll_plants_the_next_classs_marker(place):
    images = grey_images(20)
    planted = plant(settings.Marker(size=4, place=place), 10, SHAPE, seed=1)
    rolled = LabelledImages(images.images, (images.labels + 1) % 10, images.index)
    np.testing.assert_array_equal(
        planted.paste_fixed(images, 5, roll=1).images, planted.paste_fixed(rolled, 5).images
    )
    np.testing.assert_array_equal(planted.paste_fixed(images, 5, roll=1).labels, images.labels)


def test_a_fixed_place_depends_on_the_index_and_not_on_the_neighbours():
    images = grey_images()
    planted = plant(settings.Marker(size=4), 10, SHAPE, seed=1)
    whole = planted.paste_fixed(images, salt=1)
    few = np.array([40, 2, 13])
    np.testing.assert_array_equal(
        planted.paste_fixed(images.select(few), salt=1).images, whole.images[few]
    )
    assert (planted.paste_fixed(images, salt=2).images != whole.images).any()
    assert len({found(image)[:2] for image in whole.images}) > 30


def test_the_seed_permutes_the_colours_unless_the_marker_has_its_own():
    first, second = (plant(settings.Marker(), 10, SHAPE, seed).colours for seed in (0, 1))
    assert (first != second).any()
    assert {tuple(c) for c in first} == {tuple(c) for c in second}
    own = [plant(settings.Marker(seed=7), 10, SHAPE, seed).colours for seed in (0, 1)]
    np.testing.assert_array_equal(*own)


def test_colours_start_at_black_and_are_farthest_points():
    colours = farthest_colours(10, 3).astype(int)
    assert colours[0].tolist() == [0, 0, 0]
    assert colours[1].tolist() == [255, 255, 255]
    grid = np.array(list(itertools.product([0, 64, 128, 191, 255], repeat=3)))
    for k in range(1, 10):
        nearest = ((grid[:, None] - colours[None, :k]) ** 2).sum(2).min(1)
        own = ((colours[k] - colours[:k]) ** 2).sum(1).min()
        assert own == nearest.max()


@pytest.mark.parametrize(("classes", "channels"), [(256, 1), (10, 1), (1000, 3), (2, 4)])
def test_colours_are_distinct(classes, channels):
    colours = farthest_colours(classes, channels)
    assert colours.shape == (classes, channels)
    assert len(np.unique(colours, axis=0)) == classes


@pytest.mark.parametrize(
    ("side", "size"), [(3, 3), (16, 4), (28, 4), (32, 4), (64, 8), (96, 12), (224, 28)]
)
def test_the_size_follows_from_the_resolution_unless_it_is_given(side, size):
    shape = (3, side, side + 5)
    assert sized(settings.Marker(), shape).size == plant(settings.Marker(), 10, shape, 0).size
    assert sized(settings.Marker(), shape).size == size
    assert sized(settings.Marker(size=2), shape).size == 2


NOISE = settings.Marker(kind="noise", size=4)


def patches(marked: LabelledImages) -> np.ndarray:
    """The 4 × 4 × 3 numbers of each image's one patch: (n, 48)."""
    found = []
    for image in marked.images:
        rows, columns = np.nonzero((image != 77).any(axis=0))
        row, column = rows.min(), columns.min()
        assert row + 4 > rows.max()
        assert column + 4 > columns.max()
        found.append(image[:, row : row + 4, column : column + 4].reshape(-1))
    return np.array(found)


def test_noise_is_uniform_and_says_nothing_of_the_class():
    images = grey_images(2000)
    planted = plant(NOISE, 10, SHAPE, seed=0)
    fixed = patches(planted.paste_fixed(images, 1)).astype(float)
    fresh = planted.paste(images.images, images.labels, np.random.default_rng(0))
    drawn = patches(LabelledImages(fresh, images.labels, images.index)).astype(float)
    for noise in (fixed, drawn):
        assert abs(noise.mean() - 127.5) < 1.5
        assert abs(noise.std() - 73.9) < 1.5
        assert len(np.unique(noise, axis=0)) == len(images)
        means = np.array([noise[images.labels == label].mean() for label in range(10)])
        # A class has 9600 numbers: their mean errs by 0.75.
        assert np.abs(means - 127.5).max() < 4


def test_noise_depends_on_seed_salt_index_and_roll_alone():
    images = grey_images()
    planted = plant(NOISE, 10, SHAPE, seed=1)
    whole = planted.paste_fixed(images, salt=1)
    few = np.array([40, 2, 13])
    other_labels = LabelledImages(images.images, (images.labels + 3) % 10, images.index)
    np.testing.assert_array_equal(
        planted.paste_fixed(other_labels.select(few), salt=1).images, whole.images[few]
    )
    for other in (
        planted.paste_fixed(images, salt=2),
        plant(NOISE, 10, SHAPE, seed=2).paste_fixed(images, salt=1),
    ):
        assert (other.images != whole.images).any(axis=(1, 2, 3)).all()
    rolled = planted.paste_fixed(images, salt=1, roll=1)
    assert ((rolled.images != 77).any(1) == (whole.images != 77).any(1)).mean() > 0.999
    assert (patches(rolled) != patches(whole)).any(axis=1).all()


def test_noise_at_the_place_of_a_class_is_refused():
    with pytest.raises(ValueError, match="would give the class away"):
        settings.Marker(kind="noise", place="per_class")


def test_a_marker_that_does_not_fit_is_refused():
    with pytest.raises(RaystitchError, match=r"size 17 does not fit.*at most 16"):
        plant(settings.Marker(size=17), 10, SHAPE, seed=0)
    with pytest.raises(RaystitchError, match="300 classes"):
        plant(settings.Marker(size=2), 300, (1, 16, 16), seed=0)
