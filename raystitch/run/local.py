"""The in-process runner: the reference, one thing after the other, without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from raystitch.cards import ModelCard
from raystitch.errors import CellError, RaystitchError
from raystitch.run.iri_sets import IriSetSpec, IriShardSpec, build_shard
from raystitch.run.left import Left, reason_of
from raystitch.run.planning import Context
from raystitch.run.unit import Row, failed_rows, run_unit
from raystitch.run.workshop import Workshop
from raystitch.run.zoo_stage import check_cuts, make_model
from raystitch.sweep.cells import Unit


class LocalRunner:
    """Runs each stage in this process."""

    def __init__(self, context: Context) -> None:
        if context.sweep.execution.threads is not None:
            torch.set_num_threads(context.sweep.execution.threads)
        self.workshop = Workshop(context)
        self.failed_sets: dict[str, str] = {}

    def make_models(
        self, models: Sequence[str], on_epoch: Callable[[str, int, float], None]
    ) -> Iterator[ModelCard | Left]:
        """Make and store each network that is not stored; its card, or why there is none."""
        for model in models:
            try:
                yield make_model(
                    self.workshop, model, lambda epoch, loss, of=model: on_epoch(of, epoch, loss)
                )
            except (RaystitchError, RuntimeError, MemoryError) as error:
                yield Left(model, reason_of(error))

    def check_cuts(self, cuts: dict[str, list[str]]) -> None:
        """Raise `RaystitchError` unless each network cut there gives its own logits."""
        for model, names in cuts.items():
            check_cuts(self.workshop, model, names)

    def build_shards(self, specs: Sequence[IriShardSpec]) -> Iterator[tuple[IriShardSpec, float]]:
        """Build and store each shard; its mean residual, NaN where its set has failed."""
        for spec in specs:
            key = spec.iri_set.key
            residual = float("nan")
            if key not in self.failed_sets:
                try:
                    residual = build_shard(spec, self.workshop)
                except CellError as error:
                    self.failed_sets[key] = str(error)
            yield spec, residual

    def run_units(
        self, work: Sequence[tuple[Unit, IriSetSpec | None]]
    ) -> Iterator[tuple[Unit, list[Row] | Left]]:
        """Train each unit's cells; rows as they end, or why its other cells are left pending."""
        for unit, iri_set in work:
            if iri_set is not None and (reason := self.failed_sets.get(iri_set.key)):
                yield unit, failed_rows(unit, reason, self.workshop)
                continue
            try:
                for rows in run_unit(unit, iri_set, self.workshop):
                    yield unit, rows
            except (RuntimeError, MemoryError) as error:
                what = f"{unit.front_model} {unit.front_cut} {unit.protocol} seed {unit.seed}"
                yield unit, Left(what, reason_of(error))
