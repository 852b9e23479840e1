"""Representation similarity, for comparison: linear CKA, biased and unbiased, and STIR.

Both take rows = images: (images, features) or (images, *shape), the features flattened.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raystitch.errors import RaystitchError


def _gram(activations: Tensor) -> Tensor:
    rows = activations.flatten(1).double()
    return rows @ rows.T


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


def _cka(x: Tensor, y: Tensor, hsic: Callable[[Tensor, Tensor], Tensor]) -> float:
    if len(x) != len(y):
        raise RaystitchError(f"CKA compares the same images, but got {len(x)} and {len(y)} rows.")
    k, m = _gram(x), _gram(y)
    scale = hsic(k, k) * hsic(m, m)
    return float(hsic(k, m) / scale.sqrt()) if scale > 0 else float("nan")


def cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA, the biased form (Kornblith 2019): in [0, 1], NaN for constant rows."""
    return _cka(x, y, _hsic_biased)


def cka_unbiased(x: Tensor, y: Tensor) -> float:
    """Linear CKA from the unbiased HSIC (Nguyen 2021); needs at least four rows."""
    if len(x) < 4:
        raise RaystitchError(f"unbiased CKA needs at least 4 images, but got {len(x)}.")
    return _cka(x, y, _hsic_unbiased)


def stir(end_activations: Tensor, end_activations_on_iris: Tensor) -> float:
    """STIR(g|f) = CKA of g(X) and g(X′), X′ the IRIs of f (Nanda 2022)."""
    return cka(end_activations, end_activations_on_iris)
