"""Effective rank and condition number against closed forms."""

import math

import pytest
import torch

from raystitch.stitching.spectrum import spectrum_scores


def rotated(values, rows, columns):
    """A matrix (rows, columns) with these singular values."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
        for size in (rows, columns)
    )
    middle = torch.zeros(rows, columns, dtype=torch.float64)
    middle[range(len(values)), range(len(values))] = torch.tensor(values, dtype=torch.float64)
    return left @ middle @ right


@pytest.mark.parametrize(
    ("values", "rank", "condition"),
    [
        ([1.0, 1, 1, 1], 4, 1),
        ([5.0, 5], 2, 1),
        ([4.0, 2], math.exp(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3)), 2),
        ([2.0**-n for n in range(12)], None, 2.0**11),
    ],
)
def test_figures_of_given_singular_values(values, rank, condition):
    found = spectrum_scores(rotated(values, len(values), len(values) + 3))
    if rank is not None:
        assert found["effective_rank"] == pytest.approx(rank)
    else:
        shares = [value / sum(values) for value in values]
        assert found["effective_rank"] == pytest.approx(
            math.prod(share**-share for share in shares)
        )
    assert found["condition_number"] == pytest.approx(condition)


def test_the_identity_uses_all_directions_evenly():
    found = spectrum_scores(torch.eye(7))
    assert found == {"effective_rank": pytest.approx(7), "condition_number": 1}


def test_scale_does_not_matter():
    weight = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    assert spectrum_scores(weight * 1e-3) == pytest.approx(spectrum_scores(weight), rel=1e-6)


def test_what_is_not_defined_is_nan():
    zero = spectrum_scores(torch.zeros(3, 2))
    assert math.isnan(zero["effective_rank"])
    assert math.isnan(zero["condition_number"])
    singular = spectrum_scores(torch.diag(torch.tensor([3.0, 3, 0])))
    assert singular["effective_rank"] == pytest.approx(2)
    assert math.isnan(singular["condition_number"])
