"""Which inputs a stitch is trained on: a protocol is nothing but that.

`standard`: the images x themselves; `invariance`: their IRIs x′ under the front; `noise`: uniform
noise, without labels; `foreign`: the IRIs of an untrained front of the same architecture. Two more
tell the sides apart: `iris_front` gives x′ to the front and x to the end, `iris_end` x to the front
and x′ to the end. A label is that of x, and the test images are always ordinary ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt

from raystitch.data.scramble import scramble
from raystitch.names import Protocol
from raystitch.seeds import derive


@dataclass(frozen=True)
class ProtocolRule:
    """Where the inputs come from, and whether they have labels.

    inputs: the `real` images, `noise`, or IRIs of the `front` or of its `untrained` twin.
    real: the side that gets the real images in their place, if any.
    """

    inputs: Literal["real", "noise", "front", "untrained"]
    labelled: bool
    real: Literal["front", "end"] | None = None


PROTOCOLS: dict[Protocol, ProtocolRule] = {
    "standard": ProtocolRule("real", labelled=True),
    "invariance": ProtocolRule("front", labelled=True),
    "noise": ProtocolRule("noise", labelled=False),
    "foreign": ProtocolRule("untrained", labelled=True),
    "iris_front": ProtocolRule("front", labelled=True, real="end"),
    "iris_end": ProtocolRule("front", labelled=True, real="front"),
}


def noise_images(
    index: npt.NDArray[np.int64], shape: tuple[int, int, int], seed: int
) -> npt.NDArray[np.uint8]:
    """Uniform noise, one image per entry of ``index``: (n, channels, height, width) uint8.

    Each image depends on ``seed`` and its own index alone.
    """
    pixels = np.arange(prod(shape))
    words = scramble(derive("noise", seed), index[:, None], pixels[None])
    return (words >> np.uint64(56)).astype(np.uint8).reshape(len(index), *shape)
