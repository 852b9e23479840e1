"""The command line: what each command prints, says and returns, on tiny sweeps."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

import sweeping
from raystitch import __version__
from raystitch.cli import app
from raystitch.names import OBJECTIVES
from raystitch.results.query import FORMATS
from raystitch.results.store import Storage
from raystitch.run import calibration
from raystitch.run.planning import load_sweep, make_plan
from raystitch.run.status import cost

COMMANDS = ("sweep", "plan", "check", "status", "cuts", "query", "statistics", "schema")
TINY = {
    "name": "tiny",
    "objectives": ["slm", "dm"],
    "protocols": ["standard", "invariance"],
    "iris": {"steps": 3, "batch": 8},
}
COUNT = 2 * 2 * 2
LIMITS = ("--limit-images", "24", "--max-epochs", "1")
FAULTS = {
    "name": "faulty",
    "data": "digits",
    "zoo": {"net": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1]}},
    "pairs": [{"front": "net-1", "end": "net-0"}, {"front": "gone-0", "end": "net-0"}],
    "cuts": ["blocks.4", "pool"],
    "objectives": ["slm", "fulla"],
    "seedz": [0],
    "training": {"epochs": -1},
}
PLACES = ("seedz", "objectives[1]", "pairs[1].front", "training.epochs")
"""Places of the faults that need no network."""


def call(*arguments):
    if arguments[0] == "sweep":  # on Ray: tests/test_engine.py
        arguments = (*arguments, "--local")
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def script(*arguments, block=(), **kwargs):
    """The command in a Python of its own, in which importing any of ``block`` is an error."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({list(block)!r})); "
        "from raystitch.cli import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **kwargs,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The tiny sweep, run by the command: its result, its file and its storage."""
    folder = tmp_path_factory.mktemp("done")
    path = sweeping.write(folder, **TINY)
    result = call("sweep", path, "--storage", folder / "runs", *LIMITS)
    return result, path, folder / "runs"


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """A sweep of which a cell diverges."""
    folder = tmp_path_factory.mktemp("failing place")
    training = {**sweeping.SMALL["training"], "lr": 100.0}
    path = sweeping.write(
        folder, name="bad", cuts=["blocks.4"], protocols=["standard"], training=training
    )
    return call("sweep", path, "--storage", folder / "runs"), path, folder / "runs"


def five_faults(folder):
    """A file with the faults of `PLACES`, whose pair at ``pairs[0]`` is unequal for an identity."""
    cuts = {"net": ["blocks.4"], "other": ["pool"]}
    zoo = {**FAULTS["zoo"], "other": {"arch": "raystitch/cnn5", "recipe": "untrained"}}
    pairs = [{"front": "net-1", "end": "other-0"}, *FAULTS["pairs"][1:]]
    training = {**FAULTS["training"], "init": "identity"}
    path = folder / "faulty.yaml"
    path.write_text(
        yaml.safe_dump({**FAULTS, "cuts": cuts, "zoo": zoo, "pairs": pairs, "training": training})
    )
    return path


# What is loaded, and when


def test_help_loads_nothing_heavy():
    heavy = ("torch", "ray", "polars", "pyarrow", "numpy")
    # Typer reads the arguments of a command by pydantic, and its help alone without.
    for command in ([], *([name] for name in COMMANDS)):
        more = ("pydantic", "pydantic_core") if not command else ()
        found = script(*command, "--help", block=(*heavy, *more))
        assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    "command", [("plan", "--why"), ("query", "SELECT key FROM cells"), ("statistics",), ("status",)]
)
def test_what_is_stored_is_shown_without_torch_ray_or_pandas(command, done):
    """Pandas comes with Ray, and loads with some calls of pyarrow that need none of it."""
    _, path, storage = done
    name, *more = command
    what = () if name == "status" else (path if name == "plan" else "tiny",)
    traced = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    found = script(name, *what, *more, "--storage", storage, env=traced)
    assert found.returncode == 0, found.stderr
    loaded = {line.split("|")[-1].strip() for line in found.stderr.splitlines()}
    assert "polars" in loaded
    assert loaded.isdisjoint({"torch", "ray", "pandas"})


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_the_exit_codes(command):
    text = call(command, "--help").output
    assert f"raystitch {command}" in text
    assert "Exit codes: 0 " in text


