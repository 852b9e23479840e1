"""Rows: declared schema, atomic files, many writers, torn and foreign files, older releases."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from polars.testing import assert_frame_equal

from raystitch.errors import StorageError
from raystitch.files import TEMPORARY
from raystitch.results.reading import TYPES
from raystitch.results.row_files import MAGIC, _digest, encode
from raystitch.results.store import (
    CELL_SCHEMA,
    COLUMNS,
    METRICS,
    PLACE,
    CellStore,
    SetAsideWarning,
    Storage,
    find_cells,
    read_cells,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def row(key: str = "k", minutes: int = 0, **values: object) -> dict[str, object]:
    return {
        "key": key,
        "status": "ok",
        "agreement": 90.0,
        "finished_at": NOON + timedelta(minutes=minutes),
        **values,
    }


def failed(key: str = "k", minutes: int = 0) -> dict[str, object]:
    return row(key, minutes, status="failed", error="it diverged", agreement=None)


@pytest.fixture
def store(tmp_path: Path) -> CellStore:
    return CellStore(Storage(tmp_path), "trial")


def test_paths_are_those_of_the_design(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    found = {
        str(path.relative_to(tmp_path))
        for path in (
            storage.model("m"),
            storage.iri_part("r", 0),
            storage.network_card("c"),
            storage.sweep_file("s"),
            storage.cells("s"),
            storage.tensors("s"),
        )
    }
    assert found == {
        "artifacts/models/m",
        "artifacts/iris/r/part-00000.parquet",
        "artifacts/cards/c.json",
        "sweeps/s/sweep.yaml",
        "sweeps/s/cells",
        "sweeps/s/tensors",
    }
    assert list(tmp_path.iterdir()) == [], "naming a path makes nothing"


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "-x"])
def test_a_name_cannot_leave_the_storage(tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError, match="file name"):
        Storage(tmp_path).cells(name)


def test_every_column_is_described_and_the_schema_is_made_of_them() -> None:
    assert CELL_SCHEMA.names == list(COLUMNS)
    assert all(column.description.endswith(".") for column in COLUMNS.values())
    assert {"end", "front", "order", "group"}.isdisjoint(COLUMNS), "reserved or vague in SQL"
    assert set(METRICS) | set(PLACE) < set(COLUMNS)
    assert COLUMNS["curve"].type == pa.list_(pa.float64())
    assert str(COLUMNS["finished_at"].type) == "timestamp[us, tz=UTC]"


def test_no_rows_still_have_the_whole_schema(store: CellStore) -> None:
    empty = store.read()
    store.write([row()], "unit")
    assert empty.height == 0
    assert empty.schema == store.read().schema
    assert empty.schema["finished_at"] == pl.Datetime("us", "UTC")


def test_a_row_comes_back_as_written_and_missing_columns_are_null(store: CellStore) -> None:
    path = store.write(
        [row(curve=[2.0, 1.0], seed=2**40, epochs=30, relative_accuracy=float("nan"))], "unit-1"
    )
    assert path.parent == store.folder
    assert path.name.startswith("unit-1-")
    (got,) = store.read().to_dicts()
    assert (got["key"], got["curve"], got["seed"], got["epochs"]) == ("k", [2.0, 1.0], 2**40, 30)
    assert got["finished_at"] == NOON
    assert got["relative_accuracy"] is None
    assert got["entropy"] is None


def test_the_finish_is_stamped_where_it_is_missing(store: CellStore) -> None:
    before = datetime.now(UTC)
    store.write([row(finished_at=None)], "unit")
    assert before <= store.read()["finished_at"][0] <= datetime.now(UTC)


@pytest.mark.parametrize(
    "bad",
    [
        {"agrement": 1.0},
        {"key": ""},
        {"status": "done"},
        {"status": "failed"},
        {"error": "but it is ok"},
        {"agreement": float("nan")},
    ],
)
def test_our_own_mistakes_in_a_row_are_asserted(store: CellStore, bad: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        store.write([{**row(), **bad}], "unit")
    assert not store.folder.exists() or not list(store.folder.iterdir())


@pytest.mark.parametrize("good_first", [True, False])
def test_a_good_row_beats_a_failed_one_whatever_the_order(
    store: CellStore, good_first: bool
) -> None:
    store.write([row(minutes=0 if good_first else 9)], "a")
    store.write([failed(minutes=9 if good_first else 0)], "b")
    assert store.read()["status"].to_list() == ["ok"]


def test_the_latest_good_row_counts(store: CellStore) -> None:
    store.write([row(minutes=5, agreement=50.0)], "a")
    store.write([row(minutes=1, agreement=10.0), row("other", minutes=0)], "b")
    frame = store.read()
    assert frame["key"].to_list() == ["other", "k"], "in the order in which they finished"
    assert frame["agreement"].to_list() == [90.0, 50.0]


def test_rows_of_another_training_never_hide_those_of_the_stored_one(store: CellStore) -> None:
    old, new = ({"front_digest": name, "end_digest": "e"} for name in ("old", "new"))
    store.write([row(**old)], "a")
    store.write([{**failed(minutes=1), **new}], "b")
    store.write([row("other", **new), row("other", minutes=1, **old)], "c")
    found = store.scan().frame.select("key", "front_digest", "status").rows()
    assert sorted(found) == [
        ("k", "new", "failed"),
        ("k", "old", "ok"),
        ("other", "new", "ok"),
        ("other", "old", "ok"),
    ]
    assert store.read()["key"].to_list() == ["k", "other"], "for a reader without a plan, each once"


def test_only_the_keys_of_the_plan_are_read(store: CellStore) -> None:
    store.write([row("old"), row("new")], "a")
    assert store.read(keys=["new", "pending"])["key"].to_list() == ["new"]
    assert store.read(keys=[]).height == 0


def _write_many(root: Path, writer: int) -> None:
    store = CellStore(Storage(root), "trial")
    for count in range(20):
        store.write([row(f"{writer}-{count}", minutes=count)], "same-unit")


def test_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(tmp_path, n)) for n in range(4)]
    for writer in writers:
        writer.start()
    store = CellStore(Storage(tmp_path), "trial")
    while any(writer.is_alive() for writer in writers):
        assert store.scan().warnings == (), "a reader never sees half a file"
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    frame = store.read()
    assert frame["key"].n_unique() == frame.height == 80
    assert len(list(store.folder.iterdir())) == 80


_KILLED = """
import sys, time
from pathlib import Path
from raystitch.results import store as room
whole = Path.write_bytes
def slow(path, data):
    whole(path, data[:100])
    print("half", flush=True)
    time.sleep(60)
