"""Statistics over seeds of a sweep's rows: one table at a time, each with its intervals.

docs/statistics.md has the formulae and says what each interval covers. Figures of two cells are
always compared cell by cell (same networks, cuts, objective and seed) before any mean is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import polars as pl

from raystitch.errors import RaystitchError, choices
from raystitch.results.bootstrap import interval
from raystitch.results.layout import CUTS, GOOD, PAIR, laid_out
from raystitch.results.schema import METRICS, PLACE
from raystitch.results.summary import NO_CONTROL, NOISE, REAL, differs_from_noise
from raystitch.results.tensors import natural

GROUPINGS = ("models", "entries")
"""`models`: over stitch seeds alone; `entries`: over networks that differ in their seed too."""

HEADLINE = "agreement"
CONTRASTS = (("standard", "invariance"), ("invariance", "noise"))
SELF, FULL = "itself", "100"
"""Where a ceiling comes from: the end stitched to itself at that cut, or none is there."""

_BEHIND = ("status", "agreement_sem", "agreement_low", "agreement_high")
_SETTINGS = PAIR[2:]
_PAIR = ("front", "end", "same_network", *_SETTINGS)
_PLACE = (*_PAIR, *CUTS)
_CELL = (*PAIR, *CUTS, "objective", "seed")
"""What two cells share that are compared under two protocols."""


@dataclass(frozen=True)
class Statistics:
    """A table with one row per figure, and warnings: seeds fewer than planned, or no row at all.

    frame: ``front``, ``end`` (models, or their entries), ``same_network``, the other columns of a
    place, then ``number`` (values behind the figure), ``planned``, ``mean``, ``sd`` (n - 1; null
    for one value), ``low`` and ``high`` (95 % over seeds; null where there is nothing to draw).
    """

    frame: pl.DataFrame
    warnings: tuple[str, ...]


def statistics(
    cells: pl.DataFrame,
    planned: pl.DataFrame | None = None,
    *,
    show: str = "means",
    by: str = "models",
    metric: str = HEADLINE,
) -> Statistics:
    """The table ``show`` (one of `TABLES`) of a sweep's rows; ``planned`` as in `laid_out`.

    Raises `RaystitchError` as `check_names` does, and where two rows claim one place.
    """
    check_names(show, by, metric)
    # By key: the draws behind an interval follow the order of rows, which is not to be chance's.
    rows = laid_out(cells.sort("key"), planned, tuple(dict.fromkeys((metric, *_BEHIND))))
    value = pl.when(GOOD).then(pl.col(metric).cast(pl.Float64).fill_nan(None))
    rows = rows.with_columns(
        *_labels(by), GOOD.alias("there"), value.alias("value"), metric=pl.lit(metric)
    )
    found = TABLES[show].make(_in_order(rows))
    few = found.filter(pl.col("absent") > 0)
    return Statistics(
        found.drop("absent"),
        _warnings(few, found.height) if found.height else (f"no {show}: {TABLES[show].empty}.",),
    )


def columns(metric: str = HEADLINE) -> tuple[str, ...]:
    """The columns of a row that `statistics` looks at."""
    return ("key", *PLACE, *CUTS, metric, *_BEHIND)


def check_names(show: str, by: str, metric: str) -> None:
    """`RaystitchError` for a name that is not there, or a metric that the table is not made for."""
    for what, given, allowed in (
        ("table", show, TABLES),
        ("grouping", by, GROUPINGS),
        ("metric", metric, METRICS),
    ):
        if given not in allowed:
            raise RaystitchError(f"unknown {what}: {choices(given, allowed)}.")
    if show in ("raua", "rescaled") and metric != HEADLINE:
        raise RaystitchError(f"{show} is defined for agreement alone: leave out --metric {metric}.")


def readable(frame: pl.DataFrame) -> pl.DataFrame:
    """The table for reading: without the places of cuts, and settings that are everywhere alike."""
    places = [name for name in CUTS if name.endswith("_index")]
    alike = [name for name in ("same_network", *_SETTINGS) if frame[name].n_unique() <= 1]
    return frame.drop(alike, *(name for name in places if name in frame.columns))


def _labels(by: str) -> list[pl.Expr]:
    """``front``, ``end`` and ``same_network``; by entries also markers, said by whose they are.

    A network stitched to itself and two seeds of one entry are different things: never one group.
    """
    front, end = pl.col("front_model"), pl.col("end_model")
    same = (front == end).alias("same_network")
    if by == "models":
        return [front.alias("front"), end.alias("end"), same]
    markers = [
        pl.when(pl.col(name) == front)
        .then(pl.lit("of front"))
        .when(pl.col(name) == end)
        .then(pl.lit("of end"))
        .otherwise(pl.col(name))
        .alias(f"{name}_label")
        for name in ("stitch_marker", "test_marker")
    ]
    seedless = [
        column.str.replace(r"-\d+$", "").alias(name)
        for column, name in ((front, "front"), (end, "end"))
    ]
    return [*seedless, same, *markers]


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Pairs as they first appear, cuts in data order, the rest as planned."""
    rows = rows.with_row_index("_row")
    pair = pl.col("_row").min().over(PAIR)
    return rows.sort(pair, "front_cut_index", "end_cut_index", "_row").drop("_row")


