"""The runner on Ray: Ray Data makes networks and IRIs, Ray Tune trains stitches."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from typing import TypeVar

from raystitch.cards import ModelCard
from raystitch.run import image_stage, iri_stage, model_stage, stitch_stage
from raystitch.run.cluster import Cluster
from raystitch.run.image_sets import ImageShardSpec
from raystitch.run.iri_specs import IriShardSpec
from raystitch.run.planning import Context, Say
from raystitch.run.splitting import split
from raystitch.run.work import BuiltImages, BuiltShard, Left, ModelTask, OnEpoch, OnReport, UnitWork

Answer = TypeVar("Answer")


class RayRunner:
    """Runs each stage on the slots of a cluster."""

    def __init__(self, context: Context, cluster: Cluster, say: Say) -> None:
        self.context, self.cluster, self.say = cluster.context(context), cluster, say
        self.stages = ExitStack()

    def build_images(self, specs: Sequence[ImageShardSpec]) -> Iterator[BuiltImages]:
        answers = image_stage.build_images(specs, self.context, self.cluster)
        return self._begun("images", len(specs), answers)

    def make_models(
        self, tasks: Sequence[ModelTask], on_epoch: OnEpoch
    ) -> Iterator[ModelCard | Left]:
        made = model_stage.make_models(tasks, self.context, self.cluster, on_epoch)
        return self._begun("networks", len(tasks), made)

    def build_shards(self, specs: Sequence[IriShardSpec]) -> Iterator[BuiltShard]:
        answers = iri_stage.build_shards(specs, self.context, self.cluster)
        return self._begun("IRIs", len(specs), answers)

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        parts = split(work, self.context, self.cluster.slots)
        left = stitch_stage.run_units(parts, self.context, self.cluster, on_report, self.say)
        return self._begun("stitches", len(parts), left)

    def _begun(self, stage: str, pieces: int, answers: Generator[Answer]) -> Iterator[Answer]:
        """The answers of a stage, which says at once that it starts: its workers load torch."""
        workers = min(self.cluster.slots, pieces)
        self.say(f"starting {workers} worker{'s' if workers > 1 else ''} for the {stage} …")
        return self.stages.enter_context(closing(answers))

    def close(self) -> None:
        # A stage broken off by Ctrl-C still works in threads of Ray's, which end the process when
        # Ray is gone under them.
        self.stages.close()
        self.cluster.close()
