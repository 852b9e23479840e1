"""A cell's training between two epochs, as plain values: what it needs to go on unchanged.

Every random choice is derived from seeds and the number of the epoch (`raystitch.seeds`), so no
state of a random generator is part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_ADAM = "adam."


@dataclass(frozen=True)
class CellState:
    """A cell after ``epochs`` whole epochs.

    tensors: T's parameters, and Adam's moments and step counts; schedule: what it remembers;
    lr: as it now is. Floats are kept whole, so a cell that goes on gives the same numbers.
    """

    epochs: int
    steps: int
    seconds: float
    loss_init: float | None
    agreement_init: float | None
    lr: float
    curve: list[float] = field(default_factory=list[float])
    schedule: dict[str, float] = field(default_factory=dict[str, float])
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def facts(self) -> dict[str, Any]:
        """All but the tensors, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "tensors"}


def adam_tensors(
    named: Iterable[tuple[str, nn.Parameter]], optimiser: torch.optim.Adam
) -> dict[str, Tensor]:
    """Adam's state by parameter and slot: ``adam.weight.exp_avg``."""
    return {
        f"{_ADAM}{name}.{slot}": value
        for name, parameter in named
        for slot, value in optimiser.state[parameter].items()
    }


def load_adam(
    named: Iterable[tuple[str, nn.Parameter]],
    optimiser: torch.optim.Adam,
    tensors: Mapping[str, Tensor],
) -> None:
    """Put `adam_tensors` back; step counts stay on the CPU, where Adam keeps them."""
    for name, parameter in named:
        prefix = f"{_ADAM}{name}."
        for key, value in tensors.items():
            if key.startswith(prefix):
                slot = key.removeprefix(prefix)
                where = value.device if slot == "step" else parameter.device
                optimiser.state[parameter][slot] = value.to(where).clone()
