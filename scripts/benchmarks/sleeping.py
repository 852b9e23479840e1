# pyright: basic
"""Units that only sleep, for the engine's own driver: what `scale` measures."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# First: it sets what Ray reads from the environment.
from raystitch.run.cluster import Cluster, connect  # isort: split

from ray import tune

from benchmarks.timeline import Parts, Timeline
from raystitch.run.place import Place, here
from raystitch.run.planning import Context
from raystitch.run.stitch_stage import Heard, one_round, told
from raystitch.run.work import UnitReport

EPOCHS, MANY_EPOCHS = 10, 200
"""Of units that sleep, and of those that do not."""

CPUS = 1e-3
"""Of each worker. Tune takes no trial that asks for nothing."""

PAUSE_SECONDS, MEET_SECONDS = 1000, 300


class Sleeps(tune.Trainable):
    """A worker whose units sleep through their epochs."""

    def setup(
        self, config: dict[str, Any], seconds: float, epochs: int, slots: int, folder: str
    ) -> None:
        self.sleep, self.epochs = seconds / epochs, epochs
        _meet(Path(folder), slots)
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.number, self.epoch = new_config["number"], 0
        return True

    def where(self) -> Place:
        return here()

    def step(self) -> dict[str, Any]:
        began = time.monotonic()
        time.sleep(self.sleep)
        self.epoch += 1
        done = self.epoch == self.epochs
        report = UnitReport(
            str(self.number), 0, self.epoch, live=not done, done=done, stored=int(done)
        )
        return told(replace(report, seconds=time.monotonic() - began))


def _meet(folder: Path, count: int) -> None:
    """Wait until so many workers are there: what their start takes is the machine's affair."""
    (folder / secrets.token_hex(8)).touch()
    until = time.monotonic() + MEET_SECONDS
    while len(list(folder.iterdir())) < count and time.monotonic() < until:
        time.sleep(0.02)


@dataclass(frozen=True)
class Found:
    """A round of sleeping units. seconds: of each; driver: the driver's share of a CPU."""

    seconds: float
    parts: Parts
    units_per_second: float
    epochs_per_second: float
    driver: float


def rounds(context: Context, jobs: Sequence[tuple[int, float]], units: int) -> list[Found]:
    """One round for each number of slots and length of a unit, on a Ray of our own."""
    cluster = replace(connect(context, None, lambda text: None), cpus=CPUS)
    try:
        return [_round(replace(cluster, slots=n), units, seconds) for n, seconds in jobs]
    finally:
        cluster.close()


def _round(cluster: Cluster, units: int, seconds: float) -> Found:
    """So many units for each slot."""
    timeline, slots = Timeline(), cluster.slots
    heard = Heard((), timeline, PAUSE_SECONDS)
    epochs = EPOCHS if seconds else MANY_EPOCHS
    with tempfile.TemporaryDirectory() as folder:
        trainable = tune.with_parameters(
            Sleeps, seconds=seconds, epochs=epochs, slots=slots, folder=folder
        )
        one_round(range(units * slots), trainable, cluster, heard)
    parts = timeline.parts(slots)
    rate = parts.units / parts.wall
    return Found(seconds, parts, rate, rate * epochs, timeline.driver_share)
