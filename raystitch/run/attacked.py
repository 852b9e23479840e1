"""Test images attacked white-box against one stitched network, and what networks answer on them."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raystitch.data.images import LabelledImages
from raystitch.evaluation import Robust
from raystitch.run.activations import Network
from raystitch.stitching.evaluate import EVALUATION_BATCH, stitched_scores
from raystitch.stitching.objectives import Answer
from raystitch.sweep.keeping import COMPUTE_BATCH
from raystitch.zoo.apgd import attack
from raystitch.zoo.pixels import to_unit

PIXELS_AT_ONCE = 2**19
"""Pixels of an attack's batch at most: activations of all layers are held for the gradient. 128
images of 32 × 32, 10 of 224 × 224."""


def evenly(count: int, wanted: int | None) -> npt.NDArray[np.int64]:
    """Positions of ``wanted`` of ``count`` images spread evenly over them; all where it is None.

    Sources may list one class after another, so the first ones would not do.
    """
    taken = count if wanted is None else min(wanted, count)
    return np.arange(taken, dtype=np.int64) * count // taken


def robust_scores(
    test: LabelledImages,
    half: Network,
    cut: str,
    stitched: Callable[[Tensor], Tensor],
    end: Network,
    robust: Robust,
    device: torch.device,
) -> dict[str, float]:
    """Columns of h = ``stitched`` ∘ half on images attacked against h.

    half: images to the front's activation at ``cut``; stitched: that to h's logits; end: images to
    the end's logits.
    """
    chosen = test.select(evenly(len(test), robust.images))
    labels = torch.from_numpy(chosen.labels)

    def whole(images: Tensor) -> Tensor:
        return stitched(half(images).activations[cut])

    made = _Attacked(chosen, whole, robust, device)
    found = stitched_scores(stitched, _Answers(half, made), cut, _Answers(end, made), labels)
    return {f"robust_{name}": found[name] for name in ("agreement", "accuracy", "accuracy_end")}


class _Attacked:
    """The attacked images at some positions: made when asked for, the last ones kept."""

    def __init__(
        self,
        images: LabelledImages,
        network: Callable[[Tensor], Tensor],
        robust: Robust,
        device: torch.device,
    ) -> None:
        self.images, self.network, self.robust, self.device = images, network, robust, device
        self.batch = max(1, min(COMPUTE_BATCH, PIXELS_AT_ONCE // prod(images.shape[1:])))
        self.kept: tuple[Tensor, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __call__(self, positions: Tensor) -> Tensor:
        assert len(positions) <= EVALUATION_BATCH, "so many are held at once"
        if self.kept is None or not torch.equal(self.kept[0], positions):
            parts = [self._attack(at.numpy()) for at in positions.split(self.batch)]
            self.kept = positions, torch.cat(parts)
        return self.kept[1]

    def _attack(self, positions: npt.NDArray[np.int64]) -> Tensor:
        some = self.images.select(positions)
        return attack(
            self.network,
            to_unit(some.images, self.device),
            torch.from_numpy(some.labels).to(self.device),
            some.index,
            eps=self.robust.eps,
            step=self.robust.step,
            steps=self.robust.steps,
        )


class _Answers:
    """A network's answers on attacked images, in the batches that clean ones are computed in."""

    def __init__(self, network: Network, images: _Attacked) -> None:
        self.network, self.images = network, images

    def __len__(self) -> int:
        return len(self.images)

    def __call__(self, positions: Tensor) -> Answer:
        with torch.no_grad():
            parts = [self.network(chunk) for chunk in self.images(positions).split(COMPUTE_BATCH)]
        logits = [part.logits for part in parts if part.logits is not None]
        return Answer(
            {cut: torch.cat([p.activations[cut] for p in parts]) for cut in parts[0].activations},
            torch.cat(logits) if logits else None,
        )
