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
from raystitch.stitching.cell_fit import CellFit, Starts
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
        """Give every cell its starting T; yields those that cannot even start."""
        starts: Starts = {}
        for job in self.jobs:
            cell = CellFit(self.unit, job)
            try:
                if (state := self.states.get(job.key)) is not None:
                    cell.resume(state)
                else:
                    with cell.timed():
                        cell.start(self.training_positions, self.held_out, starts)
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

    def capture(self) -> dict[str, CellState]:
        """The state of every live cell, by key."""
        return {cell.job.key: cell.capture() for cell in self.live}

    def _train(self) -> Iterator[tuple[CellFit, Finished]]:
        failed: set[CellFit] = set()
        for positions in self._batches():
            began = time.perf_counter()
            activation = self.unit.front.own(positions).activations[self.unit.front_cut.name]
            targets = {name: self.unit.ends[name].own(positions) for name in self._live_ends()}
            labels = labels_of(self.unit, positions)
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


def _split(unit: UnitJob) -> tuple[Tensor, Tensor]:
    """Positions to train on and, for the plateau schedule, held-out ones, by the seed alone."""
    count = len(unit.front.own)
    held = unit.training.held_out_of(count)
    if not held:
        return torch.arange(count), torch.arange(0)
    generator = torch.Generator().manual_seed(derive("held out", unit.seed))
    order = torch.randperm(count, generator=generator)
    return order[held:].sort().values, order[:held].sort().values
