"""The one way from stored images to what networks take."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_unit(images: NDArray[Any], device: torch.device | str = "cpu") -> Tensor:
    """uint8 images (n, channels, height, width) as float32 in [0, 1] on ``device``."""
    return torch.tensor(images, device=device).to(torch.float32) / 255