def _means(rows: pl.DataFrame) -> pl.DataFrame:
    """Each cell's metric, with the interval over test images beside it for agreement."""
    ours = (pl.col("metric") == HEADLINE) & pl.col("there")
    # Ends of the cells' intervals: seeds share their test images, so more seeds narrow nothing.
    images = {
        f"image_{end}": pl.col(f"agreement_{end}").filter(ours).mean() for end in ("low", "high")
    }
    return _over_seeds(rows, (*_PLACE, "objective", "protocol"), images)


def _differences(rows: pl.DataFrame) -> pl.DataFrame:
    """Paired differences between protocols, and whether a fall stands out from its control."""
    noise = _under(rows, "noise", "noise")
    parts: list[pl.DataFrame] = []
    for left, right in CONTRASTS:
        pairs = rows.filter(protocol=left).join(
            _under(rows, right, "other"), on=_CELL, nulls_equal=True, maintain_order="left"
        )
        pairs = pairs.join(noise, on=_CELL, how="left", nulls_equal=True, maintain_order="left")
        parts.append(
            pairs.with_columns(
                pl.lit(f"{left} - {right}").alias("difference"),
                pl.col("value") - pl.col("other"),
                pl.col("there") & pl.col("other_there"),
                standing=pl.col("other"),
            )
        )
    extra = {
        name: pl.col(name).filter(pl.col("noise").is_not_null()).mean()
        for name in ("standing", "other_sem", "noise", "noise_sem")
    }
    by = (*_PLACE, "objective", "difference")
    table = _over_seeds(_in_order(pl.concat(parts)), by, extra)
    ours = rows.height > 0 and rows["metric"][0] == HEADLINE
    flags = [_flag(row) if ours else None for row in table.iter_rows(named=True)]
    return table.drop(extra).with_columns(pl.Series("flag", flags, dtype=pl.String))


def _flag(row: Mapping[str, Any]) -> str | None:
    if row["difference"] != "standard - invariance" or row["mean"] is None:
        return None
    if row["noise"] is None:
        return NO_CONTROL
    errors = row["other_sem"], row["noise_sem"]
    return REAL if differs_from_noise(row["standing"], row["noise"], *errors) else NOISE


