"""The sweep file as types: strictness, presets, recipes, limits, schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

import planning
from raystitch.names import PROTOCOLS
from raystitch.settings import Iris, Recipe, Settings, Training
from raystitch.sweep.limits import limited
from raystitch.sweep.presets import PRESETS
from raystitch.sweep.sentences import MODELS
from raystitch.sweep.spec import Sweep, schema
from raystitch.sweep.zoo_entry import ZooEntry

SWEEP_MODULES = sorted(
    f"raystitch.sweep.{path.stem}"
    for path in (Path(__file__).parents[1] / "raystitch" / "sweep").glob("[a-z]*.py")
)


def test_importing_the_room_loads_neither_torch_nor_ray_nor_another_room():
    code = (
        "import importlib, sys, json\n"
        f"[importlib.import_module(m) for m in {['raystitch', *SWEEP_MODULES]!r}]\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    rooms = {f"raystitch.{room}" for room in ("data", "zoo", "stitching", "run", "results", "cli")}
    assert "raystitch.sweep.plan" in loaded
    assert not loaded & {"torch", "ray", *rooms}


@pytest.mark.parametrize("model", sorted(set(MODELS.values()), key=lambda m: m.__name__))
def test_every_field_is_strict_and_described(model: type[BaseModel]):
    assert issubclass(model, Settings)
    assert model.model_config["extra"] == "forbid"
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_every_model_reachable_from_a_sweep_is_known_to_the_reader():
    names = {name for name in schema()["$defs"] if name != "JsonValue"}
    assert {model.__name__ for model in MODELS.values()} == names | {"Sweep"}


def test_the_controlled_preset_is_the_defaults():
    made = planning.sweep()
    assert made.training == Training()
    assert made.iris == Iris()


def test_the_published_preset_is_the_published_column():
    written = {"bn": "eval", "augment": "none"}
    made = planning.sweep(preset="published", training=written)
    assert made.training.model_dump(exclude=set(written)) == Training().model_dump(
        exclude=set(written)
    ) | {
        "init": "lstsq",
        "init_images": "real",
        "lr": 0.001,
        "weight_decay": 1e-4,
        "batch": 128,
        "drop_last": True,
        "schedule": "step",
        "epochs": 30,
    }
    assert (made.iris.rule, made.iris.lr, made.iris.steps) == ("sign", 1 / 255, 200)
    assert (made.iris.keep, made.iris.rounding) == ("last", "truncate")


def test_published_treats_the_standard_protocol_in_its_own_way():
    made = planning.sweep(preset="published")
    assert made.training.bn == "eval"
    own = made.training_under("standard")
    assert (own.bn, own.dropout, own.augment) == ("batch", True, "flip_crop")
    assert own.epochs == 30
    assert made.training_under("invariance") == made.training
    other = planning.sweep(preset="published", training_of={"standard": {"augment": "none"}})
    assert other.training_under("standard").augment == "none"
    assert other.training_under("standard").bn == "batch"


def test_what_a_file_writes_for_all_protocols_goes_over_the_preset_s_for_one():
    made = planning.sweep(
        preset="published",
        training={"augment": "none"},
        variants={"still": {"training": {"bn": "eval", "dropout": False}}},
    )
    own = made.training_under("standard")
    assert (own.bn, own.dropout, own.augment) == ("batch", True, "none")
    still = made.varied("still").training_under("standard")
    assert (still.bn, still.dropout, still.augment) == ("eval", False, "none")
    both = planning.sweep(
        preset="published",
        training=Training(augment="none"),
        training_of={"standard": {"augment": "flip_resized_crop"}},
    )
    assert both.training_under("standard").augment == "flip_resized_crop"
    assert both.training_under("noise").augment == "none"


def test_under_standard_the_real_images_are_a_cell_s_own():
    own, real = (planning.sweep(training={"init_images": name}) for name in ("own", "real"))
    assert own.training_under("standard") == real.training_under("standard")
    assert own.training_under("invariance") != real.training_under("invariance")


def test_a_variant_changes_what_it_writes_alone():
    made = planning.sweep(
        training={"lr": 0.5},
        training_of={"standard": {"bn": "batch"}},
        variants={
            "slow": {"training": {"lr": 0.1}, "budget": 4},
            "still": {"training_of": {"standard": {"bn": "eval"}, "noise": {"lr": 0.2}}},
        },
    )
    slow, still = made.varied("slow"), made.varied("still")
    assert (slow.training.lr, slow.budget) == (0.1, 4)
    assert slow.training_under("standard").bn == "batch"
    assert still.training_under("standard") == Training(lr=0.5)
    assert still.training_under("noise").lr == 0.2
    assert made.varied(None) is made
    fewer = limited(made, 3)
    assert fewer.varied("slow").training_under("standard").epochs == 3


def test_fields_under_a_preset_override_it():
    training = {"bn": "eval", "augment": "none", "lr": 0.5}
    made = planning.sweep(preset="published", training=training, iris={"steps": 7})
    assert (made.training.lr, made.training.epochs) == (0.5, 30)
    assert (made.iris.steps, made.iris.rule) == (7, "sign")
    assert planning.sweep(training=Training(lr=0.5)).training == Training(lr=0.5)


def test_presets_name_only_fields_that_there_are():
    for blocks in PRESETS.values():
        assert set(blocks.get("training", {})) <= set(Training.model_fields)
        assert set(blocks.get("iris", {})) <= set(Iris.model_fields)
        for protocol, fields in blocks.get("training_of", {}).items():
            assert protocol in PROTOCOLS
            assert set(fields) <= set(Training.model_fields)


def test_a_zoo_entry_gives_its_recipe():
    entry = ZooEntry(arch="raystitch/cnn5", epochs=7, lr=0.3)
    assert entry.to_recipe() == Recipe(name="standard", epochs=7, lr=0.3)


def test_a_robust_step_is_a_quarter_of_eps_unless_given():
    def robust(**fields: float) -> Recipe:
        return ZooEntry.model_validate(
            {"arch": "raystitch/cnn5", "recipe": "robust", **fields}
        ).to_recipe()

    assert robust(eps=0.1).step == pytest.approx(0.025)
    assert robust(eps=0.1, step=0.01).step == 0.01
    assert robust().step == pytest.approx(2 / 255)


def test_a_marker_takes_the_seed_of_its_network_unless_it_has_its_own():
    entry = ZooEntry.model_validate({"arch": "raystitch/cnn5", "marker": {"size": 4}})
    assert entry.marker_of(7).seed == 7
    entry = ZooEntry.model_validate({"arch": "raystitch/cnn5", "marker": {"seed": 3}})
    assert entry.marker_of(7).seed == 3


def test_limits_only_ever_lower():
    made = planning.sweep(stitch_images=512, training={"epochs": 50, "min_epochs": 30})
    lower = limited(made, 10)
    assert (lower.training.epochs, lower.training.min_epochs) == (10, 10)
    assert limited(made, 1000).training == made.training
    assert limited(made, None) == made


def test_pairs_in_their_three_forms():
    listed = planning.sweep().pair_list()
    assert [(place, p.front, p.end) for place, p in listed] == [("pairs[0]", "clean-1", "clean-0")]
    grid = planning.sweep(pairs={"fronts": ["clean-1", "shortcut-2"], "ends": ["clean-0"]})
    assert [(p.front, p.end) for _, p in grid.pair_list()] == [
        ("clean-1", "clean-0"),
        ("shortcut-2", "clean-0"),
    ]
    assert len(planning.sweep(pairs="all").pair_list()) == 9
    assert list(grid.used_models()) == ["clean-0", "clean-1", "shortcut-2"]


def test_a_sweep_survives_being_written_out():
    made = planning.sweep(
        pairs="all", cuts={"clean": "blocks", "shortcut": ["blocks.0", "pool"]}, budget=4
    )
    again = Sweep.model_validate_json(made.model_dump_json(exclude_unset=True))
    assert again == made


def test_the_schema_is_json_and_admits_what_files_say():
    text = json.dumps(schema())
    properties = schema()["properties"]
    assert properties["data"]["anyOf"][0]["enum"] == ["digits"]
    assert {"required", "additionalProperties"} <= set(schema())
    assert schema()["$defs"]["ZooEntry"]["properties"]["eps"]["anyOf"][1]["type"] == "string"
    assert "<list>" not in text


def test_a_trial_run_trains_networks_and_optimises_iris_for_less_too():
    zoo = {
        "clean": {"arch": "raystitch/cnn5", "epochs": 12},
        "simclr": {"arch": "raystitch/cnn5", "epochs": 2, "recipe": "simclr"},
        "untrained": {"arch": "raystitch/cnn5", "recipe": "untrained"},
        "given": {"arch": "raystitch/cnn5", "weights": "some.pth"},
    }
    made = planning.sweep(zoo=zoo, pairs="all", variants={"long": {"iris": {"steps": 500}}})
    trial = limited(made, 3)
    assert trial.zoo["clean"].to_recipe().epochs == 3
    recipe = trial.zoo["simclr"].to_recipe()
    assert (recipe.epochs, recipe.linear_epochs) == (2, 3)
    assert (trial.zoo["untrained"], trial.zoo["given"]) == (
        made.zoo["untrained"],
        made.zoo["given"],
    )
    assert trial.iris.steps == trial.varied("long").iris.steps == 30
