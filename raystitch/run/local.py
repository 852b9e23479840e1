"""The in-process runner: the reference, one thing after the other, without Ray.

What fails by something around it (memory, a disk) is left pending, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from raystitch.cards import ModelCard
from raystitch.errors import CellError, RaystitchError
from raystitch.run.image_sets import ImageShardSpec
from raystitch.run.iri_sets import build_shard
from raystitch.run.iri_specs import IriShardSpec
from raystitch.run.planning import Context
from raystitch.run.unit import run_unit
from raystitch.run.work import (
    BuiltImages,
    BuiltShard,
    Left,
    ModelTask,
    OnEpoch,
    OnReport,
    UnitWork,
    images_name,
    iris_name,
    left_by,
    unit_name,
)
from raystitch.run.workshop import Workshop
from raystitch.run.zoo_stage import make_and_check


class LocalRunner:
    """Runs each stage in this process."""

    def __init__(self, context: Context) -> None:
        self.workshop = Workshop(context)

    def build_images(self, specs: Sequence[ImageShardSpec]) -> Iterator[BuiltImages]:
        for spec in specs:
            try:
                self.workshop.build_images(spec)
                yield BuiltImages(spec)
            except RaystitchError as error:
                yield BuiltImages(spec, failure=str(error))
            except Exception as error:
                yield BuiltImages(spec, incident=left_by(error, images_name(spec)))

    def make_models(
        self, tasks: Sequence[ModelTask], on_epoch: OnEpoch
    ) -> Iterator[ModelCard | Left]:
        for task in tasks:
            try:
                yield make_and_check(self.workshop, task, on_epoch)
            except Exception as error:
                yield left_by(error, task.model)

    def build_shards(self, specs: Sequence[IriShardSpec]) -> Iterator[BuiltShard]:
        failed: dict[str, str] = {}
        for spec in specs:
            if (reason := failed.get(spec.iri_set.key)) is not None:
                yield BuiltShard(spec, failure=reason)
                continue
            try:
                yield BuiltShard(spec, build_shard(spec, self.workshop))
            except CellError as error:
                failed[spec.iri_set.key] = str(error)
                yield BuiltShard(spec, failure=str(error))
            except Exception as error:
                yield BuiltShard(spec, incident=left_by(error, iris_name(spec)))

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        for one in work:
            try:
                for report in run_unit(one, self.workshop):
                    on_report(report)
            except Exception as error:
                yield left_by(error, unit_name(one.unit))

    def close(self) -> None:
        return None
