"""What frozen halves answer on training batches that change from epoch to epoch.

Random views, batch statistics, dropout and attacked images: nothing of it can be kept. Views and
dropout follow from seed, epoch and step alone, so that a cell's numbers do not depend on the cells
it is trained with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from raystitch.names import Augment
from raystitch.seeds import derive
from raystitch.settings import Training
from raystitch.stitching.objectives import Answer
from raystitch.zoo.models import seeded
from raystitch.zoo.modes import training_modes

Result = TypeVar("Result")

Images = Callable[[Tensor, Augment, torch.Generator], Tensor]
"""(positions (batch,), kind of view, generator on the CPU) -> images (batch, c, h, w) in [0, 1]."""


@dataclass(frozen=True)
class LiveHalf:
    """A private copy of a frozen half, and what it answers on images (batch, c, h, w)."""

    module: nn.Module
    answer: Callable[[Tensor], Answer]


@dataclass(frozen=True)
class Step:
    """One training step: its epoch and number, and the images that each side sees."""

    epoch: int
    number: int
    front_images: Tensor
    end_images: Tensor


class Live:
    """The halves of a unit and their images.

    front_images, end_images: what each side sees; the same object where both see the same.
    """

    def __init__(
        self,
        front_images: Images,
        end_images: Images,
        front: LiveHalf,
        ends: Mapping[str, LiveHalf],
        training: Training,
        seed: int,
    ) -> None:
        self.front_images, self.end_images = front_images, end_images
        self.front, self.ends, self.training, self.seed = front, ends, training, seed

    def step(self, positions: Tensor, epoch: int, number: int) -> Step:
        """The images of a training step, the same random view of each on both sides."""

        def view(images: Images) -> Tensor:
            seed = derive("stitch views", self.seed, epoch, number)
            return images(positions, self.training.augment, torch.Generator().manual_seed(seed))

        front = view(self.front_images)
        same = self.end_images is self.front_images
        return Step(epoch, number, front, front if same else view(self.end_images))

    def front_answer(self, step: Step) -> Answer:
        """What the front answers in its training mode, without gradient."""
        with torch.no_grad():
            return self.run(
                self.front.module, step, "front", lambda: self.front.answer(step.front_images)
            )

    def end_answer(self, name: str, step: Step) -> Answer:
        """The same of an end: the targets."""
        end = self.ends[name]
        with torch.no_grad():
            return self.run(end.module, step, "target", lambda: end.answer(step.end_images))

    def run(
        self,
        half: nn.Module,
        step: Step,
        role: Literal["front", "target", "tail"],
        call: Callable[[], Result],
    ) -> Result:
        """The call with that half in training mode, its dropout drawn from seed, epoch and step.

        role: sets the dropout of the three halves apart, which else would drop the same elements.
        """
        bn, dropout = self.training.bn == "batch", self.training.dropout
        seed = derive("stitch dropout", role, self.seed, step.epoch, step.number)
        device = step.front_images.device
        with training_modes(half, bn=bn, dropout=dropout), seeded(seed, device):
            return call()
