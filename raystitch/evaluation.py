"""The settings of what is measured of a stitch: plain and validated, as those of `settings`."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from raystitch.settings import Real, Settings, Whole


def _switch(value: Any) -> Any:
    """`true` stands for the settings as they are by default, `false` for none."""
    return ({} if value else None) if isinstance(value, bool) else value


class _OrSwitch:
    """Tells the JSON Schema that a block may be written as true or false too."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(core), {"type": "boolean"}]}


class Robust(Settings):
    """APGD-CE, then APGD-DLR on what it did not fool, against the stitched network."""

    eps: Real = Field(default=8 / 255, ge=0, le=1, description="L∞ bound, in pixels of [0, 1].")
    step: Real = Field(
        default=2 / 255,
        gt=0,
        le=1,
        description="First step size, in pixels; halved as APGD says (its authors take 2 eps).",
    )
    steps: Whole = Field(default=20, ge=1, description="Steps of each of the two attacks.")
    images: Whole | None = Field(
        default=None, ge=1, description="Test images that are attacked (all when absent)."
    )


class Representation(Settings):
    """Linear CKA and STIR at the same cuts."""

    images: Whole = Field(default=1024, ge=4, description="Images that are compared, at most.")


class Evaluation(Settings):
    """What is measured of a stitch beside its agreement; each is off unless it is asked for."""

    later: ClassVar[frozenset[str]] = frozenset(
        {"excessive", "robust", "representation", "test_iris"}
    )

    excessive: bool = Field(
        default=False,
        description="Agreement with matching markers less that with markers rolled by one class.",
    )
    robust: Annotated[Robust | None, BeforeValidator(_switch), _OrSwitch()] = Field(
        default=None, description="Accuracy and agreement on images attacked white-box."
    )
    representation: Annotated[Representation | None, BeforeValidator(_switch), _OrSwitch()] = Field(
        default=None, description="CKA, biased and unbiased, and STIR."
    )
    test_iris: bool = Field(
        default=False, description="Agreement on IRIs of the test images (protocols with IRIs)."
    )

    def where(self, *, marker: str | None, iris: bool, control: str | None) -> Evaluation:
        """What applies to cells of this marker, with or without IRIs, of this control.

        What does not apply changes no number, and so is in no key. A control sees no images.
        """
        if control is not None:
            return Evaluation()
        kept = {"excessive": self.excessive and marker is not None}
        return self.model_copy(update={**kept, "test_iris": self.test_iris and iris})
