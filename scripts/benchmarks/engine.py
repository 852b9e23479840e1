"""What the engine adds to units of real length, on all slots of the machine.

Wall time goes from the first unit's start in the first worker to the last report. What of the
slots' time is not in units is told by where it went; the driver's own CPU time slows units on a
machine whose slots take every CPU, so it is told too; and so is a worker's peak of memory, beside
what the plan said of it.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.report import JsonFile, write_json
from benchmarks.timeline import Parts, Timeline
from raystitch.results.store import Storage
from raystitch.run import runners
from raystitch.run.pipeline import run_sweep
from raystitch.run.planning import Context, Say, load_sweep, make_plan
from raystitch.run.progress import Reporter
from raystitch.run.status import planned_memory
from raystitch.run.work import Left, OnReport, Runner, UnitReport, UnitWork


def sweep(units: int, epochs: int) -> dict[str, Any]:
    """A sweep of so many units of the same length: one for each seed of its stitches."""
    return {
        "name": "engine",
        "data": "digits",
        "zoo": {"net": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1]}},
        "pairs": [{"front": "net-1", "end": "net-0"}],
        "cuts": ["blocks.1"],
        "objectives": ["hlm", "slm", "dm", "fula"],
        "protocols": ["standard"],
        "training": {"schedule": "step", "epochs": epochs},
        "seeds": list(range(units)),
        "stitch_images": 1024,
        "execution": {"threads": 1, "device": "cpu"},
    }


class Heard:
    """A runner whose units are heard by a timeline, too."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.timeline, self.peak_bytes = runner, Timeline(), 0
        self.make_models, self.build_shards = runner.make_models, runner.build_shards
        self.build_images, self.close = runner.build_images, runner.close

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        def heard(report: UnitReport) -> None:
            self.timeline(report)
            self.peak_bytes = max(self.peak_bytes, report.peak_bytes)
            on_report(report)

        return self.runner.run_units(work, heard)


def main(
    units: Annotated[int, typer.Option(min=1, help="Units, of equal length.")] = 8,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each unit.")] = 30,
    json_file: JsonFile = None,
) -> None:
    """Slots' time outside units over their time in units, by where it went."""
    found: list[Heard] = []
    slots: list[int] = []

    def start(context: Context, say: Say) -> Heard:
        runner = runners.on_ray(None)(context, say)
        from raystitch.run.engine import RayRunner  # Ray, for this benchmark alone

        assert isinstance(runner, RayRunner)
        slots.append(runner.cluster.slots)
        found.append(Heard(runner))
        return found[0]

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "engine.yaml"
        file.write_text(yaml.safe_dump(sweep(units, epochs)), encoding="utf-8")
        context = load_sweep(file, Storage(Path(folder) / "runs"), say=lambda text: None)
        planned = planned_memory(make_plan(context))
        outcome = run_sweep(context, Reporter(Console(file=io.StringIO())), start=start)
    assert outcome.exit_code == 0
    timeline = found[0].timeline
    parts, driver = timeline.parts(slots[0]), timeline.driver_share
    _show(parts, driver)
    peak = found[0].peak_bytes
    mebibytes = f"{peak / 2**20:.0f} MiB, planned: {planned / 2**20:.0f} MiB"
    typer.echo(f"largest worker: {mebibytes} ({100 * planned / peak - 100:+.0f} %)")
    figures = {"overhead": parts.overhead, "driver_cpu_share": driver, **asdict(parts)}
    write_json({**figures, "peak_bytes": peak, "planned_bytes": planned}, json_file)


def _show(parts: Parts, driver: float) -> None:
    table = Table("seconds of slots", "s", "% of time in units")
    places = {
        "in units": parts.computing,
        "until all slots work": parts.start,
        "between epochs": parts.between_epochs,
        "between units": parts.between_units,
        "since not all slots have work": parts.end,
    }
    for name, seconds in places.items():
        table.add_row(name, f"{seconds:.2f}", f"{100 * seconds / parts.computing:.2f}")
    Console(width=100).print(table)
    each = parts.computing / parts.units
    typer.echo(f"{parts.slots} slots × {parts.wall:.1f} s, {parts.units} units of {each:.1f} s")
    typer.echo(
        f"overhead: {100 * parts.overhead:.2f} % of the time in units "
        f"({100 / parts.busy - 100:.2f} % while all slots work); "
        f"driver: {100 * driver:.1f} % of a CPU"
    )
