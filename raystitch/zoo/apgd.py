"""Auto-PGD (Croce & Hein 2020), L∞, in pixels of [0, 1]: adversarial images for evaluation.

Every image has its own step size, best point and momentum, so its course depends on no other image
of its batch. Networks run in the mode they are in, and no gradient is left in any parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from raystitch.data.scramble import scramble
from raystitch.seeds import derive

Logits = Callable[[Tensor], Tensor]
"""Images (batch, channels, height, width) -> logits (batch, classes)."""
Loss = Callable[[Tensor, Tensor], Tensor]
"""Logits (batch, classes) and labels (batch,) -> a loss for each image, to be raised."""

MOMENTUM = 0.75
"""Weight of the new step; the rest is that of the last movement."""
INCREASES = 0.75
"""A window in which the loss rose in no more than this share of its steps halves the step size."""


def ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each image."""
    return F.cross_entropy(logits, labels, reduction="none")


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """Difference of logits ratio: −(z_y − max_{i≠y} z_i) / (z_(1) − z_(3)), at most 1.

    z_(k) is the k-th largest logit, so there must be three classes. It depends on neither scale nor
    shift of the logits, and so does not fade where the network is sure, as cross-entropy does.
    """
    largest = logits.sort(dim=1, descending=True).values
    own = logits.gather(1, labels[:, None])[:, 0]
    other = torch.where(logits.argmax(1) == labels, largest[:, 1], largest[:, 0])
    return -(own - other) / (largest[:, 0] - largest[:, 2] + 1e-12)


LOSSES: dict[str, Loss] = {"ce": ce, "dlr": dlr}
"""In the order in which they are tried."""


def attack(
    logits_of: Logits,
    images: Tensor,
    labels: Tensor,
    index: npt.NDArray[np.int64],
    *,
    eps: float,
    step: float,
    steps: int,
) -> Tensor:
    """APGD-CE, then APGD-DLR on the images that CE did not fool; the others stay as they are.

    images: (batch, channels, height, width) in [0, 1]; labels, index: (batch,), index being each
    image's place in its data set, from which its random starts follow. An image that is
    misclassified already, or that neither attack fools, comes back unchanged; with eps 0 all do.
    """
    found = images.clone()
    if eps == 0:
        return found
    with torch.no_grad():
        (left,) = (logits_of(images).argmax(1) == labels).nonzero(as_tuple=True)
    for name, loss in LOSSES.items():
        if not len(left):
            break
        own, offsets = images[left], random_offsets(index[left.cpu().numpy()], images.shape, name)
        start = own + eps * offsets.to(images)
        made, fooled = apgd(
            logits_of, own, labels[left], start, loss, eps=eps, step=step, steps=steps
        )
        found[left[fooled]] = made[fooled]
        left = left[~fooled]
    return found


def random_offsets(index: npt.NDArray[np.int64], shape: torch.Size, name: str) -> Tensor:
    """Uniform in [−1, 1], then scaled so that each image's largest is ±1, as the authors do.

    (len(index), *shape[1:]); an image's depend on its index and the name of the loss alone.
    """
    pixels = np.arange(prod(shape[1:]))
    words = scramble(derive("apgd", name), index[:, None], pixels[None])
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    uniform /= np.abs(uniform).max(axis=1, keepdims=True)
    return torch.from_numpy(uniform.reshape(len(index), *shape[1:]))


def apgd(
    logits_of: Logits,
    images: Tensor,
    labels: Tensor,
    start: Tensor,
    loss: Loss,
    *,
    eps: float,
    step: float,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """One run: for each image the last iterate that was misclassified, and whether one was.

    start: (batch, ...) first iterate, brought into the ball of radius eps and into [0, 1]; step:
    the first step size (the authors': 2 eps), halved image by image where the loss has stopped
    rising, and the image then goes on from its best iterate.
    """
    low, high = (images - eps).clamp(0, 1), (images + eps).clamp(0, 1)
    x = before = start.clamp(low, high)
    gradient, losses, right = _look(logits_of, x, labels, loss)
    fooled, made = ~right, x.clone()
    course = _Course(x, gradient, losses, step, steps)
    for number in range(1, steps + 1):
        ahead = (x + course.size * gradient.sign()).clamp(low, high)
        share = MOMENTUM if number > 1 else 1.0
        mixed = x + share * (ahead - x) + (1 - share) * (x - before)
        before, x = x, mixed.clamp(low, high)
        gradient, losses, right = _look(logits_of, x, labels, loss)
        made[~right] = x[~right]
        fooled |= ~right
        x, gradient = course.follow(number, x, gradient, losses)
    return made, fooled


def _look(
    logits_of: Logits, x: Tensor, labels: Tensor, loss: Loss
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient, loss and whether the answer is right, for each image."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = logits_of(x)
        losses = loss(logits, labels)
        # The sum, so that an image's gradient does not depend on the size of its batch.
        (gradient,) = torch.autograd.grad(losses.sum(), x)
    return gradient, losses.detach(), logits.argmax(1) == labels


class _Course:
    """What each image has reached, and its step size: (batch, 1, 1, 1)."""

    def __init__(
        self, x: Tensor, gradient: Tensor, losses: Tensor, step: float, steps: int
    ) -> None:
        self.best, self.best_gradient, self.best_loss = x.clone(), gradient.clone(), losses.clone()
        self.size = torch.full_like(losses, step).view(-1, *(1,) * (x.dim() - 1))
        self.windows = windows(steps)
        self.rises = torch.zeros_like(losses)
        self.last, self.best_before = losses, losses.clone()
        self.halved = torch.ones_like(losses, dtype=torch.bool)

    def follow(
        self, number: int, x: Tensor, gradient: Tensor, losses: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Note the iterate; iterate and gradient to go on from."""
        better = losses > self.best_loss
        self.best[better], self.best_gradient[better] = x[better], gradient[better]
        self.best_loss[better] = losses[better]
        self.rises += losses > self.last
        self.last = losses
        if number not in self.windows:
            return x, gradient
        halve = self._review(self.windows[number])
        x, gradient = x.clone(), gradient.clone()
        self.size[halve] /= 2
        x[halve], gradient[halve] = self.best[halve], self.best_gradient[halve]
        return x, gradient

    def _review(self, window: int) -> Tensor:
        """Which images have stopped rising: too few steps of the window raised the loss, or the
        best loss stands where it stood at the last review and the step size was not halved there.
        """
        stuck = (self.best_before >= self.best_loss) & ~self.halved
        self.halved = (self.rises <= INCREASES * window) | stuck
        self.best_before = self.best_loss.clone()
        self.rises = torch.zeros_like(self.rises)
        return self.halved


def windows(steps: int) -> dict[int, int]:
    """After which steps the step sizes are reviewed, each with the steps since the last review.

    The first window is 22 % of all steps, each next one 3 % shorter, and none below 6 %.
    """
    window, least, less = (max(int(share * steps), 1) for share in (0.22, 0.06, 0.03))
    found: dict[int, int] = {}
    at = window
    while at <= steps:
        found[at] = window
        window = max(window - less, least)
        at += window
    return found
