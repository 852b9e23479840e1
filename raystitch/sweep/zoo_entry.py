"""One entry of a sweep file's zoo: an architecture, where its weights come from, its seeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from raystitch.errors import choices
from raystitch.names import RecipeName
from raystitch.settings import Data, Marker, Real, Recipe, RecipeFields, Whole
from raystitch.sweep.refusal import each_once, refuse

LIBRARIES = ("raystitch", "torchvision", "timm")
WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt")
RESERVED_KWARGS = ("pretrained", "num_classes", "weights")
"""Arguments of an architecture that follow from the rest of the file."""

ROBUST_FIELDS = ("eps", "step", "attack_steps", "share")
"""Fields of a recipe that only `robust` has a use for."""

SIMCLR_FIELDS = ("temperature", "hidden", "projection", "linear_epochs", "linear_lr")
"""Fields of a recipe that only `simclr` has a use for."""

OTHERS_FIELDS: dict[RecipeName, tuple[str, ...]] = {
    "standard": (*ROBUST_FIELDS, *SIMCLR_FIELDS),
    "robust": SIMCLR_FIELDS,
    "simclr": (*ROBUST_FIELDS, "augment"),
}
"""Fields that a recipe has no use for; SimCLR has views of its own."""

RECIPE_FIELDS = tuple(RecipeFields.model_fields)


class _OrSourceName:
    """Tells the JSON Schema that `digits`, which lies in no folder, may stand by its name alone."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "enum": ["digits"]}, handler(core)]}


def _data_of_name(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


DataChoice = Annotated[Data, BeforeValidator(_data_of_name), _OrSourceName()]

Seed = Annotated[Whole, Field(ge=0)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(each_once)]


class ZooEntry(RecipeFields):
    """Networks of one architecture that differ in their seed alone, named ENTRY-SEED.

    Their weights are trained by the sweep (the fields of the recipe say how), unless ``weights``
    or ``pretrained`` says that they are there already.
    """

    arch: str = Field(
        description="Architecture: `raystitch/NAME`, `torchvision/NAME` or `timm/NAME`."
    )
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Arguments of the architecture, as its library takes them.",
    )
    seeds: Seeds = Field(
        default=(0,), description="One network per seed (initial weights, training)."
    )
    weights: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="File with the weights: .safetensors, .pth or .pt; its folder is counted from "
        "the sweep file's.",
    )
    pretrained: bool = Field(
        default=False, description="Take the weights that the library publishes."
    )
    mean: tuple[Real, ...] | None = Field(
        default=None, description="Normaliser: mean of each channel, in pixels of [0, 1]."
    )
    std: tuple[Annotated[Real, Field(gt=0)], ...] | None = Field(
        default=None, description="Normaliser: deviation of each channel, in pixels of [0, 1]."
    )
    data: DataChoice | None = Field(
        default=None,
        description="The images that these networks are trained on and their accuracies measured "
        "on: as the sweep's own `data`, which they are when this is absent.",
    )
    marker: Marker | None = Field(
        default=None, description="Cue planted in the images that the sweep trains this network on."
    )
    recipe: RecipeName = Field(
        default="standard",
        description="How the sweep trains it: `standard`, `robust` (Madry PGD), `simclr` or "
        "`untrained`.",
    )

    @property
    def trained_here(self) -> bool:
        """Whether the sweep makes the weights."""
        return self.weights is None and not self.pretrained

    def to_recipe(self) -> Recipe:
        """The recipe of a network that the sweep trains; a PGD step is eps / 4 unless given."""
        assert self.trained_here
        fields = {name: getattr(self, name) for name in RECIPE_FIELDS}
        if "eps" in self.model_fields_set and "step" not in self.model_fields_set:
            fields["step"] = self.eps / 4
        return Recipe(name=self.recipe, **fields)

    def marker_of(self, seed: int) -> Marker | None:
        """The marker of the network with that seed, its own seed filled in."""
        return None if self.marker is None else self.marker.with_seed(seed)

    @model_validator(mode="after")
    def _consistent(self) -> ZooEntry:
        for field, sentence in self._faults():
            raise refuse(sentence, field)
        return self

    def _faults(self) -> Iterator[tuple[str, str]]:
        yield from self._architecture_faults()
        yield from self._normaliser_faults()
        yield from self._recipe_faults() if self.trained_here else self._ready_made_faults()

    def _architecture_faults(self) -> Iterator[tuple[str, str]]:
        library, slash, name = self.arch.partition("/")
        if not (slash and name):
            yield "arch", f"{self.arch!r} should be LIBRARY/NAME, as `raystitch/cnn5`"
        elif library not in LIBRARIES:
            yield "arch", f"the library {choices(library, LIBRARIES)}"
        for name in RESERVED_KWARGS:
            if name in self.kwargs:
                yield f"kwargs.{name}", "is set by the rest of the file; leave it out of `kwargs`"

    def _normaliser_faults(self) -> Iterator[tuple[str, str]]:
        if (self.mean is None) != (self.std is None):
            there, absent = ("mean", "std") if self.std is None else ("std", "mean")
            yield there, f"needs `{absent}` beside it; give both or neither"
        elif self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            yield "std", f"has {len(self.std)} channels where `mean` has {len(self.mean)}"
        for field, values in (("mean", self.mean or ()), ("std", self.std or ())):
            if far := [value for value in values if not 0 <= value <= 1]:
                sentence = "is not in [0, 1], as pixels are; divide figures of 0 to 255 by 255"
                yield field, f"{far[0]:g} {sentence}"

    def _recipe_faults(self) -> Iterator[tuple[str, str]]:
        for field in RECIPE_FIELDS:
            if field not in self.model_fields_set:
                continue
            if self.recipe == "untrained":
                yield field, "an `untrained` network has no use for it; leave it out"
            elif field in OTHERS_FIELDS[self.recipe]:
                yield field, f"has no use in `recipe: {self.recipe}`; leave it out"
        if self.recipe == "untrained" and self.marker is not None:
            yield "marker", "an `untrained` network sees no images to mark; leave it out"

    def _ready_made_faults(self) -> Iterator[tuple[str, str]]:
        # Last what a reader goes on without: the recipe's name takes its numbers along, the weights
        # take what they exclude.
        source = "weights" if self.weights is not None else "pretrained"
        if self.weights is not None and self.pretrained:
            yield "pretrained", "`weights` already says where the weights are; give one of the two"
        if len(self.seeds) > 1:
            yield "seeds", f"with `{source}` all seeds would be one network; give one seed"
        for field in ("marker", *RECIPE_FIELDS, "recipe"):
            if field in self.model_fields_set:
                yield field, f"is for networks trained by the sweep; `{source}` gives the weights"
        if self.weights is not None and PurePath(self.weights).suffix not in WEIGHT_SUFFIXES:
            suffix = PurePath(self.weights).suffix
            yield "weights", f"the file ending {choices(suffix, WEIGHT_SUFFIXES)}"
        if self.pretrained and self.arch.startswith("raystitch/"):
            yield "pretrained", "raystitch publishes no weights; train it here or give `weights`"
