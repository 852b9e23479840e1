"""CKA against its published values and definitions."""

import pytest
import torch

from raystitch.errors import RaystitchError
from raystitch.stitching.similarity import FEATURES_AT_ONCE, cka, cka_unbiased, gram, stir


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_biased_cka_known_values():
    x, y = torch.tensor([[0.0], [1], [2]]), torch.tensor([[0.0], [1], [4]])
    assert cka(x, y) == pytest.approx(12 / 13)
    rows = torch.tensor([[1.0, 0], [0, 1], [0, 0], [1, 1]])
    assert cka(rows, rows * torch.tensor([1.0, 2])) == pytest.approx(5 / 34**0.5)


def test_biased_cka_equals_the_norms_of_cross_covariances():
    x, y = draw(12, 5), draw(12, 3, seed=1)
    a, b = x - x.mean(0), y - y.mean(0)
    expected = (a.T @ b).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert cka(x, y) == pytest.approx(float(expected))


def hsic_unbiased(k, m):
    """The sum over all quadruples of different rows: the U-statistic itself (Song 2012, eq. 4)."""
    n, total, count = len(k), 0.0, 0
    for i in range(n):
        for j in range(n):
            for q in range(n):
                for r in range(n):
                    if len({i, j, q, r}) == 4:
                        total += float(k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q]))
                        count += 1
    return total / count


def test_unbiased_cka_equals_the_u_statistic():
    x, y = draw(7, 4), draw(7, 3, seed=1) + draw(7, 4)[:, :3]
    k, m = x @ x.T, y @ y.T
    expected = hsic_unbiased(k, m) / (hsic_unbiased(k, k) * hsic_unbiased(m, m)) ** 0.5
    assert cka_unbiased(x, y) == pytest.approx(expected)


@pytest.mark.parametrize("measure", [cka, cka_unbiased])
def test_cka_is_invariant_to_rotation_scale_and_shift(measure):
    x, y = draw(20, 6), draw(20, 4, seed=1)
    rotation = torch.linalg.qr(draw(6, 6, seed=2)).Q
    assert measure(3 * x @ rotation + draw(6, seed=3), y) == pytest.approx(measure(x, y))
    assert measure(x, x @ rotation) == pytest.approx(1)


def test_unbiased_cka_of_independent_features_is_near_zero_where_the_biased_one_is_not():
    x, y = draw(40, 200), draw(40, 200, seed=1)
    assert abs(cka_unbiased(x, y)) < 0.1
    assert cka(x, y) > 0.7


def test_unbiased_cka_refuses_fewer_than_four_rows():
    with pytest.raises(RaystitchError, match="at least 4 images, but got 3"):
        cka_unbiased(draw(3, 2), draw(3, 2))


def test_stir_is_one_for_iris_that_the_end_represents_alike():
    g = draw(10, 3, 2, 2)
    assert stir(g, g) == pytest.approx(1)
    assert stir(g, draw(10, 3, 2, 2, seed=1)) < 0.9


def test_gram_of_more_features_than_are_taken_at_once():
    activations = draw(3, 2, FEATURES_AT_ONCE).float()
    rows = activations.flatten(1).double()
    assert torch.allclose(gram(activations), rows @ rows.T, rtol=1e-12)
