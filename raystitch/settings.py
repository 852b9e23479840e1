"""The settings that can change a number: plain, frozen, validated, without torch.

The sweep file is made of these and the science takes them as they are, so that a setting is
declared, documented and bounded once. Whatever lives here is part of a cell's key; what only says
*where* work runs lives in the sweep file's ``execution`` block and never enters a key.

A field that a later release adds is named in its class's ``later``: at its default it is left out
of the key, so that stored work stays stored (see ``sweep.keys``).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from raystitch.errors import refuse
from raystitch.forms import LIST, TEXT, forms
from raystitch.names import (
    Augment,
    Init,
    IriRule,
    MarkerKind,
    MarkerPlace,
    RecipeName,
    Schedule,
    Source,
)


def _number(value: Any) -> Any:
    """Read ``8/255`` and ``1e-4`` (which YAML 1.1 takes for a string) as numbers."""
    if isinstance(value, bool):
        raise ValueError("should be a number, not true or false")
    if isinstance(value, str):
        try:
            return float(Fraction(value.replace(" ", ""))) if "/" in value else float(value)
        except (ValueError, ZeroDivisionError):
            return value
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("should be a whole number, not true or false")
    return value


def _text(value: Any) -> Any:
    """A class named by its number is its name."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class _OrFraction:
    """Tells the JSON Schema that a number may be written as ``8/255`` too."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        fraction = {"type": "string", "pattern": r"^\s*[-+0-9.eE]+\s*(/\s*[-+0-9]+\s*)?$"}
        return {"anyOf": [handler(core), fraction]}


Real = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False), _OrFraction()]
Whole = Annotated[int, BeforeValidator(_whole)]


class Settings(BaseModel):
    """Base of every settings model: unknown fields are faults, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    later: ClassVar[frozenset[str]] = frozenset()
    """Fields added after the first release: left out of the key at their default."""


Classes = Annotated[
    Annotated[str, Field(min_length=1), Tag(TEXT)]
    | Annotated[tuple[Annotated[str, BeforeValidator(_text)], ...], Field(min_length=2), Tag(LIST)],
    forms("a list of classes, or a file with one a line"),
]


class Data(Settings):
    """The images: a named source, where it lies, optionally some of its classes and images."""

    source: Source = Field(
        default="digits", description="Kind of data set: how it lies on disk, or `digits`."
    )
    path: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="Its folder (`npz`: its file), counted from the sweep file's folder.",
    )
    classes: Classes | None = Field(
        default=None,
        description="Only these classes, labelled in this order: a list, or a file with one a line "
        "(all when absent).",
    )
    resize: Whole | None = Field(
        default=None, ge=1, description="Length of the shorter side, in pixels (bilinear)."
    )
    crop: Whole | None = Field(
        default=None, ge=1, description="Side of the square cut out of the middle, in pixels."
    )
    verify: bool = Field(
        default=True,
        description="`cifar10`, `cifar100`: refuse files that are not the official ones.",
    )
    train: Whole | None = Field(
        default=None, ge=1, description="Use only this many training images (all when absent)."
    )
    test: Whole | None = Field(
        default=None, ge=1, description="Use only this many test images (all when absent)."
    )

    @model_validator(mode="after")
    def _fits_its_source(self) -> Data:
        stored = self.source != "digits"
        if stored and self.path is None:
            raise refuse(f"is missing; say where the data set `{self.source}` lies", "path")
        for field in ("path", "classes", "resize", "crop"):
            if not stored and getattr(self, field) is not None:
                raise refuse("has no use for `digits`, which are part of raystitch", field)
        if not self.verify and not self.source.startswith("cifar"):
            raise refuse(f"is for `cifar10` and `cifar100`, and this is `{self.source}`", "verify")
        if self.crop is not None and self.resize is not None and self.crop > self.resize:
            raise refuse(
                f"is larger than `resize: {self.resize}`; it should be at most that", "crop"
            )
        return self


