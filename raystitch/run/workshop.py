"""Networks, images and IRIs of one sweep, made or loaded when asked for; the last few stay."""

from __future__ import annotations

from functools import cached_property, lru_cache

import torch

from raystitch.cards import ModelCard
from raystitch.data import sources
from raystitch.data.images import LabelledImages
from raystitch.data.markers import PlantedMarker, plant
from raystitch.errors import RaystitchError, StorageError
from raystitch.run.planning import Context
from raystitch.run.process import prepare
from raystitch.sweep.keys import untrained_twin
from raystitch.zoo import artifacts
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import Network, build, freeze

STITCH_SALT, TEST_SALT = 2, 3
"""Where markers lie in stitch and in test images: apart from each other and from a card's."""

KEPT_NETWORKS = 8
"""The last ones stay: tracing a network takes longer than an epoch of a small unit."""


class Workshop:
    """Loads what units and IRI shards need. One to a process, which it prepares to compute; it
    holds no state of theirs.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        prepare(context.sweep.execution.threads)
        self.device = device_of(context.sweep.execution.device)
        self.cards: dict[str, ModelCard] = {}
        self.network = lru_cache(KEPT_NETWORKS)(self._network)
        self.cut_network = lru_cache(KEPT_NETWORKS)(self._cut_network)
        self.twin = lru_cache(1)(self._twin)
        self.stitch_images = lru_cache(2)(self._stitch_images)
        self.test_images = lru_cache(2)(self._test_images)

    @cached_property
    def train_split(self) -> LabelledImages:
        return sources.load(self.context.sweep.data, "train")

    @cached_property
    def test_split(self) -> LabelledImages:
        return sources.load(self.context.sweep.data, "test")

    def blank(self, model: str) -> Network:
        """The model's network with its initial weights (those published, if `pretrained`)."""
        context = self.context
        found = context.sweep.models()[model]
        entry = context.sweep.zoo[found.entry]
        return build(
            entry.arch,
            entry.kwargs,
            classes=context.facts.classes,
            input_shape=context.facts.shape,
            seed=found.seed,
            mean=entry.mean,
            std=entry.std,
            pretrained=entry.pretrained,
        )

    def card(self, model: str) -> ModelCard:
        """The card of the model as first seen here: rows say which network they were measured on,
        whatever another process makes of the stored one meanwhile.
        """
        if model not in self.cards:
            folder = self.context.storage.model(self.context.model_key(model))
            self.cards[model] = artifacts.read_card(folder)
        return self.cards[model]

    def marker(self, name: str | None) -> PlantedMarker | None:
        """The marker of that name or model for the images of this sweep; None for None."""
        found = self.context.sweep.marker_of(name)
        if found is None:
            return None
        facts = self.context.facts
        assert found.seed is not None
        return plant(found, facts.classes, facts.shape, found.seed)

    def _network(self, model: str) -> Network:
        """The frozen network with its stored weights, on the device."""
        network = self.blank(model)
        folder = self.context.storage.model(self.context.model_key(model))
        if artifacts.load(folder, network).digest != self.card(model).digest:
            raise StorageError(
                f"the stored network {folder} ({model}) was replaced while the sweep ran; run the "
                "sweep again: cells measured on the former one are then pending."
            )
        return freeze(network.to(self.device))

    def _cut_network(self, model: str) -> CutNetwork:
        return CutNetwork(self.network(model))

    def _twin(self, model: str) -> CutNetwork:
        """The untrained network of the same architecture (`foreign` IRIs)."""
        context = self.context
        entry = context.sweep.zoo[context.sweep.models()[model].entry]
        network = build(
            entry.arch,
            entry.kwargs,
            classes=context.facts.classes,
            input_shape=context.facts.shape,
            seed=untrained_twin(context.networks[model], context.data_identity)["seed"],
            mean=entry.mean,
            std=entry.std,
        )
        return CutNetwork(freeze(network.to(self.device)))

    def _stitch_images(self, marker: str | None) -> LabelledImages:
        """The real images that stitches train on, with the marker of that name or model."""
        images = sources.draw(self.train_split, self.context.sweep.stitch_images)
        planted = self.marker(marker)
        return images if planted is None else planted.paste_fixed(images, STITCH_SALT)

    def _test_images(self, marker: str | None, roll: int = 0) -> LabelledImages:
        """Likewise for tests; roll: each image gets the marker of class (label + roll)."""
        images = sources.draw(self.test_split, self.context.sweep.test_images)
        planted = self.marker(marker)
        return images if planted is None else planted.paste_fixed(images, TEST_SALT, roll)


def device_of(wanted: str) -> torch.device:
    """The device that the sweep file asks for. Raises `RaystitchError` when it is not there."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise RaystitchError(
            "execution.device is cuda, but torch sees no GPU here; use `device: cpu` or `auto`."
        )
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")
