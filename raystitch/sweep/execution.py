"""How the work of a sweep is run: the one block of its file that is in no key."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raystitch.settings import Real, Settings, Whole

Count = Annotated[Whole, Field(ge=1)]


class Execution(Settings):
    """How the work is run: nothing here changes a number or enters a key."""

    threads: Count = Field(
        default=1,
        description="Threads of torch in each worker. Weights come out bit for bit the same only "
        "with the same number, so it is fixed, and the same with and without Ray.",
    )
    device: Literal["cpu", "cuda", "auto"] = Field(
        default="auto", description="Where networks run; `auto`: a GPU where there is one."
    )
    activation_bytes: Whole = Field(
        default=2 * 2**30,
        ge=0,
        description="Bytes of activations a worker keeps in memory; the rest is computed again.",
    )
    cache_bytes: Whole = Field(
        default=8 * 2**30,
        ge=0,
        description="Bytes of activations that the workers of a node share in files on its disk, "
        "what was not used for longest going first (0: none).",
    )
    cache_folder: str | None = Field(
        default=None,
        description="Where these files lie on every node (when absent, a folder of the user's own "
        "among its temporary files).",
    )
    flops_per_byte: Real = Field(
        default=10.0,
        ge=0,
        description="Activations are kept where computing them takes more floating point "
        "operations per byte than this: about 10 on CPUs (0: always).",
    )
    slots: Count | None = Field(
        default=None, description="Workers at once (as many as there is room for)."
    )
    gpus_per_unit: Real = Field(
        default=1.0, gt=0, le=1, description="GPUs that a worker takes: a fraction shares one."
    )
    retries: Whole = Field(
        default=2,
        ge=0,
        description="Times that work is tried again that failed by something around it.",
    )
    progress_seconds: Whole = Field(
        default=1800, ge=1, description="Seconds of silence after which a worker counts as hung."
    )
    state_seconds: Whole = Field(
        default=60, ge=0, description="Seconds between two savings of stitches in training."
    )
