"""The benchmarks of scripts/bench.py at small sizes: the fields of their JSON, their results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.timeline import Timeline
from raystitch.run.work import UnitReport

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench.py"


def figures(tmp_path: Path, *command: str) -> Any:
    path = tmp_path / "figures.json"
    line = [sys.executable, str(SCRIPT), *command, "--json", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text("utf-8"))


def test_plan(tmp_path: Path) -> None:
    got = figures(tmp_path, "plan", "--cells", "2000")
    assert (got["cells"], got["pending"], got["pending_right"]) == (2000, 1000, True)
    assert got["keys_checked"] == 1000
    assert {"expand and key", "read stored rows", "subtract", "units"} < set(got["seconds"])
    assert got["peak_mebibytes"] > 50


def test_query(tmp_path: Path) -> None:
    got = figures(tmp_path, "query", "--rows", "2000", "--files", "20")
    assert (got["rows"], got["files"], got["missing"], got["sums_right"]) == (2000, 20, 0, True)
    assert {"read rows", "long table", "dense tensor", "summary"} <= set(got["seconds"])
    assert got["peak_mebibytes"] > 50


def test_engine(tmp_path: Path) -> None:
    got = figures(tmp_path, "engine", "--units", "4", "--epochs", "2")
    assert got["units"] >= 4
    idle = sum(got[part] for part in ("start", "between_epochs", "between_units", "end"))
    assert idle + got["computing"] == pytest.approx(got["slots"] * got["wall"])
    assert got["overhead"] == pytest.approx(idle / got["computing"])
    assert 0 < got["driver_cpu_share"] < 1
    # Other machines have other libraries: they decide most of so small a worker.
    assert got["planned_bytes"] == pytest.approx(got["peak_bytes"], rel=0.5)


def test_scale(tmp_path: Path) -> None:
    sleeping, ending = figures(
        tmp_path, "scale", "--units", "2", "--slots", "1", "--seconds", "0.5"
    )
    assert sleeping["parts"]["computing"] == pytest.approx(1.0, abs=0.3)
    assert 0.5 < sleeping["parts"]["busy"] < 1
    assert ending["epochs_per_second"] > sleeping["epochs_per_second"]


def test_where_the_time_of_slots_goes() -> None:
    moments = iter([1.0, 3.0, 3.0, 6.0, 9.0])
    timeline = Timeline(clock=lambda: next(moments))
    for unit, epoch, seconds in (("a", 0, 1.0), ("a", 1, 1.5), ("b", 0, 2.0), ("b", 1, 3.0)):
        timeline(UnitReport(unit, 0, epoch, live=1, done=False, stored=0, seconds=seconds))
    timeline(UnitReport("c", 0, 0, live=0, done=True, stored=0, seconds=4.0))
    # One slot: a from 0 to 3, c from 5 to 9; the other: b from 1 to 6.
    parts = timeline.parts(2)
    assert (parts.wall, parts.units, parts.computing) == (9.0, 3, 11.5)
    assert (parts.start, parts.between_epochs, parts.between_units, parts.end) == (1, 0.5, 2, 3)
    assert parts.busy == pytest.approx((8 / 10) * (11.5 / 12))
    assert parts.overhead == pytest.approx(6.5 / 11.5)


@pytest.mark.parametrize(("command", "cells"), [("stitch", 16), ("iri", 2)])
@pytest.mark.timeout(300)
def test_training_against_the_plain_loop(tmp_path: Path, command: str, cells: int) -> None:
    """Equal work with equal results; how fast is not a test's affair."""
    comparisons = figures(tmp_path, command, "--short", "--threads", "1")
    fields = {"ratio", "ours_seconds", "plain_seconds", "cells", "max_difference", "raw"}
    for one in comparisons:
        assert fields <= set(one)
        assert one["cells"] == cells
        assert one["ratio"] == pytest.approx(one["plain_seconds"] / one["ours_seconds"])
    if command == "stitch":
        (one,) = comparisons
        assert one["more"]["agreement_points"] == one["max_difference"] < 0.2
        # So few steps of Adam tell the sign of a gradient near 0 from noise no better.
        assert one["more"]["weights_relative"] < 1e-2
    else:
        published, front_alone, lean = comparisons
        assert published["max_difference"] == front_alone["max_difference"] == 0
        assert lean["more"]["share_within_one_grey_level"] > 0.9


def test_stopping(tmp_path: Path) -> None:
    got = figures(tmp_path, "stopping", "--cells", "2", "--limit-images", "32")
    rows = got["rows"]
    assert (got["cells"], len(rows)) == (2, 2)
    changes = [abs(row["longer"]["agreement"] - row["as_is"]["agreement"]) for row in rows]
    assert (got["largest_change"], got["mean_change"]) == (max(changes), sum(changes) / 2)
    assert got["steps_saved"] > 2
    # The same training until the first fall of the learning rate, after 3 epochs at the earliest.
    assert all(row["longer"]["curve"][:3] == row["as_is"]["curve"][:3] for row in rows)


@pytest.mark.slow
def test_quickstart(tmp_path: Path) -> None:
    (got,) = figures(tmp_path, "quickstart", "--short", "--limit-images", "32")
    more = got["more"]
    assert (got["cells"], more["failed_cells"]) == (11, 0)
    # One batch an epoch, and no cell stops before 30 of them.
    assert more["steps"] >= 11 * 30
    # The same steps on the same inputs; paths of sign steps part where a gradient is near 0.
    assert more["agreement_points_on_the_same_inputs"] < 0.5
    assert 0 < more["plain_seconds_of_iris"] < got["plain_seconds"]


def test_rules(tmp_path: Path) -> None:
    found = figures(tmp_path, "rules", "--images", "10", "--steps", "3")
    assert {(one["cut"], one["rule"]) for one in found} == {
        (f"blocks.{n}", rule) for n in (0, 2, 4) for rule in ("adam", "sign")
    }
    assert all(0 < one["steps"] <= 3 and 0 < one["residual"] < 3 for one in found)
