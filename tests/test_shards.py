"""Image shards: the same pixels in every reader, nothing torn or altered is read."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raystitch.data.images import LabelledImages
from raystitch.data.shards import Shard, concatenate, is_valid, read_shard, write_shard
from raystitch.errors import StorageError


def drawn(count: int = 7, shape: tuple[int, int, int] = (3, 5, 4), seed: int = 0) -> LabelledImages:
    rng = np.random.default_rng(seed)
    return LabelledImages(
        rng.integers(0, 256, (count, *shape), dtype=np.uint8),
        rng.integers(0, 10, count),
        rng.permutation(100)[:count].astype(np.int64),
    )


def extras(count: int = 7) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "residual": rng.random(count, dtype=np.float32),
        "null_residual": rng.random(count, dtype=np.float32),
        "steps": np.arange(count, dtype=np.int32),
    }


def same(a: LabelledImages, b: LabelledImages) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("images", "labels", "index")
    )


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 4), (3, 16, 16)])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_shard_comes_back_as_written(
    tmp_path: Path, shape: tuple[int, int, int], count: int
) -> None:
    images, path = drawn(count, shape), tmp_path / "made" / "part-00000.parquet"
    write_shard(path, images, extras(count), {"front": "clean-0"})
    shard = read_shard(path)
    assert same(shard.images, images)
    assert shard.images.shape == shape
    assert shard.metadata == {"front": "clean-0"}
    for name, values in extras(count).items():
        assert shard.extra[name].dtype == values.dtype
        np.testing.assert_array_equal(shard.extra[name], values)
    assert [p.name for p in path.parent.iterdir()] == ["part-00000.parquet"], "no file left beside"


def test_what_is_read_can_be_written_to(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.parquet", drawn())
    read_shard(tmp_path / "s.parquet").images.images[0] = 0


def test_images_that_are_a_view_are_stored_in_their_own_order(tmp_path: Path) -> None:
    whole = drawn(9)
    view = LabelledImages(whole.images[::2, ::-1], whole.labels[::2], whole.index[::2])
    write_shard(tmp_path / "s.parquet", view)
    assert same(read_shard(tmp_path / "s.parquet").images, view)


def test_row_groups_do_not_change_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raystitch.data.shards._ROW_GROUP_BYTES", 2 * 60)
    images = drawn()
    write_shard(tmp_path / "s.parquet", images)
    assert pq.ParquetFile(tmp_path / "s.parquet").num_row_groups == 4
    assert same(read_shard(tmp_path / "s.parquet").images, images)


def _with_pyarrow(path: Path) -> tuple[np.ndarray, list[int], list[float]]:
    table = pq.read_table(path)
    return (
        np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8),
        table["label"].to_pylist(),
        table["residual"].to_pylist(),
    )


def _with_polars(path: Path) -> tuple[np.ndarray, list[int], list[float]]:
    frame = pl.read_parquet(path)
    assert frame.schema["label"] == pl.Int32
    assert frame.schema["index"] == pl.Int64
    assert frame.schema["image"] == pl.Binary
    pixels = np.frombuffer(b"".join(frame["image"]), np.uint8)
    return pixels, frame["label"].to_list(), frame["residual"].to_list()


def _with_duckdb(path: Path) -> tuple[np.ndarray, list[int], list[float]]:
    rows = duckdb.sql(f"select image, label, residual from '{path}'").fetchall()
    images, labels, residuals = zip(*rows, strict=True)
    return np.frombuffer(b"".join(images), np.uint8), list(labels), list(residuals)


@pytest.mark.parametrize("reader", [_with_pyarrow, _with_polars, _with_duckdb])
def test_other_readers_see_the_same_pixels(tmp_path: Path, reader) -> None:
    images, path = drawn(), tmp_path / "part-00000.parquet"
    write_shard(path, images, extras())
    pixels, labels, residuals = reader(path)
    shape = tuple(map(int, pq.read_schema(path).metadata[b"raystitch.shape"].split(b",")))
    np.testing.assert_array_equal(pixels.reshape(-1, *shape), images.images)
    assert labels == images.labels.tolist()
    np.testing.assert_array_equal(np.float32(residuals), extras()["residual"])


def test_the_declared_columns(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.parquet", drawn(), extras())
    schema = pq.read_schema(tmp_path / "s.parquet")
    assert {field.name: str(field.type) for field in schema} == {
        "index": "int64",
        "label": "int32",
        "image": "fixed_size_binary[60]",
        "residual": "float",
        "null_residual": "float",
        "steps": "int32",
    }


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"part-00009\.parquet does not exist"):
        read_shard(tmp_path / "part-00009.parquet")


def test_a_disk_that_cannot_be_read_is_not_called_a_torn_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    write_shard(tmp_path / "s.parquet", drawn())
    monkeypatch.setattr(pq, "ParquetFile", broken)
    with pytest.raises(StorageError, match=r"s\.parquet cannot be read: Input/output error"):
        read_shard(tmp_path / "s.parquet")


@pytest.mark.parametrize("keep", [0, 3, 100, -1, -200])
def test_a_torn_shard_is_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "part-00001.parquet"
    write_shard(path, drawn())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StorageError, match=r"part-00001\.parquet is not a whole image shard"):
        read_shard(path)
    assert not is_valid(path)


def _rewritten(path: Path, change) -> None:
    """The shard with its table changed and its metadata as they were."""
    table = pq.read_table(path)
    metadata = table.schema.metadata
    pq.write_table(change(table).replace_schema_metadata(metadata), path)


def _replaced(name: str, values: pa.Array):
    return lambda table: table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.slice(1),
        lambda table: table.take([1, 0, 2, 3, 4, 5, 6]),
        lambda table: table.drop_columns(["residual"]),
        lambda table: table.append_column("more", pa.array(range(7))),
        _replaced("label", pa.array([0] * 7, pa.int32())),
        _replaced("steps", pa.array(range(7), pa.int64())),
        _replaced("image", pa.array([bytes(60)] * 7, pa.binary(60))),
    ],
    ids=["fewer", "reordered", "dropped", "added", "labels", "dtype", "pixels"],
)
def test_an_altered_shard_is_named(tmp_path: Path, change) -> None:
    path = tmp_path / "s.parquet"
    write_shard(path, drawn(), extras(), {"front": "clean-0"})
    _rewritten(path, lambda table: table)
    assert is_valid(path), "only written again: still the same content"
    _rewritten(path, change)
    with pytest.raises(StorageError, match=r"s\.parquet was altered"):
        read_shard(path)


@pytest.mark.parametrize(
    ("key", "value"), [("raystitch.shape", "3,4,5"), ("front", "clean-1"), ("front", None)]
)
def test_altered_metadata_are_found(tmp_path: Path, key: str, value: str | None) -> None:
    path = tmp_path / "s.parquet"
    write_shard(path, drawn(), metadata={"front": "clean-0"})
    table = pq.read_table(path)
    changed = {k.decode(): v for k, v in table.schema.metadata.items() if k.decode() != key}
    changed |= {} if value is None else {key: value}
    pq.write_table(table.replace_schema_metadata(changed), path)
    with pytest.raises(StorageError, match="was altered"):
        read_shard(path)


@pytest.mark.parametrize(
    "foreign",
    [
        pa.table({"a": [1]}),
        pa.table({"a": [1]}).replace_schema_metadata({"raystitch.format": "image-shard/2"}),
        pa.table({"a": [1]}).replace_schema_metadata({"raystitch.format": "image-shard/1"}),
    ],
    ids=["other", "later", "empty"],
)
def test_a_foreign_parquet_file_is_named(tmp_path: Path, foreign: pa.Table) -> None:
    pq.write_table(foreign, tmp_path / "f.parquet")
    with pytest.raises(StorageError, match=r"f\.parquet is not a whole image shard"):
        read_shard(tmp_path / "f.parquet")


def test_any_flipped_byte_is_found_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    write_shard(path, drawn(), extras())
    good, truth = path.read_bytes(), read_shard(path)
    found = 0
    for place in range(0, len(good), 17):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x20]) + good[place + 1 :])
        try:
            shard = read_shard(path)
        except StorageError:
            found += 1
        else:
            assert same(shard.images, truth.images), place
    assert found > 40


def test_valid_means_rows_and_metadata_too(tmp_path: Path) -> None:
    path = tmp_path / "s.parquet"
    assert not is_valid(path)
    write_shard(path, drawn(), metadata={"key": "abc", "part": "0"})
    assert is_valid(path)
    assert is_valid(path, rows=7, metadata={"key": "abc"})
    assert not is_valid(path, rows=8)
    assert not is_valid(path, metadata={"key": "abd"})
    assert not is_valid(path, metadata={"other": "abc"})


def test_a_failed_write_leaves_the_older_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.parquet"
    write_shard(path, drawn(seed=0))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        write_shard(path, drawn(seed=1))
    assert same(read_shard(path).images, drawn(seed=0))
    assert len(list(tmp_path.iterdir())) == 1


def test_shards_put_together_are_the_whole(tmp_path: Path) -> None:
    whole, more = drawn(10), extras(10)
    for size in (10, 4, 3):
        parts = []
        for part, start in enumerate(range(0, 10, size)):
            path, rows = tmp_path / f"{size}-{part}.parquet", slice(start, start + size)
            columns = {name: values[rows] for name, values in more.items()}
            write_shard(path, whole.select(rows), columns, {"front": "f", "part": str(part)})
            parts.append(read_shard(path))
        got = concatenate(parts)
        assert same(got.images, whole)
        assert all(np.array_equal(got.extra[name], more[name]) for name in more)
        assert got.metadata["front"] == "f"
        assert ("part" in got.metadata) == (size == 10), "only what all parts share"


@pytest.mark.parametrize(
    "other", [Shard(drawn(shape=(1, 5, 4)), extras()), Shard(drawn()), Shard(drawn(), {"x": 0})]
)
def test_unlike_shards_are_not_put_together(other: Shard) -> None:
    with pytest.raises(AssertionError):
        concatenate([Shard(drawn(), extras()), other])


@pytest.mark.parametrize(
    ("extra", "metadata"),
    [
        ({"label": np.zeros(7)}, {}),
        ({"residual": np.zeros(6)}, {}),
        ({}, {"raystitch.digest": "forged"}),
    ],
)
def test_our_own_mistakes_are_asserted(tmp_path: Path, extra, metadata) -> None:
    with pytest.raises(AssertionError):
        write_shard(tmp_path / "s.parquet", drawn(), extra, metadata)
