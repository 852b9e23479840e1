"""One cell in training: its T, optimiser, schedule and curve, and its state between two epochs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from raystitch.errors import CellError
from raystitch.lstsq import images_for_lstsq
from raystitch.names import Init
from raystitch.seeds import derive
from raystitch.stitching.evaluate import stitched_scores
from raystitch.stitching.jobs import CellJob, Finished, Tail, UnitJob, labels_of
from raystitch.stitching.live import Step
from raystitch.stitching.objectives import OBJECTIVES, Answer
from raystitch.stitching.schedules import SCHEDULES
from raystitch.stitching.state import CellState, adam_tensors, load_adam
from raystitch.stitching.transforms import (
    Stitch,
    start_identity,
    start_lstsq,
    start_random,
)
from raystitch.zoo.attacks import partly_attacked
from raystitch.zoo.modes import drifted

Result = TypeVar("Result")

DIVERGED = 1e3
"""A loss this many times above the larger of 1 and the first one is taken as diverged."""


@dataclass(frozen=True)
class Start:
    """T before any step, and its agreement in percent: the same whatever the cell's objective."""

    weights: dict[str, Tensor]
    agreement: float


Starts = dict[tuple[str, str, Init], Start]
"""By end, end cut and kind of start, where all own inputs of training are drawn from."""


@dataclass(frozen=True)
class Batch:
    """What one training step works on.

    activation: of the front; targets: by end; labels: (batch,) or None. step: where views or modes
    change; with attacked images it is all there is.
    """

    activation: Tensor | None
    targets: Mapping[str, Answer]
    labels: Tensor | None
    step: Step | None = None


UNTRAINED = "untrained"
"""The `stop_reason` of an objective that takes no step."""


