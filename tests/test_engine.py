"""The runner on Ray: the numbers of the in-process runner, whatever is lost on the way."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import raying
import sweeping
from raystitch.errors import EngineError
from raystitch.results.store import CellStore, Storage
from raystitch.run import cluster, runners, splitting, watch
from raystitch.run.engine import RayRunner
from raystitch.run.iri_specs import iri_set_of
from raystitch.run.planning import make_plan
from raystitch.run.unit import run_unit
from raystitch.run.work import ModelTask, UnitWork
from raystitch.run.workshop import Workshop
from raystitch.sweep.cells import units

# `dm` diverges at this rate, the others do not.
TRAINING = {**sweeping.SMALL["training"], "lr": 100.0}
SWEEP = {"training": TRAINING, "protocols": ["standard", "invariance"]}
COUNT = 2 * (4 + 4)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The sweep by the in-process runner: its outcome, its file and its storage."""
    folder = tmp_path_factory.mktemp("local")
    path = sweeping.write(folder, **SWEEP)
    return sweeping.run(path, folder / "runs"), path, folder / "runs"


@pytest.fixture(scope="module")
def ray_run(local, tmp_path_factory):
    """The same by Ray, on two slots."""
    root = tmp_path_factory.mktemp("ray") / "runs"
    outcome = raying.on_ray(local[1], root)
    assert raying.none_left()
    return outcome, root


def test_ray_gives_the_numbers_and_the_files_of_one_process(local, ray_run):
    (reference, _, local_root), (outcome, root) = local, ray_run
    assert len(outcome.plan.rows) == COUNT
    failed = outcome.plan.rows.filter(pl.col("status") == "failed")
    assert 0 < len(failed) < COUNT
    assert outcome.exit_code == reference.exit_code == 1
    raying.assert_equal(outcome, reference)
    assert raying.names(root) == raying.names(local_root)
    raying.assert_each_once(root, COUNT)


def test_what_was_lost_is_run_again_on_more_slots_than_there_is_work(local, ray_run, tmp_path):
    root = tmp_path / "runs"
    shutil.copytree(ray_run[1], root)
    for file in raying.row_files(root)[:2]:
        file.unlink()
    assert 0 < raying.stored(root).height < COUNT
    parts = sorted((root / "artifacts" / "iris").glob("*/part-*.parquet"))
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    path = sweeping.write(tmp_path, **SWEEP, execution={**sweeping.SMALL["execution"], "slots": 3})
    raying.assert_equal(raying.on_ray(path, root), local[0])
    raying.assert_each_once(root, COUNT)


@pytest.mark.timeout(300)
def test_one_cpu_goes_on_when_its_worker_is_killed(tmp_path, monkeypatch):
    """The pool takes the only CPU there is, and its only worker dies with work left."""
    monkeypatch.setattr(cluster, "usable_cpus", lambda: 1)
    iris = {"steps": 300, "tolerance": 0, "rule": "sign", "batch": 4}  # eight shards of one set
    path = sweeping.write(
        tmp_path, cuts=["blocks.2"], objectives=["dm"], protocols=["invariance"], iris=iris
    )
    with raying.Killer("ray::MapWorker(MapBatches(BuildShard))", 1, most_seconds=0.0) as killer:
        outcome = raying.on_ray(path, tmp_path / "runs")
    assert killer.killed == 1
    assert len(list((tmp_path / "runs" / "artifacts" / "iris").glob("*/part-*"))) == 8
    assert outcome.exit_code == 0
    raying.assert_each_once(tmp_path / "runs", 1)


