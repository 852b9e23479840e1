"""A plan of a million cells: expand and key them all, and subtract the half that is stored."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import big_sweep
from benchmarks.report import JsonFile
from raystitch.run.planning import STANDING, Plan
from raystitch.run.status import plan_lines
from raystitch.sweep.keys import content_key
from raystitch.sweep.plan import expand
from raystitch.sweep.resume import subtract

SAMPLE = 1000
ROWS_PER_FILE = 500


def main(
    cells: Annotated[int, typer.Option(min=1, help="Cells of the sweep, at least.")] = 1_000_000,
    json_file: JsonFile = None,
) -> None:
    """Seconds and memory of a plan of a million cells, half of them stored as done."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        big_sweep.make(root, cells, every=2, files=max(1, cells // 2 // ROWS_PER_FILE))
        parts = big_sweep.Parts()
        context = parts.timed("read the sweep file", lambda: big_sweep.load(root))
        found = parts.timed(
            "expand and key",
            lambda: expand(context.sweep, context.cards, context.data_identity, context.networks),
        )
        stored = parts.timed("read stored rows", lambda: context.rows().scan(STANDING))
        digests = context.digests()
        statuses = parts.timed("subtract", lambda: subtract(found, stored.frame, digests))
        plan = Plan(context, found, stored, digests, statuses)
        units = parts.timed("units", lambda: plan.units)
        parts.timed("cost", lambda: list(plan_lines(plan)))
    sample = random.Random(0).sample(found, min(SAMPLE, len(found)))
    parts.show(
        "plan",
        json_file,
        cells=len(found),
        pending=len(plan.pending),
        units=len(units),
        keys_checked=sum(cell.key == content_key(cell.settings) for cell in sample),
        pending_right={cell.key for cell in plan.pending}.isdisjoint(stored.frame["key"])
        and len(plan.pending) + stored.frame.height == len(found),
    )
