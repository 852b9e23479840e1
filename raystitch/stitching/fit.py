"""Trains the live cells of a unit, epoch by epoch.

The cells share a front, its cut and their inputs, so a batch's front activation is fetched once for
all of them, and an end's target once for all cells of that end. Both networks are frozen: only each
cell's own T learns, by its own loss, and stops by its own curve. A cell's numbers do not depend on
which other cells are in the unit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from raystitch.errors import CellError
from raystitch.seeds import derive
from raystitch.stitching.evaluate import stitched_scores
from raystitch.stitching.jobs import CellJob, Finished, UnitJob
from raystitch.stitching.objectives import OBJECTIVES, Answer
from raystitch.stitching.schedules import SCHEDULES
from raystitch.stitching.transforms import (
    Stitch,
    images_for_lstsq,
    start_identity,
    start_lstsq,
    start_random,
)

DIVERGED = 1e3
"""A loss this many times above the larger of 1 and the first one is taken as diverged."""


class UnitFit:
    """Trains a unit: `start` once, then `epoch` until no cell is live."""

    def __init__(self, unit: UnitJob, jobs: Sequence[CellJob]) -> None:
        self.unit, self.jobs = unit, jobs
        self.live: list[_CellFit] = []
        self.epochs = 0
        self.training_positions, self.held_out = _split(unit)

    def start(self) -> Iterator[Finished]:
        """Give every cell its starting T; yields those that cannot even start."""
        for job in self.jobs:
            cell = _CellFit(self.unit, job)
            try:
                with cell.timed():
                    cell.start(self.training_positions, self.held_out)
            except CellError as error:
                yield cell.failed(str(error))
            else:
                self.live.append(cell)

    def epoch(self) -> Iterator[Finished]:
        """One epoch over the live cells; yields those that ended in it."""
        self.epochs += 1
        ended = dict(self._train())
        for cell in list(self.live):
            if cell not in ended:
                with cell.timed():
                    outcome = cell.close_epoch(self.held_out)
                if outcome is not None:
                    ended[cell] = replace(outcome, seconds=cell.seconds)
            if cell in ended:
                self.live.remove(cell)
                yield ended[cell]

    def _train(self) -> Iterator[tuple[_CellFit, Finished]]:
        failed: set[_CellFit] = set()
        for positions in self._batches():
            began = time.perf_counter()
            activation = self.unit.front.own(positions).activations[self.unit.front_cut.name]
            targets = {name: self.unit.ends[name].own(positions) for name in self._live_ends()}
            labels = _labels(self.unit, positions)
            share = (time.perf_counter() - began) / len(self.live)
            for cell in self.live:
                if cell in failed:
                    continue
                cell.seconds += share
                try:
                    with cell.timed():
                        cell.step(activation, targets[cell.job.end], labels)
                except CellError as error:
                    failed.add(cell)
                    yield cell, cell.failed(str(error))

    def _batches(self) -> Iterator[Tensor]:
        """The epoch's batches of positions, in an order that depends on seed and epoch alone."""
        seed = derive("stitch order", self.unit.seed, self.epochs)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.training_positions), generator=generator)
        batch = self.unit.training.batch
        for chunk in self.training_positions[order].split(batch):
            if len(chunk) == batch or not self.unit.training.drop_last:
                yield chunk

    def _live_ends(self) -> set[str]:
        return {cell.job.end for cell in self.live}


