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
