"""The reference vectors of the published implementation, as tensors."""

import json
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).with_name("objectives_and_metrics.json")
TOLERANCE = 1e-5


def load() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def tensor(stored: list[Any]) -> torch.Tensor:
    """[shape, flat values] -> tensor."""
    shape, values = stored
    return torch.tensor(values).reshape(shape)
