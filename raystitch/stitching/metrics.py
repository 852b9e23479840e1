"""Agreement and accuracy on ordinary test images: sums travel, ratios are taken once at the end.

`Sums` adds up over batches (``+``); `scores` turns the sums over the whole test set into the
published figures, in percent, or as a κ in [−1, 1] for error consistency. The bootstrap interval
alone needs the images one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import torch
from torch import Tensor

RESAMPLES = 1000
"""Times that the test images are drawn again for `interval`."""

LEVEL = 0.95
"""Share of those draws whose mean lies within it."""


@dataclass(frozen=True)
class Sums:
    """Sums over images of what stitched network h and end g answer. Floats, exact in float64."""

    count: float = 0
    classes: float = 0
    agreement: float = 0
    agreement_squared: float = 0
    correct: float = 0
    correct_end: float = 0
    correct_top5: float = 0
    both_or_neither: float = 0
    same_class: float = 0
    label_probability: float = 0
    label_probability_end: float = 0
    entropy: float = 0
    entropy_end: float = 0

    def __add__(self, other: Sums) -> Sums:
        assert self.classes == other.classes or not (self.count and other.count)
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Sums(**{**added, "classes": self.classes or other.classes})


def agreement_probability(logits: Tensor, end_logits: Tensor) -> Tensor:
    """Per image Σ_c p_h p_g / max(Σ p_h², Σ p_g²), in [0, 1].

    (batch, classes) twice -> (batch,).
    """
    h, g = logits.double().softmax(1), end_logits.double().softmax(1)
    return (h * g).sum(1) / torch.maximum(h.square().sum(1), g.square().sum(1))


def update(logits: Tensor, end_logits: Tensor, labels: Tensor) -> Sums:
    """The sums of one batch: h's and g's logits (batch, classes), labels (batch,)."""
    agreement = agreement_probability(logits, end_logits)
    h, g = logits.double().log_softmax(1), end_logits.double().log_softmax(1)
    predicted, predicted_end = logits.argmax(1), end_logits.argmax(1)
    right, right_end = predicted == labels, predicted_end == labels
    top5 = logits.topk(min(5, logits.shape[1]), dim=1).indices
    own = labels[:, None]
    values = {
        "agreement": agreement,
        "agreement_squared": agreement.square(),
        "correct": right,
        "correct_end": right_end,
        "correct_top5": (top5 == own).any(1),
        "both_or_neither": right == right_end,
        "same_class": predicted == predicted_end,
        "label_probability": h.gather(1, own).exp(),
        "label_probability_end": g.gather(1, own).exp(),
        "entropy": torch.special.entr(h.exp()),
        "entropy_end": torch.special.entr(g.exp()),
    }
    sums = {name: float(value.double().sum()) for name, value in values.items()}
    return Sums(count=len(labels), classes=logits.shape[1], **sums)


def scores(sums: Sums) -> dict[str, float]:
    """The figures of a whole test set: percent; κ for error consistency; nats for entropy."""
    n = sums.count
    accuracy, accuracy_end = sums.correct / n, sums.correct_end / n
    agreement = sums.agreement / n
    soft, soft_end = sums.label_probability / n, sums.label_probability_end / n
    hard = sums.both_or_neither / n
    return {
        "agreement": 100 * agreement,
        "agreement_sem": 100 * _standard_error(sums),
        "accuracy": 100 * accuracy,
        "accuracy_end": 100 * accuracy_end,
        "accuracy_top5": 100 * sums.correct_top5 / n,
        "relative_accuracy": 100 * accuracy / accuracy_end if accuracy_end else float("nan"),
        "stitching_penalty": 100 * (accuracy_end - accuracy),
        "prediction_agreement": 100 * sums.same_class / n,
        "hard_agreement": 100 * hard,
        "soft_accuracy": 100 * soft,
        "soft_accuracy_end": 100 * soft_end,
        "error_consistency": kappa(hard, chance(accuracy, accuracy_end)),
        "soft_error_consistency": kappa(agreement, chance(soft, soft_end, sums.classes)),
        "entropy": sums.entropy / n,
        "entropy_end": sums.entropy_end / n,
    }


def chance(a: float, b: float, classes: float = 2) -> float:
    """Agreement expected of two independent answers right with probability a and b.

    a·b + (1−a)(1−b)/(C−1): the hard one with C = 2 (right or wrong), the soft one over all classes.
    """
    return a * b + (1 - a) * (1 - b) / (classes - 1)


def kappa(observed: float, expected: float) -> float:
    """(obs − exp) / (1 − exp); 1 where exp = 1 (Geirhos 2020)."""
    return 1.0 if expected >= 1 else (observed - expected) / (1 - expected)


def _standard_error(sums: Sums) -> float:
    """Standard error of the mean agreement over the test images, as a share."""
    mean = sums.agreement / sums.count
    variance = max(0.0, sums.agreement_squared / sums.count - mean * mean)
    return (variance / max(1.0, sums.count - 1)) ** 0.5


def interval(per_image: Tensor) -> tuple[float, float]:
    """Bootstrap interval of a mean over test images: (images,) -> its two ends, in the same unit.

    Percentile method (Efron 1979): `RESAMPLES` times as many images are drawn with replacement, and
    `LEVEL` of their means lie within. The draws are fixed by the number of images, so that all
    cells of a sweep are judged on equal ones.
    """
    draws = _draws(len(per_image))
    values = per_image.double().cpu()
    means = torch.cat([part.double() @ values for part in draws.split(100)]) / len(values)
    tail = (1 - LEVEL) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


@lru_cache(maxsize=2)
def _draws(images: int) -> Tensor:
    """How often each draw takes each image, surely below 256: (`RESAMPLES`, images)."""
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(images, (images,), generator=generator).bincount(minlength=images)
        for _ in range(RESAMPLES)
    ]
    return torch.stack([row.byte() for row in rows])