class CellFit:
    """One cell in training: its T, optimiser, schedule and curve."""

    def __init__(self, unit: UnitJob, job: CellJob) -> None:
        self.unit, self.job = unit, job
        self.rule = OBJECTIVES[job.objective]
        self.init: Init = self.rule.fixed or unit.training.init
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

    def start(
        self, training_positions: Tensor, held_out: Tensor, starts: Starts
    ) -> Finished | None:
        """Give T its start, before any step. Raises `CellError`.

        starts: what other cells of the unit have started from; this cell's is added.
        Returns the outcome of an objective that takes no step.
        """
        unit, training = self.unit, self.unit.training
        self.stitch = Stitch(unit.front_cut, self.job.end_cut).to(unit.device)
        place = (self.job.end, self.job.end_cut.name, self.init)
        known = None if self.rule.fixed else starts.get(place)
        if known is not None:
            self.stitch.load_state_dict(known.weights)
        else:
            self._initialise(self.stitch, training_positions)
        self.loss_init = self._loss_over(held_out if len(held_out) else training_positions)
        self._check(self.loss_init)
        if self.rule.fixed:
            return self._finished(UNTRAINED)
        if known is None:
            weights = {name: value.clone() for name, value in self.stitch.state_dict().items()}
            known = starts[place] = Start(weights, self._scores()["agreement"])
        self.agreement_init = known.agreement
        self._equip(self.stitch, self.loss_init, training.lr)
        return None

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
        for name, buffer in self._drifted().items():
            buffer.copy_(state.tensors[name])
        self.schedule.recall(state.schedule)
        self.epochs, self.steps, self.seconds = state.epochs, state.steps, state.seconds
        self.curve = list(state.curve)

    def capture(self) -> CellState:
        """The cell as it stands between two epochs."""
        assert self.stitch is not None
        assert not self.epoch_losses, "in the middle of an epoch"
        adam = adam_tensors(self.stitch.named_parameters(), self.optimiser)
        tensors = {**self.stitch.state_dict(), **adam, **self._drifted()}
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

    def _drifted(self) -> dict[str, Tensor]:
        """What has drifted in the private copies of the halves that the cell is trained with."""
        live, tail = self.unit.live, self.job.tail
        if live is None or self.unit.training.bn != "batch":
            return {}
        assert isinstance(tail, nn.Module)
        halves = {"front": live.front.module, "tail": tail}
        return {
            f"{side}.{name}": buffer
            for side, half in halves.items()
            for name, buffer in drifted(half).items()
        }

    def _equip(self, stitch: Stitch, first_loss: float, lr: float) -> None:
        training = self.unit.training
        self.schedule = SCHEDULES[training.schedule](training, self.unit.budget, first_loss)
        self.optimiser = torch.optim.Adam(
            stitch.parameters(), lr=lr, weight_decay=training.weight_decay
        )

    def step(self, batch: Batch) -> None:
        activation, step = batch.activation, batch.step
        if activation is not None:
            target = batch.targets[self.job.end]
        else:
            assert step is not None
            step, activation, target = self._attacked(step, batch.labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss(activation, target, batch.labels, step)
        loss.backward()
        self.optimiser.step()
        self.steps += 1
        self.epoch_losses.append((loss.item(), len(activation)))

    def _attacked(self, step: Step, labels: Tensor | None) -> tuple[Step, Tensor, Answer]:
        """The step with a share of its images attacked, and both sides' answers on them."""
        live, training, stitch = self.unit.live, self.unit.training, self.stitch
        assert live is not None
        assert stitch is not None
        assert labels is not None, "attacks are not planned where inputs have no labels"
        cut = self.unit.front_cut.name

        def stitched(images: Tensor) -> Tensor:
            return self.job.tail(stitch(live.front.answer(images).activations[cut]))

        mixed = partly_attacked(
            stitched,
            step.front_images,
            labels,
            training.attack_share,
            eps=training.attack_eps,
            step=training.attack_step,
            steps=training.attack_steps,
        )
        step = replace(step, front_images=mixed, end_images=mixed)
        activation = live.front_answer(step).activations[cut]
        return step, activation, live.end_answer(self.job.end, step)

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
        return self._finished(self.schedule.reason) if advice == "stop" else None

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

    def _finished(self, reason: str | None) -> Finished:
        scores = self._scores()
        return Finished(
            self.job.key,
            self.stitch,
            self.epochs,
            self.steps,
            self.seconds,
            reason,
            loss_init=self.loss_init,
            curve=tuple(self.curve),
            agreement_init=self.agreement_init,
            scores=scores,
        )

    def _initialise(self, stitch: Stitch, training_positions: Tensor) -> None:
        unit = self.unit
        if self.init == "identity":
            return start_identity(stitch)
        if self.rule.fixed:
            return start_lstsq(stitch, self._pairs(training_positions))
        generator = torch.Generator().manual_seed(derive("init", unit.seed))
        if self.init == "random":
            return start_random(stitch, generator)
        count = images_for_lstsq(
            unit.front_cut, self.job.end_cut, unit.training.init_count, len(training_positions)
        )
        order = torch.randperm(len(training_positions), generator=generator)[:count]
        return start_lstsq(stitch, self._pairs(training_positions[order].sort().values))

    def _pairs(self, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Front and end activations for the least-squares start."""
        front, end = self.unit.front, self.unit.ends[self.job.end]
        if self.rule.fixed or self.unit.training.init_images == "own":
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

    def _loss(
        self, activation: Tensor, target: Answer, labels: Tensor | None, step: Step | None = None
    ) -> Tensor:
        assert self.stitch is not None
        stitched = self.stitch(activation)
        answer = Answer({self.job.end_cut.name: stitched})
        if self.rule.needs_taps:
            logits, taps = self._through(step, lambda tail: tail.observe(stitched))
            answer = Answer(dict(zip(self.cuts, taps, strict=True)), logits)
        elif self.rule.needs_tail:
            answer = Answer(answer.activations, self._through(step, lambda tail: tail(stitched)))
        return self.rule.loss(answer, target, labels, self.cuts)

    def _through(self, step: Step | None, call: Callable[[Tail], Result]) -> Result:
        """A call of the tail: in its training mode where this is a training step."""
        tail = self.job.tail
        if step is None or self.unit.live is None:
            return call(tail)
        assert isinstance(tail, nn.Module)
        return self.unit.live.run(tail, step, "tail", lambda: call(tail))

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
