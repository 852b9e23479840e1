"""The runner on Ray: Ray Data makes networks and IRIs, Ray Tune trains stitches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raystitch.cards import ModelCard
from raystitch.run import iri_stage, model_stage, stitch_stage
from raystitch.run.cluster import Cluster
from raystitch.run.iri_specs import IriShardSpec
from raystitch.run.planning import Context, Say
from raystitch.run.splitting import split
from raystitch.run.work import BuiltShard, Left, ModelTask, OnEpoch, OnReport, UnitWork


class RayRunner:
    """Runs each stage on the slots of a cluster."""

    def __init__(self, context: Context, cluster: Cluster, say: Say) -> None:
        self.context, self.cluster, self.say = cluster.context(context), cluster, say

    def make_models(
        self, tasks: Sequence[ModelTask], on_epoch: OnEpoch
    ) -> Iterator[ModelCard | Left]:
        return model_stage.make_models(tasks, self.context, self.cluster, on_epoch)

    def build_shards(self, specs: Sequence[IriShardSpec]) -> Iterator[BuiltShard]:
        return iri_stage.build_shards(specs, self.context, self.cluster)

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        parts = split(work, self.context, self.cluster.slots)
        return stitch_stage.run_units(parts, self.context, self.cluster, on_report, self.say)

    def close(self) -> None:
        self.cluster.close()
