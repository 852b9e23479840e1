"""How far a sweep has come: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_SECONDS = 10.0
"""Seconds between two plain lines of one stage."""


class Stage(Protocol):
    """One stage's progress."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """So many more are done; ``note`` says something of the latest."""
        ...


class Reporter:
    """Shows stages on a console: live where it is a terminal, else a line now and then."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def stage(self, name: str, total: int, unit: str) -> Generator[Stage]:
        """Report ``total`` of ``unit`` (a plural, as ``cells``) while inside."""
        if self.console.is_terminal:
            with _live(self.console) as progress:
                yield _LiveStage(progress, progress.add_task(name, total=total, unit=unit, note=""))
        else:
            yield _PlainStage(self, name, total, unit)


def _live(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )


class _LiveStage:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task

    def advance(self, count: int = 1, note: str = "") -> None:
        self.progress.update(self.task, advance=count, note=note)


class _PlainStage:
    def __init__(self, reporter: Reporter, name: str, total: int, unit: str) -> None:
        self.reporter, self.name, self.total, self.unit = reporter, name, total, unit
        self.done = 0
        self.began = self.last = time.monotonic()

    def advance(self, count: int = 1, note: str = "") -> None:
        self.done += count
        now = time.monotonic()
        if self.done < self.total and now - self.last < PLAIN_SECONDS:
            return
        self.last = now
        rate = self.done / max(now - self.began, 1e-9)
        parts = [f"{self.name}: {self.done}/{self.total} {self.unit}"]
        if self.done == self.total:
            parts += [f"{rate:.2f}/s", f"{now - self.began:.0f} s"]
        elif self.done:
            parts += [f"{rate:.2f}/s", f"{(self.total - self.done) / rate:.0f} s left"]
        self.reporter.say(", ".join([*parts, *([note] if note else [])]))