class Marker(Settings):
    """A planted cue: a patch whose colour gives the class away, or one of noise (the control)."""

    kind: MarkerKind = Field(
        default="pixel",
        description="`pixel`: a solid square, one colour per class; `noise`: a square of random "
        "noise, which says nothing of the class (a control).",
    )
    size: Whole | None = Field(
        default=None,
        ge=1,
        description="Side of the square, in pixels (when absent an eighth of the image, at least "
        "4: 4 at 16 and 32 pixels, 28 at 224).",
    )
    place: MarkerPlace = Field(
        default="random",
        description="`random`: anywhere, anew per image; `per_class`: a place per class.",
    )
    seed: Whole | None = Field(
        default=None,
        ge=0,
        description="Seed of colours and places (when absent the network's own, or 0 for a "
        "marker that belongs to no network).",
    )

    @model_validator(mode="after")
    def _gives_nothing_away(self) -> Marker:
        if self.kind == "noise" and self.place == "per_class":
            sentence = (
                "is `per_class`, which would give the class away where `noise` is the control that "
                "does not; use `random`"
            )
            raise refuse(sentence, "place")
        return self

    def with_seed(self, seed: int) -> Marker:
        """The marker with that seed where it has none of its own."""
        return self if self.seed is not None else self.model_copy(update={"seed": seed})


class RecipeFields(Settings):
    """The numbers of a recipe, as a zoo entry of the sweep file writes them too."""

    later: ClassVar[frozenset[str]] = frozenset(
        {"augment", "temperature", "hidden", "projection", "linear_epochs", "linear_lr"}
    )

    epochs: Whole = Field(
        default=200, ge=1, description="Epochs; lr falls tenfold at one and two thirds."
    )
    batch: Whole = Field(default=128, ge=2, description="Images per step.")
    lr: Real = Field(default=0.1, gt=0, description="Learning rate of SGD with Nesterov momentum.")
    momentum: Real = Field(default=0.9, ge=0, lt=1, description="Nesterov momentum.")
    weight_decay: Real = Field(default=1e-4, ge=0, description="Coupled L2 weight decay.")
    eps: Real = Field(
        default=8 / 255, ge=0, le=1, description="Robust: L∞ bound, in pixels of [0, 1]."
    )
    step: Real = Field(
        default=2 / 255, ge=0, le=1, description="Robust: size of a PGD step, in pixels."
    )
    attack_steps: Whole = Field(default=10, ge=1, description="Robust: PGD steps.")
    share: Real = Field(
        default=0.5, ge=0, le=1, description="Robust: attacked share of each batch."
    )
    augment: Augment = Field(
        default="none", description="Random views of the images, one per image and epoch."
    )
    temperature: Real = Field(default=0.5, gt=0, description="SimCLR: temperature of NT-Xent.")
    hidden: Whole = Field(default=1024, ge=1, description="SimCLR: width of the projector …")
    projection: Whole = Field(default=128, ge=1, description="… and of what it gives.")
    linear_epochs: Whole = Field(
        default=100, ge=1, description="SimCLR: epochs of the linear classifier on the frozen rest."
    )
    linear_lr: Real = Field(default=0.1, gt=0, description="SimCLR: its learning rate.")


class Recipe(RecipeFields):
    """How a network of the zoo is trained (method: the zoo and the data)."""

    name: RecipeName = Field(
        default="standard",
        description="`standard`; `robust`: Madry PGD on a share of each batch; `simclr`: "
        "contrastive, then a linear classifier; `untrained`.",
    )


