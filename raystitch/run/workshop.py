"""Networks, images and IRIs of one sweep, made or loaded when asked for; the last few stay."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from raystitch.cards import ModelCard
from raystitch.compute import Compute
from raystitch.data import sources
from raystitch.data.catalogue import Catalogue, Split
from raystitch.data.images import LabelledImages
from raystitch.data.markers import PlantedMarker, plant
from raystitch.data.sources import SourceFacts
from raystitch.errors import RaystitchError, StorageError
from raystitch.run.activation_cache import ActivationCache, default_folder
from raystitch.run.activations import ActivationSets, Frozen
from raystitch.run.image_sets import Images, ImageShardSpec, build_shard, load, open_source
from raystitch.run.planning import Context
from raystitch.run.process import prepare
from raystitch.settings import Data, Marker
from raystitch.sweep.keys import dump, untrained_twin
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
        self.lean_network = lru_cache(2 * KEPT_NETWORKS)(self._lean_network)
        self.twin = lru_cache(1)(self._twin)
        self.stitch_images = lru_cache(2)(self._stitch_images)
        self.test_images = lru_cache(3)(self._test_images)
        self.own_split = lru_cache(2)(self._own_split)
        self.sources: dict[Data, Catalogue] = {}
        execution, compute = context.sweep.execution, context.sweep.compute
        folder = execution.cache_folder
        self.activations = ActivationSets(
            ActivationCache(
                default_folder() if folder is None else Path(folder), execution.cache_bytes
            ),
            execution.activation_bytes,
            execution.flops_per_byte,
            compute,
            self.device,
        )

    @cached_property
    def train_split(self) -> LabelledImages:
        return load(self.context.images.of_sweep, "train", self.context.storage)

    @cached_property
    def test_split(self) -> LabelledImages:
        return load(self.context.images.of_sweep, "test", self.context.storage)

    def split_of(self, model: str, split: Split) -> LabelledImages:
        """The images that a network is trained on, or that its accuracies are measured on."""
        entry = self.context.sweep.models()[model].entry
        if entry in self.context.images.own:
            return self.own_split(entry, split)
        return self.train_split if split == "train" else self.test_split

    def _own_split(self, entry: str, split: Split) -> LabelledImages:
        return load(self.context.images.own[entry], split, self.context.storage)

    def same_task(self, model: str) -> bool:
        """Whether labels of a network's own images mean what those of the sweep's do."""
        context = self.context
        return context.images_of(model).task == context.images.of_sweep.task

    def build_images(self, spec: ImageShardSpec) -> None:
        """Decode and store one shard of images."""
        build_shard(spec, self.source(spec.images), self.context.storage)

    def source(self, images: Images) -> Catalogue:
        """What images are decoded from; each is opened once."""
        if images.data not in self.sources:
            self.sources[images.data] = open_source(images)
        return self.sources[images.data]

    def two_images(self) -> NDArray[np.uint8]:
        """Two of the sweep's test images, whether or not they are in shards yet."""
        images = self.context.images.of_sweep
        found = self.source(images)
        return sources.read(found, "test", sources.chosen(images.data, "test", found)[:2]).images

    def blank(self, model: str) -> Network:
        """The model's network with its initial weights (those published, if `pretrained`)."""
        context = self.context
        found = context.sweep.models()[model]
        entry, facts = context.sweep.zoo[found.entry], context.images_of(model).facts
        return build(
            entry.arch,
            entry.kwargs,
            classes=facts.classes,
            input_shape=facts.shape,
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
        return self._planted(found, self.context.facts)

    def own_marker(self, model: str) -> PlantedMarker | None:
        """The marker in the images that the network itself is trained on; None for none."""
        found = self.context.sweep.marker_of(model)
        facts = self.context.images_of(model).facts
        return None if found is None else self._planted(found, facts)

    def _planted(self, marker: Marker, facts: SourceFacts) -> PlantedMarker:
        assert marker.seed is not None
        return plant(marker, facts.classes, facts.shape, marker.seed)

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

    def frozen(self, model: str, bn: Literal["eval", "batch"] = "eval") -> Frozen:
        """The network as its answers are kept: known by all that they depend on."""
        identity = {
            "digest": self.card(model).digest,
            "compute": dump(self._compute(bn).of_iris()),
            "torch": str(torch.__version__),
            "device": self.device.type,
            "threads": torch.get_num_threads(),
        }
        return Frozen(self.lean_network(model, bn), identity)

    def _lean_network(self, model: str, bn: Literal["eval", "batch"] = "eval") -> CutNetwork:
        """The network whose halves compute as the sweep's settings say.

        bn: `batch` where its BatchNorm is to take batch statistics, and so cannot be folded.
        """
        return self.cut_network(model).under(self._compute(bn))

    def _compute(self, bn: Literal["eval", "batch"]) -> Compute:
        compute = self.context.sweep.compute
        return compute if bn == "eval" else compute.model_copy(update={"fold_bn": False})

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
        return CutNetwork(freeze(network.to(self.device))).under(context.sweep.compute)

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
