"""Random views of images, as networks and stitches are trained on them.

Everything is drawn on the CPU from the caller's generator, so that the views are the same on every
device and the global random state stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from raystitch.data.markers import PlantedMarker
from raystitch.names import Augment
from raystitch.zoo.pixels import to_unit

PADDING = 4
"""Pixels of black around an image before `flip_crop` crops it."""

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
"""Share of the area, and width by height, of what `flip_resized_crop` takes (Szegedy 2015)."""


def augment(images: Tensor, kind: Augment, generator: torch.Generator) -> Tensor:
    """A random view of each image: (n, channels, height, width) in [0, 1], of the same shape.

    generator: on the CPU. Every kind but `none` mirrors half of the images; `flip_crop` then crops
    them out of a black frame of 4 pixels, `flip_resized_crop` resizes a random part of each.
    """
    return AUGMENTS[kind](images, generator)


def training_images(
    images: NDArray[np.uint8],
    labels: NDArray[np.int64],
    kind: Augment,
    generator: torch.Generator,
    marker: PlantedMarker | None,
    places: np.random.Generator,
    device: torch.device | str = "cpu",
) -> Tensor:
    """uint8 images (n, channels, height, width) as a training step sees them: float32 in [0, 1].

    A random view of each, then the marker, if there is one, on top of it at a place of ``places``.
    """
    views = augment(to_unit(images, device), kind, generator)
    return views if marker is None else marked(views, labels, marker, places)


def marked(
    views: Tensor, labels: NDArray[np.int64], marker: PlantedMarker, places: np.random.Generator
) -> Tensor:
    """Views in [0, 1] with the marker pasted on them, as pixels of 8 bits."""
    pixels = (views * 255).round().to(torch.uint8).cpu().numpy()
    return to_unit(marker.paste(pixels, labels, places), views.device)


def _none(images: Tensor, generator: torch.Generator) -> Tensor:
    return images


def _flipped(images: Tensor, generator: torch.Generator) -> Tensor:
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def _flip_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    images = _flipped(images, generator)
    count, _, height, width = images.shape
    corner = torch.randint(0, 2 * PADDING + 1, (count, 2), generator=generator).to(images.device)
    framed = F.pad(images, [PADDING] * 4).permute(0, 2, 3, 1)
    rows = corner[:, :1] + torch.arange(height, device=images.device)
    columns = corner[:, 1:] + torch.arange(width, device=images.device)
    one = torch.arange(count, device=images.device)[:, None, None]
    return framed[one, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2).contiguous()


def _flip_resized_crop(images: Tensor, generator: torch.Generator) -> Tensor:
    from torchvision.transforms.v2 import functional as transforms

    size = list(images.shape[2:])
    views = [
        transforms.resized_crop(image, *_part(size, generator), size=size, antialias=True)
        for image in _flipped(images, generator)
    ]
    return torch.stack(views).clamp_(0, 1)


def _part(size: list[int], generator: torch.Generator) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random part of an image of ``size`` (height, width)."""
    height, width = size
    low, high = torch.tensor(RATIO).log().tolist()
    for _ in range(10):
        share, ratio = torch.rand(2, generator=generator).tolist()
        area = height * width * (SCALE[0] + share * (SCALE[1] - SCALE[0]))
        shape = torch.tensor(low + ratio * (high - low)).exp().item()
        h, w = round((area / shape) ** 0.5), round((area * shape) ** 0.5)
        if 0 < h <= height and 0 < w <= width:
            top = torch.randint(height - h + 1, (1,), generator=generator).item()
            left = torch.randint(width - w + 1, (1,), generator=generator).item()
            return int(top), int(left), h, w
    return 0, 0, height, width


AUGMENTS: dict[Augment, Callable[[Tensor, torch.Generator], Tensor]] = {
    "none": _none,
    "flip_crop": _flip_crop,
    "flip_resized_crop": _flip_resized_crop,
}
