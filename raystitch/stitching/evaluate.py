"""Scores one stitched network against the end on the ordinary test images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from raystitch.stitching.metrics import Sums, agreement_probability, interval, scores, update
from raystitch.stitching.objectives import Answer

EVALUATION_BATCH = 512


class Answers(Protocol):
    """What a frozen network answers on a set of images, kept or computed when asked."""

    def __len__(self) -> int: ...

    def __call__(self, positions: Tensor) -> Answer:
        """Its answer for the images at ``positions`` (batch,), without gradient."""
        ...


def stitched_scores(
    stitched: Callable[[Tensor], Tensor],
    front: Answers,
    front_cut: str,
    end: Answers,
    labels: Tensor,
) -> dict[str, float]:
    """The metrics of `metrics.scores` for h = ``stitched`` ∘ front, an activation to logits."""
    return _scores(lambda at: stitched(front(at).activations[front_cut]), end, labels)


def answer_scores(answers: Answers, end: Answers, labels: Tensor) -> dict[str, float]:
    """The same metrics between two sets of logits, image by image, without any stitch."""

    def logits(positions: Tensor) -> Tensor:
        found = answers(positions).logits
        assert found is not None
        return found

    return _scores(logits, end, labels)


def _scores(logits: Callable[[Tensor], Tensor], end: Answers, labels: Tensor) -> dict[str, float]:
    total, per_image = Sums(), list[Tensor]()
    with torch.no_grad():
        for positions in torch.arange(len(labels)).split(EVALUATION_BATCH):
            end_logits = end(positions).logits
            assert end_logits is not None
            own, given = labels[positions].to(end_logits.device), logits(positions)
            total += update(given, end_logits, own)
            per_image.append(agreement_probability(given, end_logits))
    low, high = interval(torch.cat(per_image))
    return {**scores(total), "agreement_low": 100 * low, "agreement_high": 100 * high}
