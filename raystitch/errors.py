"""Errors that a user can act on: what is wrong, where, what is allowed, what to do.

`RaystitchError` and its children are for users and reach the terminal as a sentence, never as a
traceback. Our own invariants are plain ``assert``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

REFUSED = "raystitch"
"""The pydantic error type of a refusal: its context holds ``field`` and ``sentence``."""


class RaystitchError(ValueError):
    """Something the user can mend. The message is a whole sentence."""

    exit_code = 2


class StorageError(RaystitchError):
    """A stored file is torn, foreign, missing or cannot be written."""

    exit_code = 1


class CellError(RaystitchError):
    """A failure of one cell itself (divergence, zero norm, kinds): it becomes a failed row."""

    exit_code = 1


class EngineError(RaystitchError):
    """Something around the work failed: a worker, a node, a connection. What is stored stays."""

    exit_code = 1


@dataclass(frozen=True)
class Fault:
    """One fault of a sweep file.

    place: dotted path in the file, such as ``zoo.robust.arch`` or ``pairs[2].front``.
    message: what is wrong, what is allowed, what to do.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class SweepFileError(RaystitchError):
    """All faults of one sweep file at once."""

    def __init__(self, path: str, faults: Iterable[Fault]) -> None:
        self.path = path
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{path} has {count} fault{'s' if count != 1 else ''}:"
        super().__init__("\n".join([head, *(f"  {fault}" for fault in self.faults)]))


def refuse(sentence: str, field: str = "") -> PydanticCustomError:
    """The error for a model to raise; ``field`` is the faulty field of that model."""
    from pydantic_core import PydanticCustomError  # here: the help needs errors, and no pydantic

    return PydanticCustomError(REFUSED, "{sentence}", {"sentence": sentence, "field": field})


def nearest(given: object, allowed: Iterable[str]) -> str | None:
    """The allowed value that was probably meant; None where none is near."""
    return next(iter(difflib.get_close_matches(str(given), list(allowed), n=1)), None)


def choices(given: object, allowed: Iterable[str]) -> str:
    """A sentence end naming the allowed values and, for a near miss, the nearest one.

    >>> choices("fulla", ["hlm", "fula"])
    "'fulla' is not one of hlm, fula (did you mean 'fula'?)"
    """
    names = list(allowed)
    near = nearest(given, names)
    hint = f" (did you mean {near!r}?)" if near is not None else ""
    return f"{given!r} is not one of {', '.join(names) or '(none)'}{hint}"
