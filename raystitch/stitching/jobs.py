"""What the fit of a unit is asked to do and what it answers: plain values, no training here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from raystitch.cards import CutCard
from raystitch.names import Objective
from raystitch.settings import Training
from raystitch.stitching.evaluate import Answers
from raystitch.stitching.live import Live
from raystitch.stitching.transforms import Stitch


class Tail(Protocol):
    """The end from its cut on."""

    def __call__(self, activation: Tensor, /) -> Tensor: ...

    def observe(self, activation: Tensor, /) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Logits, and the activations at the taps the tail was made with."""
        ...


@dataclass(frozen=True)
class Side:
    """What one frozen network answers on the three sets of images a unit needs.

    own: the cell's inputs; test: the ordinary test images; real: the real images behind `own`,
    needed by ``init_images: real`` alone.
    """

    own: Answers
    test: Answers
    real: Answers | None = None


@dataclass(frozen=True)
class CellJob:
    """One cell to train. fula_cuts: the cuts that `fula` compares, the end cut first."""

    key: str
    objective: Objective
    end: str
    end_cut: CutCard
    fula_cuts: tuple[str, ...]
    tail: Tail


@dataclass(frozen=True)
class UnitJob:
    """What the cells of a unit share.

    labels: (n,) of the own inputs, or None where they have none; test_labels: (m,).
    ends: by name, each answering at every end cut and fula cut of its cells.
    live: what answers on training batches where that changes from epoch to epoch.
    """

    front_cut: CutCard
    front: Side
    ends: Mapping[str, Side]
    labels: Tensor | None
    test_labels: Tensor
    training: Training
    budget: int
    seed: int
    device: torch.device
    live: Live | None = None


@dataclass(frozen=True)
class Finished:
    """How one cell ended: its trained T and figures, or the reason it failed.

    seconds: the cell's own, with its share of what the unit does once for all.
    curve: its loss after each epoch, on held-out inputs (plateau) or in training (step).
    """

    key: str
    stitch: Stitch | None
    epochs: int
    steps: int
    seconds: float
    stop_reason: str | None = None
    loss_init: float | None = None
    curve: tuple[float, ...] = ()
    agreement_init: float | None = None
    scores: dict[str, float] = field(default_factory=dict[str, float])
    error: str | None = None


def labels_of(unit: UnitJob, positions: Tensor) -> Tensor | None:
    """Labels of the own inputs at these positions, on the unit's device."""
    return None if unit.labels is None else unit.labels[positions].to(unit.device)