def test_waiting_threads_do_not_spin():
    code = "import os, raystitch.cli; print(os.environ['OMP_WAIT_POLICY'])"
    for given, wanted in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        rest = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        out = subprocess.run(
            [sys.executable, "-c", code], env={**rest, **given}, capture_output=True, check=True
        )
        assert out.stdout.decode().strip() == wanted


def test_stored_sweeps_are_read_without_torch_and_ray(done):
    _, path, root = done
    block = ("torch", "ray", "torchvision", "timm")
    for command in (
        ("plan", path, "--why"),
        ("status",),
        ("status", "tiny"),
        ("query", "tiny", "SELECT * FROM cells"),
        ("statistics", "tiny", "--show", "differences"),
    ):
        found = script(*command, "--storage", root, block=block)
        assert found.returncode == 0, found.stderr


# Faults of the user


def test_a_file_with_five_faults_lists_them_all(tmp_path):
    path = five_faults(tmp_path)
    found = call("sweep", path, "--storage", tmp_path / "runs")
    assert found.exit_code == 2
    assert "5 faults" in found.stderr
    for place in (*PLACES, "pairs[0]"):
        assert f"  {place}: " in found.stderr, place
    assert "did you mean 'fula'" in found.stderr
    assert (
        "T = identity needs equal shapes, but blocks.4 is (64, 4, 4) and pool is (64,)"
        in found.stderr
    )
    # Nothing was begun.
    assert not (tmp_path / "runs" / "sweeps").exists()


@pytest.mark.parametrize("command", ["sweep", "plan", "check"])
def test_where_cards_are_stored_faults_need_no_torch(command, done, tmp_path):
    path = five_faults(tmp_path)
    found = script(command, path, "--storage", done[2], block=("torch", "ray"))
    assert found.returncode == 2, found.stderr
    for place in (*PLACES, "pairs[0]"):
        assert f"  {place}: " in found.stdout + found.stderr, place


def test_faults_that_need_no_network_need_no_torch(tmp_path):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'ray'])); from pathlib import Path;"
        "from raystitch.sweep.read import read_sweep;"
        "print(*(fault.place for fault in read_sweep(Path(sys.argv[1]))[1]))"
    )
    command = [sys.executable, "-c", code, str(five_faults(tmp_path))]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert sorted(found.stdout.split()) == sorted(PLACES)


def test_a_file_that_is_not_there(tmp_path):
    for command in ("sweep", "plan", "check"):
        found = call(command, tmp_path / "none.yaml", "--storage", tmp_path / "runs")
        assert found.exit_code == 2
        assert "none.yaml cannot be read: No such file" in found.output


def test_a_misspelt_option_is_named(done):
    _, path, _ = done
    found = call("sweep", path, "--limit-image", "3")
    assert found.exit_code == 2
    assert "--limit-image" in found.output
    assert "--limit-images" in found.output


@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_limits_are_whole_numbers_above_zero(value, done):
    assert call("sweep", done[1], "--max-epochs", value).exit_code == 2


def test_an_unknown_sweep_lists_those_there_are(done):
    for command in (
        ("status", "tinny"),
        ("query", "tinny", "SELECT 1 FROM cells"),
        ("statistics", "tinny"),
    ):
        found = call(*command, "--storage", done[2])
        assert found.exit_code == 1
        assert "'tinny'" in found.output
        assert "tiny" in found.output.replace("tinny", "")


def test_a_storage_that_is_no_folder_of_this_machine(done):
    found = call("status", "--storage", "s3://bucket/runs")
    assert found.exit_code == 2
    assert "folder of this machine" in found.output


def test_a_storage_that_cannot_be_written_is_a_sentence(done, tmp_path):
    (tmp_path / "file").write_text("")
    found = call("sweep", done[1], "--storage", tmp_path / "file" / "runs")
    assert found.exit_code == 1
    assert isinstance(found.exception, SystemExit)
    assert str(tmp_path / "file") in found.stderr
    checked = call("check", done[1], "--storage", tmp_path / "file" / "runs")
    assert checked.exit_code == 2
    assert "FAILED storage" in checked.output


# sweep


def test_a_sweep_shows_its_summary_and_where_its_results_are(done):
    result, _, root = done
    assert result.exit_code == 0, result.output
    assert "net-1 -> net-0" in result.output
    assert f"{COUNT} of {COUNT} cells have a result" in result.output
    assert str(Storage(root).sweep("tiny")) in result.output
    assert max(map(len, result.stdout.splitlines()[:4])) <= 100


