"""Encoded images to pixels: decoded by Pillow to RGB, resized and cropped as torchvision does."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from raystitch import settings
from raystitch.errors import RaystitchError

Encoded = tuple[str, Path | bytes]
"""Where an image lies, in words, and its file or its bytes."""

Size = tuple[int, int]
"""Height and width."""


def decode(images: Iterable[Encoded], data: settings.Data) -> NDArray[np.uint8]:
    """Encoded images of one size once fitted, as uint8 (n, 3, height, width).

    Raises `RaystitchError` with the place of one that cannot be decoded.
    """
    return np.stack([_decoded(where, image, data) for where, image in images])


def fit(images: NDArray[np.uint8], data: settings.Data) -> NDArray[np.uint8]:
    """Images already decoded, (n, height, width, 3), resized and cropped: (n, 3, height, width)."""
    if data.resize is None and data.crop is None:
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    fitted = [_fitted(Image.fromarray(image), data) for image in images]
    return np.stack([_channels_first(image) for image in fitted])


def fitted_size(size: Size, data: settings.Data, where: str) -> Size:
    """Height and width of an image once resized and cropped.

    Raises `RaystitchError` where it is smaller than the crop.
    """
    height, width = resized_size(size, data.resize)
    if data.crop is None:
        return height, width
    if min(height, width) < data.crop:
        raise RaystitchError(
            f"data.crop: {data.crop} is larger than {where} ({height} × {width}); use a smaller "
            f"crop, or `resize: {data.crop}` before it."
        )
    return data.crop, data.crop


def resized_size(size: Size, side: int | None) -> Size:
    """Height and width with the shorter side ``side``; the longer one is rounded down."""
    if side is None:
        return size
    height, width = size
    if height <= width:
        return side, int(side * width / height)
    return int(side * height / width), side


def common_size(images: Iterator[Encoded], data: settings.Data) -> Size:
    """The one size that all images have once fitted, from their headers alone.

    With both `resize` and `crop` it follows from these, and no image is looked at. Raises
    `RaystitchError` where sizes differ, or a file is no image.
    """
    if data.crop is not None and data.resize is not None:
        return data.crop, data.crop
    first: tuple[Size, str] | None = None
    for where, image in images:
        size = fitted_size(_header(where, image), data, where)
        if first is None:
            first = size, where
        elif size != first[0]:
            raise RaystitchError(
                f"data: images differ in size ({first[1]} is {first[0][0]} × {first[0][1]}, "
                f"{where} {size[0]} × {size[1]}): give `resize: N` and `crop: N`, which make all "
                "of them N × N."
            )
    assert first is not None, "no image to look at"
    return first[0]


def _header(where: str, image: Path | bytes) -> Size:
    try:
        with Image.open(_opened(image)) as opened:
            return opened.height, opened.width
    except Exception as error:  # whatever a decoder makes of arbitrary bytes
        raise _no_image(where, error) from error


def _decoded(where: str, image: Path | bytes, data: settings.Data) -> NDArray[np.uint8]:
    try:
        with Image.open(_opened(image)) as opened:
            found = opened.convert("RGB")
    except Exception as error:  # whatever a decoder makes of arbitrary bytes
        raise _no_image(where, error) from error
    fitted_size((found.height, found.width), data, where)
    return _channels_first(_fitted(found, data))


def _no_image(where: str, error: Exception) -> RaystitchError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return RaystitchError(f"data: {where} is no image that can be decoded ({reason}); replace it.")


def _opened(image: Path | bytes) -> Path | io.BytesIO:
    return io.BytesIO(image) if isinstance(image, bytes) else image


def _fitted(image: Image.Image, data: settings.Data) -> Image.Image:
    """Shorter side to `resize` (bilinear, antialiased), then the middle `crop` × `crop`."""
    height, width = resized_size((image.height, image.width), data.resize)
    if (height, width) != (image.height, image.width):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    if data.crop is None:
        return image
    top, left = round((height - data.crop) / 2), round((width - data.crop) / 2)
    return image.crop((left, top, left + data.crop, top + data.crop))


def _channels_first(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image, np.uint8).transpose(2, 0, 1)
