"""Stitch training: cells of a pair by the unit loop, and one at a time by the plain loop.

Both train the same cells for the same steps from the same networks, images, IRIs and orders of
batches, least-squares start and score included. Loading and cutting networks and making IRIs are
outside both times; what our loop keeps to use again is computed inside its time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

import plain_loop
from benchmarks import work
from benchmarks.report import JsonFile, alternate, compared, show
from raystitch.run.bench import Bench
from raystitch.run.iri_sets import read_set
from raystitch.run.work import UnitWork
from raystitch.settings import Training
from raystitch.zoo.pixels import to_unit


@dataclass(frozen=True)
class Trained:
    """A trained cell: T's weight and bias (end channels, front channels + 1), agreement in %."""

    weights: Tensor
    agreement: float


def main(
    full: Annotated[bool, typer.Option("--full", help="The whole width, 64.")] = False,
    short: Annotated[bool, typer.Option("--short", help="A tiny trial.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each side.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = os.cpu_count() or 1,
    json_file: JsonFile = None,
) -> None:
    """Train stitches: our unit loop and the plain loop on the same cells."""
    width, images = (4, 64) if short else (64 if full else 16, 256)
    jobs = [("cuts 1 3 5 7 9, 20 steps", 5, [*work.CUTS]), ("cut 5, 200 steps", 50, [5])]
    figures: list[Any] = []
    for name, epochs, cuts in [("cuts 5 9, 1 step", 1, [5, 9])] if short else jobs:
        training = {"schedule": "step", "epochs": epochs, "batch": 64, "init_count": images}
        changes = {"training": training, "cuts": [work.CUTS[cut] for cut in cuts]}
        with tempfile.TemporaryDirectory() as folder:
            file = work.sweep_file(Path(folder), "stitch", width, threads, images, **changes)
            prepared = work.prepare(file, Path(folder) / "runs")
            figures.append(_compare(name, prepared, 1 if short else repeats))
    show(figures, json_file)


def _compare(name: str, prepared: work.Prepared, repeats: int) -> Any:
    raw, ours, plain = alternate(lambda: _ours(prepared), _plain(prepared), repeats)
    agreement = max(abs(ours[key].agreement - plain[key].agreement) for key in ours)
    weights = max(_relative(ours[key].weights, plain[key].weights) for key in ours)
    return compared(
        name, raw, len(ours), agreement, agreement_points=agreement, weights_relative=weights
    )


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


def _ours(prepared: work.Prepared) -> dict[str, Trained]:
    shutil.rmtree(prepared.workshop.activations.cache.folder, ignore_errors=True)
    found: dict[str, Trained] = {}
    for one in prepared.work:
        for epoch in Bench(one, prepared.workshop).run(one.unit.cells, {}):
            for ended, row in zip(epoch.ended, epoch.rows, strict=True):
                assert ended.stitch is not None, ended.error
                both = (ended.stitch.weight, ended.stitch.bias[:, None])
                found[ended.key] = Trained(torch.cat(both, 1).detach(), row["agreement"])
    return found


def _plain(prepared: work.Prepared) -> Callable[[], dict[str, Trained]]:
    """The plain loop over the same cells; its networks and images are made ready here."""
    workshop, training = prepared.workshop, prepared.context.sweep.training
    front, end = (work.hooked(prepared, model) for model in ("net-1", "net-0"))
    test = to_unit(workshop.test_images(None).images, workshop.device)
    inputs = {id(one): _inputs(prepared, one) for one in prepared.work}
    labels = torch.from_numpy(workshop.stitch_images(None).labels)

    def run() -> dict[str, Trained]:
        found: dict[str, Trained] = {}
        for one in prepared.work:
            images, order = inputs[id(one)], work.order(len(labels), one.unit.seed)
            for cell in one.unit.cells:
                plain = plain_loop.Cell(cell.end_cut, cell.objective, cell.fula_cuts)
                stitch = plain_loop.train(
                    front, end, plain, images, labels, order, _recipe(training)
                )
                agreement = plain_loop.agreement(front, end, cell.end_cut, stitch, test)
                found[cell.key] = Trained(_weights(stitch), agreement)
        return found

    return run


def _inputs(prepared: work.Prepared, one: UnitWork) -> Tensor:
    real = prepared.workshop.stitch_images(None)
    iris = None if one.iri_set is None else read_set(one.iri_set, prepared.context).images
    return to_unit((iris or real).images, prepared.workshop.device)


def _recipe(training: Training) -> plain_loop.Recipe:
    epochs = training.epochs
    drops = (-(-epochs // 3), -(-2 * epochs // 3))
    return plain_loop.Recipe(epochs, training.batch, training.lr, training.weight_decay, drops)


def _weights(stitch: nn.Conv2d) -> Tensor:
    assert stitch.bias is not None
    return torch.cat((stitch.weight[:, :, 0, 0], stitch.bias[:, None]), 1).detach()
