"""The presets: named starting points for the settings of stitches and IRIs."""

from __future__ import annotations

from typing import Any

from raystitch.names import Preset

PRESETS: dict[Preset, dict[str, dict[str, Any]]] = {
    # Its values are the defaults of `settings.Training` and `settings.Iris`.
    "controlled": {},
    # As in the published runs on images of 32 × 32 (method: training the stitch, IRIs).
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
        "training_of": {"standard": {"bn": "batch", "dropout": True, "augment": "flip_crop"}},
    },
}
