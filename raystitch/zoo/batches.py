"""Epochs of training batches, and what every recipe does alike with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from raystitch.data.images import LabelledImages
from raystitch.data.markers import PlantedMarker
from raystitch.errors import RaystitchError
from raystitch.names import Augment
from raystitch.seeds import derive
from raystitch.settings import Recipe
from raystitch.zoo.augment import training_images

OnEpoch = Callable[[int, float], None]
"""Called with the number of epochs done and the mean loss of the last one."""


def batches_of(
    images: LabelledImages,
    marker: PlantedMarker | None,
    batch: int,
    seed: int,
    epoch: int,
    augment: Augment = "none",
) -> Iterator[tuple[Tensor, Tensor]]:
    """The images once, in the order of (seed, epoch), as float32 in [0, 1], with int64 labels.

    Views and places of the marker are fresh in each epoch. A last batch of one image is left out:
    BatchNorm over a vector cannot train on it.
    """
    generator = torch.Generator().manual_seed(derive("training order", seed, epoch))
    order = torch.randperm(len(images), generator=generator).numpy()
    views = torch.Generator().manual_seed(derive("training views", seed, epoch))
    places = np.random.default_rng(derive("marker places", seed, epoch))
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        if len(chosen) == 1 and start > 0:
            return
        labels = images.labels[chosen]
        inputs = training_images(images.images[chosen], labels, augment, views, marker, places)
        yield inputs, torch.tensor(labels)


def learning_rate(lr: float, epochs: int, epoch: int) -> float:
    """The learning rate of an epoch (from 0): tenfold lower at one and at two thirds of all."""
    falls = (epoch >= max(1, epochs * k // 3) for k in (1, 2))
    return lr * 0.1 ** sum(falls)


def sgd(parameters: Iterable[nn.Parameter], recipe: Recipe) -> torch.optim.SGD:
    """The optimiser of all recipes, its learning rate still to be set."""
    return torch.optim.SGD(
        parameters,
        lr=recipe.lr,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        nesterov=recipe.momentum > 0,
    )


def descend(
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    device: torch.device,
) -> float:
    """A step for each batch of images and labels; the mean of their losses per image."""
    total, count = torch.zeros((), device=device), 0
    for pixels, labels in batches:
        loss = loss_of(pixels.to(device), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Summed where it is: asking for each would wait for the device at every step.
        total += loss.detach() * len(labels)
        count += len(labels)
    return float(total) / count


def run_epochs(
    optimizer: torch.optim.Optimizer,
    epochs: int,
    lr: float,
    loss_of_epoch: Callable[[int], float],
    on_epoch: OnEpoch,
    diverged: str,
) -> None:
    """Run so many epochs at their learning rates; each gives its mean loss.

    diverged: whose training it is, for the `RaystitchError` when the loss is no longer finite.
    """
    for epoch in range(epochs):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(lr, epochs, epoch)
        loss = loss_of_epoch(epoch)
        if not math.isfinite(loss):
            raise RaystitchError(
                f"{diverged} diverged in epoch {epoch + 1} (loss {loss}): choose a smaller lr than "
                f"{lr:g}."
            )
        on_epoch(epoch + 1, loss)
