"""Planning from stored files: the sweep a run leaves in the storage is the one that was run."""

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import save_file

import sweeping
from raystitch.errors import StorageError, SweepFileError
from raystitch.results.store import Storage
from raystitch.run.pipeline import _store_sweep_file
from raystitch.run.planning import load_sweep, make_plan
from raystitch.run.progress import Reporter
from raystitch.run.status import stored_plan

MARKED = {"arch": "raystitch/cnn5", "seeds": [2, 3], "marker": {"kind": "pixel", "size": 3}}
FILES = {
    "defaults": {"training": {}, "iris": {}, "stitch_images": None, "test_images": None},
    "published": {
        "preset": "published",
        "training": {"bn": "eval", "augment": "none", "lr": "1e-4", "batch": 16},
        "iris": {"lr": "3/255"},
    },
    "budget": {"budget": 4},
    "recipes": {
        "zoo": {
            "net": {"arch": "raystitch/cnn5", "seeds": [0, 1], "epochs": 3, "lr": 1},
            "robust": {"arch": "raystitch/cnn5", "recipe": "robust", "eps": "8/255"},
            "slow": {"arch": "raystitch/cnn5", "recipe": "robust", "eps": 0.1, "step": 0.01},
            "own": {"arch": "raystitch/cnn5", "mean": [0.1, 0.2, "1/3"], "std": [1, 1, 1e-05]},
        },
        "pairs": "all",
    },
    "markers": {
        "zoo": {"net": {"arch": "raystitch/cnn5", "seeds": [0, 1]}, "cue": MARKED},
        "pairs": [
            {"front": "net-1", "end": "net-0"},
            {"front": "cue-2", "end": "net-0", "stitch_marker": "cue-2", "test_marker": "cue-3"},
        ],
    },
    "cuts": {
        "cuts": {"net": ["blocks.*", "pool"]},
        "fula_cuts": ["blocks.4", "pool"],
        "stitch_images": 80,
    },
    "grid": {"pairs": {"fronts": ["net-0", "net-1"], "ends": ["net-1"]}, "seeds": [3, 0]},
    "data": {"data": {"train": 300, "test": 80}},
    # Words that YAML 1.1 takes for something else.
    "words": {
        "name": "on",
        "zoo": {"no": {"arch": "raystitch/cnn5", "seeds": [0]}, "1e3": {"arch": "raystitch/cnn5"}},
        "pairs": [{"front": "no-0", "end": "1e3-0"}],
    },
}


def stored_again(context):
    """The sweep as it is read back from the copy that a run stores."""
    _store_sweep_file(context)
    path = context.storage.sweep_file(context.sweep.name)
    return load_sweep(path, context.storage, stored=True)


def keys(context):
    return [(cell.key, cell.unit) for cell in make_plan(context).cells]


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """A storage that has the card of the architecture, so that no test looks for it again."""
    folder = tmp_path_factory.mktemp("cards")
    load_sweep(sweeping.write(folder), Storage(folder / "runs"))
    return folder / "runs"


@pytest.fixture
def storage(cards, tmp_path):
    shutil.copytree(cards, tmp_path / "runs")
    return Storage(tmp_path / "runs")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("limits", [{}, {"limit_images": 24, "max_epochs": 2}])
def test_the_stored_sweep_has_the_same_cells(name, limits, storage, tmp_path):
    context = load_sweep(sweeping.write(tmp_path, **FILES[name]), storage, **limits)
    again = stored_again(context)
    assert again.sweep == context.sweep
    assert again.networks == context.networks
    assert keys(again) == keys(context)
    assert again.sweep.execution == context.sweep.execution


def test_limits_are_part_of_the_stored_sweep(storage, tmp_path):
    path = sweeping.write(tmp_path)
    whole = keys(load_sweep(path, storage))
    fewer = load_sweep(path, storage, limit_images=24, max_epochs=1)
    assert set(keys(fewer)).isdisjoint(whole)
    again = stored_again(fewer).sweep
    assert (again.data.train, again.data.test) == (24, 24)
    assert (again.stitch_images, again.test_images) == (None, None)
    assert again.training.epochs == 1


def test_weights_beside_the_sweep_file_are_found_from_the_storage(storage, tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "weights").mkdir(parents=True)
    save_file({"any": np.zeros(3, np.float32)}, home / "weights" / "own.safetensors")
    zoo = {"net": {"arch": "raystitch/cnn5", "weights": "weights/own.safetensors"}}
    sweeping.write(home, zoo=zoo, pairs="all")
    monkeypatch.chdir(home)
    context = load_sweep(Path("sweep.yaml"), storage)
    wanted = keys(context)
    monkeypatch.chdir(tmp_path)
    assert keys(stored_again(context)) == wanted
    stored = yaml.safe_load(context.storage.sweep_file("small").read_text())
    assert Path(stored["zoo"]["net"]["weights"]).is_absolute()
    # The same file somewhere else is the same network.
    shutil.move(home, tmp_path / "moved")
    assert keys(load_sweep(tmp_path / "moved" / "sweep.yaml", storage)) == wanted


def test_storing_the_stored_sweep_changes_nothing(storage, tmp_path):
    context = load_sweep(sweeping.write(tmp_path, **FILES["recipes"]), storage)
    again = stored_again(context)
    path = storage.sweep_file("small")
    before = (path.stat().st_mtime_ns, path.read_bytes())
    _store_sweep_file(again)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


def test_planning_with_a_stored_card_says_nothing(storage, tmp_path):
    said = []
    load_sweep(sweeping.write(tmp_path), storage, say=said.append)
    assert said == []
    load_sweep(sweeping.write(tmp_path), Storage(tmp_path / "other"), say=said.append)
    assert len(said) == 1
    assert "raystitch/cnn5" in said[0]