def test_progress_is_apart_from_the_answer(done):
    result, _, _ = done
    assert f"stitches: {COUNT}/{COUNT} cells" in result.stderr
    assert "stitches:" not in result.stdout


def test_the_same_command_again_has_nothing_to_do(done):
    _, path, root = done
    found = call("sweep", path, "--storage", root, *LIMITS)
    assert found.exit_code == 0
    assert f"{COUNT} done, 0 failed, 0 pending" in found.output


def test_failed_cells_are_exit_code_1_and_the_command_shows_them(failing):
    result, _, root = failing
    assert result.exit_code == 1, result.output
    (line,) = [x for x in result.output.splitlines() if x.startswith("  raystitch query")]
    command = shlex.split(line)[1:]
    assert command[command.index("--storage") + 1] == str(root)
    shown = call(*command)
    assert shown.exit_code == 0
    assert "diverged" in shown.output
    rows = json.loads(call(*command, "--format", "json").output)
    assert {row["objective"] for row in rows} <= set(OBJECTIVES)
    assert len(rows) >= 1


def test_a_stopped_sweep_says_what_is_stored_and_goes_on(tmp_path):
    training = {**sweeping.SMALL["training"], "epochs": 30, "min_epochs": 30}
    path = sweeping.write(tmp_path, **{**TINY, "training": training})
    root = tmp_path / "runs"
    code = "from raystitch.cli import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", str(path), "--storage", str(root), "--local"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    deadline = time.monotonic() + 120
    while child.poll() is None and time.monotonic() < deadline:
        if list(Storage(root).cells("tiny").glob("[!.]*.parquet")):
            break
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    stored = pl.read_parquet(Storage(root).cells("tiny") / "*.parquet")
    assert f"{len(stored)} cells done" in errors
    assert "Run the same command again" in errors
    again = call("sweep", path, "--storage", root)
    assert again.exit_code == 0
    assert f"{len(stored)} done, 0 failed, {COUNT - len(stored)} pending" in again.output


# plan


def test_plan_counts(done):
    _, path, root = done
    found = call("plan", path, "--storage", root, *LIMITS)
    assert found.exit_code == 0
    assert f"tiny: {COUNT} cells, {COUNT} done, 0 failed, 0 pending" in found.output
    other = call("plan", path, "--storage", root).output
    assert f"tiny: {COUNT} cells, 0 done, 0 failed, {COUNT} pending" in other
    assert "units pending: 4" in other
    assert "MiB" in other or "KiB" in other
    assert "FLOP" in other


def test_plan_tells_hours_and_cost_by_the_rate_of_a_slot(tmp_path, monkeypatch):
    path, root = sweeping.write(tmp_path, **TINY), tmp_path / "runs"
    context = load_sweep(path, Storage(root))
    flops = cost(make_plan(context)).flops
    found = calibration.Calibration(flops / 7200, 2, "a network")
    monkeypatch.setattr(calibration, "calibrate", lambda context: found)
    options = ("plan", path, "--storage", root, "--calibrate")
    assert "hours at most, on 2 slots: 1 (" in call(*options).output
    said = call(*options, "--slots", 8, "--price", 3).output
    assert "hours at most, on 8 slots: 0.25 (" in said
    assert "cost at most: 0.75 at 3 an hour" in said
    refused = call("plan", path, "--storage", root, "--price", 3)
    assert refused.exit_code == 2
    assert "they need --calibrate" in refused.output


def test_calibration_measures_the_largest_network_of_a_sweep(tmp_path):
    small = {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0]}
    large = small | {"arch": "raystitch/resnet18_cifar", "kwargs": {"width": 8}}
    pairs = [{"front": f"{name}-0", "end": f"{name}-0"} for name in ("small", "large")]
    changes = {"zoo": {"small": small, "large": large}, "pairs": pairs, "cuts": "blocks"}
    path = sweeping.write(tmp_path, **TINY | changes)
    context = load_sweep(path, Storage(tmp_path / "runs"))
    found = calibration.calibrate(context)
    assert "resnet18_cifar in batches of" in found.measured_on
    assert 1e7 < found.rate < 1e14
    assert found.hours(found.rate * 3600 * found.slots) == pytest.approx(1)


