"""Step rules of IRIs: gradient steps until the residual is the same, and how many images fail.

Each rule makes IRIs of the same images at the blocks of a network of the digits, until an image's
residual is at most the tolerance or its steps run out. A step costs the same under each rule: one
pass of the front forward and back, so steps are what is compared.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
import yaml
from rich.console import Console
from rich.table import Table

from benchmarks import work
from benchmarks.report import JsonFile, write_json
from raystitch.names import IriRule
from raystitch.settings import Iris
from raystitch.stitching.iris import synthesise

RULES: tuple[tuple[IriRule, float], ...] = (
    *(("adam", lr) for lr in (0.01, 0.02, 0.05, 0.1, 0.2)),
    *(("sign", grey / 255) for grey in (1, 2, 4, 8)),
)
SWEEP: dict[str, Any] = {
    "name": "rules",
    "data": "digits",
    "zoo": {"clean": {"arch": "raystitch/cnn5", "seeds": [0], "epochs": 12, "batch": 64}},
    "pairs": [{"front": "clean-0", "end": "clean-0"}],
    "cuts": ["blocks.0", "blocks.2", "blocks.4"],
    "protocols": ["standard"],
    "execution": {"device": "cpu", "threads": 1},
}


def main(
    images: Annotated[int, typer.Option(min=10, help="Images of each set.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps at most.")] = 400,
    tolerance: Annotated[float, typer.Option(help="Residual that ends an image.")] = 0.1,
    json_file: JsonFile = None,
) -> None:
    """Count the steps of each rule of making IRIs to one residual."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yaml"
        file.write_text(yaml.safe_dump(SWEEP | {"stitch_images": images}), encoding="utf-8")
        prepared = work.prepare(file, Path(folder) / "runs")
        found = [
            _run(prepared, cut, rule, lr, steps, tolerance)
            for cut in SWEEP["cuts"]
            for rule, lr in RULES
        ]
    table = Table("cut", "rule", "lr", "mean steps", "not there, %", "mean residual")
    for one in found:
        rate = f"{one['lr'] * 255:g}/255" if one["rule"] == "sign" else f"{one['lr']:g}"
        shown = (f"{one['steps']:.0f}", f"{one['not_there']:.0f}", f"{one['residual']:.3f}")
        table.add_row(one["cut"], one["rule"], rate, *shown)
    Console(width=100).print(table)
    write_json(found, json_file)


def _run(
    prepared: work.Prepared, cut: str, rule: IriRule, lr: float, steps: int, tolerance: float
) -> dict[str, Any]:
    workshop = prepared.workshop
    iris = Iris(rule=rule, lr=lr, steps=steps, tolerance=tolerance, batch=64)
    front, images = workshop.lean_network("clean-0").front(cut), workshop.stitch_images(None)
    made = synthesise(front, images, iris, 0, workshop.device)
    return {
        "cut": cut,
        "rule": rule,
        "lr": lr,
        "steps": float(made.steps.mean()),
        "not_there": 100 * float(np.mean(made.steps >= steps)),
        "residual": float(made.residual.mean()),
    }
