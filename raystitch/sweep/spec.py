"""The sweep file as types: what a user can write, with its defaults and limits.

Whatever can change a number is here or in `raystitch.settings`, and so in a cell's key; what only
says how work is run is in `Execution`, and never in a key. `sweep.read` makes a `Sweep` of a file
and finds all its faults; ``Sweep(...)`` in Python raises pydantic's own error at the first few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PrivateAttr,
    Tag,
    model_validator,
)

from raystitch.compute import Compute
from raystitch.evaluation import Evaluation
from raystitch.forms import LIST, MAPPING, TEXT, forms
from raystitch.names import (
    IRI_PROTOCOLS,
    TRAINED_OBJECTIVES,
    Control,
    Objective,
    Preset,
    Protocol,
)
from raystitch.settings import Iris, Marker, Settings, Training, Whole
from raystitch.sweep.execution import Count, Execution
from raystitch.sweep.presets import with_preset
from raystitch.sweep.refusal import each_once
from raystitch.sweep.variants import TrainingOf, Variant, overlay, overlay_each, without_each
from raystitch.sweep.zoo_entry import DataChoice, Seeds, ZooEntry

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Names become names of files and columns."""

SafeName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=100)]
Text = Annotated[str, Field(min_length=1)]
Patterns = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(each_once)]
CutChoice = Annotated[
    Annotated[Text, Tag(TEXT)] | Annotated[Patterns, Tag(LIST)],
    forms("a set, a cut, a glob, or a list of them"),
]
Cuts = Annotated[
    Annotated[Text, Tag(TEXT)]
    | Annotated[Patterns, Tag(LIST)]
    | Annotated[dict[str, CutChoice], Tag(MAPPING)],
    forms("a set, a cut, a glob, a list of them, or one of these for each entry of the zoo"),
]
FulaCuts = Annotated[
    Annotated[Literal["blocks", "paper"], Tag(TEXT)] | Annotated[Patterns, Tag(LIST)],
    forms("`blocks`, `paper`, or a list of cuts"),
]
Models = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(each_once)]


class Pair(Settings):
    """A front and an end to be stitched; models are named ENTRY-SEED, as `clean-0`."""

    front: Text = Field(description="Model that gives the early half.")
    end: Text = Field(description="Model that gives the late half.")
    stitch_marker: Text | None = Field(
        default=None,
        description="Marker in the images that the stitch trains on: the name of a model that "
        "has one, or of an entry of `markers`.",
    )
    test_marker: Text | None = Field(
        default=None, description="Marker in the test images, named likewise."
    )
    control: Control | None = Field(
        default=None,
        description="`class_noise`: in place of the front's activation one random vector for each "
        "class, plus noise. Such a pair is stitched under `standard` alone.",
    )


class Grid(Settings):
    """Every one of some fronts with every one of some ends."""

    fronts: Models = Field(description="Models that give the early half.")
    ends: Models = Field(description="Models that give the late half.")


PairChoice = Annotated[
    Annotated[Literal["all"], Tag(TEXT)]
    | Annotated[Grid, Tag(MAPPING)]
    | Annotated[tuple[Pair, ...], Tag(LIST)],
    forms("`all`, `{fronts: [...], ends: [...]}`, or a list of `{front: ..., end: ...}`"),
]


@dataclass(frozen=True)
class Model:
    """One network of the zoo: its name ENTRY-SEED, its entry's name and its seed."""

    name: str
    entry: str
    seed: int


