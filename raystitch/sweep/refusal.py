"""Faults that a rule of ours finds, as pydantic errors that know their place and their sentence."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from raystitch.errors import REFUSED, refuse

__all__ = ["REFUSED", "each_once", "refuse"]

Item = TypeVar("Item", bound=Hashable)


def each_once(values: tuple[Item, ...]) -> tuple[Item, ...]:
    """A list whose items must differ; the first repeated one is refused."""
    seen: set[Item] = set()
    for value in values:
        if value in seen:
            raise refuse(f"{value!r} is given twice; name each once")
        seen.add(value)
    return values
