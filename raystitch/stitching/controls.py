"""Stand-ins for a front's activation: what stitches in though it has seen no image.

`class_noise`: one random vector per class, plus noise. It gives the class away and nothing else,
and under the standard protocol it stitches in as well as a network does (Smith 2025).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raystitch.cards import CutCard
from raystitch.data.scramble import scramble
from raystitch.seeds import derive
from raystitch.stitching.objectives import Answer

NOISE_DEVIATION = 1.0
"""Of the noise on each element; the vectors' own elements have deviation 1."""


class ClassNoise:
    """In place of a front: at each position of its cut the vector of the image's class, and noise.

    labels, index: (n,) of the images it stands for; salt: sets test images apart from others.
    Answers depend on seed, salt, label and index alone.
    """

    def __init__(
        self,
        cut: CutCard,
        labels: npt.NDArray[np.int64],
        index: npt.NDArray[np.int64],
        seed: int,
        salt: str,
        device: torch.device,
    ) -> None:
        self.cut, self.labels, self.index, self.device = cut, labels, index, device
        self.vectors, self.noise = derive("class vectors", seed), derive("class noise", seed, salt)

    def __len__(self) -> int:
        return len(self.labels)

    def __call__(self, positions: Tensor) -> Answer:
        chosen = positions.numpy()
        channels = np.arange(self.cut.channels)
        vectors = _normal(self.vectors, self.labels[chosen][:, None], channels[None])
        shape = self.cut.shape
        if self.cut.kind == "map":
            spread = vectors[:, :, None, None]
        else:
            spread = vectors.reshape(len(chosen), *(1,) * (len(shape) - 1), len(channels))
        elements = np.arange(int(np.prod(shape)))
        noise = _normal(self.noise, self.index[chosen][:, None], elements[None])
        activation = spread + NOISE_DEVIATION * noise.reshape(len(chosen), *shape)
        found = torch.from_numpy(activation.astype(np.float32)).to(self.device)
        return Answer({self.cut.name: found})


def _normal(seed: int, *parts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard normal numbers (Box and Muller 1958) that depend on seed and parts alone."""
    first, second = (scramble(seed, salt, *parts) for salt in (1, 2))
    uniform = ((first >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
    angle = (second >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.sqrt(-2 * np.log(uniform)) * np.cos(2 * np.pi * angle)
