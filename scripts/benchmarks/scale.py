"""How many slots Ray Tune keeps busy: the engine's own driver with units that only sleep.

Workers load no torch and ask for next to no CPU, so one machine bears many slots. Each unit sleeps
for the same seconds and reports after each of its epochs; a round begins when all its workers are
there. The last rounds have epochs of no length: what is left is the rate at which the driver hears
of epochs, at most.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import engine
from benchmarks.report import JsonFile, write_json
from raystitch.results.store import Storage
from raystitch.run.planning import Context, load_sweep

if TYPE_CHECKING:
    from benchmarks.sleeping import Found


def main(
    units: Annotated[int, typer.Option(min=1, help="Units for each slot.")] = 2,
    slots: Annotated[int, typer.Option(min=1, help="Slots at most.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.0, help="Length of a unit.")] = 10.0,
    json_file: JsonFile = None,
) -> None:
    """Busy slots, units per second, and where Tune's controller saturates."""
    counts = sorted({count for count in (1, 4, 16) if count < slots} | {slots})
    jobs = [*((count, seconds) for count in counts), *((count, 0.0) for count in {1, slots})]
    # Ray is loaded for this benchmark alone.
    from benchmarks.sleeping import rounds

    with tempfile.TemporaryDirectory() as folder:
        found = rounds(_context(Path(folder)), jobs, units)
    _show(found)
    write_json([asdict(one) for one in found], json_file)


def _context(folder: Path) -> Context:
    file = folder / "scale.yaml"
    file.write_text(yaml.safe_dump(engine.sweep(1, 1)), encoding="utf-8")
    return load_sweep(file, Storage(folder / "runs"), say=lambda text: None)


def _show(found: list[Found]) -> None:
    table = Table("slots", "unit s", "units", "busy %", "units/s", "epochs/s", "driver % of a CPU")
    for one in found:
        table.add_row(
            str(one.parts.slots),
            f"{one.seconds:g}",
            str(one.parts.units),
            f"{100 * one.parts.busy:.1f}",
            f"{one.units_per_second:.2f}",
            f"{one.epochs_per_second:.1f}",
            f"{100 * one.driver:.0f}",
        )
    Console(width=100).print(table)
