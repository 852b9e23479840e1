"""The stages of a sweep in order: images, zoo, IRIs, stitches, results. What is stored is done."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl
import yaml

from raystitch.cards import ModelCard
from raystitch.errors import EngineError, RaystitchError
from raystitch.files import write_text
from raystitch.results.schema import OUTCOME
from raystitch.results.summary import Summary, summarise
from raystitch.results.tensors import write_tensors
from raystitch.run import runners
from raystitch.run.image_sets import missing_images
from raystitch.run.iri_specs import iri_set_of, missing_shards, tested_sets_of
from raystitch.run.planning import Context, Plan, Say, make_plan
from raystitch.run.progress import Reporter, Stage
from raystitch.run.runners import Start
from raystitch.run.work import FailedRows, Left, ModelTask, Runner, UnitReport, UnitWork
from raystitch.sweep.cells import units


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


def run_sweep(
    context: Context,
    reporter: Reporter,
    *,
    start: Start = runners.local,
    retry_failed: bool = False,
) -> Outcome:
    """Run what is pending of a sweep, by the runner that ``start`` makes, and write its results.

    Rows are stored as cells end, so that stopping at any moment loses none that has ended.
    """
    began = time.monotonic()
    plan = make_plan(context, retry_failed=retry_failed)
    _store_sweep_file(context)
    for warning in plan.stored.warnings:
        reporter.say(f"warning: {warning}")
    reporter.say(_standing(plan))
    if plan.pending:
        runner = start(context, reporter.say)
        try:
            _run_pending(plan, runner, reporter, retry_failed=retry_failed)
        finally:
            runner.close()
        plan = make_plan(context)
    summary = write_results(plan, reporter.say)
    return Outcome(plan, summary, time.monotonic() - began)


def write_results(plan: Plan, say: Say) -> Summary:
    """Tensors and summary of the rows that count; files that would not change are not touched."""
    context = plan.context
    reading = plan.read(OUTCOME)
    for warning in reading.warnings:
        say(f"warning: {warning}")
    if len(reading.frame):
        folder = context.storage.tensors(context.sweep.name)
        for sentence in write_tensors(reading.frame, folder, plan.places):
            say(sentence)
    return summarise(reading.frame, plan.layout)


def _run_pending(plan: Plan, runner: Runner, reporter: Reporter, *, retry_failed: bool) -> None:
    context = plan.context
    _images(plan, runner, reporter)
    made = _zoo(plan, runner, reporter)
    # A network made anew may be bit for bit the one that stored rows speak of: count once more.
    plan = make_plan(context, retry_failed=retry_failed)
    there = [cell for cell in plan.pending if {cell.front_model, cell.end_model} <= set(made)]
    if left := len(plan.pending) - len(there):
        reporter.say(f"{left} cells stay pending: their networks cannot be used")
    again = _failed_rows(plan) if retry_failed else {}
    work = [
        UnitWork(
            one,
            iri_set_of(one, context, made),
            again=again.get(one.key, frozenset()),
            test_sets=tested_sets_of(one, context, made),
        )
        for one in units(there)
    ]
    _forget_states(plan)
    failures = _iris(plan, work, runner, reporter)
    _stitches(plan, _ready(work, failures), runner, reporter)


def _failed_rows(plan: Plan) -> dict[str, FailedRows]:
    """Those of each unit: what travels to its worker."""
    failed = plan.stored.frame.filter(pl.col("status") == "failed")
    found: dict[str, set[tuple[str, datetime]]] = {}
    for unit, *row in failed.select("unit", "key", "finished_at").iter_rows():
        found.setdefault(unit, set()).add(tuple(row))
    return {unit: frozenset(rows) for unit, rows in found.items()}


def _images(plan: Plan, runner: Runner, reporter: Reporter) -> None:
    """Decode the images that are not in shards yet: the sweep's, and those of networks to be made.

    Raises `RaystitchError` where some cannot be: nothing can go on without them.
    """
    context = plan.context
    made = [context.images_of(model) for model, digest in plan.digests.items() if digest is None]
    wanted = (both for images in (context.images.of_sweep, *made) for both in images.splits())
    specs = missing_images(wanted, context.storage)
    if not specs:
        return
    lost = 0
    with reporter.stage("images", sum(spec.stop - spec.start for spec in specs), "images") as stage:
        for built in runner.build_images(specs):
            if built.failure is not None:
                raise RaystitchError(built.failure)
            if built.incident is not None:
                _leave(built.incident, context, reporter)
                lost += 1
            stage.advance(built.spec.stop - built.spec.start)
    if lost:
        raise EngineError(
            f"{lost} of {len(specs)} shards of images were not made; run the sweep again to make "
            "them: those that were made stay."
        )


def _zoo(plan: Plan, runner: Runner, reporter: Reporter) -> dict[str, str]:
    """Make the networks that pending cells need, and check the cuts they are used at.

    Returns the digests of those that can be used.
    """
    context = plan.context
    cuts: dict[str, dict[str, None]] = {}
    for cell in plan.pending:
        cuts.setdefault(cell.front_model, {})[cell.front_cut] = None
        cuts.setdefault(cell.end_model, {})[cell.end_cut] = None
    missing = {model for model in cuts if plan.digests[model] is None}
    tasks = [ModelTask(model, tuple(cuts[model])) for model in context.networks if model in cuts]
    # The networks still to be trained first: they take longest.
    tasks.sort(key=lambda task: task.model not in missing)
    epochs = sum(_epochs(context, model) for model in missing)
    digests: dict[str, str] = {}
    with reporter.stage("networks", epochs, "epochs") as stage:

        def on_epoch(model: str, epoch: int, loss: float) -> None:
            stage.advance(1, f"{model} loss {loss:.3f}")

        for made in runner.make_models(tasks, on_epoch):
            if isinstance(made, Left):
                _leave(made, context, reporter)
                continue
            digests[made.name] = made.digest
            if made.name in missing:
                reporter.say(describe_model(made))
    return digests


def _epochs(context: Context, model: str) -> int:
    entry = context.sweep.zoo[context.sweep.models()[model].entry]
    if not entry.trained_here or entry.recipe == "untrained":
        return 0
    return entry.epochs + (entry.linear_epochs if entry.recipe == "simclr" else 0)


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
    plan: Plan, work: Sequence[UnitWork], runner: Runner, reporter: Reporter
) -> dict[str, str | None]:
    """Build the shards that are missing; sets that could not be made, and why.

    None as the reason: not for a reason of its own, so its cells stay pending.
    """
    failures: dict[str, str | None] = {}
    sets = [iri_set for one in work for iri_set in one.iri_sets]
    specs = missing_shards(sets, plan.context)
    if not specs:
        return failures
    with reporter.stage("IRIs", sum(spec.stop - spec.start for spec in specs), "images") as stage:
        for built in runner.build_shards(specs):
            spec, iri_set = built.spec, built.spec.iri_set
            note = f"{iri_set.front_model} {iri_set.cut} "
            if built.incident is not None:
                if iri_set.key not in failures:  # the first of a set tells what the others would
                    _leave(built.incident, plan.context, reporter)
                failures[iri_set.key] = None
            elif built.failure is not None:
                failures.setdefault(iri_set.key, built.failure)
            residual = built.residual
            note += "failed" if residual is None else f"residual {residual:.3f}"
            stage.advance(spec.stop - spec.start, note)
    return failures


def _forget_states(plan: Plan) -> None:
    """Remove states of cells that have their row: a run was killed between the two."""
    folder = plan.context.storage.states(plan.context.sweep.name)
    saved = {path.stem: path for path in folder.glob("*.safetensors")}
    for cell, status in zip(plan.cells, plan.statuses, strict=True):
        if status != "pending" and cell.key in saved:
            saved[cell.key].unlink(missing_ok=True)


def _ready(work: Sequence[UnitWork], failures: Mapping[str, str | None]) -> list[UnitWork]:
    """The work whose IRIs are there, or are known never to be."""
    ready: list[UnitWork] = []
    for one in work:
        reasons = [failures[each.key] for each in one.iri_sets if each.key in failures]
        if not reasons:
            ready.append(one)
        elif known := [reason for reason in reasons if reason is not None]:
            ready.append(replace(one, failure=known[0]))
    return ready


def _stitches(plan: Plan, work: Sequence[UnitWork], runner: Runner, reporter: Reporter) -> None:
    if not work:
        return
    cells = sum(len(one.unit.cells) for one in work)
    with reporter.stage("stitches", cells, "cells") as stage:
        for left in runner.run_units(work, _Heard(stage, reporter)):
            _leave(left, plan.context, reporter)


class _Heard:
    """Shows what is heard of units. One that is tried again takes the place of the one lost."""

    def __init__(self, stage: Stage, reporter: Reporter) -> None:
        self.stage, self.reporter = stage, reporter
        self.failures = self.epochs = 0
        self.latest = ""
        self.last: dict[tuple[str, int], UnitReport] = {}
        self.began = time.monotonic()

    def __call__(self, report: UnitReport) -> None:
        before = self.last.get((report.unit, report.part))
        self.last[report.unit, report.part] = report
        self.epochs += report.epoch > 0
        self.failures += report.failed
        if report.resumed is not None:
            self.reporter.say(_goes_on(report, before))
        if report.latest:
            figure = "failed" if report.agreement is None else f"{report.agreement:.1f} %"
            self.latest = f"{report.latest}: {figure}"
        self.stage.advance(report.stored - (before.stored if before else 0), self.note())

    def note(self) -> str:
        rate = self.epochs / max(time.monotonic() - self.began, 1e-9)
        live = sum(report.live for report in self.last.values())
        parts = [f"{live} live at {rate:.1f} epochs/s"]
        parts += [self.latest] if self.latest else []
        parts += [f"{self.failures} failed"] if self.failures else []
        return ", ".join(parts)


def _goes_on(report: UnitReport, before: UnitReport | None) -> str:
    """That a unit goes on from its saved state, and what is redone where that is known."""
    said = f"unit {report.unit[:12]} goes on after epoch {report.resumed}"
    if before is None or report.resumed is None:
        return said
    return f"{said}: {max(before.epoch - report.resumed, 0)} epochs are done again"


def _leave(left: Left, context: Context, reporter: Reporter) -> None:
    """Say what was left pending, and keep its whole story."""
    reporter.say(f"{left.what}: left pending: {left.reason}")
    if left.story:
        path = context.storage.incidents(context.sweep.name) / f"{secrets.token_hex(8)}.txt"
        write_text(path, f"{left.what}\n{left.reason}\n\n{left.story}\n")


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