def test_plan_runs_nothing(tmp_path):
    path = sweeping.write(tmp_path, **TINY)
    assert call("plan", path, "--storage", tmp_path / "runs").exit_code == 0
    assert {p.name for p in (tmp_path / "runs").iterdir()} == {"artifacts"}
    assert {p.name for p in (tmp_path / "runs" / "artifacts").iterdir()} == {"cards"}


def test_why_gives_each_reason_once(done, failing, tmp_path):
    _, path, root = done
    changed = call("plan", path, "--why", "--storage", root).output
    assert changed.count("data.train: 24 -> absent") == 1, changed
    assert f"{COUNT} × " in changed
    assert f"and {COUNT - 3} more" in changed
    assert call("plan", path, "--why", "--storage", root, *LIMITS).output.count("×") == 0
    _, path, root = failing
    assert "× failed: " in call("plan", path, "--why", "--storage", root).output
    fresh = call("plan", path, "--why", "--storage", tmp_path).output
    assert "4 × never ran" in fresh


# check


def test_check_of_a_sound_sweep(done):
    _, path, root = done
    before = sorted(root.rglob("*"))
    found = call("check", path, "--storage", root, *LIMITS)
    assert found.exit_code == 0, found.output
    for name in ("storage", "sweep file", "disk", "stitch images", "test images", "memory"):
        assert f"ok     {name}: " in found.output
    assert "network net-0: raystitch/cnn5 with its stored weights; 2 cuts" in found.output
    assert sorted(root.rglob("*")) == before


def test_check_needs_every_class(done):
    found = call("check", done[1], "--storage", done[2], "--limit-images", "7")
    assert found.exit_code == 2
    assert "FAILED stitch images: there is no image of 3 of 10 classes" in found.output


def test_check_finds_weights_that_do_not_fit(tmp_path):
    from safetensors.numpy import save_file

    save_file({"fc.bias": pl.Series([0.0] * 10).to_numpy()}, tmp_path / "own.safetensors")
    zoo = {"net": {"arch": "raystitch/cnn5", "weights": "own.safetensors"}}
    path = sweeping.write(tmp_path, zoo=zoo, pairs=[{"front": "net-0", "end": "net-0"}])
    found = call("check", path, "--storage", tmp_path / "runs")
    assert found.exit_code == 2
    assert "FAILED network net-0: " in found.output
    assert "own.safetensors" in found.output


def test_check_finds_a_damaged_network(done, tmp_path):
    _, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    for file in (copy / "artifacts" / "models").glob("*/weights.safetensors"):
        file.write_bytes(file.read_bytes()[:-4] + b"\0\1\2\3")
    found = call("check", path, "--storage", copy, *LIMITS)
    assert found.exit_code == 2
    assert found.output.count("FAILED network") == 2


def test_check_finds_too_little_room_and_memory(done, monkeypatch, tmp_path):
    from collections import namedtuple

    from raystitch.run import check

    usage = namedtuple("usage", "free")
    monkeypatch.setattr(check.shutil, "disk_usage", lambda root: usage(100))
    monkeypatch.setattr(check, "_available_bytes", lambda workshop: 1000)
    found = call("check", done[1], "--storage", tmp_path / "runs")
    assert found.exit_code == 2
    assert "FAILED disk: " in found.output
    assert "FAILED memory: " in found.output
    assert "execution.activation_bytes" in found.output


# status


def test_status_of_one_and_of_all(done):
    _, _, root = done
    for command in (("status", "tiny"), ("status",)):
        found = call(*command, "--storage", root)
        assert found.exit_code == 0
        assert f"tiny: {COUNT} cells, {COUNT} done, 0 failed, 0 pending" in found.output
        assert "networks: 2 of 2 stored" in found.output
        assert "IRIs: 4 shards stored, in 2 of 2 sets" in found.output


def test_status_says_why_cells_failed(failing):
    found = call("status", "bad", "--storage", failing[2]).output
    assert "failed: " in found
    assert "diverged" in found


def test_status_of_an_empty_storage(tmp_path):
    found = call("status", "--storage", tmp_path)
    assert found.exit_code == 0
    assert "no sweep" in found.output


def test_status_shows_the_others_when_one_cannot_be_read(done, tmp_path):
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", done[2], copy], check=True)
    (copy / "sweeps" / "broken").mkdir()
    (copy / "sweeps" / "broken" / "sweep.yaml").write_text("name: [")
    found = call("status", "--storage", copy)
    assert found.exit_code == 1
    assert "broken" in found.stderr
    assert f"tiny: {COUNT} cells" in found.stdout


