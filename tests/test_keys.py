"""Keys: canonical form, identities, and frozen examples that a release must not change."""

from __future__ import annotations

from typing import ClassVar

import pytest
from pydantic import Field

import planning
from raystitch.settings import Marker, Recipe, Settings, Training
from raystitch.sweep import keys
from raystitch.sweep.cells import Cell
from raystitch.sweep.keys import canonical, content_key, dump
from raystitch.sweep.plan import expand
from raystitch.sweep.zoo_entry import ZooEntry


def entry(**fields: object) -> ZooEntry:
    return ZooEntry.model_validate({"arch": "raystitch/cnn5", **fields})


def test_canonical_form():
    value = {"b": (1, 2.0, 1e-4), "a": {"y": None, "x": True}, "c": "±"}
    assert canonical(value) == '{"a":{"x":true,"y":null},"b":[1,2.0,0.0001],"c":"\\u00b1"}'


def test_canonical_refuses_what_has_no_one_form():
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical({"a": float("nan")})
    with pytest.raises(TypeError):
        canonical({"a": {1, 2}})


def test_a_key_is_twenty_hex_digits_of_sha256():
    # printf '{}' | sha256sum
    assert content_key({}) == "44136fa355b3678a1146"


def test_reals_written_as_whole_numbers_are_the_same_setting():
    assert canonical(dump(Training(lr=1))) == canonical(dump(Training(lr=1.0)))
    assert canonical(1) != canonical(1.0)


def test_later_fields_at_their_default_are_left_out():
    class Grown(Settings):
        later: ClassVar[frozenset[str]] = frozenset({"extra"})
        old: int = Field(default=1)
        extra: int = Field(default=0)

    assert dump(Grown()) == {"old": 1}
    assert dump(Grown(extra=0)) == {"old": 1}
    assert dump(Grown(extra=2)) == {"old": 1, "extra": 2}


def test_no_field_of_the_first_release_is_later():
    for model in (Training, Recipe, Marker):
        assert set(dump(model())) == set(model.model_fields) - model.later
    assert Training.later == {
        *("dropout", "attack_share", "attack_eps", "attack_step", "attack_steps")
    }


def test_later_fields_enter_the_key_once_they_are_used():
    plain = keys.dump_training(Training())
    assert keys.dump_training(Training(attack_steps=3)) == plain
    assert keys.dump_training(Training(dropout=True)) == {**plain, "dropout": True}
    attacked = keys.dump_training(Training(attack_share=0.5, attack_steps=3))
    assert attacked == {**plain, "attack_share": 0.5, "attack_steps": 3}


def test_recipes_hold_only_what_they_use():
    robust_only = {"eps", "step", "attack_steps", "share"}
    assert not robust_only & set(keys.dump_recipe(Recipe(name="standard")))
    assert robust_only <= set(keys.dump_recipe(Recipe(name="robust")))
    assert keys.dump_recipe(Recipe(name="untrained", epochs=3)) == {"name": "untrained"}


def test_a_trained_network_is_its_recipe_seed_marker_and_data():
    made = entry(epochs=3, marker={"size": 2}, kwargs={"width": 8})
    assert keys.network_identity(made, 5, planning.IMAGES) == {
        "arch": "raystitch/cnn5",
        "kwargs": {"width": 8},
        "recipe": {
            "name": "standard",
            "epochs": 3,
            "batch": 128,
            "lr": 0.1,
            "momentum": 0.9,
            "weight_decay": 1e-4,
        },
        "seed": 5,
        "marker": {"kind": "pixel", "size": 2, "place": "random", "seed": 5},
        "data": planning.IMAGES,
    }


def test_ready_made_networks_are_their_content():
    weights = entry(weights="anywhere.pth", mean=[0.5], std=[0.25])
    found = keys.network_identity(weights, 0, planning.IMAGES, "abc")
    assert found == {
        "arch": "raystitch/cnn5",
        "kwargs": {},
        "mean": [0.5],
        "std": [0.25],
        "weights": "abc",
    }
    pretrained = ZooEntry(arch="timm/x", pretrained=True)
    assert keys.network_identity(pretrained, 0, planning.IMAGES) == {
        "arch": "timm/x",
        "kwargs": {},
        "pretrained": True,
    }


