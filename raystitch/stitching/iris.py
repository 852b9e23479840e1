"""IRIs: images x′, started from noise, that the front represents as it represents x.

x′ minimises the residual ‖f(x′) − f(x)‖ / ‖f(x)‖ per image, f the front up to the cut in
evaluation mode. The compute batch has a fixed size (short ones are padded) and every image its own
seed and its own optimiser state, so an image depends neither on its neighbours nor on its shard. An
image that has met the tolerance leaves its slot to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.linalg import vector_norm

from raystitch.data.images import LabelledImages
from raystitch.data.scramble import scramble
from raystitch.errors import CellError
from raystitch.names import IriRule
from raystitch.seeds import derive
from raystitch.settings import Iris
from raystitch.zoo.pixels import to_unit

Front = Callable[[Tensor], Tensor]
"""Images (batch, channels, height, width) in [0, 1] -> activation (batch, *shape)."""


@dataclass(frozen=True)
class IriSet:
    """IRIs of a set of images: images keep the labels and index of x.

    residual: (n,) float32, after rounding to uint8; steps: (n,) int32, steps taken.
    """

    images: LabelledImages
    residual: npt.NDArray[np.float32]
    steps: npt.NDArray[np.int32]


class _SignStep:
    """x − lr · sign(gradient): constant steps, no state."""

    def __init__(self, x: Tensor, lr: float) -> None:
        self.lr = lr

    def reset(self, slot: int) -> None:
        pass

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient.sign() * self.lr


class _AdamStep:
    """Adam (β 0.9, 0.999) with moments and step count per image, so that images are independent."""

    def __init__(self, x: Tensor, lr: float) -> None:
        self.lr = lr
        self.mean, self.square = torch.zeros_like(x), torch.zeros_like(x)
        self.count = torch.zeros(len(x), 1, 1, 1, device=x.device)

    def reset(self, slot: int) -> None:
        for state in (self.mean, self.square, self.count):
            state[slot] = 0

    def __call__(self, gradient: Tensor) -> Tensor:
        self.count += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        mean = self.mean / (1 - 0.9**self.count)
        square = self.square / (1 - 0.999**self.count)
        return self.lr * mean / (square.sqrt() + 1e-8)


IRI_RULES: dict[IriRule, type[_SignStep] | type[_AdamStep]] = {
    "adam": _AdamStep,
    "sign": _SignStep,
}


def synthesise(
    front: Front, images: LabelledImages, settings: Iris, seed: int, device: torch.device
) -> IriSet:
    """The IRIs of ``images`` under ``front``.

    Raises `CellError` where an activation is zero, as its residual is undefined.
    """
    slots = _Slots(front, images, settings, seed, device)
    rounded = np.zeros_like(images.images)
    steps = np.zeros(len(images), dtype=np.int32)
    for position, pixels, taken in slots.run():
        rounded[position] = _to_uint8(pixels, settings.rounding)
        steps[position] = taken
    made = LabelledImages(rounded, images.labels, images.index)
    return IriSet(made, _residuals(front, images, made, settings.batch, device), steps)


class _Slots:
    """A fixed compute batch whose slots take images from a queue and give finished IRIs."""

    def __init__(
        self,
        front: Front,
        images: LabelledImages,
        settings: Iris,
        seed: int,
        device: torch.device,
    ) -> None:
        self.front, self.images, self.settings, self.seed = front, images, settings, seed
        self.queue = _targets(front, images, settings.batch, device)
        self.owner: list[int | None] = [None] * settings.batch
        self.taken = [0] * settings.batch
        self.x = torch.zeros(settings.batch, *images.shape, device=device)
        with torch.no_grad():
            self.target = torch.ones_like(front(self.x))
        self.norm = vector_norm(self.target.flatten(1), dim=1)
        self.rule = IRI_RULES[settings.rule](self.x, settings.lr)
        self.best = torch.full((settings.batch,), torch.inf, device=device)
        self.best_x = torch.zeros_like(self.x)

    def run(self) -> Iterator[tuple[int, Tensor, int]]:
        """Finished images as (position, pixels (channels, height, width), steps taken)."""
        self._install(range(self.settings.batch))
        while any(owner is not None for owner in self.owner):
            residual, gradient = self._evaluate()
            free = self._finished(residual)
            for slot in free:
                position, self.owner[slot] = self.owner[slot], None
                assert position is not None
                yield position, self._kept(slot), self.taken[slot]
            self._step(gradient)
            self._install(free)

    def _install(self, slots: Iterable[int]) -> None:
        """Give free slots the next images of the queue, each from its own noise."""
        for slot, (position, target) in zip(slots, self.queue, strict=False):
            self.owner[slot], self.taken[slot] = position, 0
            self.x[slot] = start_noise(
                self.seed, int(self.images.index[position]), self.images.shape
            )
            self.target[slot], self.norm[slot] = target, vector_norm(target)
            self.best[slot] = torch.inf
            self.rule.reset(slot)

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        """Residuals (batch,) of the current images and their gradient; the best are remembered."""
        x = self.x.requires_grad_()
        activation = self.front(x)
        with torch.no_grad():
            difference = activation - self.target
            distance = vector_norm(difference.flatten(1), dim=1)
            residual = distance / self.norm
            # The residual's gradient as autograd has it, in fewer passes over memory.
            each = (-1, *[1] * (difference.dim() - 1))
            divisor = torch.where(distance > 0, distance, 1)
            towards = (difference / divisor.view(each)).mul_((1 / self.norm).view(each))
        (gradient,) = torch.autograd.grad(activation, x, towards)
        self.x = x.detach()
        if self.settings.keep == "best":
            better = residual < self.best
            self.best[better] = residual[better]
            self.best_x[better] = self.x[better]
        return residual, gradient

    def _finished(self, residual: Tensor) -> list[int]:
        met = (residual <= self.settings.tolerance).tolist() if self.settings.tolerance else None
        return [
            slot
            for slot, owner in enumerate(self.owner)
            if owner is not None
            and (self.taken[slot] >= self.settings.steps or (met is not None and met[slot]))
        ]

    def _kept(self, slot: int) -> Tensor:
        return (self.best_x if self.settings.keep == "best" else self.x)[slot]

    def _step(self, gradient: Tensor) -> None:
        self.x = (self.x - self.rule(gradient)).clamp_(0, 1)
        self.taken = [taken + 1 for taken in self.taken]


def start_noise(seed: int, index: int, shape: tuple[int, int, int]) -> Tensor:
    """Uniform noise over [0, 1), (channels, height, width), 24 bits a pixel.

    From the seed of the IRIs and the image's index in its split alone.
    """
    words = scramble(derive("iri", seed), index, np.arange(prod(shape)))
    noise = (words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    return torch.from_numpy(noise.reshape(shape))


def _targets(
    front: Front, images: LabelledImages, batch: int, device: torch.device
) -> Iterator[tuple[int, Tensor]]:
    """Position and target of each image, computed in batches of the fixed size."""
    for start in range(0, len(images), batch):
        activation = _padded(front, images.images[start : start + batch], batch, device)
        for offset, target in enumerate(activation):
            if not target.any():
                raise CellError(
                    f"the front's activation of image {images.index[start + offset]} is zero, "
                    "so its IRI's residual is undefined; choose another cut"
                )
            yield start + offset, target


def _padded(
    front: Front, pixels: npt.NDArray[np.uint8], batch: int, device: torch.device
) -> Tensor:
    """The front's activation of at most ``batch`` uint8 images, computed as a full batch."""
    full = np.zeros((batch, *pixels.shape[1:]), dtype=np.uint8)
    full[: len(pixels)] = pixels
    with torch.no_grad():
        return front(to_unit(full, device))[: len(pixels)]


