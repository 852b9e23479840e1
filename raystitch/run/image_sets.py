"""The images of a sweep and of its networks: decoded once into shards, then read from there.

The digits need no decoding and have no shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from raystitch.data import sources
from raystitch.data.catalogue import SPLITS, Catalogue, Split
from raystitch.data.images import LabelledImages
from raystitch.data.shards import concatenate, has_rows, read_labels, read_shard, write_shard
from raystitch.data.sources import SourceFacts
from raystitch.errors import RaystitchError
from raystitch.files import atomic_path
from raystitch.results.store import Storage
from raystitch.settings import Data
from raystitch.sweep.keys import KEY_VERSION, content_key

SHARD_BYTES, SHARD_IMAGES = 32 * 2**20, 2048
"""At most so many bytes of pixels in a shard, and so many images: a piece of work."""

MEMORY_BYTES = 2**30
"""Sets larger than this are mapped from a file in place of being held in memory."""


@dataclass(frozen=True)
class Images:
    """The images that a sweep, or one entry of its zoo, takes from a source.

    identity: all that defines them; notes: what a user should know of them.
    """

    data: Data
    facts: SourceFacts
    identity: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def stored(self) -> bool:
        """Whether they are decoded into shards."""
        return "content" in self.identity

    @property
    def task(self) -> tuple[Any, ...]:
        """What labels mean: the source and its content, however many images are taken."""
        return self.identity["source"], self.identity.get("content")

    @cached_property
    def keys(self) -> Mapping[str, str]:
        """Key of each split: how many images the other one has is not its affair."""
        return {split: self._key(split) for split in SPLITS}

    def _key(self, split: Split) -> str:
        other = {name for name in SPLITS if name != split}
        own = {name: value for name, value in self.identity.items() if name not in other}
        return content_key({"version": KEY_VERSION, "images": own, "split": split})

    def splits(self) -> list[tuple[Images, Split]]:
        """Its two splits, each to be had by itself."""
        return [(self, split) for split in SPLITS]

    def fewer(self, most: int) -> Images:
        """At most so many of each split."""
        less = {split: most for split in SPLITS if self.count(split) > most}
        return Images(
            self.data.model_copy(update=less),
            replace(self.facts, **less),
            {**self.identity, **less},
            self.notes,
        )

    def count(self, split: Split) -> int:
        return self.facts.train if split == "train" else self.facts.test


@dataclass(frozen=True)
class ImageShardSpec:
    """One shard of a split: images ``start`` to ``stop`` of those taken, in source order."""

    images: Images
    split: Split
    part: int
    start: int
    stop: int

    @property
    def key(self) -> str:
        return self.images.keys[self.split]

    def path(self, storage: Storage) -> Path:
        return storage.image_part(self.key, self.part)

    def metadata(self) -> dict[str, str]:
        return {"images": self.key}


def look_at(data: Data) -> Images:
    """What a source holds. Raises `RaystitchError` for every fault that shows undecoded."""
    found = sources.look(data)
    return Images(data, sources.facts(data, found), sources.identity(data, found), found.notes)


def shard_specs(images: Images, split: Split) -> list[ImageShardSpec]:
    """All shards of a split."""
    count = images.count(split)
    size = max(1, min(SHARD_IMAGES, SHARD_BYTES // prod(images.facts.shape)))
    return [
        ImageShardSpec(images, split, part, part * size, min(count, (part + 1) * size))
        for part in range(math.ceil(count / size))
    ]


def missing_images(
    wanted: Iterable[tuple[Images, Split]], storage: Storage
) -> list[ImageShardSpec]:
    """The shards of these splits that are not stored whole, each once.

    Only the ends of files are looked at; what is in them is held against its digest when read.
    """
    found: dict[tuple[str, int], ImageShardSpec] = {}
    for images, split in wanted:
        for spec in shard_specs(images, split) if images.stored else []:
            if not has_rows(spec.path(storage), spec.stop - spec.start, spec.metadata()):
                found[spec.key, spec.part] = spec
    return list(found.values())


def open_source(images: Images) -> Catalogue:
    """The source of images, which must be as it was when the sweep was planned."""
    found = sources.look(images.data)
    if sources.identity(images.data, found) != images.identity:
        raise RaystitchError(
            f"the images in {images.data.path} changed since the sweep was planned; run the sweep "
            "again."
        )
    return found


def build_shard(spec: ImageShardSpec, found: Catalogue, storage: Storage) -> None:
    """Decode the images of one shard and store it. Raises `RaystitchError` where one is damaged."""
    places = sources.chosen(spec.images.data, spec.split, found)[spec.start : spec.stop]
    write_shard(
        spec.path(storage),
        sources.read(found, spec.split, places),
        metadata=spec.metadata(),
    )


def load(images: Images, split: Split, storage: Storage) -> LabelledImages:
    """A split from its shards. Raises `StorageError` where one is not there or damaged."""
    if not images.stored:
        return sources.load(images.data, split)
    paths = [spec.path(storage) for spec in shard_specs(images, split)]
    if images.count(split) * prod(images.facts.shape) <= MEMORY_BYTES:
        return concatenate([read_shard(path) for path in paths]).images
    known = [read_labels(path) for path in paths]
    return LabelledImages(
        _mapped(images, split, storage),
        np.concatenate([labels for labels, _ in known]),
        np.concatenate([index for _, index in known]),
    )


def _mapped(images: Images, split: Split, storage: Storage) -> np.memmap[Any, np.dtype[np.uint8]]:
    """The pixels of a split in one file, of which only what is asked for is read."""
    path = storage.image_pixels(images.keys[split])
    shape = (images.count(split), *images.facts.shape)
    if not path.is_file():
        with atomic_path(path) as temporary:
            pixels = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            for spec in shard_specs(images, split):
                pixels[spec.start : spec.stop] = read_shard(spec.path(storage)).images.images
            pixels.flush()
    return np.lib.format.open_memmap(path, mode="c")