# cuts


def test_cuts_of_a_set():
    found = call("cuts", "raystitch/cnn5", "--set", "blocks")
    assert found.exit_code == 0
    lines = found.stdout.splitlines()
    assert lines[0].split() == ["index", "cut", "kind", "shape", "FLOPs", "sets"]
    assert [line.split()[1] for line in lines[2:]] == [f"blocks.{n}" for n in range(5)]
    assert "64×4×4" in lines[-1]
    assert "100.0 %" in lines[-1]


def test_cuts_take_size_classes_and_arguments():
    found = call("cuts", "raystitch/cnn5", "--size", "3x32x32", "--set", "blocks.4")
    assert "64×8×8" in found.output
    assert "64×8×8" in call("cuts", "raystitch/cnn5", "--size", "32", "--set", "*.4").output
    assert "pool" in call("cuts", "raystitch/cnn5", "--classes", "3").output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("raystitch/cnn6",), "cnn5"),
        (("raystitch/cnn5", "--set", "blocks.9"), "blocks.4"),
        (("raystitch/cnn5", "--set", "x*"), "no cut of raystitch/cnn5 matches"),
        (("raystitch/cnn5", "--size", "3x32"), "N or CxHxW"),
        (("raystitch/cnn5", "--kwargs", "{"), "not JSON"),
        (("raystitch/cnn5", "--kwargs", "[1]"), "JSON object"),
    ],
)
def test_cuts_say_what_is_allowed(arguments, said):
    found = call("cuts", *arguments)
    assert found.exit_code == 2
    assert said in found.output


# statistics


def test_statistics_answer_in_every_format(done):
    _, _, root = done

    def ask(*more):
        return call("statistics", "tiny", *more, "--storage", root)

    stored = call("query", "tiny", "SELECT * FROM cells", "--format", "parquet", "--storage", root)
    cells = pl.read_parquet(io.BytesIO(stored.stdout_bytes))
    place = ["front_cut", "objective", "protocol"]
    wanted = cells.sort(place).select(*place, "agreement", "agreement_low", "agreement_high")
    got = pl.read_parquet(io.BytesIO(ask("--format", "parquet").stdout_bytes)).sort(place)
    assert got.select(*place, "mean", "image_low", "image_high").rows() == wanted.rows()
    assert pl.read_csv(io.StringIO(ask("--format", "csv").stdout)).columns == got.columns
    assert len(json.loads(ask("--format", "json").stdout)) == COUNT
    assert len(ask().stdout.splitlines()) == 2 + COUNT
    assert "data" not in ask().stdout, "alike everywhere: left out of what is read"
    raua = json.loads(ask("--show", "raua", "--by", "entries", "--format", "json").stdout)
    assert {row["objective"] for row in raua} == {"slm", "dm"}
    for row in raua:
        own = cells.filter(objective=row["objective"], protocol="invariance")["agreement"]
        assert row["mean"] == pytest.approx(own.mean())


def test_statistics_of_seeds_that_failed_warn(failing):
    found = call("statistics", "bad", "--storage", failing[2])
    assert found.exit_code == 0
    assert "warning: " in found.stderr
    assert "fewer seeds than planned" in found.stderr


def test_statistics_of_a_folder_without_a_sweep_take_every_row(done, tmp_path):
    folder = done[2] / "sweeps" / "tiny" / "cells"
    subprocess.run(["cp", "-r", folder, tmp_path / "rows"], check=True)
    found = call("statistics", tmp_path / "rows", "--format", "json")
    assert "every row in it is taken" in found.stderr
    assert len(json.loads(found.stdout)) == COUNT


def test_a_wrong_name_for_statistics_is_a_sentence(done):
    for option, given, said in (
        ("--show", "mean", "did you mean 'means'"),
        ("--by", "model", "did you mean 'models'"),
        ("--metric", "acuracy", "did you mean 'accuracy'"),
        ("--format", "jsn", "did you mean 'json'"),
    ):
        found = call("statistics", "tiny", option, given, "--storage", done[2])
        assert found.exit_code == 2
        assert said in found.output


# query


