"""Sweeps on Ray, what is left of them, and the loss of their processes."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import polars as pl
from polars.testing import assert_frame_equal

import sweeping
from raystitch.results.schema import METRICS
from raystitch.results.store import Storage
from raystitch.run import runners
from raystitch.run.pipeline import Outcome

FIGURES = [name for name in METRICS if name != "seconds"]


def on_ray(path: Path, root: Path, **changes: Any) -> Outcome:
    """Run a sweep file on a Ray of its own."""
    return sweeping.run(path, root, start=runners.on_ray(None), **changes)


def command(path: Path, root: Path, *options: str) -> list[str]:
    """The command that runs a sweep file in a process of its own."""
    code = "from raystitch.cli import main; main()"
    return [sys.executable, "-c", code, "sweep", str(path), "--storage", str(root), *options]


def assert_equal(one: Outcome, other: Outcome) -> None:
    """The same cells, with the same figures."""
    assert_frame_equal(_figures(one), _figures(other), rel_tol=0, abs_tol=1e-5)


def _figures(outcome: Outcome) -> pl.DataFrame:
    return outcome.plan.rows.sort("key").select("key", "status", "error", "stop_reason", *FIGURES)


def row_files(root: Path) -> list[Path]:
    return sorted(Storage(root).cells("small").glob("[!.]*.parquet"))


def stored(root: Path) -> pl.DataFrame:
    """Every stored row, none left out."""
    return pl.concat([pl.read_parquet(file) for file in row_files(root)])


def assert_each_once(root: Path, count: int) -> None:
    """So many rows are stored, each of its own cell."""
    rows = stored(root)
    assert rows["key"].n_unique() == len(rows) == count


def names(root: Path) -> set[str]:
    """The files under a storage, without the random part of their names."""
    found = (file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())
    return {re.sub(r"-[0-9a-f]{16}(?=\.parquet)", "", name) for name in found}


def processes(part: str = "") -> set[int]:
    """Ids of the processes of these tests' Rays with that in their command line.

    They write their logs into Ray's folder, which is the tests' own.
    """
    found: set[int] = set()
    for folder in Path("/proc").iterdir():
        try:
            output = str((folder / "fd" / "1").readlink())
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if output.startswith(os.environ["RAY_TMPDIR"]) and part in line:
            found.add(int(folder.name))
    return found


def none_left(seconds: float = 40.0) -> bool:
    """Whether all processes of these tests' Rays are gone within so many seconds."""
    deadline = time.monotonic() + seconds
    while processes():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def wait_for(child: subprocess.Popen[Any], what: Any, seconds: float = 300.0) -> None:
    """Wait until ``what()`` is true while the child runs."""
    deadline = time.monotonic() + seconds
    while not what():
        assert child.poll() is None, "it ended before"
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.02)


class Killer(threading.Thread):
    """Kills so many processes with ``part`` in their command line, a while after they start."""

    def __init__(self, part: str, times: int, most_seconds: float = 2.0) -> None:
        super().__init__(daemon=True)
        self.part, self.times, self.most, self.killed = part, times, most_seconds, 0
        self.dice, self.ended = random.Random(times), threading.Event()

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()

    def run(self) -> None:
        done: set[int] = set()
        while self.killed < self.times and not self.ended.wait(0.05):
            if found := sorted(processes(self.part) - done):
                self.ended.wait(self.dice.uniform(0, self.most))
                victim = self.dice.choice(found)
                done.add(victim)
                try:
                    os.kill(victim, signal.SIGKILL)
                    self.killed += 1
                except ProcessLookupError:
                    continue
