"""Fields that can be written in several forms: a fault is told of the form that was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Discriminator

TEXT, LIST, MAPPING = "<text>", "<list>", "<mapping>"
"""Tags of the forms that a field can be written in; no key of a file looks like them."""


def _form(value: Any) -> str | None:
    if isinstance(value, str):
        return TEXT
    if isinstance(value, list | tuple):
        return LIST
    return MAPPING if isinstance(value, Mapping | BaseModel) else None


def forms(sentence: str) -> Discriminator:
    """Chooses among forms, each tagged, by looking at the value; ``sentence`` names them all."""
    return Discriminator(
        _form, custom_error_type="raystitch_form", custom_error_message=f"should be {sentence}"
    )
