"""The runner on Ray: the numbers of the in-process runner, whatever is lost on the way."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import sweeping
from raystitch.errors import EngineError
from raystitch.results.schema import METRICS
from raystitch.results.store import CellStore, Storage
from raystitch.run import cluster, runners

FIGURES = [name for name in METRICS if name != "seconds"]
# `dm` diverges at this rate, the others do not.
TRAINING = {**sweeping.SMALL["training"], "lr": 100.0}
SWEEP = {"training": TRAINING, "protocols": ["standard", "invariance"]}
COUNT = 2 * (4 + 4)


def on_ray(path, root, **changes):
    return sweeping.run(path, root, start=runners.on_ray(None), **changes)


def figures(outcome):
    return outcome.plan.rows.sort("key").select("key", "status", "error", "stop_reason", *FIGURES)


def equal(one, other):
    assert_frame_equal(figures(one), figures(other), rel_tol=0, abs_tol=1e-5)


def stored(root):
    """Every stored row, none left out."""
    files = Storage(root).cells("small").glob("*.parquet")
    return pl.concat([pl.read_parquet(file) for file in files])


def names(root):
    """The files under a storage, without the random part of their names."""
    found = (file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    return {re.sub(r"-[0-9a-f]{16}(?=\.parquet)", "", name) for name in found}


def processes(part):
    """Ids of this user's processes with that in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if folder.name.isdecimal() and part in command and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def ray_processes():
    return [p for part in ("ray::", "raylet", "gcs_server") for p in processes(part)]


def none_left(before, seconds=40.0):
    """Ray processes that were not there before and do not go away."""
    deadline = time.monotonic() + seconds
    while left := set(ray_processes()) - before:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.2)
    return set()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """The sweep by the in-process runner: its outcome, its file and its storage."""
    folder = tmp_path_factory.mktemp("local")
    path = sweeping.write(folder, **SWEEP)
    return sweeping.run(path, folder / "runs"), path, folder / "runs"


@pytest.fixture(scope="module")
def ray_run(local, tmp_path_factory):
    """The same by Ray, on two slots."""
    before = set(ray_processes())
    root = tmp_path_factory.mktemp("ray") / "runs"
    outcome = on_ray(local[1], root)
    assert not none_left(before)
    return outcome, root


def test_ray_gives_the_numbers_and_the_files_of_one_process(local, ray_run):
    (reference, _, local_root), (outcome, root) = local, ray_run
    assert len(outcome.plan.rows) == COUNT
    failed = outcome.plan.rows.filter(pl.col("status") == "failed")
    assert 0 < len(failed) < COUNT
    assert outcome.exit_code == reference.exit_code == 1
    equal(outcome, reference)
    assert names(root) == names(local_root)
    assert stored(root)["key"].n_unique() == len(stored(root)) == COUNT


def test_what_was_lost_is_run_again_on_more_slots_than_there_is_work(
    local, ray_run, tmp_path, monkeypatch
):
    """Also on one CPU: a Ray of our own is as large as its slots."""
    monkeypatch.setattr(cluster, "usable_cpus", lambda: 1)
    root = tmp_path / "runs"
    shutil.copytree(ray_run[1], root)
    files = sorted(Storage(root).cells("small").glob("*.parquet"))
    kept = stored(root).height
    for file in files[:2]:
        kept -= pl.read_parquet(file).height
        file.unlink()
    parts = sorted((root / "artifacts" / "iris").glob("*/part-*.parquet"))
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    path = sweeping.write(tmp_path, **SWEEP, execution={**sweeping.SMALL["execution"], "slots": 3})
    again = on_ray(path, root)
    equal(again, local[0])
    assert kept < COUNT
    assert stored(root)["key"].n_unique() == len(stored(root)) == COUNT


