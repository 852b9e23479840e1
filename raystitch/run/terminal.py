"""The user's terminal: what is said beside an answer, and errors as sentences with exit codes.

Light to import: the command line loads it before it knows which command is wanted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from raystitch.errors import RaystitchError

if TYPE_CHECKING:
    from rich.console import Console

    from raystitch.results.store import Storage
    from raystitch.run.pipeline import Outcome

DEFAULT_STORAGE = "./runs"

WIDTH = 100
"""Columns of text where the output is no terminal."""


class Commands(TyperGroup):
    """Turns what a user can mend into a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RaystitchError as error:
            say(str(error))
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:
            raise  # Typer's own affair: the reader of a pipe has gone.
        except OSError as error:
            say(f"the system refused: {error}.")
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            say("Stopped.")
            raise typer.Exit(130) from error


def say(text: str) -> None:
    """To the user, apart from the answer."""
    typer.echo(text, err=True)


def warn(warnings: Iterable[str]) -> None:
    """Warnings, a line each, apart from the answer."""
    for warning in warnings:
        say(f"warning: {warning}")


def console(*, stderr: bool = False) -> Console:
    """A rich console, as wide as the terminal, or `WIDTH` where there is none."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else WIDTH)


def open_storage(root: str) -> Storage:
    """The storage that ``--storage`` names."""
    from raystitch.results.store import Storage

    if "://" in root:
        raise RaystitchError(f"--storage {root}: should be a folder of this machine.")
    return Storage(Path(root))


def show_outcome(outcome: Outcome, root: str) -> None:
    """A sweep's summary, where its results are, and what to do where some are missing."""
    from raystitch.results.summary import render
    from raystitch.run.status import failures_command

    name, storage = outcome.plan.context.sweep.name, outcome.plan.context.storage
    console().print(render(outcome.summary))
    typer.echo(f"results: {storage.sweep(name)} ({outcome.seconds:.0f} s)")
    if left := len(outcome.plan.pending):
        typer.echo(f"{left} cells are pending: mend what was said above, and run it again.")
    if "failed" in outcome.plan.statuses:
        options = () if root == DEFAULT_STORAGE else ("--storage", root)
        typer.echo(f"Cells failed. To see why:\n  {failures_command(name, options)}")
