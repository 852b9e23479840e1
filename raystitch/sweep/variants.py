"""Settings for a part of a sweep: for one protocol alone, or once more in another variant.

A field that is written replaces the sweep's; what is not written stays. What a variant writes in
`training` holds under every protocol, whatever the sweep's `training_of` says; its own goes on top.
A variant changes nothing but settings, so it needs no network of its own, and cells that it leaves
as they are stay one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from pydantic import Field

from raystitch.names import Protocol
from raystitch.settings import Iris, Settings, Training, Whole

Block = TypeVar("Block", bound=Settings)

TrainingOf = dict[Protocol, Training]


class Variant(Settings):
    """The whole sweep once more, with other settings."""

    training: Training = Field(default=Training(), description="What is other in `training`.")
    training_of: TrainingOf = Field(
        default_factory=dict[Protocol, Training], description="What is other in `training_of`."
    )
    iris: Iris = Field(default=Iris(), description="What is other in `iris`.")
    budget: Whole | None = Field(default=None, ge=1, description="In place of `budget`.")


def overlay(under: Block, over: Block) -> Block:
    """``under`` with the fields that ``over`` was written with."""
    written = {name: getattr(over, name) for name in over.model_fields_set}
    return under.model_copy(update=written)


def without_each(training_of: TrainingOf, fields: Collection[str]) -> TrainingOf:
    """The settings of each protocol as if these fields had not been written."""

    def less(training: Training) -> Training:
        kept = training.model_fields_set - set(fields)
        return Training.model_construct(kept, **{name: getattr(training, name) for name in kept})

    return {protocol: less(training) for protocol, training in training_of.items()}


def overlay_each(under: TrainingOf, over: TrainingOf) -> TrainingOf:
    """The same for each protocol; the fields written in either count as written."""
    both = dict(under)
    for protocol, training in over.items():
        below = under.get(protocol)
        both[protocol] = training if below is None else overlay(below, training)
    return both
