"""Recipes that train the base networks, and the accuracies on their cards.

A new recipe is one entry of `RECIPES` (and its name in ``raystitch.names``).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from raystitch import names, settings
from raystitch.data.images import LabelledImages
from raystitch.data.markers import PlantedMarker
from raystitch.seeds import derive
from raystitch.zoo.attacks import partly_attacked, pgd
from raystitch.zoo.batches import OnEpoch, batches_of, descend, run_epochs, sgd
from raystitch.zoo.models import Network, evaluating, freeze, seeded
from raystitch.zoo.pixels import to_unit
from raystitch.zoo.simclr import simclr

RunRecipe = Callable[
    [Network, LabelledImages, settings.Recipe, int, "PlantedMarker | None", OnEpoch], None
]
"""(network, images, recipe, seed, marker, on_epoch): trains the network in place."""

StepInputs = Callable[[Network, Tensor, Tensor, settings.Recipe], Tensor]
"""(network, images, labels, recipe) to the images that one step trains on."""

CARD_SALT = 1
"""Where markers lie in the images that a card's accuracies are measured on."""
_EVALUATION_BATCH = 256


def train(
    network: Network,
    images: LabelledImages,
    recipe: settings.Recipe,
    *,
    seed: int,
    marker: PlantedMarker | None = None,
    on_epoch: OnEpoch | None = None,
) -> Network:
    """Train the network in place, on its own device, and return it frozen.

    SGD with Nesterov momentum and coupled weight decay; the learning rate falls tenfold at one
    and at two thirds of the epochs. Order of images, their views, places of the marker (fresh per
    image and epoch) and dropout all follow from ``seed``; the global random state is left as it
    was. The same seed gives the same bits on one kind of machine with one number of threads: torch
    sums in another order with 2 threads than with 1.
    on_epoch: called with the number of epochs done and the mean loss of the last one.
    Raises `RaystitchError` when the loss is no longer finite.
    """
    recipe_of = RECIPES[recipe.name]
    if recipe_of is not None:
        with seeded(derive("training", seed), network.device):
            recipe_of(network, images, recipe, seed, marker, on_epoch or _unheard)
    return freeze(network)


def _unheard(epoch: int, loss: float) -> None:
    pass


def accuracy(network: Network, images: LabelledImages) -> float:
    """Share of images whose largest logit is the label's, in percent, in evaluation mode."""
    return _accuracy(network, images, lambda inputs, _: inputs)


def wrong_marker_accuracy(network: Network, images: LabelledImages, marker: PlantedMarker) -> float:
    """Accuracy in percent with the marker of the next class: low where the marker is believed."""
    return accuracy(network, marker.paste_fixed(images, CARD_SALT, roll=1))


def robust_accuracy(
    network: Network, images: LabelledImages, *, eps: float, step: float, steps: int = 10
) -> float:
    """Accuracy in percent on PGD images made against this network, without a random start.

    eps, step: in pixels of [0, 1]. With eps 0 it is `accuracy` exactly.
    """

    def attack(inputs: Tensor, labels: Tensor) -> Tensor:
        return pgd(network, inputs, labels, eps=eps, step=step, steps=steps)

    return _accuracy(network, images, attack)


def _clean(network: Network, images: Tensor, labels: Tensor, recipe: settings.Recipe) -> Tensor:
    return images


def _partly_attacked(
    network: Network, images: Tensor, labels: Tensor, recipe: settings.Recipe
) -> Tensor:
    """The first ``share`` of the batch replaced by PGD images, without a random start.

    They are crafted in evaluation mode, so that the attack is against the network that will be
    used and does not move BatchNorm's running statistics; the step itself trains on both kinds
    in one batch.
    """
    with evaluating(network):
        return partly_attacked(
            network,
            images,
            labels,
            recipe.share,
            eps=recipe.eps,
            step=recipe.step,
            steps=recipe.attack_steps,
        )


def _supervised(step_inputs: StepInputs) -> RunRecipe:
    """Training on labels, of the images that ``step_inputs`` makes of a batch."""

    def run(
        network: Network,
        images: LabelledImages,
        recipe: settings.Recipe,
        seed: int,
        marker: PlantedMarker | None,
        on_epoch: OnEpoch,
    ) -> None:
        network.train().requires_grad_(True)
        optimizer = sgd(network.parameters(), recipe)

        def loss_of(pixels: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(network(step_inputs(network, pixels, labels, recipe)), labels)

        def loss_of_epoch(epoch: int) -> float:
            batches = batches_of(images, marker, recipe.batch, seed, epoch, recipe.augment)
            return descend(optimizer, batches, loss_of, network.device)

        whose = f"training of {network.arch} by the recipe {recipe.name!r}"
        run_epochs(optimizer, recipe.epochs, recipe.lr, loss_of_epoch, on_epoch, whose)

    return run


RECIPES: dict[names.RecipeName, RunRecipe | None] = {
    "standard": _supervised(_clean),
    "robust": _supervised(_partly_attacked),
    "simclr": simclr,
    "untrained": None,
}


def _accuracy(
    network: Network, images: LabelledImages, inputs_of: Callable[[Tensor, Tensor], Tensor]
) -> float:
    assert len(images), "accuracy of no images"
    right, device = 0, network.device
    with evaluating(network):
        for start in range(0, len(images), _EVALUATION_BATCH):
            part = images.select(slice(start, start + _EVALUATION_BATCH))
            labels = torch.tensor(part.labels, device=device)
            inputs = inputs_of(to_unit(part.images, device), labels)
            with torch.no_grad():
                right += int((network(inputs).argmax(1) == labels).sum())
    return 100 * right / len(images)
