"""A sweep of as many cells as wanted, and stored rows of them with made-up figures.

The rows are whole: settings, curves and figures as real cells have them, written by the store.
"""

from __future__ import annotations

import hashlib
import math
import resource
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.report import write_json
from raystitch.cards import ModelCard
from raystitch.files import write_text
from raystitch.results.schema import CELL_SCHEMA, METRICS
from raystitch.results.store import Storage
from raystitch.run.planning import Context, load_sweep
from raystitch.sweep.cells import Cell
from raystitch.sweep.keys import canonical
from raystitch.sweep.plan import expand

T = TypeVar("T")

PER_PAIR = 5 * 4 * 2
"""Cells of a pair and a seed: cuts, objectives, protocols."""

MODELS, FEW_MODELS = 25, 5
EPOCHS = 30
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNASKED = (
    "robust",
    "cka",
    "stir",
    "excessive",
    "agreement_matched",
    "agreement_rolled",
    "test_iri",
)
"""Beginnings of the metrics that only cells with a marker or with `evaluation:` have."""


def sweep(cells: int) -> dict[str, Any]:
    """A sweep file of at least so many cells: every network of the zoo with every network."""
    models = MODELS if cells >= PER_PAIR * MODELS**2 else FEW_MODELS
    seeds = math.ceil(cells / (PER_PAIR * models**2))
    untrained = {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": list(range(models))}
    return {
        "name": "big",
        "data": "digits",
        "zoo": {"net": untrained},
        "pairs": "all",
        "cuts": "blocks",
        "objectives": ["hlm", "slm", "dm", "fula"],
        "protocols": ["standard", "invariance"],
        "seeds": list(range(seeds)),
    }


def load(root: Path) -> Context:
    """The sweep that `make` left at ``root``."""
    return load_sweep(root / "big.yaml", Storage(root), say=lambda text: None)


def make(root: Path, cells: int, *, every: int, files: int) -> None:
    """Leave a sweep, its networks' cards, and rows of every so many-th cell in so many files.

    In a process of its own, so that the memory it takes is not counted.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_make, root, cells, every, files).result()


def _make(root: Path, cells: int, every: int, files: int) -> None:
    write_text(root / "big.yaml", yaml.safe_dump(sweep(cells)))
    context = load(root)
    digests = {name: hashlib.sha256(name.encode()).hexdigest() for name in context.networks}
    for name, digest in digests.items():
        key = context.model_key(name)
        card = ModelCard(
            name, key, dict(context.networks[name]), digest, 1, 50.0, None, None, None, 0.0
        )
        write_text(context.storage.model_card(key), card.to_json())
    found = expand(context.sweep, context.cards, context.data_identity, context.networks)
    stored, store = found[:cells:every], context.rows()
    size = math.ceil(len(stored) / files)
    for start in range(0, len(stored), size):
        part = stored[start : start + size]
        store.write_table(table(part, digests, start), part[0].unit)


def table(cells: Sequence[Cell], digests: dict[str, str], seed: int) -> pa.Table:
    """Rows of these cells, all good, with figures drawn from that seed."""
    rng, count = np.random.default_rng(seed), len(cells)
    columns: dict[str, Any] = {name: [None] * count for name in CELL_SCHEMA.names}
    for name in ("key", "unit", "front_model", "front_cut", "front_cut_index", "end_model"):
        columns[name] = [getattr(cell, name) for cell in cells]
    for name in ("end_cut", "end_cut_index", "objective", "protocol", "seed"):
        columns[name] = [getattr(cell, name) for cell in cells]
    columns |= {name: 100 * rng.random(count) for name in METRICS if not name.startswith(UNASKED)}
    columns |= {name: rng.integers(1, 200, count) for name in ("epochs", "steps")}
    columns["settings"] = [canonical(cell.settings) for cell in cells]
    columns["front_digest"] = [digests[cell.front_model] for cell in cells]
    columns["end_digest"] = [digests[cell.end_model] for cell in cells]
    columns["curve"] = list(rng.random((count, EPOCHS)))
    times = seed + np.arange(count)
    columns["finished_at"] = [NOON + timedelta(seconds=int(second)) for second in times]
    same = {"sweep": "big", "data": "digits", "preset": "controlled", "budget": 1, "status": "ok"}
    same |= {"device": "cpu", "stop_reason": "plateau", "stitch_images": 512, "test_images": 500}
    columns |= {name: [value] * count for name, value in same.items()}
    return pa.table(columns, schema=CELL_SCHEMA)


class Parts:
    """Seconds of the parts of some work, by name, in their order: of the clock and of all cores."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    def timed(self, name: str, call: Callable[[], T]) -> T:
        """What the call returns, its seconds kept under that name."""
        began, cpu_began = perf_counter(), process_time()
        found = call()
        self.seconds[name] = perf_counter() - began
        self.cpu_seconds[name] = process_time() - cpu_began
        return found

    def show(self, title: str, json_file: Path | None, **more: Any) -> None:
        """Print the seconds, the peak memory and what else was found; write them to the file."""
        sums = sum(self.seconds.values()), sum(self.cpu_seconds.values())
        grid = Table(title, "seconds", "of CPU")
        for name, seconds in self.seconds.items():
            grid.add_row(name, f"{seconds:.2f}", f"{self.cpu_seconds[name]:.2f}")
        grid.add_row("together", *(f"{seconds:.2f}" for seconds in sums))
        console = Console(width=100)
        console.print(grid)
        found = {"peak_mebibytes": round(peak_mebibytes()), **more}
        console.print(", ".join(f"{name} {value}" for name, value in found.items()))
        both = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        write_json({**both, "together": sums[0], **found}, json_file)


def peak_mebibytes() -> float:
    """The most memory that this process has taken so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