def _directions(rows: pl.DataFrame) -> pl.DataFrame:
    """A -> B and B -> A at the same two cuts, and forth - back, paired by networks and seed."""
    turned = {"front_model": "end_model", "front_cut": "end_cut"}
    turned["front_cut_index"] = "end_cut_index"
    turned |= {end: front for front, end in turned.items()}
    on = [*_CELL, "protocol"]
    back = rows.select(*on, back="value", back_there="there").rename(turned)
    names = {*rows["front"], *rows["end"]}
    rank = {name: n for n, name in enumerate(sorted(names, key=lambda name: natural(name)))}
    places = {
        name: pl.col(name).replace_strict(rank, return_dtype=pl.Int64) for name in ("front", "end")
    }
    # Among networks of one entry neither direction is forth: only unequal names have two.
    both = rows.filter(places["front"] < places["end"]).join(
        back, on=on, nulls_equal=True, maintain_order="left"
    )
    both = both.with_columns(
        pl.col("value") - pl.col("back"),
        pl.col("there") & pl.col("back_there"),
        forth=pl.col("value"),
    )
    paired = pl.col("value").is_not_null()
    sides = {name: pl.col(name).filter(paired).mean() for name in ("forth", "back")}
    return _over_seeds(both, (*_PLACE, "objective", "protocol"), sides)


