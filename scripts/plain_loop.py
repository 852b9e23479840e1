"""Model stitching as it is usually written: one cell at a time, with hooks, on PyTorch alone.

What raystitch is compared with. For each batch of each cell the whole front runs for its activation
at the cut, the whole end for the target, and the whole end once more with the stitched activation
put in at the cut. IRIs are made through the whole front, the target computed again in each step.
Both networks are frozen and in evaluation mode. Nothing is shared between cells.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.linalg import vector_norm

EVALUATION_BATCH = 128


class Hooked:
    """A network whose modules at the cuts are watched, and one of them overridden if asked."""

    def __init__(self, network: nn.Module, net: nn.Module, cuts: Sequence[str]) -> None:
        self.network = network.eval().requires_grad_(False)
        self.seen: dict[str, Tensor] = {}
        self.overridden: tuple[str, Tensor] | None = None
        for cut in cuts:
            net.get_submodule(cut).register_forward_hook(self._hook(cut))

    def _hook(self, cut: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if self.overridden is not None and self.overridden[0] == cut:
                output = self.overridden[1]
            self.seen[cut] = output
            return output

        return hook

    @contextmanager
    def override(self, cut: str, activation: Tensor) -> Generator[None]:
        """The module at ``cut`` gives this activation inside."""
        self.overridden = (cut, activation)
        try:
            yield
        finally:
            self.overridden = None

    def __call__(self, images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and what the watched modules gave."""
        self.seen = {}
        logits = self.network(images)
        return logits, self.seen


@dataclass(frozen=True)
class Recipe:
    """How a stitch is trained: Adam, the rate falling tenfold after the epochs in ``drops``."""

    epochs: int
    batch: int
    lr: float
    weight_decay: float
    drops: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """One stitch between maps at the same cut of both networks."""

    cut: str
    objective: str
    fula_cuts: tuple[str, ...]


def train(
    front: Hooked,
    end: Hooked,
    cell: Cell,
    images: Tensor,
    labels: Tensor,
    order: Callable[[int], Tensor],
    recipe: Recipe,
) -> nn.Conv2d:
    """The trained stitch. order: epoch from 1 -> positions (n,); images (n, c, h, w) in [0, 1]."""
    stitch = _least_squares(front, end, cell.cut, images, recipe.batch)
    optimiser = torch.optim.Adam(
        stitch.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    for epoch in range(1, recipe.epochs + 1):
        for positions in order(epoch).split(recipe.batch):
            batch = images[positions]
            with torch.no_grad():
                activation = front(batch)[1][cell.cut]
                target, target_at = end(batch)
            optimiser.zero_grad()
            with end.override(cell.cut, stitch(activation)):
                logits, at = end(batch)
            loss = _loss(cell, logits, at, target, target_at, labels[positions])
            loss.backward()
            optimiser.step()
        if epoch in recipe.drops:
            for group in optimiser.param_groups:
                group["lr"] *= 0.1
    return stitch


def _loss(
    cell: Cell,
    logits: Tensor,
    at: dict[str, Tensor],
    target: Tensor,
    target_at: dict[str, Tensor],
    labels: Tensor,
) -> Tensor:
    if cell.objective == "hlm":
        return F.cross_entropy(logits, labels)
    if cell.objective == "slm":
        return F.kl_div(
            logits.log_softmax(1), target.log_softmax(1), log_target=True, reduction="batchmean"
        )
    cuts = cell.fula_cuts if cell.objective == "fula" else (cell.cut,)
    ratios = [vector_norm(at[k] - target_at[k]) / vector_norm(target_at[k]) for k in cuts]
    return torch.stack(ratios).mean()


def _least_squares(front: Hooked, end: Hooked, cut: str, images: Tensor, batch: int) -> nn.Conv2d:
    left, right = list[Tensor](), list[Tensor]()
    with torch.no_grad():
        for chunk in images.split(batch):
            left.append(front(chunk)[1][cut].permute(0, 2, 3, 1).flatten(0, 2).double())
            right.append(end(chunk)[1][cut].permute(0, 2, 3, 1).flatten(0, 2).double())
        inputs, outputs = torch.cat(left), torch.cat(right)
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        found = torch.linalg.lstsq(inputs, outputs).solution.float()
        stitch = nn.Conv2d(inputs.shape[1] - 1, outputs.shape[1], 1)
        stitch.weight.copy_(found[:-1].T[:, :, None, None])
        stitch.bias.copy_(found[-1])  # pyright: ignore[reportOptionalMemberAccess]
    return stitch


def agreement(front: Hooked, end: Hooked, cut: str, stitch: nn.Module, images: Tensor) -> float:
    """Agreement probability of the stitched network with the end, in percent."""
    total = 0.0
    with torch.no_grad():
        for batch in images.split(EVALUATION_BATCH):
            activation = front(batch)[1][cut]
            g = end(batch)[0].softmax(1)
            with end.override(cut, stitch(activation)):
                h = end(batch)[0].softmax(1)
            largest = torch.maximum((h * h).sum(1), (g * g).sum(1))
            total += float(((h * g).sum(1) / largest).sum())
    return 100 * total / len(images)


def synthesise(
    front: Hooked,
    end: Hooked | None,
    cut: str,
    images: Tensor,
    start: Tensor,
    steps: int,
    lr: float,
    batch: int,
) -> Tensor:
    """IRIs by constant sign steps from ``start``: (n, c, h, w) in [0, 1].

    end: every image runs through it too, as in code that asks a pair of networks for its
    activations; None to leave it out.
    """
    made: list[Tensor] = []
    for real, x in zip(images.split(batch), start.split(batch), strict=True):
        for _ in range(steps):
            with torch.no_grad():
                target = front(real)[1][cut].flatten(1)
                if end is not None:
                    end(real)
                    end(x)
            x = x.detach().requires_grad_()
            reached = front(x)[1][cut].flatten(1)
            residual = vector_norm(reached - target, dim=1) / vector_norm(target, dim=1)
            residual.sum().backward()
            assert x.grad is not None
            x = (x - lr * x.grad.sign()).detach().clamp(0, 1)
        made.append(x)
    return torch.cat(made)
