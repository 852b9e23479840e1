"""What the engine adds to a cell: the same tiny cells by Ray on one slot and without it.

Both runners use one thread of torch, so both compute one cell at a time. A stage's time goes from
its first report to its last, so that the start of workers is apart; the engine's seconds per cell
are the difference of the two times over the cells.
"""

from __future__ import annotations

import io
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import typer
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.report import JsonFile, write_json
from raystitch.results.schema import METRICS
from raystitch.results.store import Storage
from raystitch.run import runners
from raystitch.run.pipeline import Outcome, run_sweep
from raystitch.run.planning import Context, Say, load_sweep
from raystitch.run.progress import Reporter
from raystitch.run.runners import Start
from raystitch.run.work import Left, OnReport, Runner, UnitReport, UnitWork

TINY: dict[str, Any] = {
    "name": "tiny",
    "data": "digits",
    "zoo": {"net": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1, 2, 3, 4]}},
    "pairs": "all",
    "cuts": ["blocks.1", "blocks.2", "blocks.3", "blocks.4"],
    "objectives": ["hlm", "slm", "dm", "fula"],
    "protocols": ["standard", "noise"],
    "seeds": [0, 1, 2],
    "execution": {"threads": 1, "device": "cpu", "slots": 1},
}
LIMIT_IMAGES, MAX_EPOCHS = 64, 1


class Timed:
    """A runner whose stitch stage is timed: seconds, and this process's peak memory, per report."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.seconds: list[float] = []
        self.mebibytes: list[float] = []
        self.make_models, self.build_shards = runner.make_models, runner.build_shards
        self.build_images, self.close = runner.build_images, runner.close

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        def heard(report: UnitReport) -> None:
            self.seconds.append(time.perf_counter())
            self.mebibytes.append(_peak_mebibytes())
            on_report(report)

        return self.runner.run_units(work, heard)


def _peak_mebibytes() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _run(file: Path, root: Path, start: Start) -> tuple[Outcome, Timed]:
    found: list[Timed] = []

    def timed(context: Context, say: Say) -> Timed:
        found.append(Timed(start(context, say)))
        return found[0]

    context = load_sweep(
        file,
        Storage(root),
        limit_images=LIMIT_IMAGES,
        max_epochs=MAX_EPOCHS,
        say=lambda text: None,
    )
    outcome = run_sweep(context, Reporter(Console(file=io.StringIO())), start=timed)
    return outcome, found[0]


def main(json_file: JsonFile = None) -> None:
    """Engine seconds per cell over the plain in-process loop, and the driver's memory."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tiny.yaml"
        file.write_text(yaml.safe_dump(TINY), encoding="utf-8")
        ray, of_ray = _run(file, Path(folder) / "ray", runners.on_ray(None))
        local, of_local = _run(file, Path(folder) / "local", runners.local)
    cells = len(local.plan.rows)
    table = Table("runner", "cells", "reports", "stage s", "ms per cell", "driver MiB first, last")
    for name, outcome, timed in (("ray", ray, of_ray), ("in-process", local, of_local)):
        spent = timed.seconds[-1] - timed.seconds[0]
        memory = f"{timed.mebibytes[0]:.0f}, {timed.mebibytes[-1]:.0f}"
        counts = (str(len(outcome.plan.rows)), str(len(timed.seconds)))
        table.add_row(name, *counts, f"{spent:.1f}", f"{1000 * spent / cells:.2f}", memory)
    Console(width=100).print(table)
    added = sum(
        (-1) ** n * (t.seconds[-1] - t.seconds[0]) for n, t in enumerate((of_ray, of_local))
    )
    per_cell, difference = 1000 * added / cells, _difference(ray, local)
    typer.echo(f"engine over the in-process loop: {per_cell:.2f} ms per cell")
    typer.echo(f"largest difference of any figure: {difference:.2g}")
    figures = {"milliseconds_per_cell": per_cell, "max_difference": difference, "cells": cells}
    write_json({**figures, "mebibytes": of_ray.mebibytes}, json_file)


def _difference(one: Outcome, other: Outcome) -> float:
    names = [name for name in METRICS if name != "seconds"]
    first, second = (outcome.plan.rows.sort("key").select(names) for outcome in (one, other))
    gaps = (first[name].cast(pl.Float64) - second[name].cast(pl.Float64) for name in names)
    return max(float(gap.abs().max() or 0.0) for gap in gaps)  # pyright: ignore[reportArgumentType]
