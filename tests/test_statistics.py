"""Statistics over seeds against closed forms and sums made by hand."""

from __future__ import annotations

import statistics as by_hand

import numpy as np
import polars as pl
import pytest

from raystitch.errors import RaystitchError
from raystitch.results.statistics import TABLES, readable, statistics
from raystitch.results.summary import NO_CONTROL, NOISE, REAL, summarise
from rows import cell, failed, frame, three


def cut(front: int, end: int | None = None) -> dict[str, object]:
    end = front if end is None else end
    return {
        "front_cut": f"blocks.{front - 1}",
        "front_cut_index": front,
        "end_cut": f"blocks.{end - 1}",
        "end_cut_index": end,
    }


def only(table: pl.DataFrame) -> dict:
    assert table.height == 1, table
    return table.row(0, named=True)


# Means


def test_mean_deviation_number_and_intervals_over_stitch_seeds() -> None:
    values = (80.0, 90.0, 94.0)
    rows = [
        cell(agreement=a, agreement_low=a - 2, agreement_high=a + s, seed=s)
        for s, a in enumerate(values)
    ]
    got = statistics(frame(*rows))
    row = only(got.frame)
    assert (row["front"], row["end"], row["same_network"]) == ("clean-1", "clean-0", False)
    assert (row["number"], row["planned"]) == (3, 3)
    assert row["mean"] == pytest.approx(by_hand.mean(values))
    assert row["sd"] == pytest.approx(by_hand.stdev(values))
    assert (row["low"], row["high"]) == pytest.approx((80, 94))
    assert (row["image_low"], row["image_high"]) == pytest.approx((86, 89)), "means of the ends"
    assert got.warnings == ()


def test_the_order_of_rows_moves_no_figure() -> None:
    """Without a plan neither: an interval is drawn, and draws follow an order."""
    rng = np.random.default_rng(0)
    rows = [cell(agreement=float(a), seed=seed) for seed, a in enumerate(rng.uniform(0, 99, 9))]
    found = [
        statistics(frame(*(rows[n] for n in order))).frame for order in (range(9), range(8, -1, -1))
    ]
    assert found[0].equals(found[1])


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    row = only(statistics(frame(cell(agreement=80.0))).frame)
    assert [row[name] for name in ("mean", "sd", "low", "high")] == [80, None, None, None]


def test_fewer_seeds_than_planned_are_warned_about() -> None:
    there = [cell(agreement=80.0), failed(seed=1)]
    plan = frame(*there, cell(seed=2), cell("dm"), cell("dm", seed=1))
    rows = frame(*there, cell("dm", agreement=1.0), cell("dm", agreement=3.0, seed=1))
    got = statistics(rows, plan)
    assert got.frame.select("objective", "number", "planned", "mean").rows() == [
        ("fula", 1, 3, 80),
        ("dm", 2, 2, 2),
    ]
    (warning,) = got.warnings
    assert warning.startswith("1 of 2 rows are over fewer seeds than planned")
    assert "clean-1 -> clean-0 at blocks.2 -> blocks.2, fula standard: 1 of 3" in warning


def test_a_metric_that_does_not_apply_is_no_missing_seed() -> None:
    rows = frame(cell(agreement=80.0), cell(agreement=80.0, iri_residual=float("nan"), seed=1))
    got = statistics(rows, metric="iri_residual")
    row = only(got.frame)
    assert (row["number"], row["planned"], row["mean"]) == (0, 2, None)
    assert got.warnings == ()
    assert row["image_low"] is None


def test_another_metric() -> None:
    rows = [cell(accuracy=a, agreement_low=1.0, seed=s) for s, a in enumerate((50.0, 60.0))]
    row = only(statistics(frame(*rows), metric="accuracy").frame)
    assert (row["mean"], row["image_low"]) == (55, None), "the interval is that of agreement"
    assert only(statistics(frame(cell(epochs=7)), metric="epochs").frame)["mean"] == 7


def test_entries_group_networks_that_differ_in_their_seed() -> None:
    rows = [
        cell(front_model=f"clean-{f}", end_model="other-0", agreement=10.0 * f + s, seed=s)
        for f in (1, 2, 3)
        for s in (0, 1)
    ]
    row = only(statistics(frame(*rows), by="entries").frame)
    assert (row["front"], row["end"], row["number"]) == ("clean", "other", 6)
    assert row["mean"] == pytest.approx(20.5)
    assert row["sd"] == pytest.approx(by_hand.stdev([10, 11, 20, 21, 30, 31]))
    # Fronts and stitch seeds are drawn apart; all at the least is 1/27 x 1/4, below 2.5 %.
    assert row["low"] == pytest.approx(10.5, abs=0.01)
    assert statistics(frame(*rows)).frame["number"].to_list() == [2, 2, 2]


