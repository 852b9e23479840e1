"""The rows of a sweep laid out by its plan: what summary and statistics start from."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from raystitch.results.schema import PLACE
from raystitch.results.tensors import check_places, natural

PAIR = (
    *("front_model", "end_model", "stitch_marker", "test_marker", "control", "variant"),
    *("data", "preset", "budget"),
)
CUTS = ("front_cut", "front_cut_index", "end_cut", "end_cut_index")

GOOD = pl.col("status").eq_missing("ok")
"""Whether a planned cell has a row that did not fail."""


def laid_out(
    cells: pl.DataFrame, planned: pl.DataFrame | None, columns: Sequence[str]
) -> pl.DataFrame:
    """One row per planned cell, in the plan's order, with these ``columns`` of its stored row.

    cells: one row per key, as `CellStore.read` gives them. planned: the current plan, a frame with
    ``key``, `PLACE` and the cut indices; only its keys count, and a cell that variants share stands
    under each of them. Without it the rows themselves are the plan, their pairs in natural order
    and the rows of a pair as they come.
    Raises `RaystitchError` where two cells share a place.
    """
    place = ["key", *PLACE, "front_cut_index", "end_cut_index"]
    if planned is None:
        check_places(cells)
        return _by_pair(cells.select(*place, *columns))
    plan = planned.select(place)
    check_places(cells.join(plan, on="key", how="semi"))
    outcome = cells.select("key", *columns)
    return plan.join(outcome, on="key", how="left", maintain_order="left")


def _by_pair(cells: pl.DataFrame) -> pl.DataFrame:
    """The rows with pairs in natural order, within a pair as they come."""
    pairs = cells.select(PAIR).unique().rows()
    ordered = sorted(pairs, key=lambda pair: [natural("" if v is None else str(v)) for v in pair])
    types = {name: cells.schema[name] for name in PAIR}
    ranked = pl.DataFrame(ordered, schema=types, orient="row").with_row_index("_rank")
    ranks = cells.select(PAIR).join(
        ranked, on=PAIR, how="left", nulls_equal=True, maintain_order="left"
    )
    return cells[ranks.select(pl.arg_sort_by("_rank", maintain_order=True)).to_series()]
