"""What a stitch is trained for: the four objectives of the method, and two that need no step.

`s_k` is the end's activation at its cut k when the stitched activation is put in at cut j, `g_k`
the end's own activation there for the same input; norms are L2 over the whole batch tensor. Targets
carry no gradient. A new objective is one entry of `OBJECTIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.linalg import vector_norm

from raystitch.errors import CellError
from raystitch.names import Init, Objective


@dataclass(frozen=True)
class Answer:
    """What a network, stitched or not, gives for one batch.

    activations: by cut name, the activation there, (batch, *shape); the end cut always among them.
    logits: (batch, classes), or None where the objective does not need the tail to run.
    """

    activations: Mapping[str, Tensor]
    logits: Tensor | None = None


@dataclass(frozen=True)
class ObjectiveRule:
    """One objective: its loss and what it needs.

    loss(stitched, end, labels, cuts): a scalar; `cuts` are the cuts it compares, the end cut first.
    needs_tail: whether gradients must flow through the end's tail.
    needs_taps: whether it compares activations at the fula cuts.
    needs_labels: whether the inputs must have labels.
    fixed: the start that is the whole of T, where no step is taken.
    """

    loss: Callable[[Answer, Answer, Tensor | None, tuple[str, ...]], Tensor]
    needs_tail: bool
    needs_taps: bool = False
    needs_labels: bool = False
    fixed: Init | None = None


class _RelativeDistance(torch.autograd.Function):
    """‖s − g‖ / norm with its gradient (s − g) / ‖s − g‖ / norm, 0 where s = g.

    Bit for bit autograd's own, in fewer passes over memory: twice as fast on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, stitched: Tensor, target: Tensor, norm: Tensor) -> Tensor:
        difference = stitched - target
        distance = vector_norm(difference)
        ctx.save_for_backward(difference, distance, norm)
        return distance / norm

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        difference, distance, norm = ctx.saved_tensors
        divisor = torch.where(distance > 0, distance, 1)
        return (difference / divisor).mul_(grad_outputs[0] / norm), None, None


def relative_distance(stitched: Tensor, target: Tensor, layer: str) -> Tensor:
    """‖s − g‖ / ‖g‖, unsquared, over the whole batch tensor. Shapes alike; a scalar.

    Raises `CellError` naming ``layer`` when the target's norm is 0, where the ratio is undefined.
    """
    norm = vector_norm(target)
    if not norm > 0:
        raise CellError(
            f"the end's activation at {layer} is zero for a whole batch, so the relative distance "
            "to it is undefined; choose another cut or other images"
        )
    return _RelativeDistance.apply(stitched, target, norm)


def hlm(stitched: Answer, end: Answer, labels: Tensor | None, cuts: tuple[str, ...]) -> Tensor:
    """Hard label matching: cross-entropy(h(x), y), mean over the batch."""
    assert stitched.logits is not None
    assert labels is not None, "hlm is not planned where inputs have no labels"
    return F.cross_entropy(stitched.logits, labels)


def slm(stitched: Answer, end: Answer, labels: Tensor | None, cuts: tuple[str, ...]) -> Tensor:
    """Soft label matching: KL(softmax g(x) ‖ softmax h(x)), temperature 1, mean over the batch."""
    assert stitched.logits is not None
    assert end.logits is not None
    return F.kl_div(
        F.log_softmax(stitched.logits, dim=1),
        F.log_softmax(end.logits, dim=1),
        reduction="batchmean",
        log_target=True,
    )


def dm(stitched: Answer, end: Answer, labels: Tensor | None, cuts: tuple[str, ...]) -> Tensor:
    """Direct matching: ‖s_j − g_j‖ / ‖g_j‖ at the end cut j."""
    cut = cuts[0]
    return relative_distance(stitched.activations[cut], end.activations[cut], cut)


def fula(stitched: Answer, end: Answer, labels: Tensor | None, cuts: tuple[str, ...]) -> Tensor:
    """Functional latent alignment: the mean over the fula cuts k ≥ j of ‖s_k − g_k‖ / ‖g_k‖."""
    distances = [
        relative_distance(stitched.activations[cut], end.activations[cut], cut) for cut in cuts
    ]
    return sum(distances[1:], distances[0]) / len(distances)


OBJECTIVES: dict[Objective, ObjectiveRule] = {
    "hlm": ObjectiveRule(hlm, needs_tail=True, needs_labels=True),
    "slm": ObjectiveRule(slm, needs_tail=True),
    "dm": ObjectiveRule(dm, needs_tail=False),
    "fula": ObjectiveRule(fula, needs_tail=True, needs_taps=True),
    # The closed form of `dm` over all own inputs (of its square: least squares); T = identity.
    "dm_lstsq": ObjectiveRule(dm, needs_tail=False, fixed="lstsq"),
    "identity": ObjectiveRule(dm, needs_tail=False, fixed="identity"),
}
