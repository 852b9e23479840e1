"""The summary: means with what is behind them, differences with their control, nothing left out."""

from __future__ import annotations

import io
import math

import polars as pl
import pytest
from rich.console import Console

from raystitch.errors import RaystitchError
from raystitch.results.summary import (
    NO_CONTROL,
    NOISE,
    REAL,
    Summary,
    differs_from_noise,
    render,
    summarise,
)
from rows import PROTOCOLS, cell, failed, frame, three

OBJECTIVES = ("hlm", "slm", "dm", "fula")


def text(summary: Summary, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(summary))
    return file.getvalue()


@pytest.mark.parametrize(
    ("invariance", "noise", "sems", "differs"),
    [
        (50.0, 40.0, (0.5, 0.5), True),
        (45.0, 40.0, (0.5, 0.5), False),  # exactly the margin is not more than it
        (45.01, 40.0, (0.5, 0.5), True),
        (50.0, 40.0, (3.0, 4.0), False),  # two errors of the difference are 10
        (50.01, 40.0, (3.0, 4.0), True),
        (50.0, 40.0, (5.0, 0.0), False),
        (30.0, 40.0, (0.0, 0.0), False),  # below the control: worse than noise is no difference
        (50.0, 40.0, (None, None), True),
    ],
)
def test_a_fall_is_real_only_above_the_noise_control(
    invariance: float, noise: float, sems: tuple[float, float], differs: bool
) -> None:
    assert differs_from_noise(invariance, noise, *sems) is differs


def test_one_row_per_pair_and_cut_one_column_per_objective_and_protocol() -> None:
    rows, value = [], 0.0
    for front in ("clean-1", "robust-3"):
        for cut, index in (("z", 1), ("a", 2)):
            for objective in OBJECTIVES:
                for protocol in PROTOCOLS:
                    if (objective, protocol) != ("hlm", "noise"):
                        value += 1
                        place = {"front_model": front, "front_cut": cut, "front_cut_index": index}
                        rows.append(cell(objective, protocol, agreement=value, **place))
    got = summarise(frame(*reversed(rows)))
    assert got.frame.select("front_model", "front_cut").rows() == [
        ("clean-1", "z"),
        ("clean-1", "a"),
        ("robust-3", "z"),
        ("robust-3", "a"),
    ]
    assert "hlm_noise" not in got.frame.columns
    assert got.columns("hlm") == ["hlm_standard", "hlm_invariance"]
    for row in rows:
        name = f"{row['objective']}_{row['protocol']}"
        place = {k: row[k] for k in ("front_model", "front_cut")}
        assert got.frame.filter(**place)[name].to_list() == [row["agreement"]]
    assert (got.planned, got.missing, got.failed.height) == (44, 0, 0)
    assert (got.frame["dm_difference"] == -1).all()


def test_means_are_over_the_seeds_that_are_there_and_say_how_many() -> None:
    rows = [cell(agreement=a, seed=s, agreement_sem=e) for s, a, e in ((0, 80, 1), (1, 90, 3))]
    rows.append(failed(seed=2))
    got = summarise(frame(*rows))
    (row,) = got.frame.to_dicts()
    assert row["fula_standard"] == 85
    assert row["fula_standard_sem"] == 2, "seeds share their test images: the error does not shrink"
    assert (row["fula_standard_seeds"], row["fula_standard_planned"]) == (2, 3)
    assert row["fula_standard_sd"] == pytest.approx(math.sqrt(50))
    assert (got.planned, got.missing) == (3, 1)
    assert "85.0±7.1*" in text(got)
    assert "± standard deviation over seeds." in text(got)
    assert "* mean over fewer seeds than planned." in text(got)


@pytest.mark.parametrize(
    ("figures", "difference", "flag", "shown"),
    [
        ((97.0, 42.0, 22.0), 55.0, REAL, "+55.0\n"),
        ((97.0, 19.0, 18.0), 78.0, NOISE, "+78.0~"),
        ((97.0, 42.0, None), 55.0, NO_CONTROL, "+55.0?"),
        ((90.0, 95.0, 20.0), -5.0, REAL, "-5.0\n"),
    ],
)
def test_the_difference_carries_its_flag(figures, difference, flag, shown) -> None:
    got = summarise(frame(*three(*figures)))
    assert got.frame["fula_difference"].to_list() == [difference]
    assert got.frame["fula_flag"].to_list() == [flag]
    assert shown in text(got)


def test_the_errors_of_both_sides_enter_the_flag() -> None:
    rows = three(97.0, 50.0, 40.0)
    assert summarise(frame(*rows)).frame["fula_flag"].item() == REAL
    for row in rows:
        row["agreement_sem"] = 4.0  # two errors of the difference: 2 * sqrt(32) = 11.3
    assert 2 * math.hypot(4, 4) > 10
    assert summarise(frame(*rows)).frame["fula_flag"].item() == NOISE


def test_hlm_is_said_to_have_no_control() -> None:
    rows = [cell("hlm", p, agreement=a) for p, a in (("standard", 95), ("invariance", 94))]
    got = summarise(frame(*rows, *three(97, 42, 22)))
    assert got.frame["hlm_flag"].to_list() == [NO_CONTROL]
    assert got.frame["fula_flag"].to_list() == [REAL]
    assert "+1.0?" in text(got)
    assert "? no control" in text(got)