Path.write_bytes = slow
room.CellStore(room.Storage(Path(sys.argv[1])), "trial").write([{"key": "k", "status": "ok"}], "u")
"""


def test_a_writer_killed_in_the_middle_leaves_nothing_to_read(
    tmp_path: Path, store: CellStore
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (left,) = store.folder.iterdir()
    assert left.name.startswith(TEMPORARY)
    reading = store.scan()
    assert (reading.frame.height, reading.warnings) == (0, ())
    assert left.exists(), "another writer may still be at work on it"


def test_an_error_while_writing_leaves_no_file(
    store: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        store.write([row()], "unit")
    assert list(store.folder.iterdir()) == []


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[40] ^= 0xFF
    path.write_bytes(data)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _as_rows(table: pa.Table, version: str = "cells/1") -> pa.Table:
    """A table as another release of raystitch would have written it."""
    return table.replace_schema_metadata(
        {"raystitch.format": version, "raystitch.digest": _digest(table)}
    )


def _foreign(path: Path) -> None:
    pq.write_table(pa.table({"key": ["k"], "status": ["ok"]}), path)


def _other_type(path: Path) -> None:
    table = pa.table({"key": ["k"], "status": ["ok"], "agreement": ["90"]})
    pq.write_table(_as_rows(table), path)


def _other_type_sealed(path: Path) -> None:
    path.write_bytes(encode(pa.table({"key": ["k"], "status": ["ok"], "agreement": ["90"]})))


def _no_key(path: Path) -> None:
    table = pa.table({"status": ["ok"]})
    pq.write_table(_as_rows(table), path)


@pytest.mark.parametrize(
    "harm", [_torn, _flipped, _empty, _foreign, _other_type, _other_type_sealed, _no_key]
)
def test_a_torn_or_foreign_file_is_named_and_set_aside(store: CellStore, harm) -> None:
    store.write([row("good")], "a")
    bad = store.write([row("bad")], "b")
    harm(bad)
    content = bad.read_bytes()
    with pytest.warns(SetAsideWarning, match=bad.name):
        frame = store.read()
    assert frame["key"].to_list() == ["good"]
    assert not bad.exists()
    assert (store.folder / "set-aside" / bad.name).read_bytes() == content, "never deleted"
    assert store.scan().warnings == (), "said once; it is out of the way now"


def test_a_file_is_set_aside_whatever_its_reader_says(
    store: CellStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speechless(_: object) -> None:
        raise EOFError

    store.write([row()], "a")
    monkeypatch.setattr("raystitch.results.reading.seal_of", speechless)
    (warning,) = store.scan().warnings
    assert "(EOFError)" in warning


def test_two_files_set_aside_under_one_name_are_both_kept(store: CellStore) -> None:
    bad = store.write([row()], "b")
    for content in (b"first", b"second"):
        bad.write_bytes(content)
        assert len(store.scan().warnings) == 1
    kept = {path.read_bytes() for path in (store.folder / "set-aside").iterdir()}
    assert kept == {b"first", b"second"}


def _old(path: Path, *rows: dict[str, object]) -> None:
    """Rows as the release before wrote them, without a seal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows), schema=CELL_SCHEMA)
    pq.write_table(_as_rows(table), path, compression="zstd", use_dictionary=False)


