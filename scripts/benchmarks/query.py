"""Tensors and summary of a million rows in thousands of files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer

from benchmarks import big_sweep
from benchmarks.report import JsonFile
from raystitch.results.schema import PLACE
from raystitch.results.store import CellStore, Storage
from raystitch.results.summary import summarise
from raystitch.results.tensors import dense, long

METRICS = ("agreement", "agreement_sem")
"""What the summary shows."""

NEEDED = ("key", *PLACE, "front_cut_index", "end_cut_index", "status", "error", *METRICS)


def main(
    rows: Annotated[int, typer.Option(min=1, help="Stored rows.")] = 1_000_000,
    files: Annotated[int, typer.Option(min=1, help="Files that they are in.")] = 2000,
    json_file: JsonFile = None,
) -> None:
    """Seconds and memory of tensors and summary of a million stored rows."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        big_sweep.make(root, rows, every=1, files=files)
        store, parts = CellStore(Storage(root), "big"), big_sweep.Parts()
        found = len(list(store.folder.glob("*.parquet")))
        frame = parts.timed("read rows", lambda: store.read(columns=NEEDED))
    table = parts.timed("long table", lambda: long(frame, METRICS))
    tensor = parts.timed("dense tensor", lambda: dense(frame, metrics=METRICS))
    summary = parts.timed("summary", lambda: summarise(frame))
    total = float(frame["agreement"].sum())
    sums = {
        "long": float(table.filter(metric="agreement")["value"].sum()),
        "dense": float(np.nansum(tensor.select(metric="agreement").values)),
        "summary": _sum_of(summary.frame),
    }
    parts.show(
        "query",
        json_file,
        rows=frame.height,
        files=found,
        missing=summary.missing,
        sums_right=all(abs(one - total) < 1e-6 * total for one in sums.values()),
    )


def _sum_of(frame: pl.DataFrame) -> float:
    """The sum of all agreements from their means over seeds and the numbers of these."""
    means = [name.removesuffix("_seeds") for name in frame.columns if name.endswith("_seeds")]
    return sum(float((frame[name] * frame[f"{name}_seeds"]).sum()) for name in means)