def test_a_killed_driver_leaves_no_process_and_no_cell_twice(local, tmp_path):
    root, before = tmp_path / "runs", set(ray_processes())
    code = "from raystitch.cli import main; main()"
    command = [sys.executable, "-c", code, "sweep", str(local[1]), "--storage", str(root)]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while child.poll() is None and time.monotonic() < deadline:
        if list(Storage(root).cells("small").glob("[!.]*.parquet")):
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    again = sweeping.run(local[1], root)  # a runner may go on where the other stopped
    equal(again, local[0])
    assert stored(root)["key"].n_unique() == len(stored(root)) == COUNT
    # Ray's agents take their time to see that their head is gone.
    assert not none_left(before, 120.0)


def test_a_unit_goes_on_from_its_saved_state(tmp_path):
    """Stopped in the middle, by a worker that is not heard of again: the same numbers."""
    from raystitch.run.iri_specs import iri_set_of
    from raystitch.run.planning import make_plan
    from raystitch.run.unit import run_unit
    from raystitch.run.work import UnitWork
    from raystitch.run.workshop import Workshop

    training = {**sweeping.SMALL["training"], "epochs": 8, "min_epochs": 8}
    changes = {"training": training, "protocols": ["standard"], "cuts": ["blocks.4"]}
    execution = {**sweeping.SMALL["execution"], "state_seconds": 0}
    path = sweeping.write(tmp_path, **changes, execution=execution)
    whole = sweeping.run(path, tmp_path / "whole")
    root = tmp_path / "runs"
    shutil.copytree(tmp_path / "whole", root)
    shutil.rmtree(Storage(root).cells("small"))
    context = sweeping.load_sweep(path, Storage(root))
    (unit,) = make_plan(context).units
    work = UnitWork(unit, iri_set_of(unit, context, context.digests()))
    reports = run_unit(work, Workshop(context))
    for _ in range(5):
        assert next(reports).resumed is None
    reports.close()
    assert len(list(Storage(root).states("small").iterdir())) == 4
    again = list(run_unit(work, Workshop(context)))
    assert [report.epoch for report in again] == [4, 5, 6, 7, 8]
    assert again[0].resumed == 4
    assert [report.done for report in again] == [False] * 4 + [True]
    assert list(Storage(root).states("small").iterdir()) == []
    equal(sweeping.run(path, root), whole)
    assert list(run_unit(work, Workshop(context))) == []  # nothing is stored twice


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
    token, before = tmp_path / "token", set(ray_processes())
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
        assert "joined" in output(code, right)
        for wrong in ({"RAY_AUTH_MODE": "disabled"}, {**right, "RAY_AUTH_TOKEN": "f" * 64}):
            assert "joined" not in output(code, wrong)
    finally:
        child.communicate("end\n", timeout=60)
    assert not none_left(before)


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
    with pytest.raises(EngineError, match="could be joined at 127"):
        cluster.connect(context, "127.0.0.1:1", lambda text: None)


def test_a_worker_that_sleeps_for_ever_ends_in_a_sentence(local, tmp_path):
    from raystitch.run.pool import through_pool

    class Sleeper:  # in here, so that Ray takes it along: workers do not find the tests
        def __call__(self, table):
            (tmp_path / "began").touch()
            time.sleep(3600)
            return table

    before = set(ray_processes())
    context = sweeping.load_sweep(local[1], Storage(local[2]))
    execution = context.sweep.execution.model_copy(update={"progress_seconds": 15})
    found = cluster.connect(context, None, lambda text: None)
    try:
        with pytest.raises(EngineError, match="nothing was heard of the IRIs for 15 s"):
            list(through_pool("IRIs", [{"number": 0}], Sleeper, (), found, execution))
        assert (tmp_path / "began").exists()  # it slept, and was not just slow to start
    finally:
        found.close()
    assert not none_left(before)


def test_the_store_reads_the_rows_of_one_unit_alone(local):
    outcome, _, root = local
    store = CellStore(Storage(root), "small")
    unit = outcome.plan.rows["unit"][0]
    assert set(store.of_unit(unit)["unit"]) == {unit}
    assert len(store.of_unit(unit)) == (outcome.plan.rows["unit"] == unit).sum()
