"""What stages hand to a runner and hear of it: plain values that travel to any worker.

A runner is who calls the work: this process alone, or Ray. The work itself (`zoo_stage`,
`iri_sets`, `unit`) is the same for all, and stores what it makes by itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from raystitch.cards import ModelCard
from raystitch.errors import RaystitchError
from raystitch.run.image_sets import ImageShardSpec
from raystitch.run.iri_specs import IriSetSpec, IriShardSpec
from raystitch.sweep.cells import Unit

OnEpoch = Callable[[str, int, float], None]
"""Model, number of the epoch, loss: called as a network trains."""

FailedRows = frozenset[tuple[str, datetime]]
"""Keys of failed rows, and when each was finished."""


@dataclass(frozen=True)
class ModelTask:
    """Make a network unless it is stored, then hold these cuts of it against the whole."""

    model: str
    cuts: tuple[str, ...]


@dataclass(frozen=True)
class BuiltImages:
    """How one shard of images came out.

    failure: what is wrong with the source; incident: what went wrong around the work.
    """

    spec: ImageShardSpec
    failure: str | None = None
    incident: Left | None = None


@dataclass(frozen=True)
class BuiltShard:
    """How one shard of IRIs came out.

    residual: mean over its images; failure: why the set itself cannot be made (its cells fail);
    incident: what went wrong around it (its cells stay pending).
    """

    spec: IriShardSpec
    residual: float | None = None
    failure: str | None = None
    incident: Left | None = None


@dataclass(frozen=True)
class UnitWork:
    """A unit to train, or a part of one; ``failure``: why its IRIs could not be made.

    test_sets: IRIs of test images that cells are measured on, by test marker.
    part: which part of the unit; again: failed rows, by key and time, that do not count as stored.
    """

    unit: Unit
    iri_set: IriSetSpec | None
    part: int = 0
    failure: str | None = None
    again: FailedRows = frozenset()
    test_sets: Mapping[str | None, IriSetSpec] = field(default_factory=dict[str | None, IriSetSpec])

    @property
    def iri_sets(self) -> list[IriSetSpec]:
        """All sets of IRIs that must be there before the unit starts."""
        return [*([] if self.iri_set is None else [self.iri_set]), *self.test_sets.values()]


@dataclass(frozen=True)
class UnitReport:
    """How a unit stands after one of its epochs.

    live: cells still in training; stored: cells that have their row, whoever stored it; failed:
    failed rows of this epoch; latest, agreement: of its last row; resumed: told once, before the
    first epoch: the epoch of the saved state that cells go on from; done: nothing follows; seconds:
    that the unit's worker took for it, storing included; peak_bytes: most memory its process ever
    held, by that of the system (resident, mapped files included).
    """

    unit: str
    part: int
    epoch: int
    live: int
    done: bool
    stored: int
    failed: int = 0
    latest: str = ""
    agreement: float | None = None
    resumed: int | None = None
    seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Left:
    """Work that something around it (a worker, memory, a device) or a failed network left pending.

    what: the network, or the unit in words; reason: in one line; story: all that is known of it.
    """

    what: str
    reason: str
    story: str = ""


def reason_of(error: BaseException) -> str:
    """The first line of an error, with its kind where it is not one of ours."""
    text = (str(error).strip() or "no message").splitlines()[0]
    return text if isinstance(error, RaystitchError) else f"{type(error).__name__}: {text}"


def left_by(error: BaseException, what: str) -> Left:
    """Work that was left because of the error that is being handled."""
    return Left(what, reason_of(error), traceback.format_exc())


def unit_name(unit: Unit) -> str:
    """A unit in words."""
    return f"{unit.front_model} {unit.front_cut} {unit.protocol} seed {unit.seed}"


def images_name(spec: ImageShardSpec) -> str:
    """A shard of images in words."""
    return f"{spec.split} images {spec.start} to {spec.stop} of {spec.images.data.path}"


def iris_name(spec: IriShardSpec) -> str:
    """A set of IRIs in words."""
    return f"IRIs of {spec.iri_set.front_model} {spec.iri_set.cut} seed {spec.iri_set.seed}"


OnReport = Callable[[UnitReport], None]


class Runner(Protocol):
    """Runs the stages of one sweep. Closed at its end, whatever the end is."""

    def build_images(self, specs: Sequence[ImageShardSpec]) -> Iterator[BuiltImages]:
        """Decode and store each shard, in any order."""
        ...

    def make_models(
        self, tasks: Sequence[ModelTask], on_epoch: OnEpoch
    ) -> Iterator[ModelCard | Left]:
        """Make and check each network; its card, or under its name why it cannot be used."""
        ...

    def build_shards(self, specs: Sequence[IriShardSpec]) -> Iterator[BuiltShard]:
        """Build and store each shard, in any order."""
        ...

    def run_units(self, work: Sequence[UnitWork], on_report: OnReport) -> Iterator[Left]:
        """Train each unit, its rows stored as cells end; yields what is left pending."""
        ...

    def close(self) -> None:
        """Give back what was taken; may be called twice."""
        ...
