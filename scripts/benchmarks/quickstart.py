"""The whole quickstart: ours through Ray, and one thing after the other by the plain loop.

Both start from the same trained networks, in neither time. Both make one set of IRIs for each front
and cut, by as many sign steps from the same noise, and train every cell on the same inputs for as
many steps as our row says it took, its learning rate falling after the same epochs; the plain loop
scores a cell once, at its end, and keeps no curve. Ours has the slots that Ray finds, of one thread
each, and its time holds the start and the end of Ray and of its workers; the plain loop has all
cores by the threads of torch.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

import plain_loop
from benchmarks import work
from benchmarks.report import Figures, JsonFile, compared, show
from raystitch.names import IRI_PROTOCOLS
from raystitch.run import runners
from raystitch.run.pipeline import run_sweep
from raystitch.run.planning import Context, Say
from raystitch.run.rows import Row
from raystitch.run.work import Runner, UnitWork
from raystitch.seeds import derive
from raystitch.settings import Training
from raystitch.stitching.iris import start_noise
from raystitch.stitching.protocols import noise_images
from raystitch.stitching.schedules import Plateau
from raystitch.sweep.cells import Cell
from raystitch.zoo.pixels import to_unit

SHORT = {"pairs": [{"front": "clean-1", "end": "clean-0"}], "cuts": ["blocks.2"]}


def main(
    limit_images: Annotated[int, typer.Option(min=16, help="Images of each split.")] = 64,
    full: Annotated[bool, typer.Option("--full", help="All images of the quickstart.")] = False,
    short: Annotated[bool, typer.Option("--short", help="One pair, one cut: a trial.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Of the plain loop.")] = os.cpu_count() or 1,
    json_file: JsonFile = None,
) -> None:
    """The quickstart sweep through Ray, and by the plain loop for as many steps."""
    limit = None if full else limit_images
    with tempfile.TemporaryDirectory() as folder:
        file = work.quickstart_file(Path(folder), **(SHORT if short else {}))
        prepared = work.prepare(file, Path(folder) / "runs", limit_images=limit, iris=False)
        ours, starting, rows = _ours(prepared.context)
        figures = _compare(prepared, ours, rows, threads)
    show([figures], json_file)
    typer.echo(f"ours: {starting:.1f} s of it to start Ray, before any worker")
    for name, value in figures.more.items():
        typer.echo(f"{name.replace('_', ' ')}: {value:.4g}")


def _ours(context: Context) -> tuple[float, float, dict[str, Row]]:
    """Seconds in all, those until Ray was there, and the rows of the cells that did not fail."""
    starting: list[float] = []
    os.environ.setdefault("RAY_worker_niceness", "0")  # else 15, where the plain loop has 0

    def start(context: Context, say: Say) -> Runner:
        began = perf_counter()
        runner = runners.on_ray(None)(context, say)
        starting.append(perf_counter() - began)
        return runner

    outcome = run_sweep(context, work.silent(), start=start)
    rows = outcome.plan.rows.rows(named=True)
    return outcome.seconds, starting[0], {row["key"]: row for row in rows if row["status"] == "ok"}


def _compare(
    prepared: work.Prepared, ours: float, rows: Mapping[str, Row], threads: int
) -> Figures:
    plain = _Plain(prepared, rows)
    torch.set_num_threads(threads)
    began = perf_counter()
    plain.run()
    raw = {"ours": [ours], "plain": [perf_counter() - began]}
    gaps = {key: abs(found - rows[key]["agreement"]) for key, found in plain.agreement.items()}
    same = [gap for key, gap in gaps.items() if rows[key]["protocol"] not in IRI_PROTOCOLS]
    more: dict[str, Any] = {
        "agreement_points": max(gaps.values()),
        "agreement_points_on_the_same_inputs": max(same),
        "plain_seconds_of_iris": plain.iri_seconds,
        "steps": sum(rows[key]["steps"] for key in gaps),
        "failed_cells": sum(len(one.unit.cells) for one in prepared.work) - len(gaps),
    }
    return compared("quickstart", raw, len(gaps), max(gaps.values()), **more)


class _Plain:
    """The plain loop over the cells of these rows; networks and images are made ready here.

    agreement: of each cell, in percent, once `run` has ended; iri_seconds: of its time.
    """

    def __init__(self, prepared: work.Prepared, rows: Mapping[str, Row]) -> None:
        self.prepared, self.rows = prepared, rows
        self.workshop, self.sweep = prepared.workshop, prepared.context.sweep
        cells = [cell for one in prepared.work for cell in one.unit.cells]
        cuts = {cut: None for cell in cells for cut in (cell.end_cut, *cell.fula_cuts)}
        self.pairs = {
            pair: [work.hooked(prepared, model, [*cuts]) for model in pair]
            for pair in {(cell.front_model, cell.end_model) for cell in cells}
        }
        markers = {one.unit.stitch_marker for one in prepared.work}
        self.real = {
            marker: self._unit(self.workshop.stitch_images(marker).images) for marker in markers
        }
        markers = {cell.test_marker for cell in cells}
        self.test = {
            marker: self._unit(self.workshop.test_images(marker).images) for marker in markers
        }
        self.agreement: dict[str, float] = {}
        self.iri_seconds = 0.0

    def _unit(self, pixels: Any) -> Tensor:
        return to_unit(pixels, self.workshop.device)

    def run(self) -> None:
        for one in self.prepared.work:
            inputs = self._inputs(one)
            for cell in one.unit.cells:
                if cell.key in self.rows:
                    self._train(cell, inputs)

    def _train(self, cell: Cell, inputs: Tensor) -> None:
        training = self.sweep.training_under(cell.protocol)
        front, end = self.pairs[cell.front_model, cell.end_model]
        labels = torch.from_numpy(self.workshop.stitch_images(None).labels)
        kept = _kept(len(inputs), cell.seed, training)
        stitch = plain_loop.train(
            front,
            end,
            plain_loop.Cell(cell.end_cut, cell.objective, cell.fula_cuts),
            inputs[kept],
            labels[kept],
            work.order(len(kept), cell.seed),
            _recipe(self.rows[cell.key], training),
        )
        test = self.test[cell.test_marker]
        self.agreement[cell.key] = plain_loop.agreement(front, end, cell.end_cut, stitch, test)

    def _inputs(self, one: UnitWork) -> Tensor:
        """What the unit's cells train on: (n, channels, height, width) in [0, 1]."""
        unit, images = one.unit, self.workshop.stitch_images(one.unit.stitch_marker)
        real = self.real[unit.stitch_marker]
        if unit.protocol == "standard":
            return real
        if unit.protocol == "noise":
            return self._unit(noise_images(images.index, images.shape, unit.seed))
        assert unit.protocol == "invariance"
        (end_model,) = {cell.end_model for cell in unit.cells}
        front, end = self.pairs[unit.front_model, end_model]
        iris, began = self.sweep.iris, perf_counter()
        start = torch.stack(
            [start_noise(unit.seed, int(index), images.shape) for index in images.index]
        )
        made = plain_loop.synthesise(
            front, end, unit.front_cut, real, start, iris.steps, iris.lr, iris.batch
        )
        self.iri_seconds += perf_counter() - began
        return (made * 255).round() / 255


def _kept(count: int, seed: int, training: Training) -> Tensor:
    """Positions of the images that our loop trains on: the others are kept for its curve."""
    held = training.held_out_of(count)
    generator = torch.Generator().manual_seed(derive("held out", seed))
    return torch.randperm(count, generator=generator)[held:].sort().values


def _recipe(row: Row, training: Training) -> plain_loop.Recipe:
    """As many epochs as our cell took, its learning rate falling where ours fell by its curve."""
    schedule, drops = Plateau(training, 1, row["loss_init"]), list[int]()
    for epoch, loss in enumerate(row["curve"], 1):
        if schedule.advise(epoch, row["steps"] * epoch // row["epochs"], loss) == "drop":
            drops.append(epoch)
    return plain_loop.Recipe(
        row["epochs"], training.batch, training.lr, training.weight_decay, tuple(drops)
    )