def test_itself_and_another_seed_of_its_entry_are_never_one_group() -> None:
    pairs = [(0, 0), (1, 1), (0, 1), (1, 0)]
    rows = [
        cell(front_model=f"clean-{f}", end_model=f"clean-{e}", agreement=100.0 - 10 * (f != e))
        for f, e in pairs
    ]
    got = statistics(frame(*rows), by="entries").frame
    assert got.select("same_network", "number", "mean", "sd").sort("same_network").rows() == [
        (False, 2, 90, 0),
        (True, 2, 100, 0),
    ]
    unlike = got.filter(~pl.col("same_network"))
    assert unlike["low"].item() is None, "two networks with each other: nothing to draw"


def test_a_marker_of_ones_own_groups_and_anothers_does_not() -> None:
    def marked(front: int, marker: str) -> dict:
        return cell(
            front_model=f"shortcut-{front}",
            stitch_marker=marker,
            test_marker=marker,
            agreement=float(front),
        )

    rows = frame(
        marked(2, "shortcut-2"), marked(3, "shortcut-3"), marked(4, "shortcut-3"), marked(5, "p-1")
    )
    got = statistics(rows, by="entries").frame.sort("stitch_marker")
    assert got.select("stitch_marker", "test_marker", "number", "mean").rows() == [
        ("of front", "of front", 2, 2.5),
        ("p-1", "p-1", 1, 5),
        ("shortcut-3", "shortcut-3", 1, 4),
    ]


def test_variants_and_budgets_stand_apart() -> None:
    rows = frame(
        cell(agreement=1.0), cell(agreement=2.0, variant="bn"), cell(agreement=3.0, budget=4)
    )
    assert sorted(statistics(rows, by="entries").frame["mean"]) == [1, 2, 3]


