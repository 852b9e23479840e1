"""When a stitch's learning rate falls and when its training ends: by its own curve alone.

A schedule looks at one cell's loss and never at another cell: a low score is the datum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol

from raystitch.names import Schedule as ScheduleName
from raystitch.settings import Training

Advice = Literal["go", "drop", "stop"]
"""Go on; let the learning rate fall tenfold; end training."""


class Schedule(Protocol):
    """Advises one cell after each epoch.

    ``reason`` is stored as the cell's ``stop_reason`` once the advice was to stop.
    """

    reason: str

    def advise(self, epoch: int, steps: int, loss: float) -> Advice: ...

    def memory(self) -> dict[str, float]:
        """What it has learned of the cell's curve so far."""
        ...

    def recall(self, memory: Mapping[str, float]) -> None:
        """Take up that memory, to advise as if nothing had come between."""
        ...


class Plateau:
    """Improvement of less than ``threshold`` in ``patience`` epochs: drop; after two drops: stop.

    No stop before ``min_epochs`` epochs or ``min_steps`` steps, whichever is fewer; never more than
    ``epochs``. ``loss`` is the cell's own objective on its own held-out inputs.
    """

    def __init__(self, training: Training, budget: int, first_loss: float) -> None:
        self.threshold = training.threshold
        self.patience = training.patience * budget
        self.epochs = training.epochs * budget
        self.min_epochs, self.min_steps = training.min_epochs * budget, training.min_steps * budget
        self.best, self.since, self.drops = first_loss, 0, 0
        self.reason = ""

    def advise(self, epoch: int, steps: int, loss: float) -> Advice:
        if loss < self.best * (1 - self.threshold):
            self.best, self.since = loss, 0
        else:
            self.since += 1
        if epoch >= self.epochs:
            self.reason = "max_epochs"
            return "stop"
        if self.since < self.patience:
            return "go"
        if self.drops < 2:
            self.drops, self.since = self.drops + 1, 0
            return "drop"
        if epoch < self.min_epochs and steps < self.min_steps:
            return "go"
        self.reason = "plateau"
        return "stop"

    def memory(self) -> dict[str, float]:
        return {"best": self.best, "since": self.since, "drops": self.drops}

    def recall(self, memory: Mapping[str, float]) -> None:
        self.best = memory["best"]
        self.since, self.drops = int(memory["since"]), int(memory["drops"])


class Step:
    """The published schedule: a drop at ⅓ and ⅔ of the epochs, all of them run."""

    def __init__(self, training: Training, budget: int, first_loss: float) -> None:
        self.epochs = training.epochs * budget
        self.drop_at = {math.ceil(self.epochs / 3), math.ceil(2 * self.epochs / 3)}
        self.reason = ""

    def advise(self, epoch: int, steps: int, loss: float) -> Advice:
        if epoch >= self.epochs:
            self.reason = "schedule"
            return "stop"
        return "drop" if epoch in self.drop_at else "go"

    def memory(self) -> dict[str, float]:
        return {}  # the number of the epoch says it all

    def recall(self, memory: Mapping[str, float]) -> None:
        assert not memory


SCHEDULES: dict[ScheduleName, type[Plateau] | type[Step]] = {"plateau": Plateau, "step": Step}
