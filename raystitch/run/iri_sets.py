"""How a shard of IRIs is built and stored, and how a whole set is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from raystitch.data.shards import Shard, concatenate, read_shard, write_shard
from raystitch.errors import StorageError
from raystitch.run.iri_specs import IriSetSpec, IriShardSpec, shard_specs
from raystitch.run.planning import Context
from raystitch.run.workshop import Workshop
from raystitch.stitching.iris import null_residuals, synthesise


def build_shard(spec: IriShardSpec, workshop: Workshop) -> float:
    """Make one shard and store it; the mean residual of its IRIs.

    Raises `CellError` where an image's activation is zero.
    """
    iri_set, iris = spec.iri_set, spec.iri_set.iris
    network = workshop.twin if iri_set.twin else workshop.lean_network
    front = network(iri_set.front_model).front(iri_set.cut)
    images_of = workshop.test_images if iri_set.of_test else workshop.stitch_images
    images = images_of(iri_set.marker)
    positions = np.arange(spec.start, spec.stop)
    made = synthesise(front, images.select(positions), iris, iri_set.seed, workshop.device)
    nulls = null_residuals(front, images, positions, iris.batch, workshop.device)
    write_shard(
        workshop.context.storage.iri_part(iri_set.key, spec.part),
        made.images,
        {"residual": made.residual, "null_residual": nulls, "steps": made.steps},
        iri_set.metadata(),
    )
    return float(made.residual.mean())


def read_set(iri_set: IriSetSpec, context: Context) -> Shard:
    """The whole set, in the order of its images."""
    paths = [
        context.storage.iri_part(iri_set.key, spec.part) for spec in shard_specs(iri_set, context)
    ]
    shards = [read_shard(path) for path in paths]
    for path, shard in zip(paths, shards, strict=True):
        if not iri_set.metadata().items() <= shard.metadata.items():
            raise StorageError(
                f"{path} holds IRIs of another training of {iri_set.front_model}, made while this "
                "sweep ran; run the sweep again to make them anew."
            )
    return concatenate(shards)


def set_figures(iri_set: Shard) -> dict[str, Any]:
    """What a row says of its IRIs: mean residual and null residual, failed share in percent."""
    residual = iri_set.extra["residual"].astype(np.float64)
    null = iri_set.extra["null_residual"].astype(np.float64)
    known = ~np.isnan(null)
    failed = residual[known] >= null[known]
    return {
        "iri_residual": float(residual.mean()),
        "iri_null_residual": float(null[known].mean()) if known.any() else None,
        "iri_failed_share": float(100 * failed.mean()) if known.any() else None,
    }