class _CellFit:
    """One cell in training: its T, optimiser, schedule and curve."""

    def __init__(self, unit: UnitJob, job: CellJob) -> None:
        self.unit, self.job = unit, job
        self.rule = OBJECTIVES[job.objective]
        self.cuts = job.fula_cuts if self.rule.needs_taps else (job.end_cut.name,)
        self.stitch: Stitch | None = None
        self.epochs = self.steps = 0
        self.seconds = 0.0
        self.curve: list[float] = []
        self.epoch_losses: list[tuple[float, int]] = []
        self.loss_init: float | None = None
        self.agreement_init: float | None = None

    @contextmanager
    def timed(self) -> Generator[None]:
        """Count the time inside as this cell's own."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def start(self, training_positions: Tensor, held_out: Tensor) -> None:
        unit, training = self.unit, self.unit.training
        self.stitch = Stitch(unit.front_cut, self.job.end_cut).to(unit.device)
        self._initialise(self.stitch, training_positions)
        self.loss_init = self._loss_over(held_out if len(held_out) else training_positions)
        self._check(self.loss_init)
        self.agreement_init = self._scores()["agreement"]
        self.schedule = SCHEDULES[training.schedule](training, unit.budget, self.loss_init)
        self.optimiser = torch.optim.Adam(
            self.stitch.parameters(), lr=training.lr, weight_decay=training.weight_decay
        )

    def step(self, activation: Tensor, target: Answer, labels: Tensor | None) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss(activation, target, labels)
        loss.backward()
        self.optimiser.step()
        self.steps += 1
        self.epoch_losses.append((loss.item(), len(activation)))

    def close_epoch(self, held_out: Tensor) -> Finished | None:
        """Note the epoch's loss and follow the schedule; the outcome when the cell has ended."""
        self.epochs += 1
        loss = self._loss_over(held_out) if len(held_out) else _mean(self.epoch_losses)
        self.epoch_losses.clear()
        self.curve.append(loss)
        try:
            self._check(loss)
        except CellError as error:
            return self.failed(str(error))
        advice = self.schedule.advise(self.epochs, self.steps, loss)
        if advice == "drop":
            for group in self.optimiser.param_groups:
                group["lr"] *= 0.1
        return self._finished() if advice == "stop" else None

    def failed(self, reason: str) -> Finished:
        return Finished(
            self.job.key,
            None,
            self.epochs,
            self.steps,
            self.seconds,
            "failed",
            loss_init=self.loss_init,
            curve=tuple(self.curve),
            agreement_init=self.agreement_init,
            error=reason,
        )

    def _finished(self) -> Finished:
        scores = self._scores()
        return Finished(
            self.job.key,
            self.stitch,
            self.epochs,
            self.steps,
            self.seconds,
            self.schedule.reason,
            loss_init=self.loss_init,
            curve=tuple(self.curve),
            agreement_init=self.agreement_init,
            scores=scores,
        )

    def _initialise(self, stitch: Stitch, training_positions: Tensor) -> None:
        unit = self.unit
        if unit.training.init == "identity":
            return start_identity(stitch)
        generator = torch.Generator().manual_seed(derive("init", unit.seed))
        if unit.training.init == "random":
            return start_random(stitch, generator)
        count = images_for_lstsq(
            unit.front_cut, self.job.end_cut, unit.training.init_count, len(training_positions)
        )
        order = torch.randperm(len(training_positions), generator=generator)[:count]
        return start_lstsq(stitch, self._pairs(training_positions[order].sort().values))

    def _pairs(self, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Front and end activations for the least-squares start."""
        front, end = self.unit.front, self.unit.ends[self.job.end]
        if self.unit.training.init_images == "own":
            front_answers, end_answers = front.own, end.own
        else:
            assert front.real is not None
            assert end.real is not None
            front_answers, end_answers = front.real, end.real
        for chunk in positions.split(self.unit.training.batch):
            yield (
                front_answers(chunk).activations[self.unit.front_cut.name],
                end_answers(chunk).activations[self.job.end_cut.name],
            )

    def _loss(self, activation: Tensor, target: Answer, labels: Tensor | None) -> Tensor:
        assert self.stitch is not None
        stitched = self.stitch(activation)
        answer = Answer({self.job.end_cut.name: stitched})
        if self.rule.needs_taps:
            logits, taps = self.job.tail.observe(stitched)
            answer = Answer(dict(zip(self.cuts, taps, strict=True)), logits)
        elif self.rule.needs_tail:
            answer = Answer(answer.activations, self.job.tail(stitched))
        return self.rule.loss(answer, target, labels, self.cuts)

    def _loss_over(self, positions: Tensor) -> float:
        """The objective over these own inputs, batch by batch, weighted by batch size."""
        losses: list[tuple[float, int]] = []
        with torch.no_grad():
            for chunk in positions.split(self.unit.training.batch):
                activation = self.unit.front.own(chunk).activations[self.unit.front_cut.name]
                target = self.unit.ends[self.job.end].own(chunk)
                loss = self._loss(activation, target, _labels(self.unit, chunk))
                losses.append((loss.item(), len(chunk)))
        return _mean(losses)

    def _scores(self) -> dict[str, float]:
        stitch, unit = self.stitch, self.unit
        assert stitch is not None
        return stitched_scores(
            lambda activation: self.job.tail(stitch(activation)),
            unit.front.test,
            unit.front_cut.name,
            unit.ends[self.job.end].test,
            unit.test_labels,
        )

    def _check(self, loss: float) -> None:
        bound = DIVERGED * max(1.0, self.loss_init or 0.0)
        if not math.isfinite(loss) or loss > bound:
            raise CellError(
                f"training diverged: the {self.job.objective} loss was {loss:.4g} after epoch "
                f"{self.epochs} (step {self.steps}); use a smaller training.lr"
            )


def _split(unit: UnitJob) -> tuple[Tensor, Tensor]:
    """Positions to train on and, for the plateau schedule, held-out ones, by the seed alone."""
    count = len(unit.front.own)
    held = unit.training.held_out_of(count)
    if not held:
        return torch.arange(count), torch.arange(0)
    generator = torch.Generator().manual_seed(derive("held out", unit.seed))
    order = torch.randperm(count, generator=generator)
    return order[held:].sort().values, order[:held].sort().values


def _labels(unit: UnitJob, positions: Tensor) -> Tensor | None:
    return None if unit.labels is None else unit.labels[positions].to(unit.device)


def _mean(losses: Sequence[tuple[float, int]]) -> float:
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
