"""Too few rows for least squares: a fault of the file just where the fit itself refuses."""

import pytest
import torch

import planning
from raystitch.errors import CellError
from raystitch.stitching.transforms import Stitch, start_lstsq
from raystitch.sweep.shortages import shortages

POOL = 64
"""Channels of the vector cut `pool`: one row an image."""


def short(train=5000, cards=None, **changes):
    made = planning.sweep(**{"cuts": ["blocks.4", "pool"], **changes})
    return list(shortages(made, cards or planning.cards(), train))


@pytest.mark.parametrize(
    ("training", "least"),
    # A tenth of 73 is held out, and 66 rows are more than 65 unknowns.
    [({}, 73), ({"schedule": "step"}, 66), ({"held_out": 0.5, "init_count": 1}, 132)],
)
def test_the_file_is_at_fault_just_where_the_fit_refuses(training, least):
    (found,) = short(training=training, stitch_images=least - 1)
    assert f"take at least {least} `stitch_images`" in found.remedy
    assert "pool → pool has 65 rows for 65 unknowns" in found.told
    assert short(training=training, stitch_images=least) == []
    held = planning.sweep(training=training).training.held_out_of(least)
    pool = planning.map_card().cut("pool")
    rows = torch.randn(least - held, POOL, generator=torch.Generator().manual_seed(0))
    start_lstsq(Stitch(pool, pool), [(rows, rows)])
    with pytest.raises(CellError, match="pool → pool has 65 rows for 65 unknowns"):
        start_lstsq(Stitch(pool, pool), [(rows[:-1], rows[:-1])])


RANDOM = {"training": {"init": "random"}}


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({}, "use `init: random`"),
        ({"objectives": ["dm_lstsq"]}, "leave out `dm_lstsq`"),
        ({"objectives": ["slm", "dm_lstsq"], **RANDOM}, "leave out `dm_lstsq`"),
        ({"objectives": ["slm", "dm_lstsq"]}, "use `init: random` and leave out `dm_lstsq`"),
        ({"variants": {"own": {"training": {"init": "lstsq"}}}, **RANDOM}, "use `init: random`"),
        ({"training_of": {"noise": {"init": "lstsq"}}, **RANDOM}, "use `init: random`"),
    ],
)
def test_what_uses_least_squares_is_named(changes, remedy):
    (found,) = short(stitch_images=60, **changes)
    assert found.remedy.split(", ")[1] == remedy


@pytest.mark.parametrize(
    "changes",
    [
        RANDOM,
        {"objectives": ["identity"]},
        {"objectives": ["hlm", "identity"], "protocols": ["noise"]},
        {"cuts": ["blocks.*"]},
        {"stitch_images": 1},  # a fault of its own: nothing is left to train on
    ],
)
def test_without_least_squares_or_with_many_positions_few_images_do(changes):
    assert short(**{"stitch_images": 60, **changes}) == []


def test_two_entries_are_told_once_whatever_their_seeds_and_cuts():
    found = short(pairs="all", stitch_images=60, cuts=["blocks.*", "pool"], cross_layer=True)
    pairs = [one.told.partition(":")[0] for one in found]
    entries = ("clean", "shortcut")
    assert sorted(pairs) == [f"{front} → {end}" for front in entries for end in entries]
    # Each of 6 cuts with `pool`, less the 3 of at most 32 channels: 54 rows are enough for them.
    assert all(one.told.count(" rows for ") == 3 for one in found)
    assert all("blocks.3 → pool has 54 rows for 65 unknowns" in one.told for one in found)
    assert {one.place for one in found} == {"pairs"}


def test_what_more_images_there_are_not_is_said():
    (found,) = short(train=60, stitch_images=None)
    assert "that needs 73 images, and there are 60" in found.remedy


def test_a_control_is_counted_under_the_one_protocol_it_has():
    changes = {
        "stitch_images": 70,
        "training": {"schedule": "step"},
        "training_of": {"noise": {"schedule": "plateau"}},
    }
    pair = {"front": "clean-1", "end": "clean-0"}
    assert short(pairs=[{**pair, "control": "class_noise"}], **changes) == []
    (found,) = short(pairs=[pair, {**pair, "control": "class_noise"}], **changes)
    assert "63 rows" in found.told


def test_entries_without_a_card_are_passed_by():
    assert short(stitch_images=60, cards={"shortcut": planning.map_card()}) == []