@pytest.mark.parametrize("sealed", [True, False])
def test_no_flipped_byte_is_read_silently(store: CellStore, sealed: bool) -> None:
    """Rows carry digests: a flip is found or changes nothing, and none stops the reader."""
    rows = [row(curve=[1.0, 2.0], settings="{}"), row("k2", device="cpu")]
    path = store.write(rows, "u")
    if not sealed:
        _old(path, *rows)
    good = path.read_bytes()
    truth = store.read()
    for place in range(0, len(good), 23):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x10]) + good[place + 1 :])
        with contextlib.suppress(StorageError):  # the flip may spell a later format
            reading = store.scan()
            assert reading.warnings or reading.frame.equals(truth), place


def test_every_byte_of_a_sealed_file_counts(store: CellStore) -> None:
    """But for the four that say Parquet at its start, which hold nothing."""
    path = store.write([row("a"), row("b")], "u")
    good = path.read_bytes()
    for place in range(4, len(good), 97):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert len(store.scan().warnings) == 1, place


def test_damage_is_found_in_the_columns_that_are_read(store: CellStore) -> None:
    path = store.write([row(entropy=0.123456)], "u")
    good, value = path.read_bytes(), np.float64(0.123456).tobytes()
    assert good.count(value) == 1
    path.write_bytes(good.replace(value, np.float64(0.654321).tobytes()))
    reading = store.scan(["key", "agreement"])
    assert (reading.frame["agreement"].to_list(), reading.warnings) == ([90.0], ())
    (warning,) = store.scan(["entropy"]).warnings
    assert "is torn (its column entropy does not match its digest)" in warning


@pytest.mark.parametrize("end", [b"", b"PAR1", MAGIC, MAGIC + bytes(8), bytes(60) + MAGIC])
def test_a_file_that_only_ends_like_one_is_set_aside(store: CellStore, end: bytes) -> None:
    store.folder.mkdir(parents=True)
    for length in (0, 9, 10**6):
        path = store.folder / f"u-{length}.parquet"
        path.write_bytes(b"PAR1" + end + length.to_bytes(4, "little") + b"PAR1")
    assert len(store.scan().warnings) == 3


def test_files_with_and_without_a_seal_give_the_same_rows(tmp_path: Path) -> None:
    """In their order, too: where times are equal the later file counts, whichever its format."""
    rng = np.random.default_rng(0)
    rows = [
        {
            **[row, failed][rng.integers(2)](f"k{rng.integers(20)}", int(rng.integers(3))),
            "entropy": float(rng.normal()),
            "curve": rng.normal(size=rng.integers(3)).tolist(),
            "test_marker": [None, "s-2"][rng.integers(2)],
        }
        for _ in range(60)
    ]
    found = []
    for kinds in ("old", "new", "mixed"):
        folder = Storage(tmp_path / kinds).cells("s")
        for number, one in enumerate(rows):
            path = folder / f"u-{number:02}.parquet"
            _old(path, one)
            if kinds == "new" or (kinds == "mixed" and rng.integers(2)):
                path.write_bytes(encode(pa.Table.from_pylist([one], schema=CELL_SCHEMA)))
        found.append(read_cells(folder))
    assert [reading.warnings for reading in found] == [()] * 3
    assert found[0].frame.schema == TYPES
    for reading in found:
        assert reading.frame.height < 60
        assert_frame_equal(reading.frame, found[0].frame)


