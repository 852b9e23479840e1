"""What frozen networks answer on a set of images: kept while it fits, else computed when asked.

A frozen half gives the same answer in every epoch, so it is computed once for all objectives and
epochs while a budget of bytes lasts. Which of the two happens is decided by counting bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raystitch.stitching.evaluate import Answers
from raystitch.stitching.objectives import Answer
from raystitch.zoo.cuts import CutNetwork, Tail
from raystitch.zoo.pixels import to_unit

COMPUTE_BATCH = 128
"""Images per forward pass of a frozen network."""

Network = Callable[[Tensor], Answer]
"""Images (batch, channels, height, width) in [0, 1] -> the network's answer."""


@dataclass
class ByteBudget:
    """Bytes of activations that may still be kept."""

    left: int

    def take(self, wanted: int) -> bool:
        """Whether ``wanted`` bytes fit; they are then taken."""
        if wanted > self.left:
            return False
        self.left -= wanted
        return True


class Kept:
    """Answers held in memory."""

    def __init__(self, activations: Mapping[str, Tensor], logits: Tensor | None, count: int):
        self.activations, self.logits, self.count = activations, logits, count

    def __len__(self) -> int:
        return self.count

    def __call__(self, positions: Tensor) -> Answer:
        logits = None if self.logits is None else self.logits[positions.to(self.logits.device)]
        found = {cut: held[positions.to(held.device)] for cut, held in self.activations.items()}
        return Answer(found, logits)


def observed(network: CutNetwork, taps: tuple[str, ...]) -> Network:
    """The whole network as a function of images that answers at these cuts."""
    return answering(network.observer(taps), taps)


def answering(observer: Tail, taps: tuple[str, ...]) -> Network:
    """The same of an observer that is there already, made with these taps."""

    def answer(images: Tensor) -> Answer:
        logits, activations = observer.observe(images)
        return Answer(dict(zip(taps, activations, strict=True)), logits)

    return answer


class Recomputed:
    """Answers computed each time they are asked for."""

    def __init__(self, network: Network, pixels: npt.NDArray[np.uint8], device: torch.device):
        self.network, self.pixels, self.device = network, pixels, device

    def __len__(self) -> int:
        return len(self.pixels)

    def __call__(self, positions: Tensor) -> Answer:
        with torch.no_grad():
            return self.network(to_unit(self.pixels[positions.numpy()], self.device))


def answers(
    network: Network, pixels: npt.NDArray[np.uint8], device: torch.device, budget: ByteBudget
) -> Answers:
    """The network's answers on uint8 images (n, channels, height, width), kept if they fit."""
    live = Recomputed(network, pixels, device)
    chunks = torch.arange(len(pixels)).split(COMPUTE_BATCH)
    first = live(chunks[0])
    if not budget.take(_bytes(first) * len(pixels) // len(chunks[0])):
        return live
    parts = [first, *(live(chunk) for chunk in chunks[1:])]
    logits = None if first.logits is None else _joined([part.logits for part in parts])
    kept = {cut: _joined([part.activations[cut] for part in parts]) for cut in first.activations}
    return Kept(kept, logits, len(pixels))


def _joined(parts: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([part for part in parts if part is not None])


def _bytes(answer: Answer) -> int:
    held = [*answer.activations.values(), *([] if answer.logits is None else [answer.logits])]
    return sum(tensor.numel() * tensor.element_size() for tensor in held)