def test_a_damaged_card_is_named(storage, tmp_path):
    (card,) = (storage.root / "artifacts" / "cards").iterdir()
    card.write_text(card.read_text()[:100])
    with pytest.raises(StorageError, match=card.name):
        load_sweep(sweeping.write(tmp_path), storage)


def test_rows_stand_under_the_names_of_the_plan(storage, tmp_path):
    """An entry that is renamed is the same network: its rows count under its new name."""
    small = {"cuts": ["blocks.4"], "objectives": ["dm"], "protocols": ["standard"]}
    first = sweeping.run(sweeping.write(tmp_path, **small), storage.root)
    zoo = {"web": sweeping.SMALL["zoo"]["net"]}
    pairs = [{"front": "web-1", "end": "web-0"}]
    renamed = sweeping.write(tmp_path, **small, zoo=zoo, pairs=pairs)
    again = sweeping.run(renamed, storage.root)
    assert again.plan.pending == []
    assert again.plan.rows.schema == first.plan.rows.schema
    names = ("front_model", "end_model")
    assert again.plan.rows.select(names).rows() == [("web-1", "web-0")]
    assert again.plan.rows.drop(names).equals(first.plan.rows.drop(names))
    few = ("agreement", "end_model", "settings")
    wanted = again.plan.rows.select(name for name in again.plan.rows.columns if name in few)
    assert again.plan.read(few).frame.equals(wanted)
    # New cells of it are run, under that name too.
    more = sweeping.write(tmp_path, **small | {"cuts": ["blocks.2"]}, zoo=zoo, pairs=pairs)
    added = sweeping.run(more, storage.root)
    assert added.exit_code == 0
    assert added.plan.rows.select(names).rows() == [("web-1", "web-0")]
    assert again.summary.frame.select(names).rows() == [("web-1", "web-0")]


def test_the_reporter_counts_on_plain_output():
    text = io.StringIO()
    with Reporter(Console(file=text, width=100)).stage("stitches", 3, "cells") as stage:
        for _ in range(3):
            stage.advance(1, "note")
    (line,) = text.getvalue().splitlines()
    assert line.startswith("stitches: 3/3 cells, ")
    assert line.endswith("note")


PUBLISHED = {"preset": "published", "training": {"bn": "eval", "augment": "none"}}


@pytest.mark.parametrize(
    "changes",
    [PUBLISHED, {"stitch_images": 1}, {"training": {"drop_last": True, "batch": 60}}],
)
def test_too_few_images_for_one_batch_are_a_fault(changes, storage, tmp_path):
    with pytest.raises(SweepFileError) as refused:
        load_sweep(sweeping.write(tmp_path, **changes), storage)
    (fault,) = refused.value.faults
    assert fault.place == "stitch_images"
    assert "no stitch would be trained" in fault.message


def test_too_few_rows_for_least_squares_are_a_fault(storage, tmp_path):
    with pytest.raises(SweepFileError) as refused:
        load_sweep(sweeping.write(tmp_path, cuts=["blocks.4", "pool"]), storage)
    (fault,) = refused.value.faults
    assert fault.place == "pairs[0]"
    assert "pool → pool has 54 rows for 65 unknowns; take at least 73" in fault.message


def test_no_more_images_are_attacked_than_are_tested_on(storage, tmp_path):
    def attacked(count, **changes):
        evaluation = {"robust": {"images": count}}
        return sweeping.write(tmp_path, evaluation=evaluation, **changes)

    load_sweep(attacked(50), storage)
    for changes, there in (({}, 50), ({"test_images": None, "data": {"test": 20}}, 20)):
        with pytest.raises(SweepFileError) as refused:
            load_sweep(attacked(51, **changes), storage)
        (fault,) = refused.value.faults
        assert fault.place == "evaluation.robust.images"
        assert f"tested on {there} images" in fault.message
    stored_again(load_sweep(attacked(51), storage, limit_images=30))


def test_a_trial_run_with_too_few_rows_says_so_and_runs(storage, tmp_path):
    few = {"cuts": ["blocks.4", "pool"], "objectives": ["dm"], "protocols": ["standard"]}
    path = sweeping.write(tmp_path, **few, stitch_images=80)
    said = []
    load_sweep(path, storage, limit_images=80, say=said.append)
    assert said == []
    load_sweep(path, storage, limit_images=30, say=said.append)
    (note,) = said
    assert "these cells will fail" in note
    assert "pool → pool has 27 rows for 65 unknowns" in note
    trial = sweeping.run(path, storage.root, limit_images=30, max_epochs=1)
    rows = trial.plan.rows.sort("end_cut")
    assert rows["status"].to_list() == ["ok", "failed"]
    assert "pool → pool has 27 rows for 65 unknowns" in rows["error"][1]
    # What is stored of it can be read as any other sweep.
    assert stored_plan("small", storage, said.append).rows.equals(trial.plan.rows)
    assert said == [note]


def test_a_trial_run_takes_batches_that_its_images_fill(storage, tmp_path):
    path = sweeping.write(tmp_path, preset="published", training={"epochs": 2}, stitch_images=None)
    trial = load_sweep(path, storage, limit_images=100).sweep
    assert trial.training_under("standard").batch == trial.training.batch == 100


@pytest.mark.parametrize("training", [{"batch": 54, "drop_last": True}, {"held_out": 0.5}])
def test_enough_images_for_one_batch_are_none(training, storage, tmp_path):
    assert load_sweep(sweeping.write(tmp_path, training=training), storage).networks