def _raua(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean agreement over a pair's cuts under invariance: null where one of them is missing."""
    chosen = _one_front_cut_each(rows.filter(protocol="invariance"))
    whole = pl.col("value").is_not_null().all()
    by = list(dict.fromkeys((*_PAIR, *_origin(rows), "objective")))
    seedwise = chosen.group_by(by, maintain_order=True).agg(
        pl.when(whole).then(pl.col("value").mean()),
        whole.alias("there"),
        pl.len().alias("cuts"),
    )
    return _over_seeds(seedwise, (*_PAIR, "objective"), {"cuts": pl.col("cuts").max()})


def _rescaled(rows: pl.DataFrame) -> pl.DataFrame:
    """Agreement from its noise floor (0) to the ceiling of the end stitched to itself (100)."""
    at_end = [name for name in _CELL if not name.startswith("front_")] + ["protocol"]
    itself = (pl.col("front_model") == pl.col("end_model")) & (
        pl.col("front_cut") == pl.col("end_cut")
    )
    own = rows.filter(itself & pl.col("value").is_not_null()).select(*at_end, own="value")
    floor = _under(rows, "noise", "floor").drop("floor_sem")
    found = rows.filter(pl.col("protocol") != "noise").join(
        floor, on=_CELL, nulls_equal=True, maintain_order="left"
    )
    found = found.join(own, on=at_end, how="left", nulls_equal=True, maintain_order="left")
    ceiling, bottom = pl.col("own").fill_null(100.0), pl.col("floor")
    rescaled = 100 * (pl.col("value") - bottom) / (ceiling - bottom)
    found = found.with_columns(
        pl.when(bottom < ceiling).then(rescaled).alias("value"),
        pl.col("there") & pl.col("floor_there"),
        ceiling=ceiling,
    )
    has_own = pl.col("own").is_not_null()
    source = pl.when(has_own.all()).then(pl.lit(SELF)).when(~has_own.any()).then(pl.lit(FULL))
    ends = {
        "floor": bottom.mean(),
        "ceiling": pl.col("ceiling").mean(),
        "ceiling_from": source.otherwise(pl.lit(f"{SELF} or {FULL}")),
    }
    return _over_seeds(found, (*_PLACE, "objective", "protocol"), ends)


@dataclass(frozen=True)
class Table:
    """A table that can be asked for.

    make: rows in, one row per figure out, ``absent`` counting its missing values. empty: why it has
    no row where it has none.
    """

    make: Callable[[pl.DataFrame], pl.DataFrame]
    empty: str


TABLES = {
    "means": Table(_means, "nothing is planned"),
    "differences": Table(_differences, "no cell is planned under both protocols of a difference"),
    "directions": Table(_directions, "nothing is stitched both ways (by entries: between two)"),
    "raua": Table(_raua, "no cell is planned under invariance"),
    "rescaled": Table(_rescaled, "no cell has a noise control to be rescaled from"),
}


def _under(rows: pl.DataFrame, protocol: str, name: str) -> pl.DataFrame:
    """The cells under one protocol, to be joined to others: value, whether it is there, error."""
    found = rows.filter(protocol=protocol)
    named = {name: "value", f"{name}_there": "there", f"{name}_sem": "agreement_sem"}
    return found.select(*_CELL, **{new: pl.col(old) for new, old in named.items()})


def _one_front_cut_each(rows: pl.DataFrame) -> pl.DataFrame:
    """The cuts of a pair one to one: of all with all (i x j), those that indices map to each other.

    As cuts are paired in a plain sweep: the end's k-th with the front's at the rounded place of
    ``linspace(1, fronts, ends)``.
    """
    grids: dict[tuple[Any, ...], set[tuple[int, int]]] = {}
    pairs = rows.select(*PAIR, "front_cut_index", "end_cut_index")
    for *pair, front, end in pairs.iter_rows():
        grids.setdefault(tuple(pair), set()).add((front, end))
    kept = {pair: _mapped(grid) for pair, grid in grids.items()}
    mask = [(front, end) in kept[tuple(pair)] for *pair, front, end in pairs.iter_rows()]
    return rows.filter(pl.Series(mask, dtype=pl.Boolean))


def _mapped(grid: set[tuple[int, int]]) -> set[tuple[int, int]]:
    fronts, ends = (sorted({place[side] for place in grid}) for side in (0, 1))
    if len(grid) == len(ends):
        return grid
    gaps = max(len(ends) - 1, 1)
    return {
        (fronts[round(Fraction(k * (len(fronts) - 1), gaps))], end) for k, end in enumerate(ends)
    }


def _origin(rows: pl.DataFrame) -> list[str]:
    """Columns that tell where a value comes from, the labels of markers with them."""
    return [*PAIR, "seed", *(name for name in rows.columns if name.endswith("_label"))]


def _over_seeds(
    rows: pl.DataFrame, by: Sequence[str], extra: Mapping[str, pl.Expr]
) -> pl.DataFrame:
    """The statistics of ``value`` in each group, groups in order of appearance, extras last."""
    labels = {name.removesuffix("_label"): name for name in rows.columns if "_label" in name}
    rows = rows.with_columns(pl.col(label).alias(name) for name, label in labels.items())
    value, known = pl.col("value"), pl.col("value").is_not_null()
    origin = ("front_model", "end_model", "seed")
    table = rows.group_by(by, maintain_order=True).agg(
        known.sum().cast(pl.Int32).alias("number"),
        pl.len().cast(pl.Int32).alias("planned"),
        value.mean().alias("mean"),
        value.std().alias("sd"),
        (~pl.col("there")).sum().alias("absent"),
        value.filter(known).alias("_values"),
        pl.struct(origin).filter(known).alias("_origins"),
        *(expression.alias(name) for name, expression in extra.items()),
    )
    bounds = [
        interval(values, [(o["front_model"], o["end_model"], o["seed"]) for o in found])
        for values, found in table.select("_values", "_origins").iter_rows()
    ]
    ends = [
        pl.Series(name, [None if b is None else b[side] for b in bounds], dtype=pl.Float64)
        for side, name in enumerate(("low", "high"))
    ]
    figures = ("number", "planned", "mean", "sd", "low", "high", "absent")
    return table.with_columns(ends).select(*by, *figures, *extra)


def _warnings(few: pl.DataFrame, rows: int) -> tuple[str, ...]:
    if not few.height:
        return ()
    first = few.row(0, named=True)
    names = ("objective", "protocol", "difference")
    kind = " ".join(first[name] for name in names if name in few.columns)
    cut = f" at {first['front_cut']} -> {first['end_cut']}" if "front_cut" in few.columns else ""
    return (
        f"{few.height} of {rows} rows are over fewer seeds than planned (`number` below "
        f"`planned`). The first: {first['front']} -> {first['end']}{cut}, {kind}: "
        f"{first['planned'] - first['absent']} of {first['planned']}.",
    )