class Sweep(Settings):
    """A whole sweep file."""

    name: SafeName = Field(description="Name of the sweep and of its folder in the storage.")
    data: DataChoice = Field(description="The images: the name of a source, or a mapping.")
    zoo: dict[SafeName, ZooEntry] = Field(description="The networks, by the name of their entry.")
    markers: dict[SafeName, Marker] = Field(
        default_factory=dict[SafeName, Marker],
        description="Markers that belong to no network, by name: for `stitch_marker` and "
        "`test_marker`.",
    )
    pairs: PairChoice = Field(
        description="What is stitched: `all`, `{fronts, ends}` or a list of pairs."
    )
    cuts: Cuts = Field(
        default="blocks",
        description="Where networks are cut: sets (blocks, stages, paper, all), names, globs, "
        "lists of them, or a mapping with one of these for each entry of the zoo.",
    )
    cross_layer: bool = Field(
        default=False, description="Stitch every cut of a front to every cut of an end."
    )
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1), AfterValidator(each_once)] = (
        Field(default=TRAINED_OBJECTIVES, description="What stitches are trained for.")
    )
    protocols: Annotated[tuple[Protocol, ...], Field(min_length=1), AfterValidator(each_once)] = (
        Field(
            default=("standard", "invariance", "noise"),
            description="Which inputs stitches are trained on.",
        )
    )
    seeds: Seeds = Field(default=(0,), description="Seeds of stitches, batches and IRIs.")
    preset: Preset = Field(
        default="controlled", description="Where the settings of `training` and `iris` start from."
    )
    training: Training = Field(
        default=Training(), description="How stitches are trained, on top of the preset."
    )
    iris: Iris = Field(default=Iris(), description="How IRIs are made, likewise.")
    stitch_images: Count | None = Field(
        default=None, description="Images that stitches train on, class-balanced (all when absent)."
    )
    test_images: Count | None = Field(
        default=None, description="Images that stitches are tested on (all when absent)."
    )
    fula_cuts: FulaCuts = Field(
        default="blocks", description="Cuts of the end that `fula` compares: a set or a list."
    )
    training_of: TrainingOf = Field(
        default_factory=dict[Protocol, Training],
        description="Settings of `training` for one protocol alone.",
    )
    evaluation: Evaluation = Field(
        default=Evaluation(), description="What is measured beside agreement: docs/measures.md."
    )
    compute: Compute = Field(
        default=Compute(), description="How frozen networks compute: docs/performance.md."
    )
    variants: dict[SafeName, Variant] = Field(
        default_factory=dict[SafeName, Variant],
        description="The whole sweep once more with other settings, by the variant's name.",
    )
    budget: Whole = Field(
        default=1,
        ge=1,
        description="Multiplies epochs, least epochs and steps, and patience: a control.",
    )
    execution: Execution = Field(
        default=Execution(), description="How the work is run; never changes a number."
    )
    _pair_numbers: tuple[int, ...] = PrivateAttr(())

    @model_validator(mode="before")
    @classmethod
    def _start_from_preset(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return with_preset(values)

    def models(self) -> dict[str, Model]:
        """All networks of the zoo, by name, in the file's order."""
        found = [
            Model(f"{entry}-{seed}", entry, seed)
            for entry, fields in self.zoo.items()
            for seed in fields.seeds
        ]
        return {model.name: model for model in found}

    def pair_list(self) -> list[tuple[str, Pair]]:
        """The pairs, each with its place in the file."""
        if isinstance(self.pairs, tuple):
            return [(f"pairs[{number}]", pair) for number, pair in self.numbered_pairs()]
        if isinstance(self.pairs, Grid):
            fronts, ends = self.pairs.fronts, self.pairs.ends
        else:
            fronts = ends = tuple(self.models())
        return [("pairs", Pair(front=front, end=end)) for front in fronts for end in ends]

    def numbered_pairs(self) -> list[tuple[int, Pair]]:
        """Listed pairs, each with its place in the file's list; none where pairs are no list."""
        if not isinstance(self.pairs, tuple):
            return []
        return list(zip(self.pair_numbers(), self.pairs, strict=True))

    def used_models(self) -> dict[str, Model]:
        """The networks that some pair stitches, by name, in the zoo's order."""
        used = {name for _, pair in self.pair_list() for name in (pair.front, pair.end)}
        return {name: model for name, model in self.models().items() if name in used}

    def marker_of(self, name: str | None) -> Marker | None:
        """The marker of that name or model with its seed filled in; None for None."""
        if name is None:
            return None
        if name in self.markers:
            return self.markers[name].with_seed(0)
        found = self.models()[name]
        return self.zoo[found.entry].marker_of(found.seed)

    def varied(self, variant: str | None) -> Sweep:
        """The sweep in one of its variants; as it is for None."""
        if variant is None:
            return self
        other = self.variants[variant]
        kept = without_each(self.training_of, other.training.model_fields_set)
        changes = {
            "training": overlay(self.training, other.training),
            "training_of": overlay_each(kept, other.training_of),
            "iris": overlay(self.iris, other.iris),
            "budget": other.budget or self.budget,
        }
        return self.model_copy(update=changes)

    def training_under(self, protocol: Protocol) -> Training:
        """How stitches are trained under that protocol."""
        own = self.training_of.get(protocol)
        found = self.training if own is None else overlay(self.training, own)
        if protocol == "standard" and found.init_images == "real":
            # Its own inputs are the real images: one start, and so one key.
            return found.model_copy(update={"init_images": "own"})
        return found

    def trainings(self) -> list[Training]:
        """Every training that some protocol has in some variant."""
        varied = [self.varied(variant) for variant in (None, *self.variants)]
        return [sweep.training_under(protocol) for sweep in varied for protocol in self.protocols]

    def evaluation_of(
        self,
        stitch_marker: str | None,
        test_marker: str | None,
        protocol: Protocol,
        control: str | None,
    ) -> Evaluation:
        """What is measured of cells of these markers, this protocol and this control."""
        marker = test_marker or stitch_marker
        return self.evaluation.where(marker=marker, iris=protocol in IRI_PROTOCOLS, control=control)

    def cuts_of(self, entry: str) -> str | tuple[str, ...] | None:
        """What ``cuts`` says for that entry; None where a mapping leaves it out."""
        return self.cuts.get(entry) if isinstance(self.cuts, dict) else self.cuts

    def pair_numbers(self) -> tuple[int, ...]:
        """The places of listed pairs in the file's list."""
        assert isinstance(self.pairs, tuple)
        return self._pair_numbers or tuple(range(len(self.pairs)))

    def number_pairs(self, numbers: tuple[int, ...]) -> None:
        """Remember the places of the pairs in a file from which faulty ones were cut out."""
        assert isinstance(self.pairs, tuple)
        assert len(numbers) == len(self.pairs)
        self._pair_numbers = numbers


def schema() -> dict[str, Any]:
    """The JSON Schema of a sweep file, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Sweep.model_json_schema(),
        "title": "A raystitch sweep file",
    }