def test_against_sums_made_by_hand() -> None:
    random = np.random.default_rng(0)
    rows = [
        cell(
            "fula",
            protocol,
            front_model=f"clean-{f}",
            end_model=f"robust-{e}",
            seed=s,
            agreement=float(random.uniform(0, 100)),
        )
        for f in (0, 1, 10)
        for e in (0, 1)
        for s in (0, 1)
        for protocol in ("standard", "invariance")
    ]
    means = statistics(frame(*reversed(rows)), by="entries").frame
    for row in means.iter_rows(named=True):
        values = [r["agreement"] for r in rows if r["protocol"] == row["protocol"]]
        assert row["number"] == 12
        assert (row["mean"], row["sd"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
        assert min(values) < row["low"] < row["mean"] < row["high"] < max(values)
    found = only(statistics(frame(*rows), by="entries", show="differences").frame)
    pairs = np.array([r["agreement"] for r in rows]).reshape(-1, 2)
    paired = pairs[:, 0] - pairs[:, 1]
    assert (found["mean"], found["sd"]) == pytest.approx((paired.mean(), paired.std(ddof=1)))


# Differences


def test_differences_are_paired_by_seed() -> None:
    rows = [*three(97.0, 42.0, 22.0), *three(91.0, 40.0, 10.0, seed=1), cell(agreement=0.0, seed=2)]
    plan = frame(*rows, cell("fula", "invariance", seed=2), cell("fula", "noise", seed=2))
    got = statistics(frame(*rows), plan, show="differences")
    fall, above = got.frame.rows(named=True)
    assert (fall["difference"], fall["number"], fall["planned"]) == (
        "standard - invariance",
        2,
        3,
    )
    assert fall["mean"] == pytest.approx(53), "the third seed has no partner and does not count"
    assert fall["sd"] == pytest.approx(by_hand.stdev([55, 51]))
    assert (fall["low"], fall["high"]) == pytest.approx((51, 55))
    assert (above["difference"], above["mean"]) == ("invariance - noise", 25)
    assert above["flag"] is None
    (warning,) = got.warnings
    assert "2 of 2 rows" in warning
    assert "fula standard - invariance: 2 of 3" in warning


@pytest.mark.parametrize(
    ("figures", "flag"),
    [((97, 42, 22), REAL), ((97, 19, 18), NOISE), ((97, 42, None), NO_CONTROL)],
)
def test_a_fall_that_noise_shows_too_is_flagged_as_in_the_summary(figures, flag) -> None:
    rows = frame(*three(*(None if x is None else float(x) for x in figures)))
    got = statistics(rows, show="differences").frame
    assert got.filter(difference="standard - invariance")["flag"].to_list() == [flag]
    assert summarise(rows).frame["fula_flag"].to_list() == [flag]


def test_the_flag_is_of_agreement_alone() -> None:
    rows = frame(*three(97.0, 42.0, 22.0)).with_columns(accuracy=pl.col("agreement"))
    got = statistics(rows, show="differences", metric="accuracy").frame
    assert got["mean"].to_list() == [55, 20]
    assert got["flag"].to_list() == [None, None]


# Directions


def both_ways(*values: tuple[float, float], a: str = "a", b: str = "b") -> list[dict]:
    rows = []
    for seed, (forth, back) in enumerate(values):
        rows += [
            cell(front_model=f"{a}-1", end_model=f"{b}-2", agreement=forth, seed=seed, **cut(1, 3)),
            cell(front_model=f"{b}-2", end_model=f"{a}-1", agreement=back, seed=seed, **cut(3, 1)),
        ]
    return rows


def test_both_directions_stand_side_by_side_at_the_same_two_cuts() -> None:
    rows = both_ways((90, 50), (80, 60))
    rows.append(cell(front_model="b-2", end_model="a-1", agreement=7.0, **cut(1, 3)))
    row = only(statistics(frame(*rows), show="directions").frame)
    assert (row["front"], row["end"]) == ("a-1", "b-2")
    assert (row["front_cut"], row["end_cut"]) == ("blocks.0", "blocks.2")
    assert (row["forth"], row["back"], row["mean"]) == (85, 55, 30)
    assert row["sd"] == pytest.approx(by_hand.stdev([40, 20]))
    assert (row["low"], row["high"]) == pytest.approx((20, 40))


def test_a_direction_that_is_missing_counts_in_neither_mean() -> None:
    rows = both_ways((90, 50), (10, 60))
    rows[3] |= {"status": "failed", "agreement": None}
    got = statistics(frame(*rows), show="directions")
    row = only(got.frame)
    assert (row["forth"], row["back"], row["mean"], row["number"]) == (90, 50, 40, 1)
    assert "1 of 2" in got.warnings[0]


def test_seeds_of_one_entry_have_no_direction() -> None:
    rows = frame(*both_ways((90, 50), b="a"))
    assert only(statistics(rows, show="directions").frame)["mean"] == 40
    got = statistics(rows, show="directions", by="entries")
    assert got.frame.height == 0
    assert got.warnings == (
        "no directions: nothing is stitched both ways (by entries: between two).",
    )


# rAuA


def test_raua_is_the_mean_over_the_cuts_under_invariance() -> None:
    rows = [
        cell("fula", protocol, agreement=a + s - 50 * (protocol == "noise"), seed=s, **cut(k))
        for k, a in ((1, 98.0), (3, 80.0), (5, 50.0))
        for s in (0, 6)
        for protocol in ("invariance", "noise")
    ]
    row = only(statistics(frame(*rows), show="raua").frame)
    assert row["mean"] == pytest.approx(76 + 3)
    assert (row["number"], row["cuts"]) == (2, 3)
    assert (row["low"], row["high"]) == pytest.approx((76, 82))


def test_raua_with_a_missing_cut_is_no_mean_over_the_others() -> None:
    rows = [cell("fula", "invariance", agreement=90.0, **cut(1))]
    rows.append(failed("fula", "invariance", **cut(3)))
    got = statistics(frame(*rows), show="raua")
    assert only(got.frame)["mean"] is None
    assert "fula: 0 of 1" in got.warnings[0]


@pytest.mark.parametrize(
    ("fronts", "ends", "diagonal"),
    [
        ((1, 2, 3), (1, 2, 3), {(1, 1), (2, 2), (3, 3)}),
        ((1, 3, 5), (1, 2), {(1, 1), (5, 2)}),
        ((1, 5), (1, 2, 3, 4), {(1, 1), (1, 2), (5, 3), (5, 4)}),
    ],
)
def test_raua_of_all_cuts_with_all_takes_those_that_indices_map(fronts, ends, diagonal) -> None:
    rows = [
        cell("fula", "invariance", agreement=90.0 if (f, e) in diagonal else 0.0, **cut(f, e))
        for f in fronts
        for e in ends
    ]
    row = only(statistics(frame(*rows), show="raua").frame)
    assert (row["mean"], row["cuts"]) == (90, len(diagonal))


def test_raua_keeps_several_end_cuts_on_one_front_cut() -> None:
    rows = [cell("fula", "invariance", agreement=10.0 * e, **cut(1, e)) for e in (1, 2, 3)]
    assert only(statistics(frame(*rows), show="raua").frame)["mean"] == 20


# Rescaled


def rescaled(*rows: dict, front: str = "clean-1") -> dict[str, dict]:
    got = statistics(frame(*rows), show="rescaled").frame.filter(front=front)
    return {row["protocol"]: row for row in got.iter_rows(named=True)}


def test_rescaled_is_zero_at_the_noise_floor_and_a_hundred_at_the_end_itself() -> None:
    own = {"front_model": "clean-0"}
    got = rescaled(*three(92.0, 50.0, 20.0), *three(100.0, 95.0, 60.0, **own))
    assert got["standard"]["mean"] == pytest.approx(100 * (92 - 20) / (100 - 20))
    assert got["invariance"]["mean"] == pytest.approx(100 * (50 - 20) / (95 - 20))
    assert [got["invariance"][n] for n in ("floor", "ceiling", "ceiling_from")] == [
        20,
        95,
        "itself",
    ]
    assert "noise" not in got


def test_without_the_end_itself_the_ceiling_is_a_hundred_and_says_so() -> None:
    other = {"front_model": "clean-0", **cut(5)}
    marked = {"front_model": "clean-0", "stitch_marker": "m", "test_marker": "m"}
    got = rescaled(
        *three(92.0, 50.0, 20.0), *three(1.0, 1.0, 1.0, **other), *three(1, 1, 1, **marked)
    )
    assert got["invariance"]["mean"] == pytest.approx(100 * 30 / 80)
    assert got["invariance"]["ceiling_from"] == "100"


def test_seeds_are_rescaled_one_by_one() -> None:
    got = rescaled(*three(92.0, 50.0, 20.0), *three(92.0, 70.0, 40.0, seed=1))["invariance"]
    values = [100 * 30 / 80, 100 * 30 / 60]
    assert (got["mean"], got["sd"]) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert (got["low"], got["high"]) == pytest.approx(tuple(values))


@pytest.mark.parametrize("floor", [95.0, 99.0])
def test_no_floor_below_the_ceiling_no_figure(floor) -> None:
    own = three(95.0, 95.0, 90.0, front_model="clean-0")
    got = rescaled(*three(92.0, 50.0, floor), *own)["invariance"]
    assert (got["mean"], got["number"], got["planned"]) == (None, 0, 1)


def test_no_noise_no_figure() -> None:
    got = statistics(frame(*three(92.0, 50.0, None)), show="rescaled")
    assert got.warnings == ("no rescaled: no cell has a noise control to be rescaled from.",)


# Names, and nothing at all


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"show": "mean"}, "unknown table: 'mean' is not one of means"),
        ({"by": "entry"}, "unknown grouping: 'entry' is not one of models, entries"),
        ({"metric": "acuracy"}, "unknown metric: .*did you mean 'accuracy'"),
        ({"metric": "key"}, "unknown metric"),
        ({"show": "raua", "metric": "loss"}, "raua is defined for agreement alone"),
        ({"show": "rescaled", "metric": "loss"}, "rescaled is defined for agreement alone"),
    ],
)
def test_a_wrong_name_is_one_sentence(given, sentence) -> None:
    with pytest.raises(RaystitchError, match=sentence) as caught:
        statistics(frame(cell(agreement=1.0)), **given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("by", ["models", "entries"])
@pytest.mark.parametrize("show", TABLES)
def test_no_rows_at_all(show, by) -> None:
    got = statistics(frame(), show=show, by=by)
    assert got.frame.height == 0
    assert got.warnings == (f"no {show}: {TABLES[show].empty}.",)


@pytest.mark.parametrize("show", TABLES)
def test_what_is_read_leaves_out_what_is_alike_everywhere(show) -> None:
    rows = [*three(97.0, 42.0, 22.0), *both_ways((90.0, 50.0))]
    rows += [row | {"key": f"4{row['key']}", "budget": 4} for row in rows]
    got = statistics(frame(*rows), show=show).frame
    shown = readable(got).columns
    assert "data" not in shown
    assert "budget" in shown
    assert not [name for name in shown if name.endswith("_index")]
    assert [name for name in got.columns if name in shown] == shown
