"""The presets: named starting points for the settings of stitches and IRIs."""

from __future__ import annotations

from typing import Any

from raystitch.names import Preset

PRESETS: dict[Preset, dict[str, dict[str, Any]]] = {
    # Its values are the defaults of `settings.Training` and `settings.Iris`.
    "controlled": {"training": {}, "iris": {}},
    # As in the published runs (method: training the stitch, IRIs), but for what `CANNOT` names.
    "published": {
        "training": {
            "init": "lstsq",
            "init_images": "real",
            "init_count": 500,
            "lr": 1e-3,
            "weight_decay": 1e-4,
            "batch": 128,
            "drop_last": True,
            "schedule": "step",
            "epochs": 30,
        },
        "iris": {
            "rule": "sign",
            "lr": 1 / 255,
            "steps": 200,
            "tolerance": 0.0,
            "keep": "last",
            "rounding": "truncate",
        },
    },
}

MUST_BE_WRITTEN: dict[Preset, tuple[str, ...]] = {"published": ("bn", "augment")}
"""Fields of `training` without a value in a preset, so that the sweep file must give them."""

CANNOT: dict[Preset, str] = {
    "published": (
        "the published runs also used batch statistics (`bn: batch`) and augmented images, which "
        "this release cannot do; write `training: {bn: eval, augment: none}` to take the rest of "
        "the published settings without these two"
    )
}
