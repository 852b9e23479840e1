"""A sweep from file to rows: every cell once, the same whenever it is run, whatever went before."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import sweeping
from raystitch.data.shards import read_shard
from raystitch.results.schema import METRICS
from raystitch.results.store import Storage
from raystitch.results.tensors import Tensor
from raystitch.sweep.cells import units

COUNT = 2 * (4 + 4 + 3)
FIGURES = [name for name in METRICS if name != "seconds"]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A small sweep run without disturbance, and its storage."""
    folder = tmp_path_factory.mktemp("done")
    path = sweeping.write(folder)
    return sweeping.run(path, folder / "runs"), path, folder / "runs"


def figures(outcome):
    return outcome.plan.rows.sort("key").select("key", "stop_reason", *FIGURES)


def files(root: Path):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in root.rglob("*") if p.is_file()}


def test_every_cell_has_one_good_row(done):
    outcome, _, _ = done
    rows = outcome.plan.rows
    assert len(outcome.plan.cells) == len(rows) == rows["key"].n_unique() == COUNT
    assert (rows["status"] == "ok").all()
    assert outcome.exit_code == 0
    assert rows.filter((pl.col("protocol") == "noise") & (pl.col("objective") == "hlm")).is_empty()


def test_rows_hold_their_figures(done):
    rows = done[0].plan.rows
    always = ("agreement", "agreement_init", "accuracy", "accuracy_front", "loss_init", "entropy")
    for name in always:
        assert rows[name].null_count() == 0, name
    assert rows["agreement"].is_between(0, 100).all()
    of_iris = pl.col("protocol") == "invariance"
    for name in ("iri_residual", "iri_failed_share", "iri_fidelity", "backward"):
        assert rows.filter(of_iris)[name].null_count() == 0, name
        assert rows.filter(~of_iris)[name].is_null().all(), name
    assert (rows["curve"].list.len() == rows["epochs"]).all()
    assert (rows["stitch_images"] == 60).all()
    assert (rows["test_images"] == 50).all()


def test_running_again_changes_no_file(done):
    outcome, path, root = done
    before = files(root)
    again = sweeping.run(path, root)
    assert again.plan.pending == []
    assert files(root) == before
    assert again.summary.frame.equals(outcome.summary.frame)


def test_lost_rows_are_run_again_to_the_same_figures(done, tmp_path):
    outcome, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    lost = sorted(Storage(copy).cells("small").glob("*.parquet"))[::2]
    for file in lost:
        file.unlink()
    again = sweeping.run(path, copy)
    assert_frame_equal(figures(again), figures(outcome), rel_tol=0, abs_tol=1e-5)


def test_a_lost_or_torn_shard_is_built_again_to_the_same_pixels(done, tmp_path):
    _, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    storage = Storage(copy)
    parts = sorted((copy / "artifacts" / "iris").glob("*/part-*.parquet"))
    before = [read_shard(part).images.images for part in parts]
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    for file in storage.cells("small").glob("*.parquet"):
        file.unlink()
    sweeping.run(path, copy)
    for part, pixels in zip(parts, before, strict=True):
        assert (read_shard(part).images.images == pixels).all()


def test_another_network_under_the_same_key_makes_its_cells_pending(done, tmp_path):
    from raystitch.cards import ModelCard
    from raystitch.files import write_text

    _, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    context = sweeping.load_sweep(path, Storage(copy))
    card_path = context.storage.model_card(context.model_key("net-1"))
    card = ModelCard.read(card_path)
    write_text(card_path, card.to_json().replace(card.digest, "0" * 64))
    from raystitch.run.planning import make_plan

    assert len(make_plan(context).pending) == COUNT


def test_a_network_that_is_lost_is_made_again_and_its_rows_count_again(done, tmp_path):
    outcome, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    context = sweeping.load_sweep(path, Storage(copy))
    subprocess.run(["rm", "-r", context.storage.model(context.model_key("net-0"))], check=True)
    again = sweeping.run(path, copy)
    assert_frame_equal(again.plan.rows.sort("key"), outcome.plan.rows.sort("key"))


def test_trial_runs_with_fewer_images_never_mix_in(done, tmp_path):
    outcome, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    trial = sweeping.run(path, copy, limit_images=40, max_epochs=1)
    assert (trial.plan.rows["stitch_images"] == 40).all()
    assert (trial.plan.rows["epochs"] == 1).all()
    back = sweeping.run(path, copy)
    assert_frame_equal(figures(back), figures(outcome))


