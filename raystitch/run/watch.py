"""Sees when nothing is heard any more, so that a stage ends with a sentence and not never."""

from __future__ import annotations

import time

from raystitch.errors import EngineError


def silence(limit_seconds: float) -> str:
    """What is wrong with one that is silent."""
    return f"nothing was heard of it for {limit_seconds:g} s (`execution.progress_seconds`)"


def silent(stage: str, limit_seconds: float) -> EngineError:
    """The error of a stage that was silent for longer than the limit."""
    return EngineError(
        f"nothing was heard of the {stage} for {limit_seconds:g} s "
        "(`execution.progress_seconds`), so the sweep was stopped: a worker hangs, no worker could "
        "be started, or one piece of work takes longer. What was finished is stored; raise the "
        "limit, or look at the workers, and run the same command again."
    )


class Watch:
    """Counts the time since each of several was last heard of."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit = limit_seconds
        self.any = time.monotonic()
        self.last: dict[str, float] = {}

    def heard(self, name: str) -> None:
        self.any = self.last[name] = time.monotonic()

    def forget(self, name: str) -> None:
        """That one has ended."""
        self.any = time.monotonic()
        self.last.pop(name, None)

    def silent_ones(self) -> list[str]:
        """Those that have been silent for longer than the limit."""
        now = time.monotonic()
        return [name for name, last in self.last.items() if now - last > self.limit]

    def all_silent(self) -> bool:
        """Whether nothing at all was heard for longer than the limit."""
        return time.monotonic() - self.any > self.limit
