"""The stages of a sweep in order: zoo, IRIs, stitches, results. What is stored is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
import yaml

from raystitch.cards import ModelCard
from raystitch.files import write_text
from raystitch.results.store import CellStore
from raystitch.results.summary import Summary, summarise
from raystitch.results.tensors import write_tensors
from raystitch.run.iri_sets import IriSetSpec, iri_set_of, missing_shards
from raystitch.run.left import Left
from raystitch.run.planning import Context, Plan, make_plan
from raystitch.run.progress import Reporter
from raystitch.sweep.cells import Cell, Unit, units

if TYPE_CHECKING:
    from raystitch.run.local import LocalRunner


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: its plan as it now stands, the summary, and the seconds it took."""

    plan: Plan
    summary: Summary
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 when every cell is done, 1 when some have failed."""
        return 0 if all(status == "done" for status in self.plan.statuses) else 1


def run_sweep(context: Context, reporter: Reporter, *, retry_failed: bool = False) -> Outcome:
    """Run what is pending of a sweep, in this process, and write its results.

    Rows are stored as cells end, so that stopping at any moment loses none that has ended.
    """
    began = time.monotonic()
    plan = make_plan(context, retry_failed=retry_failed)
    _store_sweep_file(context)
    for warning in plan.stored.warnings:
        reporter.say(f"warning: {warning}")
    reporter.say(_standing(plan))
    if plan.pending:
        _run_pending(plan, reporter, retry_failed=retry_failed)
        plan = make_plan(context)
    summary = write_results(plan)
    return Outcome(plan, summary, time.monotonic() - began)


def write_results(plan: Plan) -> Summary:
    """Tensors and summary of the rows that count; files that would not change are not touched."""
    context = plan.context
    rows = plan.rows
    if len(rows):
        write_tensors(rows, context.storage.tensors(context.sweep.name), plan.places)
    return summarise(rows, plan.places)


def _run_pending(plan: Plan, reporter: Reporter, *, retry_failed: bool) -> None:
    # torch is loaded here, when there is work to do.
    from raystitch.run.local import LocalRunner

    context = plan.context
    runner = LocalRunner(context)
    _zoo(plan, runner, reporter)
    # A network made anew may be bit for bit the one that stored rows speak of: count once more.
    plan = make_plan(context, retry_failed=retry_failed)
    digests = dict(plan.digests)
    there = [cell for cell in plan.pending if digests[cell.front_model] and digests[cell.end_model]]
    if left := len(plan.pending) - len(there):
        reporter.say(f"{left} cells stay pending: their networks are not there")
    runner.check_cuts(_cuts(there))
    work = [(unit, iri_set_of(unit, context, digests)) for unit in units(there)]
    _iris(context, work, runner, reporter)
    _stitches(context, work, runner, reporter)


def _cuts(cells: Iterable[Cell]) -> dict[str, list[str]]:
    """The cuts at which each network of these cells is cut, each once."""
    cuts: dict[str, dict[str, None]] = {}
    for cell in cells:
        cuts.setdefault(cell.front_model, {})[cell.front_cut] = None
        cuts.setdefault(cell.end_model, {})[cell.end_cut] = None
    return {model: list(names) for model, names in cuts.items()}


def _zoo(plan: Plan, runner: LocalRunner, reporter: Reporter) -> None:
    context = plan.context
    used = Counter(m for cell in plan.pending for m in (cell.front_model, cell.end_model))
    models = [model for model in context.networks if model in used]
    missing = [model for model in models if plan.digests[model] is None]
    if missing:
        epochs = {model: _epochs(context, model) for model in missing}
        with reporter.stage("networks", sum(epochs.values()), "epochs") as stage:

            def on_epoch(model: str, epoch: int, loss: float) -> None:
                stage.advance(1, f"{model} loss {loss:.3f}")

            for made in runner.make_models(missing, on_epoch):
                if isinstance(made, ModelCard):
                    reporter.say(describe_model(made))
                else:
                    reporter.say(f"{made.what} could not be made: {made.reason}")


def _epochs(context: Context, model: str) -> int:
    entry = context.sweep.zoo[context.sweep.models()[model].entry]
    return entry.epochs if entry.trained_here and entry.recipe != "untrained" else 0


def describe_model(card: ModelCard) -> str:
    """One line on a network of the zoo."""
    figures = [
        ("accuracy", card.accuracy),
        ("with its marker", card.marker_accuracy),
        ("with the wrong marker", card.wrong_marker_accuracy),
        ("under PGD", card.robust_accuracy),
    ]
    shown = ", ".join(f"{name} {value:.1f} %" for name, value in figures if value is not None)
    return f"{card.name}: {shown} ({card.seconds:.0f} s)"


def _iris(
    context: Context,
    work: list[tuple[Unit, IriSetSpec | None]],
    runner: LocalRunner,
    reporter: Reporter,
) -> None:
    specs = missing_shards((found for _, found in work if found is not None), context)
    if not specs:
        return
    with reporter.stage("IRIs", sum(spec.stop - spec.start for spec in specs), "images") as stage:
        for spec, residual in runner.build_shards(specs):
            iri_set = spec.iri_set
            stage.advance(
                spec.stop - spec.start,
                f"{iri_set.front_model} {iri_set.cut} residual {residual:.3f}",
            )


def _stitches(
    context: Context,
    work: list[tuple[Unit, IriSetSpec | None]],
    runner: LocalRunner,
    reporter: Reporter,
) -> None:
    if not work:
        return
    store = CellStore(context.storage, context.sweep.name)
    cells = sum(len(unit.cells) for unit, _ in work)
    failures = 0
    with reporter.stage("stitches", cells, "cells") as stage:
        for unit, rows in runner.run_units(work):
            if isinstance(rows, Left):
                reporter.say(f"{rows.what}: left pending: {rows.reason}")
                continue
            store.write(rows, unit.key)
            failures += sum(row["status"] == "failed" for row in rows)
            latest = rows[-1]
            note = (
                f"{latest['front_model']} → {latest['end_model']} {latest['end_cut']} "
                f"{latest['objective']} {latest['protocol']}: "
            )
            agreement = latest.get("agreement")
            note += f"{agreement:.1f} %" if agreement is not None else "failed"
            stage.advance(len(rows), note + (f", {failures} failed" if failures else ""))


def _store_sweep_file(context: Context) -> None:
    """Keep the sweep as it is run, so that its results can be read without the user's file."""
    path = context.storage.sweep_file(context.sweep.name)
    text = yaml.safe_dump(
        context.sweep.model_dump(mode="json", exclude_unset=True), sort_keys=False
    )
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _standing(plan: Plan) -> str:
    counted = Counter(plan.statuses)
    return (
        f"{plan.context.sweep.name}: {len(plan.cells)} cells, {counted['done']} done, "
        f"{counted['failed']} failed, {counted['pending']} pending in {len(plan.units)} units"
    )


def failed_cells(plan: Plan) -> pl.DataFrame:
    """The rows of cells that failed."""
    return plan.rows.filter(pl.col("status") == "failed")
