"""Small sweeps on the embedded digits, run in this process."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from raystitch.results.store import Storage
from raystitch.run import runners
from raystitch.run.pipeline import Outcome, run_sweep
from raystitch.run.planning import load_sweep
from raystitch.run.progress import Reporter
from raystitch.run.runners import Start

SMALL: dict[str, Any] = {
    "name": "small",
    "data": "digits",
    "zoo": {"net": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1]}},
    "pairs": [{"front": "net-1", "end": "net-0"}],
    "cuts": ["blocks.2", "blocks.4"],
    "objectives": ["hlm", "slm", "dm", "fula"],
    "protocols": ["standard", "invariance", "noise"],
    "stitch_images": 60,
    "test_images": 50,
    "training": {"epochs": 2, "batch": 32, "init_count": 60},
    "iris": {"steps": 5, "batch": 32},
    "execution": {"threads": 1, "device": "cpu"},
}


def write(folder: Path, **changes: Any) -> Path:
    """A sweep file: `SMALL` with these fields replaced."""
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes}), encoding="utf-8")
    return path


def run(
    path: Path,
    root: Path,
    *,
    retry_failed: bool = False,
    start: Start = runners.local,
    **limits: Any,
) -> Outcome:
    """Run a sweep file into the storage at ``root``."""
    context = load_sweep(path, Storage(root), **limits)
    reporter = Reporter(Console(file=io.StringIO(), width=100))
    return run_sweep(context, reporter, start=start, retry_failed=retry_failed)