@pytest.mark.parametrize("sealed", [True, False])
def test_some_columns_are_those_of_the_whole(store: CellStore, sealed: bool) -> None:
    rows = [row(minutes=2), failed(minutes=3), row("other", minutes=1, front_digest="f")]
    path = store.write(rows, "u")
    if not sealed:
        _old(path, *rows)
    names = ["end_cut", "agreement", "status"]
    assert_frame_equal(store.scan(names).frame, store.scan().frame.select(sorted_(names)))
    assert_frame_equal(store.read(columns=names), store.read().select(sorted_(names)))
    assert store.of_unit("u", ["key"]).columns == ["key"]


def sorted_(names: list[str]) -> list[str]:
    return [name for name in COLUMNS if name in names]


def test_rows_open_plainly_elsewhere(store: CellStore) -> None:
    path = store.write([row(curve=[1.0, 2.0]), row("k2")], "u")
    truth = store.read(columns=["key", "agreement", "curve", "finished_at"])
    names = truth.columns
    assert_frame_equal(pl.read_parquet(path).select(names), truth)
    assert_frame_equal(pl.DataFrame(pl.from_arrow(pq.read_table(path))).select(names), truth)
    asked = duckdb.sql(f"SELECT key, agreement, curve FROM '{path}' ORDER BY key").fetchall()
    assert asked == truth.select("key", "agreement", "curve").sort("key").rows()


@pytest.mark.parametrize("sealed", [True, False])
def test_a_file_of_an_older_release_is_read_with_nulls(store: CellStore, sealed: bool) -> None:
    store.folder.mkdir(parents=True)
    old = pa.table({"key": ["old"], "agreement": [70.0], "status": ["ok"]})
    path = store.folder / "u-1.parquet"
    pq.write_table(_as_rows(old), path)
    if sealed:
        path.write_bytes(encode(old))
    store.write([row("new")], "u")
    frame = store.read()
    assert set(frame["key"]) == {"old", "new"}
    assert frame.columns == CELL_SCHEMA.names
    assert frame.filter(key="old")["entropy"].to_list() == [None]
    assert store.read(columns=["key", "entropy"])["entropy"].to_list() == [None, None]


def test_a_later_release_is_never_set_aside(store: CellStore) -> None:
    store.folder.mkdir(parents=True)
    path = store.folder / "u-1.parquet"
    later = pa.table({"key": ["k"], "status": ["ok"], "novelty": [1]})
    for content in (None, encode(later)):
        pq.write_table(_as_rows(later), path)
        if content is not None:
            path.write_bytes(content)
        reading = store.scan()
        assert reading.frame["key"].to_list() == ["k"]
        assert "novelty" in reading.warnings[0]
    pq.write_table(_as_rows(later, "cells/3"), path)
    with pytest.raises(StorageError, match=r"u-1\.parquet.*Upgrade raystitch"):
        store.scan()
    assert path.exists()


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path, store: CellStore) -> None:
    storage = Storage(tmp_path)
    store.write([row()], "u")
    for run in ("trial", str(storage.sweep("trial")), str(store.folder)):
        assert read_cells(find_cells(run, storage)).frame.height == 1
    with pytest.raises(StorageError, match=r"'trail'.*there: trial"):
        find_cells("trail", storage)
    with pytest.raises(StorageError, match="none yet"):
        find_cells("../x", Storage(tmp_path / "empty"))


def test_reading_many_files_is_quick(store: CellStore) -> None:
    for count in range(100):
        store.write([row(f"k{count}")], "u")
    started = time.perf_counter()
    assert store.read().height == 100
    assert time.perf_counter() - started < 10, "a resume reads thousands"


@pytest.mark.parametrize(
    "module",
    [
        "raystitch.results.schema",
        "raystitch.results.store",
        "raystitch.results.tensors",
        "raystitch.results.summary",
        "raystitch.results.query",
        "raystitch.data.shards",
    ],
)
def test_neither_torch_nor_ray_is_loaded(module: str) -> None:
    code = f"import sys, {module}; sys.exit(str({{'torch', 'ray'}} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