def _to_uint8(pixels: Tensor, rounding: str) -> npt.NDArray[np.uint8]:
    scaled = pixels * 255
    whole = scaled.floor() if rounding == "truncate" else scaled.round()
    return whole.to(torch.uint8).cpu().numpy()


def _residuals(
    front: Front, real: LabelledImages, made: LabelledImages, batch: int, device: torch.device
) -> npt.NDArray[np.float32]:
    """‖f(x′) − f(x)‖ / ‖f(x)‖ per image."""
    parts: list[Tensor] = []
    for start in range(0, len(real), batch):
        chunk = slice(start, start + batch)
        target = _padded(front, real.images[chunk], batch, device).flatten(1)
        reached = _padded(front, made.images[chunk], batch, device).flatten(1)
        parts.append(vector_norm(reached - target, dim=1) / vector_norm(target, dim=1))
    return torch.cat(parts).float().cpu().numpy()


def null_residuals(
    front: Front,
    images: LabelledImages,
    positions: npt.NDArray[np.int64],
    batch: int,
    device: torch.device,
) -> npt.NDArray[np.float32]:
    """Relative distance at the cut to the nearest other real image of the same class, (n,) float32.

    images: the whole set; positions: those to report. NaN where an image is alone in its class.
    An IRI whose residual is not below this has failed: it is no nearer than an ordinary neighbour.
    """
    nulls = np.full(len(positions), np.nan, dtype=np.float32)
    for label in np.unique(images.labels[positions]):
        members = np.flatnonzero(images.labels == label)
        wanted = np.flatnonzero(images.labels[positions] == label)
        if len(members) < 2:
            continue
        activation = torch.cat(
            [
                _padded(front, images.images[members[start : start + batch]], batch, device)
                for start in range(0, len(members), batch)
            ]
        ).flatten(1)
        rows = activation[np.searchsorted(members, positions[wanted])]
        distance = torch.cdist(rows, activation, compute_mode="donot_use_mm_for_euclid_dist")
        itself = torch.from_numpy(positions[wanted][:, None] == members[None]).to(device)
        nearest = distance.masked_fill(itself, torch.inf).min(dim=1).values
        nulls[wanted] = (nearest / vector_norm(rows, dim=1)).cpu().numpy()
    return nulls