def test_a_killed_driver_leaves_no_process_and_no_cell_twice(local, tmp_path):
    root = tmp_path / "runs"
    child = subprocess.Popen(raying.command(local[1], root), stderr=subprocess.DEVNULL)
    raying.wait_for(child, lambda: raying.row_files(root))
    child.send_signal(signal.SIGKILL)
    child.wait()
    again = sweeping.run(local[1], root)  # a runner may go on where the other stopped
    raying.assert_equal(again, local[0])
    raying.assert_each_once(root, COUNT)
    # Ray's agents take their time to see that their head is gone.
    assert raying.none_left(120)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A sweep of one unit of four cells, run to its end: its outcome, file and storage."""
    folder = tmp_path_factory.mktemp("whole")
    training = {**sweeping.SMALL["training"], "epochs": 8, "min_epochs": 8}
    changes = {"training": training, "protocols": ["standard"], "cuts": ["blocks.4"]}
    execution = {**sweeping.SMALL["execution"], "state_seconds": 0}
    path = sweeping.write(folder, **changes, execution=execution)
    return sweeping.run(path, folder / "runs"), path, folder / "runs"


def begin_again(whole, tmp_path, **limits):
    """The same with its networks alone stored: the storage, the unit as work, a workshop."""
    root = tmp_path / "runs"
    shutil.copytree(whole[2], root)
    shutil.rmtree(Storage(root).cells("small"))
    context = sweeping.load_sweep(whole[1], Storage(root), **limits)
    (unit,) = make_plan(context).units
    return root, UnitWork(unit, iri_set_of(unit, context, {})), Workshop(context)


def test_a_unit_goes_on_from_its_saved_state(whole, tmp_path):
    """Stopped in the middle, by a worker that is not heard of again: the same numbers."""
    root, work, workshop = begin_again(whole, tmp_path)
    reports = run_unit(work, workshop)
    for _ in range(5):
        assert next(reports).resumed is None
    reports.close()
    assert len(list(Storage(root).states("small").iterdir())) == 4
    again = list(run_unit(work, workshop))
    assert [report.epoch for report in again] == [4, 5, 6, 7, 8]
    assert again[0].resumed == 4
    assert [report.stored for report in again] == [0] * 4 + [4]
    assert [report.done for report in again] == [False] * 4 + [True]
    assert list(Storage(root).states("small").iterdir()) == []
    raying.assert_equal(sweeping.run(whole[1], root), whole[0])


def test_a_worker_that_was_thought_lost_stores_nothing_twice(whole, tmp_path):
    root, work, workshop = begin_again(whole, tmp_path)
    late = run_unit(work, workshop)
    next(late)
    assert list(run_unit(work, workshop))[-1].stored == 4
    assert list(late)[-1].stored == 4
    (nothing,) = run_unit(work, workshop)
    assert nothing.done
    assert nothing.stored == 4
    raying.assert_each_once(root, 4)


def test_a_failed_cell_is_tried_again_once(whole, tmp_path):
    """Those that failed before are, those that have failed since are not."""
    root, work, workshop = begin_again(whole, tmp_path)
    (report,) = run_unit(replace(work, failure="no IRIs"), workshop)
    assert report.failed == report.stored == 4
    rows = raying.stored(root)
    again = replace(
        work, failure="none yet", again=frozenset(rows.select("key", "finished_at").iter_rows())
    )
    (report,) = run_unit(again, workshop)
    assert report.failed == 4
    assert raying.stored(root).height == 8
    (report,) = run_unit(again, workshop)
    assert report.failed == 0
    assert raying.stored(root).height == 8


LISTEN = """
import sys
from pathlib import Path
import ray, sweeping
from raystitch.results.store import Storage
from raystitch.run import cluster
context = sweeping.load_sweep(Path(sys.argv[1]), Storage(Path(sys.argv[2])))
found = cluster.connect(context, None, lambda text: None)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.readline()
found.close()
"""


def test_nothing_of_ours_listens_without_a_token(local, tmp_path):
    token = tmp_path / "token"
    ours = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(token)}
    ours["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), ours.get("PYTHONPATH", "")])
    # Processes of their own: Ray keeps the first token that a process has read.
    child = subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(local[1]), str(local[2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=ours,
    )
    try:
        address = child.stdout.readline().strip()
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        code = f"import ray; ray.init({address!r}, log_to_driver=False); print('joined')"
        right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token.read_text()}
        strangers = [{"RAY_AUTH_MODE": "disabled"}, {**right, "RAY_AUTH_TOKEN": "f" * 64}]
        with ThreadPoolExecutor() as pool:
            told = list(pool.map(lambda own: output(code, own), [right, *strangers]))
        assert ["joined" in text for text in told] == [True, False, False]
    finally:
        child.communicate("end\n", timeout=60)
    assert raying.none_left()


def output(code, environment):
    command, own = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(
        command, env=own, capture_output=True, text=True, check=False, timeout=120
    )
    return done.stdout


def test_a_token_is_made_for_this_user_alone(tmp_path, monkeypatch):
    path = tmp_path / "ray" / "token"
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    cluster.make_token()
    text = path.read_text()
    assert len(text) == 64
    path.chmod(0o644)  # as Ray itself would leave it
    cluster.make_token()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == text


def test_a_ray_without_a_token_is_refused(local, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    context = sweeping.load_sweep(local[1], Storage(local[2]))
    with pytest.raises(EngineError, match="lets anyone"):
        cluster.connect(context, None, lambda text: None)


def test_no_cluster_at_the_address_is_a_sentence(local):
    context = sweeping.load_sweep(local[1], Storage(local[2]))
    said = []
    with pytest.raises(EngineError, match="could be joined at 127"):
        runners.on_ray("127.0.0.1:1")(context, said.append)
    assert said == ["joining the cluster at 127.0.0.1:1 …"]


def test_a_stage_says_that_its_workers_start_before_any_answers(local):
    context = sweeping.load_sweep(local[1], Storage(local[2]))
    said = []
    runner = RayRunner(context, cluster.Cluster(2, 1, 0.0, "cpu"), said.append)
    tasks = [ModelTask(model, ()) for model in context.networks]
    runner.make_models(tasks, lambda model, epoch, loss: None)
    runner.make_models(tasks[:1], lambda model, epoch, loss: None)
    runner.stages.close()
    workers = ["starting 2 workers", "starting 1 worker"]
    assert said == [f"{some} for the networks …" for some in workers]


@pytest.mark.timeout(300)
def test_work_that_sleeps_for_ever_or_fails_is_told_in_a_sentence(local, tmp_path, monkeypatch):
    """Both stages; the classes are in here, so that Ray takes them along to its workers."""
    from ray import tune

    from raystitch.run import pool, stitch_stage

    class Sleeper(pool.PoolWorker):
        def work(self, one):
            (tmp_path / "began").touch()
            time.sleep(3600)
            yield {}

    class Flaky(pool.PoolWorker):
        def work(self, one):
            yield {"one": one}
            tries = len(list(tmp_path.glob(f"try-{one}-*")))
            (tmp_path / f"try-{one}-{tries}").touch()
            if one == "never" or tries == 0:
                raise OSError(28, "no space left")
            return {"tries": tries}

    class SleepingUnit(tune.Trainable):
        def setup(self, config, context, work):
            pass

        def where(self):
            return stitch_stage.here()

        def step(self):
            time.sleep(3600)

    def settings(**changes):
        execution = context.sweep.execution.model_copy(update=changes)
        return replace(context, sweep=context.sweep.model_copy(update={"execution": execution}))

    context = sweeping.load_sweep(local[1], Storage(local[2]))
    found = cluster.connect(context, None, lambda text: None)
    try:
        told = list(pool.through_pool("IRIs", ["once", "never"], Flaky, settings(), found))
        (done,) = [one for one in told if isinstance(one, pool.Done)]
        (lost,) = [one for one in told if isinstance(one, pool.Lost)]
        assert done == pool.Done(0, {"tries": 1})
        assert lost.number == 1
        assert f"no space left (on {socket.gethostname()} (process" in lost.reason
        assert "Traceback" in lost.story
        assert len(list(tmp_path.glob("try-never-*"))) == 3

        hasty = settings(progress_seconds=15, retries=0)
        with pytest.raises(EngineError, match="nothing was heard of the IRIs for 15 s"):
            list(pool.through_pool("IRIs", [0], Sleeper, hasty, found))
        assert (tmp_path / "began").exists()  # it slept, and was not just slow to start

        monkeypatch.setattr(stitch_stage, "TrainUnit", SleepingUnit)
        work = [UnitWork(units(local[0].plan.cells)[0], None)]
        (left,) = stitch_stage.run_units(work, hasty, found, lambda report: None, print)
        assert "nothing was heard of it for 15 s" in left.reason
        assert socket.gethostname() in left.reason
    finally:
        found.close()
    assert raying.none_left()


def test_a_watch_tells_who_is_silent(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    seen = watch.Watch(10)
    seen.heard("a")
    now[0] = 6.0
    seen.heard("b")
    now[0] = 11.0
    assert seen.silent_ones() == ["a"]
    assert not seen.all_silent()
    seen.forget("a")
    now[0] = 17.0
    assert seen.silent_ones() == ["b"]
    now[0] = 22.0
    assert seen.all_silent()


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_units_are_split_where_slots_would_be_idle(local, slots):
    context = sweeping.load_sweep(local[1], Storage(local[2]))
    work = [UnitWork(unit, None) for unit in units(local[0].plan.cells)]
    parts = splitting.split(work, context, slots)
    cells = [cell.key for part in parts for cell in part.unit.cells]
    assert sorted(cells) == sorted(cell.key for one in work for cell in one.unit.cells)
    assert len({(part.unit.key, part.part) for part in parts}) == len(parts)
    costs = [splitting.flops(part, context) for part in parts]
    assert costs == sorted(costs, reverse=True)
    if slots == 1:
        assert len(parts) == len(work)
    else:
        # No slot is left alone with more than its share, unless with a single cell.
        share = sum(splitting.flops(one, context) for one in work) / slots
        assert len(parts) > len(work)
        assert all(c <= share or len(p.unit.cells) == 1 for p, c in zip(parts, costs, strict=True))


def test_the_store_reads_the_rows_of_one_unit_alone(local):
    outcome, _, root = local
    store = CellStore(Storage(root), "small")
    unit = outcome.plan.rows["unit"][0]
    assert set(store.of_unit(unit)["unit"]) == {unit}
    assert len(store.of_unit(unit)) == (outcome.plan.rows["unit"] == unit).sum()
