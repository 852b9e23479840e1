"""Makes one network of the zoo: trains it or takes its weights, measures it, stores it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch

from raystitch.cards import ModelCard
from raystitch.errors import RaystitchError
from raystitch.files import file_digest
from raystitch.run.work import ModelTask, OnEpoch
from raystitch.run.workshop import Workshop
from raystitch.sweep.zoo_entry import ZooEntry
from raystitch.zoo import artifacts
from raystitch.zoo.models import Network, digest, freeze, load_weights
from raystitch.zoo.pixels import to_unit
from raystitch.zoo.train import (
    CARD_SALT,
    accuracy,
    robust_accuracy,
    train,
    wrong_marker_accuracy,
)

CARD_ATTACK_STEPS = 20
"""PGD steps of a card's robust accuracy, of eps / 4 each, whatever the recipe trained with."""


def make_model(
    workshop: Workshop, model: str, on_epoch: Callable[[int, float], None] | None = None
) -> ModelCard:
    """Make and store a network unless it is stored; its card."""
    context = workshop.context
    folder = context.storage.model(context.model_key(model))
    if artifacts.is_stored(folder):
        return artifacts.read_card(folder)
    began = time.perf_counter()
    found = context.sweep.models()[model]
    entry = context.sweep.zoo[found.entry]
    network = workshop.blank(model).to(workshop.device)
    if entry.weights is not None:
        _load_as_planned(network, entry, context.networks[model]["weights"])
    elif entry.trained_here:
        train(
            network,
            workshop.split_of(model, "train"),
            entry.to_recipe(),
            seed=found.seed,
            marker=workshop.own_marker(model),
            on_epoch=on_epoch,
        )
    card = _measure(workshop, model, freeze(network), time.perf_counter() - began)
    if artifacts.is_stored(folder):
        # Another process on this storage was first, and rows may already be measured on its one.
        return artifacts.read_card(folder)
    artifacts.save(folder, network, card)
    return card


def make_and_check(
    workshop: Workshop, task: ModelTask, on_epoch: OnEpoch | None = None
) -> ModelCard:
    """Make a network unless it is stored, and hold its cuts against the whole; its card.

    A network that another sweep stored under another name is told under the task's.
    """

    def of_epoch(epoch: int, loss: float) -> None:
        if on_epoch is not None:
            on_epoch(task.model, epoch, loss)

    card = make_model(workshop, task.model, of_epoch)
    check_cuts(workshop, task.model, task.cuts)
    return replace(card, name=task.model)


def check_cuts(workshop: Workshop, model: str, cuts: Iterable[str]) -> None:
    """Raise `RaystitchError` unless tail ∘ front is the network on two images, bit for bit."""
    cut_network = workshop.cut_network(model)
    images = to_unit(workshop.test_split.images[:2], workshop.device)
    for cut in cuts:
        cut_network.check(cut, images)


def _load_as_planned(network: Network, entry: ZooEntry, planned: str) -> None:
    assert entry.weights is not None
    path = Path(entry.weights)
    load_weights(network, path)
    if file_digest(path) != planned:
        raise RaystitchError(
            f"the weight file {path} changed since the sweep was planned; run the sweep again."
        )


def _measure(workshop: Workshop, model: str, network: Network, seconds: float) -> ModelCard:
    context = workshop.context
    entry = context.sweep.zoo[context.sweep.models()[model].entry]
    images, marker = workshop.split_of(model, "test"), workshop.own_marker(model)
    robust = entry.trained_here and entry.recipe == "robust"
    recipe = entry.to_recipe() if robust else None
    with torch.no_grad():
        plain = accuracy(network, images)
        marked = accuracy(network, marker.paste_fixed(images, CARD_SALT)) if marker else None
        wrong = wrong_marker_accuracy(network, images, marker) if marker else None
    return ModelCard(
        name=model,
        key=context.model_key(model),
        identity=context.networks[model],
        digest=digest(network),
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        accuracy=plain,
        marker_accuracy=marked,
        wrong_marker_accuracy=wrong,
        robust_accuracy=robust_accuracy(
            network, images, eps=recipe.eps, step=recipe.eps / 4, steps=CARD_ATTACK_STEPS
        )
        if recipe
        else None,
        seconds=seconds,
    )
