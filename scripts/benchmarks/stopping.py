"""Early stopping: a random sample of the quickstart's cells as they are and with `budget: 4`.

A cell stops by its own held-out curve (`schedule: plateau`). Four times the patience, the least and
the most epochs show how far its agreement would still have moved, and what the steps cost. Networks
and IRIs are made once, before; IRIs take 60 sign steps where the quickstart takes 230, which makes
them other inputs and not another kind of curve.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import work
from benchmarks.report import JsonFile, write_json
from raystitch.run.bench import Bench
from raystitch.run.rows import Row
from raystitch.sweep.cells import Cell

BUDGET, LONGER = 4, "longer"
IRIS = {"rule": "sign", "lr": 1 / 255, "steps": 60, "tolerance": 0}
SHOWN = ("epochs", "steps", "agreement", "stop_reason", "loss_init", "curve")


@dataclass(frozen=True)
class Both:
    """One cell as it is and with more budget: of both the columns `SHOWN` of its row."""

    pair: str
    cut: str
    objective: str
    protocol: str
    as_is: Row
    longer: Row

    @property
    def change(self) -> float:
        """Of agreement by more budget, in points."""
        return self.longer["agreement"] - self.as_is["agreement"]


def main(
    cells: Annotated[int, typer.Option(min=1, help="Cells in the sample.")] = 16,
    seed: Annotated[int, typer.Option(help="The sample is drawn from it.")] = 0,
    limit_images: Annotated[
        int | None, typer.Option(min=16, help="Images of each split, for a trial.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Early stopping: how far agreement moves with four times the budget, and the steps saved."""
    with tempfile.TemporaryDirectory() as folder:
        variants = {LONGER: {"budget": BUDGET}}
        file = work.quickstart_file(Path(folder), iris=IRIS, variants=variants)
        prepared = work.prepare(file, Path(folder) / "runs", limit_images=limit_images)
        found = _sampled(prepared, cells, seed)
    changes = [abs(one.change) for one in found]
    as_is, longer = (
        sum(row["steps"] for row in rows)
        for rows in zip(*((one.as_is, one.longer) for one in found), strict=True)
    )
    largest, mean, saved = max(changes), sum(changes) / len(changes), longer / as_is
    Console(width=120).print(_table(found))
    typer.echo(
        f"largest change {largest:.2f} points, mean {mean:.2f}; "
        f"steps saved: {longer} / {as_is} = {saved:.2f}"
    )
    figures = {"largest_change": largest, "mean_change": mean, "steps_saved": saved}
    both = [{**asdict(one), "change": one.change} for one in found]
    write_json({"cells": len(found), "seed": seed, **figures, "rows": both}, json_file)


def _sampled(prepared: work.Prepared, count: int, seed: int) -> list[Both]:
    every = [cell for one in prepared.work for cell in one.unit.cells]
    longer = {_place(cell): cell for cell in every if cell.variant == LONGER}
    as_is = [cell for cell in every if cell.variant is None]
    sample = random.Random(seed).sample(as_is, min(count, len(as_is)))
    pairs = [(cell, longer[_place(cell)]) for cell in sample]
    rows = _rows(prepared, {cell.key for pair in pairs for cell in pair})
    return [_both(cell, rows[cell.key], rows[other.key]) for cell, other in pairs]


def _place(cell: Cell) -> tuple[Any, ...]:
    """What a cell has in common with the same one in another variant."""
    pair = (cell.front_model, cell.front_cut, cell.end_model, cell.end_cut)
    return (*pair, cell.objective, cell.protocol, cell.seed)


def _rows(prepared: work.Prepared, wanted: set[str]) -> dict[str, Row]:
    found: dict[str, Row] = {}
    for one in prepared.work:
        cells = [cell for cell in one.unit.cells if cell.key in wanted]
        if cells:
            for epoch in Bench(one, prepared.workshop).run(cells, {}):
                found |= {row["key"]: row for row in epoch.rows}
    return found


def _both(cell: Cell, as_is: Row, longer: Row) -> Both:
    pair = f"{cell.front_model} → {cell.end_model}"
    for row in (as_is, longer):
        if row["error"] is not None:
            what = f"{pair} {cell.front_cut} {cell.objective} {cell.protocol}"
            raise typer.BadParameter(f"{what} failed: {row['error']}")
    first, second = ({name: row[name] for name in SHOWN} for row in (as_is, longer))
    return Both(pair, cell.front_cut, cell.objective, cell.protocol, first, second)


def _table(found: Sequence[Both]) -> Table:
    heads = ("pair", "cut", "objective", "protocol", "epochs", "steps", "agreement %", "change")
    table = Table(*heads)
    for one in sorted(found, key=lambda one: -abs(one.change)):
        counts = (f"{one.as_is[name]}, {one.longer[name]}" for name in ("epochs", "steps"))
        agreement = f"{one.as_is['agreement']:.2f}, {one.longer['agreement']:.2f}"
        name = (one.pair, one.cut, one.objective, one.protocol)
        table.add_row(*name, *counts, agreement, f"{one.change:+.2f}")
    return table
