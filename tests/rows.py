"""Rows as a sweep stores them, with the figures that a test gives."""

from __future__ import annotations

import polars as pl

from raystitch.results.schema import CELL_SCHEMA, PLACE

PROTOCOLS = ("standard", "invariance", "noise")


def cell(objective: str = "fula", protocol: str = "standard", **values: object) -> dict:
    """A good row of clean-1 -> clean-0 at blocks.2; its key follows from its place."""
    plain = {
        "front_model": "clean-1",
        "front_cut": "blocks.2",
        "front_cut_index": 3,
        "end_model": "clean-0",
        "end_cut": "blocks.2",
        "end_cut_index": 3,
        "objective": objective,
        "protocol": protocol,
        "seed": 0,
        "data": "digits",
        "preset": "controlled",
        "budget": 1,
        "status": "ok",
        "settings": "{}",
        "agreement_sem": 0.5,
    }
    row = {**plain, **values}
    return {"key": str([row.get(name) for name in PLACE]), **row}


def failed(*args: str, **values: object) -> dict:
    return cell(*args, status="failed", error="the loss was NaN", agreement=None, **values)


def frame(*rows: dict) -> pl.DataFrame:
    schema = pl.DataFrame(pl.from_arrow(CELL_SCHEMA.empty_table())).schema
    return pl.DataFrame(list(rows), schema=schema)


def three(standard: float, invariance: float, noise: float | None, **values: object) -> list[dict]:
    """Rows of `fula` under the three protocols; without a noise control for None."""
    figures = zip(PROTOCOLS, (standard, invariance, noise), strict=True)
    return [cell("fula", p, agreement=a, **values) for p, a in figures if a is not None]
