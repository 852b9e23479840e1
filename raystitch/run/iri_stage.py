# pyright: basic
"""Builds shards of IRIs with Ray Data: rows are shard specs, each actor keeps its last networks."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from raystitch.errors import CellError
from raystitch.run.cluster import Cluster
from raystitch.run.iri_specs import IriShardSpec
from raystitch.run.planning import Context
from raystitch.run.pool import Done, Lost, PoolWorker, Values, through_pool
from raystitch.run.work import BuiltShard, Left, iris_name


class BuildShard(PoolWorker):
    """Builds and stores shards; its answers are their manifests."""

    def work(self, one: IriShardSpec) -> Generator[Values, None, Values]:
        from raystitch.run.iri_sets import build_shard

        yield from ()
        try:
            return {"residual": build_shard(one, self.workshop)}
        except CellError as error:
            return {"failure": str(error)}


def build_shards(
    specs: Sequence[IriShardSpec], context: Context, cluster: Cluster
) -> Generator[BuiltShard]:
    """Each shard, once it is stored; the shards of lost workers at the end."""
    # Neighbours share a front, so that an actor finds it among those it keeps.
    ordered = sorted(specs, key=lambda spec: (spec.iri_set.front_model, spec.iri_set.cut))
    for answer in through_pool("IRIs", ordered, BuildShard, context, cluster):
        spec = ordered[answer.number]
        match answer:
            case Lost():
                left = Left(iris_name(spec), answer.reason, answer.story)
                yield BuiltShard(spec, incident=left)
            case Done():
                yield BuiltShard(spec, answer.values.get("residual"), answer.values.get("failure"))
