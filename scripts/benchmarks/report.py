"""What every benchmark does with its figures: a table to read, and a file for machines."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

JsonFile = Annotated[
    Path | None, typer.Option("--json", help="Write all figures to this file, too.")
]


@dataclass(frozen=True)
class Figures:
    """One comparison on equal work.

    ratio: plain seconds over ours; seconds: medians; cells: how many pieces of work (cells, IRI
    sets, rows); max_difference: the largest difference of any result; raw: seconds of every run,
    ours and plain; more: what else was measured.
    """

    name: str
    ratio: float
    ours_seconds: float
    plain_seconds: float
    cells: int
    max_difference: float
    raw: dict[str, list[float]]
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def alternate(
    ours: Callable[[], Any], plain: Callable[[], Any], repeats: int
) -> tuple[dict[str, list[float]], Any, Any]:
    """Run both in turn; the seconds of every run, and what the last run of each returned."""
    raw: dict[str, list[float]] = {"ours": [], "plain": []}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        for name, call in (("ours", ours), ("plain", plain)):
            began = perf_counter()
            found[name] = call()
            raw[name].append(perf_counter() - began)
    return raw, found["ours"], found["plain"]


def compared(
    name: str, raw: dict[str, list[float]], cells: int, max_difference: float, **more: Any
) -> Figures:
    """The figures of runs that alternated."""
    ours, plain = statistics.median(raw["ours"]), statistics.median(raw["plain"])
    return Figures(name, plain / ours, ours, plain, cells, max_difference, raw, more)


def show(figures: Sequence[Figures], json_file: Path | None) -> None:
    """Print a row for each comparison; write them all to the file, if one is given."""
    table = Table("work", "cells", "plain s", "ours s", "plain / ours", "largest difference")
    for one in figures:
        table.add_row(
            one.name,
            str(one.cells),
            f"{one.plain_seconds:.2f}",
            f"{one.ours_seconds:.2f}",
            f"{one.ratio:.2f}",
            f"{one.max_difference:.2g}",
        )
    console = Console(width=100)
    console.print(table)
    for one in figures:
        for side, seconds in one.raw.items():
            console.print(f"{one.name}, {side}: " + ", ".join(f"{s:.2f}" for s in seconds) + " s")
    write_json([asdict(one) for one in figures], json_file)


def write_json(figures: Any, json_file: Path | None) -> None:
    """Write figures to the file, if one is given."""
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
