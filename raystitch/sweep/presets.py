"""The presets: named starting points for the settings of stitches and IRIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raystitch.names import Preset
from raystitch.settings import Settings

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


def with_preset(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a sweep file says, on top of what its preset says; as it is where there is no such one.

    What the file writes in `training` for all protocols goes over what the preset says for one.
    """
    preset = values.get("preset", "controlled")
    if not isinstance(preset, str) or preset not in PRESETS:
        return {**values}
    blocks = {**PRESETS[preset]}
    if "training_of" in blocks:
        blocks["training_of"] = _without(blocks["training_of"], values.get("training"))
    return {**values, **{name: _filled(block, values.get(name)) for name, block in blocks.items()}}


def _without(training_of: Mapping[str, Any], written: Any) -> dict[str, dict[str, Any]]:
    """The preset's settings of each protocol less those that ``training`` was written with."""
    if isinstance(written, Settings):
        written = written.model_fields_set
    names = set[str](written) if isinstance(written, Mapping | set) else set[str]()
    return {
        protocol: {name: value for name, value in own.items() if name not in names}
        for protocol, own in training_of.items()
    }


def _filled(preset: Any, given: Any) -> Any:
    """What is given, on top of what the preset says."""
    if given is None:
        return preset
    block = given.model_dump(exclude_unset=True) if isinstance(given, Settings) else given
    if not isinstance(preset, Mapping) or not isinstance(block, Mapping):
        return block
    mine: dict[Any, Any] = {**preset}
    return {**mine, **{name: _filled(mine.get(name), value) for name, value in block.items()}}
