"""Sets of IRIs and their shards, named but not made: which ones a sweep needs. Without torch.

A set belongs to one front (or its untrained twin), cut, marker and seed. Its shards are independent
of each other and of who builds them: an image's pixels do not depend on its shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from raystitch.data.shards import is_valid
from raystitch.names import IRI_PROTOCOLS
from raystitch.run.planning import Context
from raystitch.settings import Iris
from raystitch.stitching.protocols import PROTOCOLS
from raystitch.sweep.cells import Unit
from raystitch.sweep.keys import content_key, iri_front, iri_identity, tested_iri_identity

SHARD_BATCHES = 2
"""Compute batches in one shard; a shard's size changes no pixel."""

UNTRAINED = "untrained"
"""In place of a digest: the front's initial weights follow from its identity."""


@dataclass(frozen=True)
class IriSetSpec:
    """One set of IRIs: its key and what it is made from.

    front_model: the front, or the network whose untrained twin is the front (``twin``).
    marker: of its images; iris: how its IRIs are made; of_test: IRIs of test images, which stitches
    are measured on, and not of those that they train on.
    digest: of the front's stored weights, so that shards of another training do not count;
    `UNTRAINED` for a front that was never trained.
    """

    key: str
    front_model: str
    twin: bool
    cut: str
    marker: str | None
    seed: int
    iris: Iris
    digest: str
    of_test: bool = False

    def metadata(self) -> dict[str, str]:
        return {"iri_set": self.key, "front_digest": self.digest}


@dataclass(frozen=True)
class IriShardSpec:
    """One shard of a set: images ``start`` to ``stop`` of the set's images."""

    iri_set: IriSetSpec
    part: int
    start: int
    stop: int


def iri_set_of(unit: Unit, context: Context, digests: Mapping[str, str]) -> IriSetSpec | None:
    """The set that a unit trains on; None where its protocol uses none.

    digests: of the networks in use, by name ENTRY-SEED.
    """
    if unit.protocol not in IRI_PROTOCOLS:
        return None
    digest = digests[unit.front_model]
    settings = unit.cells[0].settings
    front = iri_front(settings)
    assert front is not None
    return IriSetSpec(
        content_key(iri_identity(settings)),
        unit.front_model,
        PROTOCOLS[unit.protocol].inputs == "untrained",
        unit.front_cut,
        unit.stitch_marker,
        unit.seed,
        context.sweep.varied(unit.variant).iris,
        # A network of the zoo that is untrained itself may share this set with another's twin.
        UNTRAINED if front.get("recipe", {}).get("name") == "untrained" else digest,
    )


def tested_sets_of(
    unit: Unit, context: Context, digests: Mapping[str, str]
) -> dict[str | None, IriSetSpec]:
    """The sets of IRIs of test images that a unit's cells are measured on, by their test marker."""
    own = iri_set_of(unit, context, digests)
    found: dict[str | None, IriSetSpec] = {}
    for marker, cell in {cell.test_marker: cell for cell in unit.cells}.items():
        identity = tested_iri_identity(cell.settings)
        if own is not None and identity is not None:
            key = content_key(identity)
            found[marker] = replace(own, key=key, marker=marker, of_test=True)
    return found


def shard_specs(iri_set: IriSetSpec, context: Context) -> list[IriShardSpec]:
    """All shards of a set."""
    sweep, facts = context.sweep, context.facts
    of_test = iri_set.of_test
    wanted = sweep.test_images if of_test else sweep.stitch_images
    there = facts.test if of_test else facts.train
    count = there if wanted is None else min(wanted, there)
    size = SHARD_BATCHES * iri_set.iris.batch
    return [
        IriShardSpec(iri_set, part, part * size, min(count, (part + 1) * size))
        for part in range(math.ceil(count / size))
    ]


def missing_shards(iri_sets: Iterable[IriSetSpec], context: Context) -> list[IriShardSpec]:
    """The shards of these sets that are not stored whole, each set once."""
    found: dict[tuple[str, int], IriShardSpec] = {}
    for iri_set in iri_sets:
        for spec in shard_specs(iri_set, context):
            path = context.storage.iri_part(iri_set.key, spec.part)
            if not is_valid(path, spec.stop - spec.start, iri_set.metadata()):
                found[iri_set.key, spec.part] = spec
    return list(found.values())