def test_the_untrained_twin_is_an_untrained_network_of_another_seed():
    trained = keys.network_identity(entry(marker={"size": 4}), 3, planning.IMAGES)
    untrained = keys.network_identity(entry(recipe="untrained"), 3, planning.IMAGES)
    twin = keys.untrained_twin(trained, planning.IMAGES)
    assert twin == keys.untrained_twin(untrained, planning.IMAGES)
    assert twin["seed"] != 3
    assert twin == keys.network_identity(entry(recipe="untrained"), twin["seed"], planning.IMAGES)
    other = keys.network_identity(entry(), 4, planning.IMAGES)
    assert keys.untrained_twin(other, planning.IMAGES) != twin


def test_how_many_test_images_are_used_makes_no_other_network():
    few, fewer = ({"source": "digits", "train": 500, "test": n} for n in (20, 10))
    assert keys.network_identity(entry(), 0, few) == keys.network_identity(entry(), 0, fewer)
    less = {"source": "digits", "train": 400}
    assert keys.network_identity(entry(), 0, few) != keys.network_identity(entry(), 0, less)


def test_training_fields_without_a_use_stay_out_of_the_key():
    def same(**fields):
        return keys.dump_training(Training(**fields)) == keys.dump_training(
            Training(**fields, patience=9, held_out=0.3)
        )

    assert same(schedule="step")
    assert not same(schedule="plateau")
    starts = [
        keys.dump_training(Training(init=init, init_count=count))
        for init in ("random", "lstsq")
        for count in (10, 20)
    ]
    assert starts[0] == starts[1]
    assert starts[2] != starts[3]


def test_iris_of_a_cell_depend_on_the_front_and_not_on_the_end():
    cells = expand(
        planning.sweep(
            pairs=[
                {"front": "clean-1", "end": "clean-0"},
                {"front": "clean-1", "end": "shortcut-2"},
            ],
            protocols=["standard", "invariance", "foreign"],
        ),
        planning.cards(),
        planning.IMAGES,
    )
    identities = {(c.front_cut, c.protocol): set[str]() for c in cells if c.protocol != "standard"}
    for cell in cells:
        found = keys.iri_identity(cell.settings)
        if cell.protocol == "standard":
            assert found is None
        else:
            identities[cell.front_cut, cell.protocol].add(canonical(found))
    assert all(len(found) == 1 for found in identities.values())
    assert len(set.union(*identities.values())) == len(identities) == 6
    foreign = next(c for c in cells if c.protocol == "foreign")
    assert keys.iri_front(foreign.settings)["recipe"] == {"name": "untrained"}


FROZEN = {
    "standard dm": "d246d24d881ab3114a6f",
    "standard fula": "d6ce926d9f77723675b5",
    "invariance slm, marked": "7d070529936a4158245d",
    "its IRIs": "8dd1e0ee86043a92ab1d",
    "its front": "67b5b362d8508fa801f8",
    "its unit": "3f68f6ad50331590ff38",
    "noise dm, budget 4": "22075ac0b0f3433f67bc",
    "robust network": "27e0163e433f970a7536",
}


def frozen_cells() -> dict[str, str]:
    plain = expand(planning.sweep(), planning.cards(), planning.IMAGES)
    pair = {
        "front": "shortcut-2",
        "end": "clean-0",
        "stitch_marker": "shortcut-2",
        "test_marker": "shortcut-2",
    }
    marked = expand(planning.sweep(pairs=[pair]), planning.cards(), planning.IMAGES)
    longer = expand(planning.sweep(budget=4), planning.cards(), planning.IMAGES)

    def one(cells: list[Cell], protocol: str, objective: str) -> Cell:
        wanted = (protocol, objective, "blocks.2")
        return next(c for c in cells if (c.protocol, c.objective, c.front_cut) == wanted)

    iris = one(marked, "invariance", "slm")
    return {
        "standard dm": one(plain, "standard", "dm").key,
        "standard fula": one(plain, "standard", "fula").key,
        "invariance slm, marked": iris.key,
        "its IRIs": content_key(keys.iri_identity(iris.settings)),
        "its front": content_key(iris.settings["front"]),
        "its unit": iris.unit,
        "noise dm, budget 4": one(longer, "noise", "dm").key,
        "robust network": content_key(
            keys.network_identity(entry(recipe="robust", eps=0.1), 3, planning.IMAGES)
        ),
    }


def test_keys_of_frozen_examples_have_not_changed():
    """A change here makes all stored work pending: see `keys.KEY_VERSION`."""
    assert frozen_cells() == FROZEN
