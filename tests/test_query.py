"""SQL over rows, and the formats of its answer."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import polars as pl
import pytest

from raystitch.errors import RaystitchError
from raystitch.results.query import FORMATS, columns, format_frame, query
from raystitch.results.reading import TYPES
from raystitch.results.schema import COLUMNS

CELLS = pl.DataFrame(
    {
        "key": ["a", "b", "c"],
        "end_model": ["clean-0", "clean-0", "robust-4"],
        "agreement": [90.0, 70.0, None],
        "seed": [0, 1, 10],
        "curve": [[0.5, 0.25], [1.0], None],
        "finished_at": [datetime(2026, 1, 1, 12, tzinfo=UTC)] * 3,
    }
)


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        ("SELECT key FROM cells WHERE seed > 1 ORDER BY agreement", {"key", "seed", "agreement"}),
        ("SELECT a.key FROM cells a JOIN cells b ON a.unit = b.sweep", {"key", "unit", "sweep"}),
        ("WITH m AS (SELECT MAX(seed) AS s FROM cells) SELECT s FROM m", {"seed"}),
        ("SELECT * FROM cells", set(COLUMNS)),
    ],
)
def test_the_columns_of_a_statement_are_those_it_looks_at(sql: str, wanted: set[str]) -> None:
    assert set(columns(sql)) == wanted


def test_rows_are_counted_though_no_column_is_asked_for() -> None:
    sql = "SELECT COUNT(*) AS n FROM cells"
    rows = pl.DataFrame({name: [None] * 3 for name in columns(sql)}, schema_overrides=TYPES)
    assert query(rows, sql).rows() == [(3,)]


def test_the_table_is_called_cells() -> None:
    got = query(
        CELLS,
        "SELECT end_model, AVG(agreement) AS mean, COUNT(*) AS n FROM cells "
        "GROUP BY end_model ORDER BY end_model",
    )
    assert got.rows() == [("clean-0", 80.0, 2), ("robust-4", None, 1)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT agrement FROM cells",
        "SELECT c.agrement FROM cells AS c",
        "SELECT key FROM cells WHERE agrement > 3",
    ],
)
def test_an_unknown_column_lists_those_there_are(sql: str) -> None:
    with pytest.raises(RaystitchError) as caught:
        query(CELLS, sql)
    message = str(caught.value)
    assert "'agrement' is not one of key, end_model, agreement, seed, curve" in message
    assert "did you mean 'agreement'?" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELEC key FROM cells", "SELEC"),
        ("", "statement"),
        ("SELECT * FROM runs", r"runs.*table called cells"),
        ("SELECT key FROM cells; SELECT 1", "one"),
        ("SELECT nosuch(key) FROM cells", "nosuch"),
        ("SELECT key FROM cells WHERE agreement > 'high'", "compare"),
        ("SELECT MAX(curve) FROM cells", "max"),
        ("SELECT * FROM read_csv('nosuch.csv')", "nosuch"),
    ],
)
def test_every_other_mistake_is_one_sentence(sql: str, reason: str) -> None:
    with pytest.raises(RaystitchError, match=rf"^the query failed: .*{reason}") as caught:
        query(CELLS, sql)
    assert "\n" not in str(caught.value)


def test_a_table_is_aligned_and_cuts_nothing_off() -> None:
    long = CELLS.with_columns(pl.col("key") + "x" * 200)
    lines = str(format_frame(long)).splitlines()
    assert lines[0].split() == CELLS.columns
    assert set(lines[1]) == {"-", " "}
    assert lines[2].startswith("a" + "x" * 200)
    assert "[0.5, 0.25]" in lines[2]
    assert lines[4].split()[2] == "-", "null"
    where = lines[0].index("agreement") + len("agreement")
    assert [line[:where].split()[-1] for line in lines[2:4]] == ["90.00", "70.00"]
    assert all(line[where - 1] != " " for line in lines[2:]), "numbers end under their heading"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.61538, "0.6154"), (1e-7, "1e-07"), (-0.25, "-0.25"), (100.0, "100.00")],
)
def test_numbers_in_a_table(value: float, shown: str) -> None:
    assert str(format_frame(pl.DataFrame({"x": [value]}))).split()[-1] == shown


def test_no_rows_are_said() -> None:
    assert str(format_frame(CELLS.clear())).splitlines()[-1] == "(no rows)"


def test_csv_reads_back() -> None:
    got = pl.read_csv(io.StringIO(str(format_frame(CELLS, "csv"))))
    assert got.columns == CELLS.columns
    assert got["agreement"].to_list() == [90.0, 70.0, None]
    assert json.loads(got["curve"][0]) == [0.5, 0.25]


def test_json_reads_back_with_nan_as_null() -> None:
    got = json.loads(format_frame(CELLS.with_columns(nan=pl.lit(float("nan"))), "json"))
    assert [row["key"] for row in got] == ["a", "b", "c"]
    assert got[0]["curve"] == [0.5, 0.25]
    assert got[2]["agreement"] is None
    assert got[0]["nan"] is None


def test_parquet_reads_back_the_same() -> None:
    data = format_frame(CELLS, "parquet")
    assert isinstance(data, bytes)
    assert pl.read_parquet(io.BytesIO(data)).equals(CELLS)


def test_an_unknown_format_names_the_known_ones() -> None:
    assert FORMATS == ("table", "csv", "json", "parquet")
    with pytest.raises(RaystitchError, match=r"'jsn' is not one of .*did you mean 'json'"):
        format_frame(CELLS, "jsn")
