"""SQL over the rows of a sweep, and frames as text or files."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, get_args

import polars as pl
from polars.io.plugins import register_io_source

from raystitch.errors import RaystitchError, choices
from raystitch.results.reading import TYPES

Format = Literal["table", "csv", "json", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

TABLE = "cells"


def query(frame: pl.DataFrame, sql: str) -> pl.DataFrame:
    """Run one SQL statement (Polars' dialect) over ``frame``, the table ``cells``.

    `RaystitchError` says what is wrong with the statement and lists the columns there are.
    """
    return _answered(frame, sql, frame.columns)


def columns(sql: str) -> tuple[str, ...]:
    """The columns of the rows that a statement looks at: all that must be read to answer it.

    Raises as `query` does. Polars is asked: the statement is run over rows of which there are none.
    """
    wanted: dict[str, None] = {}

    def no_rows(names: list[str] | None, *_: Any) -> Iterator[pl.DataFrame]:
        chosen = list(TYPES) if names is None else names
        wanted.update(dict.fromkeys(chosen))
        yield pl.DataFrame(schema={name: TYPES[name] for name in chosen})

    _answered(register_io_source(no_rows, schema=TYPES), sql, list(TYPES))
    return tuple(wanted)


def _answered(table: pl.DataFrame | pl.LazyFrame, sql: str, known: Sequence[str]) -> pl.DataFrame:
    try:
        return pl.SQLContext({TABLE: table}).execute(sql, eager=True)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise RaystitchError(_sentence(error, known)) from error


def known_format(fmt: str) -> Format:
    """The format of that name; `RaystitchError` lists those there are."""
    for known in FORMATS:
        if fmt == known:
            return known
    raise RaystitchError(f"unknown format: {choices(fmt, FORMATS)}.")


def format_frame(frame: pl.DataFrame, fmt: str = "table") -> str | bytes:
    """A frame as ``table`` (aligned text, nothing cut off), ``csv``, ``json`` or ``parquet``.

    Lists in a table or in CSV are JSON. JSON is a list of objects; NaN is null there. Only Parquet
    is bytes.
    """
    fmt = known_format(fmt)
    if fmt == "parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        return buffer.getvalue()
    if fmt == "json":
        return frame.write_json() + "\n"
    return _flat(frame).write_csv() if fmt == "csv" else _table(frame)


_UNKNOWN = re.compile(r"(?:unable to find column|no column named) [\"'](?P<name>[^\"']+)[\"']")


def _sentence(error: Exception, known: Sequence[str]) -> str:
    # Polars adds its resolved plan after an empty line: of no use to whoever wrote the SQL.
    reason = str(error).strip().split("\n\n")[0].rstrip(".")
    unknown = _UNKNOWN.search(reason)
    if unknown:
        reason = f"there is no such column: {choices(unknown['name'], known)}"
    stop = "" if reason.endswith("?") else "."
    return f"the query failed: {reason}{stop} It takes one SELECT from the table called {TABLE}."


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Nested columns as JSON text, for formats that have no nesting."""
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    return frame.with_columns(
        pl.Series(name, [_json(v) for v in frame[name].to_list()], dtype=pl.String)
        for name in nested
    )


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str)


def _table(frame: pl.DataFrame) -> str:
    """Aligned columns, numbers to the right, null as a dash; ``(no rows)`` where there are none."""
    columns = [
        [name, *map(_shown, values)]
        for name, values in zip(frame.columns, _flat(frame).iter_columns(), strict=True)
    ]
    right = [kind.is_numeric() for kind in frame.dtypes]
    widths = [max(map(len, column)) for column in columns]
    for column, width in zip(columns, widths, strict=True):
        column.insert(1, "-" * width)
    lines = [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(texts, widths, right, strict=True)
        ).rstrip()
        for texts in zip(*columns, strict=True)
    ]
    return "\n".join([*lines, *([] if frame.height else ["(no rows)"])]) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1 else f"{value:.2f}"
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    return str(value).replace("\n", " ")
