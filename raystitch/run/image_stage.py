# pyright: basic
"""Decodes images into shards with Ray Data: rows are shard specs, an actor opens a source once."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from raystitch.errors import RaystitchError
from raystitch.run.cluster import Cluster
from raystitch.run.image_sets import ImageShardSpec
from raystitch.run.planning import Context
from raystitch.run.pool import Done, Lost, PoolWorker, Values, through_pool
from raystitch.run.work import BuiltImages, Left, images_name


class BuildImages(PoolWorker):
    """Decodes and stores shards; answers when one is stored, or with the fault of its source."""

    def work(self, one: ImageShardSpec) -> Generator[Values, None, Values]:
        yield from ()
        try:
            self.workshop.build_images(one)
        except RaystitchError as error:
            return {"failure": str(error)}
        return {}


def build_images(
    specs: Sequence[ImageShardSpec], context: Context, cluster: Cluster
) -> Generator[BuiltImages]:
    """Each shard, once it is stored; the shards of lost workers at the end."""
    for answer in through_pool("images", specs, BuildImages, context, cluster):
        spec = specs[answer.number]
        match answer:
            case Lost():
                left = Left(images_name(spec), answer.reason, answer.story)
                yield BuiltImages(spec, incident=left)
            case Done():
                yield BuiltImages(spec, answer.values.get("failure"))
