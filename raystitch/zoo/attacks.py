"""Adversarial images: projected gradient ascent on the loss (Madry et al. 2018).

Everything is in pixels of [0, 1], because every network owns its normaliser.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


def pgd(
    logits_of: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    *,
    eps: float,
    step: float,
    steps: int,
    random_start: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Images within ``eps`` (L∞) of ``images``, and within [0, 1], that raise the cross-entropy.

    images: (batch, channels, height, width) in [0, 1]; labels: (batch,). ``steps`` steps of
    ``step`` along the sign of the gradient, each clamped; the last iterate is returned. With eps
    0 it is ``images`` exactly. Networks run in the mode they are in, and no gradient is left in
    any parameter. generator: of the random start, on the images' device.
    """
    low, high = (images - eps).clamp(0, 1), (images + eps).clamp(0, 1)
    attacked = images.detach().clone()
    if eps == 0:
        return attacked
    if random_start:
        noise = torch.rand(
            images.shape, generator=generator, device=images.device, dtype=images.dtype
        )
        attacked = (attacked + eps * (2 * noise - 1)).clamp(low, high)
    for _ in range(steps):
        attacked.requires_grad_()
        with torch.enable_grad():
            # The sum, so that an image's gradient does not depend on the size of its batch.
            loss = F.cross_entropy(logits_of(attacked), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, attacked)
        attacked = (attacked.detach() + step * gradient.sign()).clamp(low, high)
    return attacked


def partly_attacked(
    logits_of: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    share: float,
    *,
    eps: float,
    step: float,
    steps: int,
) -> Tensor:
    """The images with the first ``share`` of them replaced by `pgd`'s, without a random start."""
    count = round(share * len(images))
    if not count:
        return images
    attacked = pgd(logits_of, images[:count], labels[:count], eps=eps, step=step, steps=steps)
    return torch.cat([attacked, images[count:]])
