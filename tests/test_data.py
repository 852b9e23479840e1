"""The images: the embedded digits against scikit-learn's, draws, identities."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from raystitch import names, settings
from raystitch.data import sources
from raystitch.data.images import LabelledImages
from raystitch.data.scramble import scramble
from raystitch.errors import RaystitchError

DIGITS = settings.Data()


@pytest.fixture(scope="module")
def table():
    return sources.read_digits_table().to_pydict()


def test_the_registry_has_every_name():
    assert tuple(sources.SOURCES) == names.SOURCES


def test_the_embedded_digits_are_scikit_learns(table):
    theirs = load_digits()
    np.testing.assert_array_equal(np.array(table["pixels"]), theirs.data)
    np.testing.assert_array_equal(np.array(table["label"]), theirs.target)
    np.testing.assert_array_equal(np.array(table["index"]), np.arange(1797))


def test_the_split_is_stratified_and_whole(table):
    split, label = np.array(table["split"]), np.array(table["label"])
    assert set(split) == {"train", "test"}
    assert (split == "train").sum() == 1437
    assert (split == "test").sum() == 360
    for digit in range(10):
        exact = (label == digit).sum() * 360 / 1797
        assert abs(((label == digit) & (split == "test")).sum() - exact) < 1


@pytest.mark.parametrize("split", ["train", "test"])
def test_digits_are_served_doubled_and_scaled(table, split):
    images = sources.load(DIGITS, split)
    facts = sources.facts(DIGITS)
    assert len(images) == getattr(facts, split)
    assert images.shape == facts.shape == (3, 16, 16)
    assert images.images.dtype == np.uint8
    assert images.images.flags.writeable
    np.testing.assert_array_equal(images.index, np.arange(len(images)))
    row = [i for i, name in enumerate(table["split"]) if name == split][7]
    assert images.labels[7] == table["label"][row]
    for y, x, channel in [(0, 0, 0), (5, 8, 1), (11, 10, 2), (15, 15, 0)]:
        raw = table["pixels"][row][(y // 2) * 8 + x // 2]
        assert images.images[7, channel, y, x] == round(raw * 255 / 16)


def test_no_image_is_in_both_splits():
    both = [sources.load(DIGITS, split).images for split in ("train", "test")]
    seen = [{image.tobytes() for image in images} for images in both]
    assert not seen[0] & seen[1]
    assert len(seen[0]) + len(seen[1]) == 1797


def test_a_draw_is_balanced_nested_and_in_order():
    images = sources.load(DIGITS, "train")
    small, large = sources.draw(images, 64), sources.draw(images, 512)
    assert len(large) == 512
    assert np.ptp(np.bincount(large.labels)) <= 1
    assert np.all(np.diff(large.index) > 0)
    assert set(small.index) < set(large.index)
    np.testing.assert_array_equal(large.images, images.images[large.index])
    assert sources.draw(images, None) is images
    assert np.count_nonzero(np.diff(large.index) == 1) < 300, "a draw, not a run of images"


def test_a_draw_goes_on_when_a_class_runs_out():
    labels = np.array([0] * 10 + [1] * 2)
    images = LabelledImages(np.zeros((12, 1, 2, 2), np.uint8), labels, np.arange(12))
    assert np.bincount(sources.draw(images, 9).labels).tolist() == [7, 2]


def test_these_images_are_drawn_in_every_release():
    drawn = sources.draw(sources.load(DIGITS, "train"), 12)
    assert drawn.index.tolist() == [37, 54, 177, 215, 365, 664, 741, 806, 844, 1058, 1126, 1423]


def test_fewer_images_than_there_are():
    data = settings.Data(train=100, test=50)
    assert len(sources.load(data, "train")) == sources.facts(data).train == 100
    assert len(sources.load(data, "test")) == sources.facts(data).test == 50
    with pytest.raises(RaystitchError, match=r"data\.test asks for 361 images.*at most 360"):
        sources.load(settings.Data(test=361), "train")
    with pytest.raises(RaystitchError, match="1438"):
        sources.draw(sources.load(DIGITS, "train"), 1438)


def test_the_identity_is_of_the_images_not_of_the_words():
    assert sources.identity(DIGITS) == {"source": "digits"}
    assert sources.identity(settings.Data(train=1437, test=360)) == {"source": "digits"}
    assert sources.identity(settings.Data(train=100)) == {"source": "digits", "train": 100}


def test_select_keeps_the_index():
    images = sources.load(DIGITS, "test")
    chosen = images.select(np.array([5, 3]))
    assert chosen.index.tolist() == [5, 3]
    np.testing.assert_array_equal(chosen.labels, images.labels[[5, 3]])
    assert images.select(slice(2, 4)).select(np.array([1])).index.tolist() == [3]


def test_scramble_is_splitmix64():
    # The reference sequence of SplitMix64 from seed 1234567.
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + k * golden) % 2**64 for k in range(3)]
    assert [int(scramble(state)[0]) for state in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    assert scramble(1, 2) != scramble(2, 1)
    words = scramble(5, np.arange(100_000)).astype(float) / 2**64
    assert abs(words.mean() - 0.5) < 0.005
    assert abs(words.std() - 12**-0.5) < 0.005


def test_the_data_room_loads_no_torch():
    code = (
        "import sys, raystitch.data.sources, raystitch.data.markers;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