def test_query_answers_in_every_format(done):
    _, _, root = done
    sql = "SELECT objective, count(*) AS cells FROM cells GROUP BY objective ORDER BY objective"
    wanted = [("dm", COUNT // 2), ("slm", COUNT // 2)]

    def ask(fmt):
        return call("query", "tiny", sql, "--format", fmt, "--storage", root)

    table = ask("table").stdout.splitlines()
    assert [tuple(line.split()) for line in table[2:]] == [(o, str(n)) for o, n in wanted]
    assert pl.read_csv(io.StringIO(ask("csv").stdout)).rows() == wanted
    assert [tuple(row.values()) for row in json.loads(ask("json").stdout)] == wanted
    assert pl.read_parquet(io.BytesIO(ask("parquet").stdout_bytes)).rows() == wanted
    assert set(FORMATS) == {"table", "csv", "json", "parquet"}


def test_a_misspelt_format_is_named(done):
    found = call("query", "tiny", "SELECT * FROM cells", "--format", "jsn", "--storage", done[2])
    assert found.exit_code == 2
    assert "did you mean 'json'" in found.output


def test_a_wrong_query_is_a_sentence(done):
    _, _, root = done
    for sql, said in (
        ("SELECT agrement FROM cells", "did you mean 'agreement'"),
        ("SELECT * FROM rows", "cells"),
        ("SELEC", "the query failed"),
    ):
        found = call("query", "tiny", sql, "--storage", root)
        assert found.exit_code == 2, sql
        assert said in found.output


def test_query_takes_the_current_plan_or_all(done, tmp_path):
    _, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    call("sweep", path, "--storage", copy, "--limit-images", "32", "--max-epochs", "1")
    sql = "SELECT stitch_images, count(*) AS n FROM cells GROUP BY stitch_images ORDER BY n"

    def ask(run, *more):
        found = call("query", run, sql, "--format", "json", *more)
        assert found.exit_code == 0, found.output
        return {row["stitch_images"]: row["n"] for row in json.loads(found.stdout)}

    assert ask("tiny", "--storage", copy) == {32: COUNT}
    assert ask("tiny", "--storage", copy, "--all") == {24: COUNT, 32: COUNT}
    # A path to the sweep or its cells means the same.
    assert ask(Storage(copy).sweep("tiny")) == ask(Storage(copy).cells("tiny")) == {32: COUNT}
    # Rows away from their sweep have no plan.
    subprocess.run(["cp", "-r", Storage(copy).cells("tiny"), tmp_path / "rows"], check=True)
    assert ask(tmp_path / "rows") == {24: COUNT, 32: COUNT}


def test_query_gives_rows_under_the_names_of_the_plan(done, tmp_path):
    """A renamed entry is the same network: its rows count, under its new name."""
    _, path, root = done
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", root, copy], check=True)
    text = path.read_text().replace("net-", "web-").replace("net:", "web:")
    renamed = tmp_path / "sweep.yaml"
    renamed.write_text(text)
    again = call("sweep", renamed, "--storage", copy, *LIMITS)
    assert f"{COUNT} done" in again.output
    sql = "SELECT DISTINCT front_model, end_model FROM cells"
    found = call("query", "tiny", sql, "--format", "json", "--storage", copy)
    assert json.loads(found.stdout) == [{"front_model": "web-1", "end_model": "web-0"}]


def test_files_set_aside_are_named_beside_the_answer(done, tmp_path):
    copy = tmp_path / "runs"
    subprocess.run(["cp", "-r", done[2], copy], check=True)
    torn = sorted(Storage(copy).cells("tiny").glob("*.parquet"))[0]
    torn.write_bytes(torn.read_bytes()[:50])
    found = call("query", "tiny", "SELECT key FROM cells", "--format", "json", "--storage", copy)
    assert found.exit_code == 0
    assert "is torn" in found.stderr
    assert len(json.loads(found.stdout)) < COUNT


# schema and version


def test_schema_is_json_schema():
    found = json.loads(call("schema").stdout)
    assert found["$schema"].startswith("https://json-schema.org/")
    assert {"name", "zoo", "pairs"} <= set(found["properties"])


def test_version():
    assert call("--version").stdout == f"raystitch {__version__}\n"


def test_the_quickstart_file_is_sound(tmp_path):
    quickstart = Path(__file__).parent.parent / "sweeps" / "quickstart.yaml"
    found = call("plan", quickstart, "--storage", tmp_path)
    assert found.exit_code == 0, found.output
    assert "132 cells" in found.output
