"""Intervals over seeds against every possible draw, and against scipy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import bootstrap

from raystitch.results.bootstrap import interval


def stitch_seeds(count: int) -> list[tuple[str, str, int]]:
    return [("front-1", "end-0", seed) for seed in range(count)]


def fronts(count: int) -> list[tuple[str, str, int]]:
    return [(f"front-{n}", "end-0", 0) for n in range(count)]


@pytest.mark.parametrize("origins", [stitch_seeds, fronts])
def test_three_seeds_give_the_least_and_the_most(origins) -> None:
    # All three draws hit the least with probability 1/27: more than the 2.5 % that are left out.
    assert interval([3.0, 1.0, 2.0], origins(3)) == pytest.approx((1, 3))


@pytest.mark.parametrize("origins", [stitch_seeds, fronts])
def test_many_seeds_give_the_percentile_interval_of_scipy(origins) -> None:
    values = np.random.default_rng(1).gamma(2, size=30)
    found = bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=0)
    # The quantile of 2000 draws has a standard error of about 0.06 deviations of the mean.
    error = 3 * 0.06 * values.std() / 30**0.5
    assert interval(values.tolist(), origins(30)) == pytest.approx(
        found.confidence_interval, abs=error
    )


def test_fronts_and_ends_are_drawn_apart() -> None:
    """Four cells of two fronts and two ends are two and two samples, not four."""
    origins = [(f"front-{f}", f"end-{e}", 0) for f in (0, 1) for e in (0, 1)]
    values = [0.0, 10.0, 1.0, 11.0]  # front + 10 end
    # The least is drawn with probability 1/4 x 1/4; by single cells it were 1/256.
    assert interval(values, origins) == pytest.approx((0, 11))
    assert interval(values, stitch_seeds(4)) != pytest.approx((0, 11))


def test_networks_stitched_with_each_other_are_drawn_once_for_both_sides() -> None:
    worth = {"net-0": 0.0, "net-1": 1.0, "net-2": 5.0}
    origins = [(f, e, 0) for f in worth for e in worth if f != e]
    values = [worth[f] + 2 * worth[e] for f, e, _ in origins]
    means = []
    for draw in product(worth, repeat=3):
        weights = [draw.count(f) * draw.count(e) for f, e, _ in origins]
        if any(weights):
            means.append(np.average(values, weights=weights))
    # 24 of the 27 draws have cells, and each mean comes up at least three times: 12.5 %.
    assert len(means) == 24
    assert interval(values, origins) == pytest.approx((min(means), max(means)))


def test_a_network_stitched_to_itself_is_drawn_once() -> None:
    origins = [(name, name, 0) for name in ("net-0", "net-1", "net-2")]
    assert interval([1.0, 2.0, 6.0], origins) == pytest.approx((1, 6))
    four = [(f"net-{n}", f"net-{n}", 0) for n in range(4)]
    assert interval([1.0, 2.0, 6.0, 7.0], four) == pytest.approx(
        interval([1.0, 2.0, 6.0, 7.0], fronts(4)), abs=0.3
    )


def test_networks_and_stitch_seeds_are_both_drawn() -> None:
    origins = [(f"front-{f}", "end-0", seed) for f in (0, 1) for seed in (0, 1)]
    assert interval([0.0, 10.0, 1.0, 11.0], origins) == pytest.approx((0, 11))


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert interval([7.0] * 5, fronts(5)) == pytest.approx((7, 7))


@pytest.mark.parametrize(
    "origins",
    [[], [("a-1", "b-0", 0)], [("a-1", "a-1", 0)], [("a-1", "a-0", 0), ("a-0", "a-1", 0)]],
)
def test_there_is_none_where_no_other_mean_can_be_drawn(origins) -> None:
    assert interval([float(n) for n in range(len(origins))], origins) is None


def test_the_interval_is_the_same_each_time_and_for_any_order_of_cells() -> None:
    values = [4.0, 1.0, 9.0, 3.0]
    found = interval(values, fronts(4))
    assert interval(values, fronts(4)) == found
    renamed = [(f"other-{n}", "x-9", 5) for n in range(4)]
    assert interval(values, renamed) == found
