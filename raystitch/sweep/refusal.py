"""Faults that a rule of ours finds, as pydantic errors that know their place and their sentence."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from pydantic_core import PydanticCustomError

REFUSED = "raystitch"
"""The pydantic error type of a refusal: its context holds ``field`` and ``sentence``."""

Item = TypeVar("Item", bound=Hashable)


def refuse(sentence: str, field: str = "") -> PydanticCustomError:
    """The error to raise; ``field`` is the faulty field of the model under validation."""
    return PydanticCustomError(REFUSED, "{sentence}", {"sentence": sentence, "field": field})


def each_once(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """A list whose items must differ; the first repeated one is refused."""
    seen: set[Item] = set()
    for value in values:
        if value in seen:
            raise refuse(f"{value!r} is given twice; name each once")
        seen.add(value)
    return values