class Training(Settings):
    """How a stitch is trained. The defaults are the preset `controlled`."""

    later: ClassVar[frozenset[str]] = frozenset(
        {"dropout", "attack_share", "attack_eps", "attack_step", "attack_steps"}
    )

    bn: Literal["eval", "batch"] = Field(
        default="eval",
        description="`eval`: BatchNorm does not move; `batch`: frozen halves train on batch "
        "statistics, and private copies of their running statistics drift.",
    )
    dropout: bool = Field(
        default=False, description="Dropout of the frozen halves is on while a stitch trains."
    )
    augment: Augment = Field(
        default="none",
        description="Random views of the images that a stitch trains on, one per image and epoch.",
    )
    init: Init = Field(
        default="lstsq", description="Start: least squares, the layer's own, or identity."
    )
    init_images: Literal["own", "real"] = Field(
        default="own", description="Least squares on the cell's own inputs or on the real images."
    )
    init_count: Whole = Field(
        default=500,
        ge=1,
        description="Images for least squares; more are drawn where these are too few.",
    )
    lr: Real = Field(default=0.01, gt=0, description="Learning rate of Adam.")
    weight_decay: Real = Field(
        default=1e-4, ge=0, description="Coupled L2 weight decay, bias included."
    )
    attack_share: Real = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of each batch replaced by PGD images against the stitched network.",
    )
    attack_eps: Real = Field(
        default=8 / 255, ge=0, le=1, description="… their L∞ bound, in pixels of [0, 1] …"
    )
    attack_step: Real = Field(
        default=2 / 255, ge=0, le=1, description="… the size of a step, in pixels …"
    )
    attack_steps: Whole = Field(default=10, ge=1, description="… and the number of steps.")
    batch: Whole = Field(default=128, ge=1, description="Images per step.")
    drop_last: bool = Field(
        default=False, description="Leave out each epoch's last, smaller batch."
    )
    schedule: Schedule = Field(
        default="plateau",
        description="`plateau`: by the cell's own held-out loss; `step`: ×0.1 at ⅓ and ⅔.",
    )
    epochs: Whole = Field(
        default=200, ge=1, description="At most (plateau) or exactly (step) so many."
    )
    min_epochs: Whole = Field(
        default=30, ge=0, description="Plateau: no stop before so many epochs …"
    )
    min_steps: Whole = Field(
        default=1000, ge=0, description="… or so many steps, whichever is fewer."
    )
    patience: Whole = Field(default=3, ge=1, description="Plateau: epochs without improvement.")
    threshold: Real = Field(
        default=0.005, ge=0, lt=1, description="Plateau: relative improvement needed."
    )
    held_out: Real = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Plateau: share of the cell's own inputs kept for its curve.",
    )

    @property
    def live(self) -> bool:
        """Whether the frozen halves answer anew for every batch: nothing can be kept."""
        changing = self.bn == "batch" or self.dropout or self.augment != "none"
        return changing or self.attack_share > 0

    @property
    def alone(self) -> bool:
        """Whether a stitch drifts the front by images of its own, and so shares none."""
        return self.bn == "batch" and self.attack_share > 0

    def held_out_of(self, images: int) -> int:
        """How many of so many own inputs are kept for the curve."""
        return max(1, round(images * self.held_out)) if self.schedule == "plateau" else 0


class Iris(Settings):
    """How IRIs are made. The defaults are the preset `controlled`."""

    rule: IriRule = Field(
        default="adam", description="Step rule: `adam`, or the `sign` of the gradient."
    )
    lr: Real = Field(default=0.05, gt=0, description="Step size, in pixels of [0, 1].")
    steps: Whole = Field(default=200, ge=1, description="Steps at most.")
    tolerance: Real = Field(
        default=0.1,
        ge=0,
        description="An image stops when its residual falls to this (0: never), so that all "
        "fronts' IRIs are about as near.",
    )
    keep: Literal["last", "best"] = Field(default="last", description="The iterate that is stored.")
    rounding: Literal["nearest", "truncate"] = Field(
        default="nearest", description="To uint8; the published runs truncate."
    )
    batch: Whole = Field(
        default=128, ge=2, description="Fixed compute batch; short ones are padded."
    )
