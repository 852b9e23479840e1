"""One cell in training: its T, optimiser, schedule and curve, and its state between two epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from raystitch.errors import CellError
from raystitch.seeds import derive
from raystitch.stitching.evaluate import stitched_scores
from raystitch.stitching.jobs import CellJob, Finished, UnitJob, labels_of
from raystitch.stitching.objectives import OBJECTIVES, Answer
from raystitch.stitching.schedules import SCHEDULES
from raystitch.stitching.state import CellState, adam_tensors, load_adam
from raystitch.stitching.transforms import (
    Stitch,
    images_for_lstsq,
    start_identity,
    start_lstsq,
    start_random,
)

DIVERGED = 1e3
"""A loss this many times above the larger of 1 and the first one is taken as diverged."""


@dataclass(frozen=True)
class Start:
    """T before any step, and its agreement in percent: the same whatever the cell's objective."""

    weights: dict[str, Tensor]
    agreement: float


Starts = dict[tuple[str, str], Start]
"""By end and end cut."""


class CellFit:
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

    def start(self, training_positions: Tensor, held_out: Tensor, starts: Starts) -> None:
        """Give T its start, before any step. Raises `CellError`.

        starts: what other cells of the unit have started from; this cell's is added.
        """
        unit, training = self.unit, self.unit.training
        self.stitch = Stitch(unit.front_cut, self.job.end_cut).to(unit.device)
        place = (self.job.end, self.job.end_cut.name)
        if (known := starts.get(place)) is not None:
            self.stitch.load_state_dict(known.weights)
        else:
            self._initialise(self.stitch, training_positions)
        self.loss_init = self._loss_over(held_out if len(held_out) else training_positions)
        self._check(self.loss_init)
        if known is None:
            weights = {name: value.clone() for name, value in self.stitch.state_dict().items()}
            known = starts[place] = Start(weights, self._scores()["agreement"])
        self.agreement_init = known.agreement
        self._equip(self.stitch, self.loss_init, training.lr)

    def resume(self, state: CellState) -> None:
        """Stand where `capture` found the cell."""
        self.stitch = Stitch(self.unit.front_cut, self.job.end_cut).to(self.unit.device)
        self.stitch.load_state_dict(
            {name: state.tensors[name] for name in self.stitch.state_dict()}
        )
        self.loss_init, self.agreement_init = state.loss_init, state.agreement_init
        assert state.loss_init is not None, "a cell in training has had its first loss"
        self._equip(self.stitch, state.loss_init, state.lr)
        load_adam(self.stitch.named_parameters(), self.optimiser, state.tensors)
        self.schedule.recall(state.schedule)
        self.epochs, self.steps, self.seconds = state.epochs, state.steps, state.seconds
        self.curve = list(state.curve)

    def capture(self) -> CellState:
        """The cell as it stands between two epochs."""
        assert self.stitch is not None
        assert not self.epoch_losses, "in the middle of an epoch"
        adam = adam_tensors(self.stitch.named_parameters(), self.optimiser)
        tensors = {**self.stitch.state_dict(), **adam}
        return CellState(
            epochs=self.epochs,
            steps=self.steps,
            seconds=self.seconds,
            loss_init=self.loss_init,
            agreement_init=self.agreement_init,
            lr=self.optimiser.param_groups[0]["lr"],
            curve=list(self.curve),
            schedule=self.schedule.memory(),
            tensors={name: value.detach().cpu().clone() for name, value in tensors.items()},
        )

    def _equip(self, stitch: Stitch, first_loss: float, lr: float) -> None:
        training = self.unit.training
        self.schedule = SCHEDULES[training.schedule](training, self.unit.budget, first_loss)
        self.optimiser = torch.optim.Adam(
            stitch.parameters(), lr=lr, weight_decay=training.weight_decay
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
                loss = self._loss(activation, target, labels_of(self.unit, chunk))
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


def _mean(losses: Sequence[tuple[float, int]]) -> float:
    return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