def test_a_cell_that_diverges_fails_and_the_others_are_there(tmp_path):
    path = sweeping.write(
        tmp_path,
        cuts=["blocks.4"],
        protocols=["standard"],
        training={**sweeping.SMALL["training"], "lr": 100.0},
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    rows = outcome.plan.rows
    failed = rows.filter(pl.col("status") == "failed")
    assert outcome.exit_code == 1
    assert "dm" in failed["objective"].to_list()
    assert all("diverged" in reason for reason in failed["error"])
    assert failed["agreement"].is_null().all()
    good = rows.filter(pl.col("status") == "ok")
    assert len(good) + len(failed) == 4
    assert "slm" in good["objective"].to_list()
    # A failure of the cell itself is final until asked for again.
    assert sweeping.run(path, tmp_path / "runs").plan.pending == []
    before = len(list(Storage(tmp_path / "runs").cells("small").glob("*.parquet")))
    sweeping.run(path, tmp_path / "runs", retry_failed=True)
    assert len(list(Storage(tmp_path / "runs").cells("small").glob("*.parquet"))) > before


def test_a_network_that_cannot_be_trained_leaves_its_own_cells_pending(tmp_path):
    wild = {"arch": "raystitch/cnn5", "seeds": [7], "epochs": 1, "lr": 1e30}
    path = sweeping.write(
        tmp_path,
        zoo={**sweeping.SMALL["zoo"], "wild": wild},
        pairs=[{"front": "wild-7", "end": "net-0"}, {"front": "net-1", "end": "net-0"}],
        objectives=["dm"],
        protocols=["standard"],
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 1
    assert set(outcome.plan.rows["front_model"]) == {"net-1"}
    assert {cell.front_model for cell in outcome.plan.pending} == {"wild-7"}


def test_a_failure_around_a_unit_leaves_it_pending_and_the_others_go_on(tmp_path, monkeypatch):
    from raystitch.run import local

    whole = local.run_unit

    def short_of_memory(work, workshop):
        if work.unit.protocol == "noise":
            raise torch.OutOfMemoryError("no memory left")
        return whole(work, workshop)

    monkeypatch.setattr(local, "run_unit", short_of_memory)
    path = sweeping.write(tmp_path, objectives=["dm"], protocols=["standard", "noise"])
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 1
    assert set(outcome.plan.rows["protocol"]) == {"standard"}
    assert {cell.protocol for cell in outcome.plan.pending} == {"noise"}
    stories = [path.read_text() for path in Storage(tmp_path / "runs").incidents("small").iterdir()]
    assert len(stories) == 2
    assert all("no memory left" in story for story in stories)
    monkeypatch.undo()
    assert sweeping.run(path, tmp_path / "runs").exit_code == 0


def test_foreign_iris_are_those_of_an_untrained_twin(tmp_path):
    zoo = {
        "net": {"arch": "raystitch/cnn5", "seeds": [0, 1], "epochs": 1, "batch": 64},
    }
    path = sweeping.write(
        tmp_path,
        zoo=zoo,
        cuts=["blocks.4"],
        objectives=["dm"],
        protocols=["invariance", "foreign"],
        iris={"steps": 60, "batch": 32},
    )
    rows = sweeping.run(path, tmp_path / "runs").plan.rows
    residual = dict(rows.select("protocol", "iri_residual").iter_rows())
    fidelity = dict(rows.select("protocol", "iri_fidelity").iter_rows())
    assert residual["invariance"] != residual["foreign"]
    # The front itself answers on its own IRIs as on the images, and not so on another's.
    assert fidelity["invariance"] > fidelity["foreign"] + 10


def test_an_untrained_front_shares_its_iris_with_its_twin(tmp_path):
    from raystitch.run.iri_specs import iri_set_of, missing_shards

    path = sweeping.write(
        tmp_path, cuts=["blocks.4"], objectives=["dm"], protocols=["invariance", "foreign"]
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    context, digests = outcome.plan.context, dict(outcome.plan.digests)
    sets = [iri_set_of(unit, context, digests) for unit in units(outcome.plan.cells)]
    assert len(sets) == 2
    assert missing_shards(sets, context) == []


def test_the_network_stored_first_stays(tmp_path):
    from raystitch.run.workshop import Workshop
    from raystitch.run.zoo_stage import make_model

    zoo = {"net": {"arch": "raystitch/cnn5", "seeds": [0, 1], "epochs": 1, "batch": 256}}
    path = sweeping.write(tmp_path, zoo=zoo)
    context = sweeping.load_sweep(path, Storage(tmp_path / "runs"))
    folder = context.storage.model(context.model_key("net-0"))
    first = []

    def another_process(epoch, loss):
        first.append(make_model(Workshop(context), "net-0"))
        first.append(files(folder))

    assert make_model(Workshop(context), "net-0", another_process) == first[0]
    assert files(folder) == first[1]


def test_rows_never_carry_the_digest_of_a_network_they_were_not_measured_on(done, tmp_path):
    from raystitch.errors import StorageError
    from raystitch.run.workshop import Workshop
    from raystitch.zoo import artifacts
    from raystitch.zoo.models import digest

    _, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    context = sweeping.load_sweep(path, Storage(copy))
    workshop = Workshop(context)
    loaded = digest(workshop.network("net-0"))
    other = workshop.blank("net-1")
    folder = context.storage.model(context.model_key("net-0"))
    card = replace(workshop.card("net-0"), digest=digest(other))
    artifacts.save(folder, other, card)
    assert workshop.card("net-0").digest == loaded
    workshop.network.cache_clear()
    with pytest.raises(StorageError, match="was replaced while the sweep ran"):
        workshop.network("net-0")


def test_marked_pairs_and_plain_pairs_of_one_front_share_nothing_wrong(tmp_path):
    zoo = {
        "net": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1]},
        "cue": {"arch": "raystitch/cnn5", "seeds": [2], "epochs": 1, "marker": {"size": 4}},
    }
    plain = {"front": "net-1", "end": "net-0"}
    pairs = [plain, {**plain, "stitch_marker": "cue-2"}, {**plain, "test_marker": "cue-2"}]
    path = sweeping.write(
        tmp_path, zoo=zoo, pairs=pairs, cuts=["blocks.2"], objectives=["dm"], protocols=["standard"]
    )
    rows = sweeping.run(path, tmp_path / "runs").plan.rows
    assert len(rows) == 3
    assert rows["agreement"].n_unique() == 3
    assert rows["unit"].n_unique() == 2  # test images do not set units apart


def test_tensors_hold_the_rows(done):
    outcome, _, root = done
    folder = Storage(root).tensors("small")
    rows = outcome.plan.rows
    tensor = Tensor.load(folder / "dense.npz")
    one = rows.row(0, named=True)
    found = tensor.select(
        metric="agreement",
        **{name: one[name] for name in ("front_cut", "end_cut", "objective", "protocol")},
    )
    assert float(found.values.squeeze()) == one["agreement"]
    assert pl.read_parquet(folder / "long.parquet").height > 0


def test_two_sweeps_may_share_networks_and_iris(done, tmp_path):
    _, _, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    before = set((copy / "artifacts").rglob("*"))
    outcome = sweeping.run(sweeping.write(tmp_path, name="other"), copy)
    assert outcome.exit_code == 0
    assert set((copy / "artifacts").rglob("*")) == before


def test_networks_are_bit_equal_before_and_after(done, tmp_path):
    outcome, path, root = done
    from raystitch.run.unit import run_unit
    from raystitch.run.work import UnitWork
    from raystitch.run.workshop import Workshop
    from raystitch.zoo.models import digest

    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    subprocess.run(["rm", "-r", Storage(copy).cells("small")], check=True)
    workshop = Workshop(sweeping.load_sweep(path, Storage(copy)))
    unit = next(u for u in units(outcome.plan.cells) if u.protocol == "standard")
    assert list(run_unit(UnitWork(unit, None), workshop))[-1].stored == 4
    for model in ("net-0", "net-1"):
        assert digest(workshop.network(model)) == workshop.card(model).digest


def test_recomputing_activations_gives_the_same_rows(done, tmp_path):
    outcome, _, _ = done
    path = sweeping.write(
        tmp_path, execution={**sweeping.SMALL["execution"], "activation_bytes": 0}
    )
    again = sweeping.run(path, tmp_path / "runs")
    assert_frame_equal(figures(again), figures(outcome), rel_tol=0, abs_tol=1e-5)


def test_killed_anywhere_nothing_is_lost_or_doubled(done, tmp_path):
    outcome, path, _ = done
    root = tmp_path / "runs"
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import sweeping; "
    code += f"from pathlib import Path; sweeping.run(Path({str(path)!r}), Path({str(root)!r}))"
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    dice = random.Random(0)
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", code], env=environment)
        deadline = time.monotonic() + 120
        # From the first artifact on there is something to lose; before it, Python only starts.
        while child.poll() is None and time.monotonic() < deadline:
            if any(root.rglob("weights.safetensors")):
                break
            time.sleep(0.05)
        time.sleep(dice.uniform(0.5, 4))
        child.send_signal(signal.SIGKILL)
        child.wait()
    threads = torch.get_num_threads()
    again = sweeping.run(path, root)
    torch.set_num_threads(threads)
    stored = pl.concat(
        [pl.read_parquet(file) for file in Storage(root).cells("small").glob("*.parquet")]
    )
    assert stored["key"].n_unique() == len(stored) == COUNT
    assert_frame_equal(figures(again), figures(outcome), rel_tol=0, abs_tol=1e-5)
