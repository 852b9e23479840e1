# pyright: basic
"""Trains units with Ray Tune: one trial is a unit, one step is an epoch of its live cells.

No scheduler compares cells, for a low score is the datum: trials run first come, first served, and
each cell ends by its own curve. Tune stores nothing: rows and states are in our own store, and a
sweep that goes on plans anew and takes away what is stored.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raystitch.run.cluster import Cluster
from raystitch.run.planning import Context, Say
from raystitch.run.watch import Watch
from raystitch.run.work import Left, OnReport, UnitReport, UnitWork, unit_name


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

    def step(self) -> dict[str, Any]:
        began = time.monotonic()
        report = next(self.reports, None)
        if report is None:
            return {"done": True}
        rate = 1 / max(time.monotonic() - began, 1e-9)
        told = {"live": report.live, "epochs_per_second": rate}
        return {**told, "done": report.done, "report": asdict(report)}

    def _take(self, config: dict[str, Any]) -> None:
        from raystitch.run.unit import run_unit

        self.reports = run_unit(ray.get(self.work[config["number"]]), self.workshop)


class _Heard(tune.Callback):
    """What the driver hears of trials."""

    def __init__(self, work: Sequence[UnitWork], on_report: OnReport, watch: Watch) -> None:
        self.work, self.on_report, self.watch = work, on_report, watch
        self.lost: list[tuple[UnitWork, Left]] = []

    def __getstate__(self) -> dict[str, Any]:
        # Tune keeps a copy of all it is given, to be restored from. Nothing is ever restored.
        return {}

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self.watch.check()

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.watch.heard()
        if "report" in result:
            self.on_report(UnitReport(**result["report"]))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.watch.heard()
        work = self.work[trial.config["number"]]
        result = trial.last_result or {}
        where = f"{result.get('hostname', 'an unknown node')} (process {result.get('pid', '?')})"
        told = Path(trial.error_file) if trial.error_file else None
        error = told.read_text(encoding="utf-8") if told is not None and told.is_file() else ""
        last = (error.strip().splitlines() or ["the worker was lost"])[-1]
        keys = ", ".join(cell.key for cell in work.unit.cells)
        story = f"unit {work.unit.key}, cells {keys}\n\n{error}"
        self.lost.append((work, Left(unit_name(work.unit), f"{last} (on {where})", story)))


def run_units(
    work: Sequence[UnitWork], context: Context, cluster: Cluster, on_report: OnReport, say: Say
) -> list[Left]:
    """Train the units in their order, as slots come free; those that had to be left pending.

    Units that were lost are tried again when the others have ended: Tune would try them at once,
    and so use up all tries on a node before it is known to be gone.
    """
    retries = context.sweep.execution.retries
    for tries in reversed(range(retries + 1)):
        lost = _round(work, context, cluster, on_report)
        if not lost or not tries:
            return [left for _, left in lost]
        for _, one in lost:
            say(f"{one.what}: lost, to be tried again: {one.reason}")
        work = [one for one, _ in lost]
    raise AssertionError("the last round returns")


def _round(
    work: Sequence[UnitWork], context: Context, cluster: Cluster, on_report: OnReport
) -> list[tuple[UnitWork, Left]]:
    """Train each unit once; those that were lost, and how."""
    execution = context.sweep.execution
    heard = _Heard(work, on_report, Watch("stitches", execution.progress_seconds))
    stored = [ray.put(one) for one in work]
    trainable = tune.with_resources(
        tune.with_parameters(TrainUnit, context=context, work=stored),
        {"cpu": cluster.cpus, "gpu": cluster.gpus},
    )
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
                name="stitches",
                storage_path=folder,
                callbacks=[heard],
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_at_end=False, checkpoint_frequency=0
                ),
            ),
        )
        tuner.fit()
    return heard.lost
