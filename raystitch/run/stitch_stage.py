# pyright: basic
"""Trains units with Ray Tune: one trial is a unit, one step is an epoch of its live cells.

No scheduler compares cells, for a low score is the datum: trials run first come, first served, and
each cell ends by its own curve. Tune stores nothing: rows and states are in our own store, and a
sweep that goes on plans anew and takes away what is stored.
"""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.tune.error import TuneError

from raystitch.errors import EngineError
from raystitch.run.cluster import Cluster, last_line
from raystitch.run.place import Place, here, log_tail
from raystitch.run.planning import Context, Say
from raystitch.run.watch import Watch, silence, silent
from raystitch.run.work import Left, OnReport, UnitReport, UnitWork, unit_name

STAGE = "stitches"

PLACE_SECONDS = 5.0
"""Time for a worker's answer where it is, which it gives before it starts to work."""


class TrainUnit(tune.Trainable):
    """One worker: its process and its networks stay from one unit to the next."""

    def setup(self, config: dict[str, Any], context: Context, work: Sequence[Any]) -> None:
        # Torch is loaded here, in the worker, and not where Tune registers the class.
        from raystitch.run.workshop import Workshop

        self.workshop, self.work = Workshop(context), work
        self._take(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._take(new_config)
        return True

    def where(self) -> Place:
        return here()

    def step(self) -> dict[str, Any]:
        report = next(self.reports, None)
        return {"done": True} if report is None else told(report)

    def _take(self, config: dict[str, Any]) -> None:
        from raystitch.run.unit import run_unit

        self.reports = run_unit(ray.get(self.work[config["number"]]), self.workshop)


def told(report: UnitReport) -> dict[str, Any]:
    """A report as the result of a trial's step."""
    rate = 1 / max(report.seconds, 1e-9)
    metrics = {"live": report.live, "epochs_per_second": rate}
    return {**metrics, "done": report.done, "report": asdict(report)}


class Heard(tune.Callback):
    """What the driver hears of trials; it ends those that are silent for too long."""

    def __init__(self, work: Sequence[UnitWork], on_report: OnReport, limit_seconds: float) -> None:
        self.work, self.on_report = work, on_report
        self.watch = Watch(limit_seconds)
        self.running: dict[str, Any] = {}
        self.places: dict[str, Any] = {}
        self.hung: set[str] = set()
        self.lost: list[tuple[UnitWork, Left]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Tune keeps a copy of all it is given, to be restored from. Nothing is ever restored.
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        for name in self.watch.silent_ones():
            # Tune then sees a lost worker: the unit is tried again as after any other loss.
            self.hung.add(name)
            self.watch.forget(name)
            ray.kill(self.running[name])
        if self.watch.all_silent():
            raise silent(STAGE, self.watch.limit)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.watch.heard(trial.trial_id)
        worker = trial.temporary_state.ray_actor
        self.running[trial.trial_id] = worker
        self.places[trial.trial_id] = worker.where.remote()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.watch.heard(trial.trial_id)
        if "report" in result:
            self.on_report(UnitReport(**result["report"]))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended(trial.trial_id)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        work, place = self.work[trial.config["number"]], self._place(trial.trial_id)
        told = Path(trial.error_file) if trial.error_file else None
        error = told.read_text(encoding="utf-8") if told is not None and told.is_file() else ""
        reason = (error.strip().splitlines() or ["its worker was lost"])[-1]
        if trial.trial_id in self.hung:
            reason = silence(self.watch.limit)
        cells = ", ".join(cell.key for cell in work.unit.cells)
        log = "" if place is None else log_tail(place)
        story = f"unit {work.unit.key}, cells {cells}\n\n{error}\n{log}"
        where = "on no worker yet" if place is None else f"on {place}"
        self.lost.append((work, Left(unit_name(work.unit), f"{reason} ({where})", story)))
        self._ended(trial.trial_id)

    def _place(self, name: str) -> Place | None:
        if name not in self.places:
            return None
        try:
            return ray.get(self.places[name], timeout=PLACE_SECONDS)
        except RayError:
            return None

    def _ended(self, name: str) -> None:
        self.watch.forget(name)
        self.running.pop(name, None)
        self.places.pop(name, None)


def run_units(
    work: Sequence[UnitWork], context: Context, cluster: Cluster, on_report: OnReport, say: Say
) -> Generator[Left]:
    """Train the units in their order, as slots come free; yields those that stay pending.

    Units that were lost are tried again when the others have ended: Tune would try them at once,
    and so use up all tries on a node before it is known to be gone.
    """
    execution = context.sweep.execution
    for tries in reversed(range(execution.retries + 1)):
        heard = Heard(work, on_report, execution.progress_seconds)
        try:
            stored = [ray.put(one) for one in work]
            trainable = tune.with_parameters(TrainUnit, context=context, work=stored)
            one_round(work, trainable, cluster, heard)
        except EngineError:
            yield from (left for _, left in heard.lost)
            raise
        if not heard.lost or not tries:
            yield from (left for _, left in heard.lost)
            return
        for _, one in heard.lost:
            say(f"{one.what}: lost, to be tried again: {one.reason}")
        work = [one for one, _ in heard.lost]


def one_round(work: Sequence[Any], trainable: Any, cluster: Cluster, heard: Heard) -> None:
    """Train each unit once; a trial knows its unit by the ``number`` in its config."""
    trainable = tune.with_resources(trainable, {"cpu": cluster.cpus, "gpu": cluster.gpus})
    with tempfile.TemporaryDirectory(prefix="raystitch-tune-") as folder:
        tuner = tune.Tuner(
            trainable,
            param_space={"number": tune.grid_search(list(range(len(work))))},
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                max_concurrent_trials=cluster.slots,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=STAGE,
                storage_path=folder,
                callbacks=[heard],
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_at_end=False, checkpoint_frequency=0
                ),
            ),
        )
        try:
            tuner.fit()
        except (TuneError, RayError, RuntimeError) as error:
            raise EngineError(f"Ray Tune gave up the {STAGE}: {last_line(error)}.") from error
