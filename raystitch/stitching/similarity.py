"""Representation similarity, for comparison: linear CKA, biased and unbiased, and STIR.

Both take rows = images: (images, features) or (images, *shape), the features flattened.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raystitch.errors import RaystitchError

FEATURES_AT_ONCE = 2**14
"""Features that are brought to float64 at once: memory stays near that of the activations."""


def gram(activations: Tensor) -> Tensor:
    """Inner products of the images' features: (images, *shape) -> (images, images) in float64."""
    blocks = activations.flatten(1).split(FEATURES_AT_ONCE, dim=1)
    found = torch.zeros(len(activations), len(activations), dtype=torch.float64)
    for block in blocks:
        rows = block.to("cpu", torch.float64)
        found += rows @ rows.T
    return found


def _hsic_biased(k: Tensor, m: Tensor) -> Tensor:
    """⟨HKH, HMH⟩, the biased HSIC up to a constant (Gretton 2005)."""
    k, m = (gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean() for gram in (k, m))
    return (k * m).sum()


def _hsic_unbiased(k: Tensor, m: Tensor) -> Tensor:
    """The unbiased HSIC up to a constant (Song 2012, eq. 5): diagonals set to zero."""
    n = len(k)
    k, m = (gram - torch.diag(gram.diag()) for gram in (k, m))
    ones = k.sum() * m.sum() / ((n - 1) * (n - 2))
    return (k * m).sum() + ones - 2 / (n - 2) * (k.sum(0) @ m.sum(0))


def _cka(k: Tensor, m: Tensor, hsic: Callable[[Tensor, Tensor], Tensor]) -> float:
    if len(k) != len(m):
        raise RaystitchError(f"CKA compares the same images, but got {len(k)} and {len(m)} rows.")
    scale = hsic(k, k) * hsic(m, m)
    return float(hsic(k, m) / scale.sqrt()) if scale > 0 else float("nan")


def cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA, the biased form (Kornblith 2019): in [0, 1], NaN for constant rows."""
    return cka_of_grams(gram(x), gram(y))


def cka_unbiased(x: Tensor, y: Tensor) -> float:
    """Linear CKA from the unbiased HSIC (Nguyen 2021); needs at least four rows."""
    return cka_unbiased_of_grams(gram(x), gram(y))


def cka_of_grams(k: Tensor, m: Tensor) -> float:
    """`cka` of activations with these Gram matrices."""
    return _cka(k, m, _hsic_biased)


def cka_unbiased_of_grams(k: Tensor, m: Tensor) -> float:
    """`cka_unbiased` of activations with these Gram matrices."""
    if len(k) < 4:
        raise RaystitchError(f"unbiased CKA needs at least 4 images, but got {len(k)}.")
    return _cka(k, m, _hsic_unbiased)


def stir(end_activations: Tensor, end_activations_on_iris: Tensor) -> float:
    """STIR(g|f) = CKA of g(X) and g(X′), X′ the IRIs of f (Nanda 2022)."""
    return cka(end_activations, end_activations_on_iris)
