"""Trains the live cells of a unit, epoch by epoch.

The cells share a front, its cut and their inputs, so a batch's front activation is fetched once for
all of them, and an end's target once for all cells of that end. Both networks are frozen: only each
cell's own T learns, by its own loss, and stops by its own curve. A cell's numbers do not depend on
which other cells are in the unit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raystitch.errors import CellError
from raystitch.seeds import derive
from raystitch.stitching.cell_fit import Batch, CellFit, Starts
from raystitch.stitching.jobs import CellJob, Finished, UnitJob, labels_of
from raystitch.stitching.state import CellState


class UnitFit:
    """Trains a unit: `start` once, then `epoch` until no cell is live.

    states: of all its cells after the same number of epochs, to go on from; empty to begin anew.
    """

    def __init__(
        self,
        unit: UnitJob,
        jobs: Sequence[CellJob],
        states: Mapping[str, CellState] | None = None,
    ) -> None:
        self.unit, self.jobs, self.states = unit, jobs, states or {}
        self.live: list[CellFit] = []
        after = {self.states[job.key].epochs if job.key in self.states else 0 for job in jobs}
        assert len(after) <= 1, "cells that stand at different epochs are not trained together"
        self.epochs = after.pop() if after else 0
        self.training_positions, self.held_out = _split(unit)

    def start(self) -> Iterator[Finished]:
        """Give every cell its starting T; yields those that end there, well or not."""
        starts: Starts = {}
        for job in self.jobs:
            cell = CellFit(self.unit, job)
            try:
                ended = self._begin(cell, starts)
            except CellError as error:
                ended = cell.failed(str(error))
            if ended is None:
                self.live.append(cell)
            else:
                yield ended

    def _begin(self, cell: CellFit, starts: Starts) -> Finished | None:
        if (state := self.states.get(cell.job.key)) is not None:
            return cell.resume(state)
        with cell.timed():
            ended = cell.start(self.training_positions, self.held_out, starts)
        return None if ended is None else replace(ended, seconds=cell.seconds)

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

    def capture(self) -> dict[str, CellState]:
        """The state of every live cell, by key."""
        return {cell.job.key: cell.capture() for cell in self.live}

    def _train(self) -> Iterator[tuple[CellFit, Finished]]:
        failed: set[CellFit] = set()
        for number, positions in enumerate(self._batches()):
            began = time.perf_counter()
            batch = self._batch(positions, number)
            share = (time.perf_counter() - began) / len(self.live)
            for cell in self.live:
                if cell in failed:
                    continue
                cell.seconds += share
                try:
                    with cell.timed():
                        cell.step(batch)
                except CellError as error:
                    failed.add(cell)
                    yield cell, cell.failed(str(error))

    def _batch(self, positions: Tensor, number: int) -> Batch:
        """What one training step works on: computed once for all cells."""
        unit, live, cut = self.unit, self.unit.live, self.unit.front_cut.name
        labels = labels_of(unit, positions)
        ends = {cell.job.end for cell in self.live}
        if live is None:
            targets = {name: unit.ends[name].own(positions) for name in ends}
            return Batch(unit.front.own(positions).activations[cut], targets, labels)
        step = live.step(positions, self.epochs, number)
        if unit.training.attack_share:  # each cell has images of its own
            return Batch(None, {}, labels, step)
        targets = {name: live.end_answer(name, step) for name in sorted(ends)}
        return Batch(live.front_answer(step).activations[cut], targets, labels, step)

    def _batches(self) -> Iterator[Tensor]:
        """The epoch's batches of positions, in an order that depends on seed and epoch alone."""
        seed = derive("stitch order", self.unit.seed, self.epochs)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.training_positions), generator=generator)
        batch = self.unit.training.batch
        for chunk in self.training_positions[order].split(batch):
            if len(chunk) == batch or not self.unit.training.drop_last:
                yield chunk


def _split(unit: UnitJob) -> tuple[Tensor, Tensor]:
    """Positions to train on and, for the plateau schedule, held-out ones, by the seed alone."""
    count = len(unit.front.own)
    held = unit.training.held_out_of(count)
    if not held:
        return torch.arange(count), torch.arange(0)
    generator = torch.Generator().manual_seed(derive("held out", unit.seed))
    order = torch.randperm(count, generator=generator)
    return order[held:].sort().values, order[:held].sort().values