def test_without_invariance_there_is_no_difference() -> None:
    got = summarise(frame(cell(agreement=90.0), cell(protocol="noise", agreement=20.0)))
    assert not [name for name in got.frame.columns if "difference" in name or "flag" in name]
    assert "diff" not in text(got)


def test_a_missing_cell_is_a_dash_and_counted_and_a_failed_one_is_listed() -> None:
    rows = three(97.0, 42.0, 22.0, front_cut="blocks.0", front_cut_index=1)
    rows += [cell(agreement=96.0), failed("fula", "invariance")]
    got = summarise(frame(*rows))
    assert got.frame["fula_flag"].to_list() == [REAL, None]
    assert (got.planned, got.missing, got.failed.height) == (5, 1, 1)
    printed = text(got)
    assert "4 of 5 cells have a result; 1 missing." in printed
    line = next(line for line in printed.splitlines() if line.startswith(" blocks.2"))
    assert line.split() == ["blocks.2", "96.0", "-", "-"], "noise at that cut was never planned"
    assert "1 failed:" in printed
    assert "fula invariance seed 0: the loss was NaN" in printed


def test_the_plan_says_what_is_missing_in_which_order_and_what_counts() -> None:
    here = cell(agreement=90.0)
    plan = frame(
        cell(front_model="robust-3"), cell(front_model="robust-3", front_cut="blocks.4"), here
    )
    stale = cell(agreement=1.0, front_model="trial-9")
    got = summarise(frame(stale, here), plan)
    assert got.frame["front_model"].to_list() == ["robust-3", "robust-3", "clean-1"]
    assert (got.planned, got.missing) == (3, 2)
    assert "trial-9" not in text(got)


def test_a_stale_row_in_the_place_of_a_planned_one_does_not_mix_in() -> None:
    old, new = cell(agreement=10.0) | {"key": "old"}, cell(agreement=90.0)
    with pytest.raises(RaystitchError, match="more than one cell"):
        summarise(frame(old, new))
    assert summarise(frame(old, new), frame(new)).frame["fula_standard"].to_list() == [90.0]


def test_variants_of_a_pair_stand_apart_and_are_named() -> None:
    marked = {"stitch_marker": "shortcut-2", "test_marker": "shortcut-2"}
    rows = [
        cell(agreement=10.0),
        cell(agreement=20.0, **marked),
        cell(agreement=30.0, stitch_marker="s-1"),
        cell(agreement=40.0, budget=4),
    ]
    got = summarise(frame(*rows))
    assert sorted(got.frame["fula_standard"]) == [10, 20, 30, 40]
    printed = text(got)
    for title in (
        "clean-1 -> clean-0  (budget 1)",
        "clean-1 -> clean-0  (budget 4)",
        "clean-1 -> clean-0  (marker of shortcut-2, budget 1)",
        "clean-1 -> clean-0  (stitch marker s-1, test marker none, budget 1)",
    ):
        assert title in printed


def quickstart() -> pl.DataFrame:
    pairs = [("clean-0", None), ("clean-1", None), ("shortcut-2", "shortcut-2"), ("robust-3", None)]
    return frame(
        *(
            cell(
                objective,
                protocol,
                agreement=97.6 - 20 * PROTOCOLS.index(protocol),
                front_model=front,
                stitch_marker=marker,
                front_cut=f"blocks.{index - 1}",
                end_cut=f"blocks.{index - 1}",
                front_cut_index=index,
                end_cut_index=index,
            )
            for front, marker in pairs
            for index in (1, 3, 5)
            for objective in OBJECTIVES
            for protocol in PROTOCOLS
            if (objective, protocol) != ("hlm", "noise")
        )
    )


def test_the_quickstart_fits_100_columns_in_one_block() -> None:
    lines = text(summarise(quickstart()), width=100).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == list(OBJECTIVES)
    figures = [line for line in lines if line.startswith(" blocks.")]
    assert len(figures) == 12
    assert {len(line.split()) for line in figures} == {1 + 3 + 3 * 4}
    assert "\x1b" not in "".join(lines), "plain text where there is no terminal"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_nothing_is_cut_off_at_any_width(width: int) -> None:
    printed = text(summarise(quickstart()), width)
    assert max(map(len, printed.splitlines())) <= width
    assert printed.count("+20.0") == 12 * 4
    assert printed.count("97.6") == 12 * 4


def test_deviations_are_left_out_of_a_table_that_they_make_too_wide() -> None:
    rows = [row for s in (0, 1) for row in three(90.0 + s, 50.0, 20.0, seed=s)]
    got = summarise(frame(*rows))
    wide, narrow = text(got, 100), text(got, 35)
    assert "90.5±0.7 50.0±0.0 20.0±0.0" in wide
    assert "90.5 50.0  20.0 +40.5" in narrow
    assert "±" not in narrow
    assert "±" not in text(summarise(quickstart())), "one seed has no deviation"


def test_cuts_of_unlike_networks_show_both_names() -> None:
    got = summarise(frame(cell(agreement=1.0, front_cut="layer1.0", end_cut="blocks.3")))
    assert "layer1.0 -> blocks.3" in text(got)


def test_many_failures_are_counted_not_all_listed() -> None:
    printed = text(summarise(frame(*(failed(seed=seed) for seed in range(30)))), width=200)
    assert printed.count("the loss was NaN") == 10
    assert "and 20 more: SELECT key, error FROM cells WHERE status = 'failed'" in printed


def test_no_cells_at_all() -> None:
    assert "0 of 0 cells have a result" in text(summarise(frame()))
