"""What the singular values of a stitch's weight say: how many directions it uses, how unevenly."""

from __future__ import annotations

import torch
from torch import Tensor


def spectrum_scores(weight: Tensor) -> dict[str, float]:
    """The two figures of T's weight (end channels, front channels); the bias plays no part.

    Not defined, so NaN, for a weight that is zero (`effective_rank`) or has a singular value of
    zero (`condition_number`).
    """
    values = torch.linalg.svdvals(weight.detach().to("cpu", torch.float64))
    return {"effective_rank": effective_rank(values), "condition_number": condition_number(values)}


def effective_rank(values: Tensor) -> float:
    """exp of the entropy of the singular values as shares of their sum (Roy & Vetterli 2007).

    In [1, number of values]: k for k equal values and zeros otherwise.
    """
    if not (total := values.sum()):
        return float("nan")
    return float(torch.special.entr(values / total).sum().exp())


def condition_number(values: Tensor) -> float:
    """The largest singular value over the smallest of the min(end, front) channels there are."""
    smallest = float(values.min())
    return float(values.max()) / smallest if smallest else float("nan")
