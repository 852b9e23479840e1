"""Rows as tensors: every cell in its own place, what is missing counted, plain files."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from raystitch.errors import RaystitchError, StorageError
from raystitch.results.schema import CELL_SCHEMA, METRICS, PLACE
from raystitch.results.tensors import Tensor, check_places, dense, long, natural, write_tensors


def cell(key: str, **values: object) -> dict[str, object]:
    plain = {
        "front_model": "clean-1",
        "front_cut": "blocks.0",
        "front_cut_index": 1,
        "end_model": "clean-0",
        "end_cut": "blocks.0",
        "end_cut_index": 1,
        "objective": "fula",
        "protocol": "standard",
        "seed": 0,
        "data": "digits",
        "preset": "controlled",
        "budget": 1,
        "status": "ok",
        "settings": "{}",
    }
    return {"key": key, **plain, **values}


def frame(*rows: dict[str, object]) -> pl.DataFrame:
    schema = pl.DataFrame(pl.from_arrow(CELL_SCHEMA.empty_table())).schema
    return pl.DataFrame(list(rows), schema=schema)


def test_each_cell_stands_in_its_own_place() -> None:
    """Filled cell by cell from an independent walk over the rows."""
    rng, rows = np.random.default_rng(0), []
    for front in ("clean-0", "robust-2"):
        for cut, index in (("stem", 1), ("a.last", 2), ("Z", 3)):
            for objective in ("slm", "fula"):
                for protocol in ("standard", "noise"):
                    for seed in (0, 7):
                        rows.append(
                            cell(
                                f"{len(rows)}",
                                front_model=front,
                                front_cut=cut,
                                front_cut_index=index,
                                objective=objective,
                                protocol=protocol,
                                seed=seed,
                                agreement=rng.uniform(0, 100),
                                epochs=int(rng.integers(1, 99)),
                            )
                        )
    order = rng.permutation(len(rows))
    tensor = dense(frame(*(rows[i] for i in order)))
    for row in rows:
        place = {name: row.get(name) or "none" for name in PLACE} | {"seed": row["seed"]}
        assert tensor.select(**place, metric="agreement").values == row["agreement"]
        assert tensor.select(**place, metric="epochs").values == row["epochs"]
        assert tensor.select(**place, metric="entropy").missing == 1
    assert tensor.counts.sum() == 2 * len(rows)
    assert tensor.missing == tensor.values.size - 2 * len(rows)


def test_axes_have_their_own_order() -> None:
    tensor = dense(
        frame(
            cell("a", front_cut="z", front_cut_index=1, front_model="clean-10", seed=11),
            cell("b", front_cut="a", front_cut_index=9, front_model="clean-2", seed=2),
            cell("c", front_cut="m", front_cut_index=3, protocol="noise", objective="hlm"),
            cell("d", front_cut="m", front_cut_index=3, protocol="invariance", objective="dm"),
            cell("e", stitch_marker="shortcut-2", objective="new", protocol="standard"),
        )
    )
    assert list(tensor.axes) == [*PLACE, "metric"]
    assert tensor.axes["front_cut"] == ("blocks.0", "z", "m", "a"), "in data order"
    assert tensor.axes["front_model"] == ("clean-1", "clean-2", "clean-10")
    assert tensor.axes["seed"] == (0, 2, 11)
    assert tensor.axes["objective"] == ("hlm", "dm", "fula", "new")
    assert tensor.axes["protocol"] == ("standard", "invariance", "noise")
    assert tensor.axes["stitch_marker"] == ("none", "shortcut-2")
    assert tensor.axes["metric"] == METRICS


def test_pairs_that_differ_by_a_marker_alone_are_kept_apart() -> None:
    tensor = dense(
        frame(
            cell("a", agreement=10.0),
            cell("b", agreement=20.0, stitch_marker="s-2"),
            cell("c", agreement=30.0, test_marker="s-2"),
            cell("d", agreement=40.0, stitch_marker="s-2", test_marker="s-2"),
            cell("e", agreement=50.0, budget=4),
        )
    ).select(metric="agreement")
    assert sorted(tensor.values[tensor.counts > 0]) == [10, 20, 30, 40, 50]
    marked = tensor.select(stitch_marker="s-2", budget=1)
    assert marked.select(test_marker="none").values.item() == 20
    assert marked.select(test_marker="s-2").values.item() == 40


def test_two_cells_in_one_place_are_an_error_that_names_what_differs() -> None:
    small, large = (
        json.dumps({"data": {"train": n, "source": "digits"}, "lr": 0.1}) for n in (64, 128)
    )
    cells = frame(cell("a", settings=small), cell("b", settings=large), cell("c", seed=1))
    for function in (check_places, long, dense):
        with pytest.raises(RaystitchError, match=r"clean-1.*fula.*differ in data\.train\. "):
            function(cells)


def test_a_failed_cell_and_a_planned_one_are_missing() -> None:
    good = cell("a", agreement=1.0)
    failed = cell("b", seed=1, status="failed", error="x", agreement=None)
    pending = cell("c", seed=2, front_cut="late", front_cut_index=5)
    tensor = dense(frame(good, failed), metrics=["agreement"])
    assert (tensor.axes["seed"], tensor.missing) == ((0, 1), 1)
    planned = frame(good, failed, pending).select(*PLACE, "front_cut_index", "end_cut_index")
    tensor = dense(frame(good, failed), planned, metrics=["agreement"])
    assert tensor.axes["seed"] == (0, 1, 2)
    assert tensor.axes["front_cut"] == ("blocks.0", "late")
    assert tensor.missing == 5


def test_no_rows_make_an_empty_tensor() -> None:
    tensor = dense(frame())
    assert tensor.values.size == tensor.missing == 0
    assert long(frame()).height == 0


def test_a_tensor_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raystitch.results.tensors.LARGEST", 20)
    with pytest.raises(RaystitchError, match="too large"):
        dense(frame(cell("a")))


def test_tensors_too_large_are_not_written_which_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = frame(cell("a", agreement=1.0))
    assert write_tensors(cells, tmp_path) == ()
    assert (tmp_path / "dense.npz").exists()
    more = frame(cell("a", agreement=1.0), cell("b", seed=1, agreement=2.0))
    monkeypatch.setattr("raystitch.results.tensors.LARGEST", len(METRICS))
    (sentence,) = write_tensors(more, tmp_path)
    assert sentence.startswith(f"{tmp_path / 'dense.npz'} is not written: a dense tensor of ")
    assert [path.name for path in tmp_path.iterdir()] == ["long.parquet"], "no tensor of before"
    assert pl.read_parquet(tmp_path / "long.parquet")["value"].to_list() == [1.0, 2.0]


def test_the_long_table_is_in_the_order_of_places_then_metrics() -> None:
    """As Polars itself sorts: texts as texts, no marker first."""
    rng = np.random.default_rng(0)
    rows = [
        cell(
            str(number),
            front_model=f"clean-{rng.integers(12)}",
            test_marker=[None, "s-2", "a"][rng.integers(3)],
            variant=[None, "z"][rng.integers(2)],
            seed=number,
            agreement=float(rng.normal()),
            entropy=[None, float("nan"), 1.0][rng.integers(3)],
        )
        for number in range(60)
    ]
    cells = frame(*rows)
    for chosen in (METRICS, ("entropy", "agreement")):
        wanted = (
            cells.sort(PLACE)
            .with_columns(pl.col(chosen).cast(pl.Float64))
            .unpivot(chosen, index=["key", *PLACE], variable_name="metric", value_name="value")
            .filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())
        )
        assert long(cells, chosen).select(wanted.columns).equals(wanted)


def test_a_mean_says_over_how_many() -> None:
    values = np.array([[1.0, 3.0], [5.0, np.nan], [np.nan, np.nan]])
    tensor = Tensor(
        values, (~np.isnan(values)).astype(np.int32), {"cut": ("a", "b", "c"), "seed": (0, 1)}
    )
    mean = tensor.mean_over("seed")
    np.testing.assert_array_equal(mean.values, [2.0, 5.0, np.nan])
    assert mean.counts.tolist() == [2, 1, 0]
    assert mean.axes == {"cut": ("a", "b", "c")}
    whole = mean.mean_over("cut")
    assert (whole.values, whole.counts) == (3.0, 3), "the mean of the three cells, not of means"
    assert tensor.mean_over("cut").counts.tolist() == [2, 1]


def test_selecting_a_label_drops_the_axis_and_a_list_keeps_it() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)
    axes = {"a": ("x", "y"), "b": (0, 1, 2), "c": tuple("pqrs")}
    tensor = Tensor(values, np.ones((2, 3, 4), np.int32), axes)
    np.testing.assert_array_equal(tensor.select(a="y", c=["s", "p"]).values, values[1][:, [3, 0]])
    assert tensor.select(a="y", c=["s", "p"]).axes == {"b": (0, 1, 2), "c": ("s", "p")}
    assert tensor.select(b=2, a="x", c="q").values == values[0, 2, 1]
    with pytest.raises(RaystitchError, match="'d' is not one of a, b, c"):
        tensor.select(d="x")
    with pytest.raises(RaystitchError, match=r"axis a: 'z' is not one of x, y"):
        tensor.select(a="z")
    with pytest.raises(RaystitchError, match="no such axis"):
        tensor.mean_over("seeds")


def test_the_long_frame_has_each_value_once() -> None:
    cells = frame(
        cell("a", agreement=1.5, epochs=3),
        cell("b", seed=1, agreement=None, accuracy=2.5),
        cell("c", seed=2, agreement=9.0, status="failed", error="x"),
    )
    got = long(cells).select("key", "metric", "value").rows()
    assert sorted(got) == [("a", "agreement", 1.5), ("a", "epochs", 3.0), ("b", "accuracy", 2.5)]
    assert set(long(cells).columns) == {
        *("key", *PLACE, "front_cut_index", "end_cut_index", "metric", "value")
    }


def test_files_open_plainly_and_hold_the_same(tmp_path: Path) -> None:
    cells = frame(cell("a", agreement=1.0), cell("b", seed=1, agreement=2.0, stitch_marker="s-2"))
    assert write_tensors(cells, tmp_path / "tensors") == ()
    tensor = dense(cells)
    with np.load(tmp_path / "tensors" / "dense.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["values"], tensor.values)
        assert stored["axes"].tolist() == [*PLACE, "metric"]
        assert stored["axis_seed"].tolist() == [0, 1]
        assert stored["axis_stitch_marker"].tolist() == ["none", "s-2"]
    loaded = Tensor.load(tmp_path / "tensors" / "dense.npz")
    np.testing.assert_array_equal(loaded.values, tensor.values)
    np.testing.assert_array_equal(loaded.counts, tensor.counts)
    assert loaded.axes == tensor.axes
    assert loaded.select(seed=1).axes == tensor.select(seed=1).axes
    assert pl.read_parquet(tmp_path / "tensors" / "long.parquet").equals(long(cells))
    assert len(list((tmp_path / "tensors").iterdir())) == 2


def test_files_that_would_be_the_same_are_not_touched(tmp_path: Path) -> None:
    cells = frame(cell("a", agreement=1.0), cell("b", seed=1, agreement=2.0))
    write_tensors(cells, tmp_path)
    before = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.iterdir()}
    write_tensors(cells.reverse(), tmp_path)
    after = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.iterdir()}
    assert after == before
    (tmp_path / "dense.npz").write_bytes(b"torn")
    write_tensors(cells.with_columns(pl.col("agreement") + 1), tmp_path)
    assert Tensor.load(tmp_path / "dense.npz").select(metric="agreement").values.max() == 3
    assert pl.read_parquet(tmp_path / "long.parquet")["value"].to_list() == [2.0, 3.0]


@pytest.mark.parametrize("content", [b"", b"no zip", None])
def test_a_file_that_holds_no_tensor_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "dense.npz"
    if content is None:
        zipfile.ZipFile(path, "w").close()
    else:
        path.write_bytes(content)
    with pytest.raises(StorageError, match=r"dense\.npz cannot be read as a tensor"):
        Tensor.load(path)


def test_natural_order() -> None:
    names = ["clean-10", "clean-2", "b10a", "b9", "7", "clean"]
    assert sorted(names, key=natural) == ["7", "b9", "b10a", "clean", "clean-2", "clean-10"]
