"""Ends a stage of which nothing is heard any more, with a sentence instead of a wait for ever."""

from __future__ import annotations

import time

from raystitch.errors import EngineError


def silent(stage: str, limit_seconds: float) -> EngineError:
    """The error of a stage that was silent for longer than the limit."""
    return EngineError(
        f"nothing was heard of the {stage} for {limit_seconds:g} s "
        "(`execution.progress_seconds`), so the sweep was stopped: a worker hangs, or one piece of "
        "work takes longer. What was finished is stored; raise the limit, or look at the workers, "
        "and run the same command again."
    )


class Watch:
    """Counts the time since a stage was last heard of."""

    def __init__(self, stage: str, limit_seconds: float) -> None:
        self.stage, self.limit = stage, limit_seconds
        self.last = time.monotonic()

    def heard(self) -> None:
        self.last = time.monotonic()

    def check(self) -> None:
        """Raise `EngineError` when the stage has been silent for longer than the limit."""
        if time.monotonic() - self.last > self.limit:
            raise silent(self.stage, self.limit)
