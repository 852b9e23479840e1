"""The settings of how frozen networks compute: plain and validated, as those of `settings`.

Each of them changes numbers a little (in the last bits, `bfloat16` in the third digit), so each is
part of a cell's key once it is used, and of the `settings` of its row.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from raystitch.settings import Settings


class Compute(Settings):
    """How the frozen halves of networks compute. The defaults are plain PyTorch in float32."""

    later: ClassVar[frozenset[str]] = frozenset(
        {"layout", "fold_bn", "precision", "compile", "keep"}
    )

    layout: Literal["contiguous", "channels_last"] = Field(
        default="contiguous",
        description="Memory layout of feature maps; `channels_last` is the faster one for "
        "convolutions on CPUs and GPUs.",
    )
    fold_bn: bool = Field(
        default=False,
        description="BatchNorm in evaluation mode is folded into the convolution before it "
        "(where `bn: batch` trains on batch statistics it cannot be, and is not).",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="`bfloat16`: autocast of the frozen halves; stitches and losses stay float32.",
    )
    compile: bool = Field(
        default=False,
        description="Halves go through `torch.compile` (needs a C++ compiler; for GPUs and large "
        "networks: each half takes long to compile).",
    )
    keep: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32",
        description="Activations and targets are rounded to this, kept or not; the row's "
        "`keep_error` is the largest relative error of it.",
    )

    def of_iris(self) -> Compute:
        """What applies to IRIs: they keep no activations."""
        return self.model_copy(update={"keep": "float32"})
