"""Markers of a sweep file: of networks and of none, planted where a pair says."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

import sweeping
from raystitch.errors import SweepFileError
from raystitch.results.store import Storage
from raystitch.run.planning import load_sweep, make_plan
from raystitch.run.workshop import Workshop

PAIR = {"front": "net-1", "end": "net-0"}
CUES = {"patch": {"kind": "pixel", "place": "per_class"}, "grain": {"kind": "noise", "seed": 5}}
ARCH = "raystitch/cnn5"


def context(folder, **changes):
    path = sweeping.write(folder, cuts=["blocks.2"], objectives=["dm"], **changes)
    return load_sweep(path, Storage(folder / "runs"), say=lambda _: None)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    pair = {**PAIR, "stitch_marker": "patch"}
    return Workshop(context(tmp_path_factory.mktemp("sweep"), markers=CUES, pairs=[pair]))


def test_one_marker_is_one_key_whoever_it_belongs_to(tmp_path):
    zoo = {
        "net": {"arch": ARCH, "recipe": "untrained", "seeds": [0, 1]},
        "marked": {"arch": ARCH, "epochs": 1, "seeds": [7], "marker": {"kind": "pixel"}},
    }
    named = {
        "same": {"seed": 7, "size": 4},
        "other": {"seed": 8},
        "unseeded": {},
        "zero": {"seed": 0},
    }
    keys = {}
    for name in ("marked-7", *named):
        found = context(tmp_path, zoo=zoo, markers=named, pairs=[{**PAIR, "stitch_marker": name}])
        cells = make_plan(found).cells
        keys[name] = [cell.key for cell in cells]
        assert {cell.stitch_marker for cell in cells} == {name}
        assert cells[0].settings["stitch"]["marker"]["size"] == 4
    assert keys["marked-7"] == keys["same"] != keys["other"]
    assert keys["unseeded"] == keys["zero"] != keys["other"]


def test_the_stored_sweep_file_says_the_same(tmp_path):
    found = context(tmp_path, markers=CUES, pairs=[{**PAIR, "test_marker": "grain"}])
    text = yaml.safe_dump(found.sweep.model_dump(mode="json", exclude_unset=True))
    again = tmp_path / "again.yaml"
    again.write_text(text)
    stored = load_sweep(again, Storage(tmp_path / "runs"), say=lambda _: None)
    assert [c.key for c in make_plan(stored).cells] == [c.key for c in make_plan(found).cells]


@pytest.mark.parametrize("place", ["zoo.marked.marker", "markers.large"])
def test_a_marker_that_does_not_fit_is_found_in_the_file(tmp_path, place):
    large = {"size": 17}
    zoo = {**sweeping.SMALL["zoo"], "marked": {"arch": ARCH, "epochs": 1, "marker": large}}
    changes = {"zoo": zoo} if place.startswith("zoo") else {"markers": {"large": large}}
    with pytest.raises(SweepFileError, match=rf"{place}: .*17 does not fit.*at most 16"):
        context(tmp_path, **changes)


def test_stitch_and_test_images_are_marked_separately(shop):
    for images in (shop.stitch_images, shop.test_images):
        plain, marked = images(None), images("patch")
        changed = (plain.images != marked.images).any(axis=1)
        assert changed.any(axis=(1, 2)).mean() > 0.8  # a black patch on black is no change
        assert changed.sum(axis=(1, 2)).max() <= 16
        np.testing.assert_array_equal(plain.labels, marked.labels)


def test_test_images_can_carry_the_marker_of_the_next_class(shop):
    planted = shop.marker("patch")
    rolled = shop.test_images("patch", roll=1)
    for image, label in zip(rolled.images, rolled.labels, strict=True):
        row, column = planted.places[(label + 1) % 10]
        patch = image[:, row : row + 4, column : column + 4]
        assert (planted.colours[(label + 1) % 10] == patch.reshape(3, -1).T).all()
    assert (rolled.images != shop.test_images("patch").images).any(axis=(1, 2, 3)).all()
    np.testing.assert_array_equal(rolled.labels, shop.test_images(None).labels)
    assert (shop.test_images("grain", roll=1).images != shop.test_images("grain").images).any()
