"""Rows as similarity tensors: a long frame, and a dense array with labelled axes.

Every setting in which two cells of one sweep may differ besides the models, cuts, objective,
protocol and seed has an axis of its own (both markers, data, preset, budget), of length 1 where it
does not vary. So a pair that stands twice in a sweep, with and without marked images, fills two
places, and two cells are never merged: where two keys still claim one place, that is an error.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raystitch.errors import RaystitchError, StorageError, choices
from raystitch.files import atomic_path
from raystitch.names import OBJECTIVES, PROTOCOLS
from raystitch.results.schema import METRICS, PLACE

NO_LABEL = "none"
"""Label of an axis where the column is null, as for no marker."""

LARGEST = 2**27
"""Most values a dense tensor may have: 1 GiB of float64."""

_INTEGER = ("budget", "seed")
_KNOWN: dict[str, tuple[str, ...]] = {"objective": OBJECTIVES, "protocol": PROTOCOLS}
_CUT_INDEX = {"front_cut": "front_cut_index", "end_cut": "end_cut_index"}

Label = str | int


class TooLargeError(RaystitchError):
    """A dense tensor would take too much memory."""


@dataclass(frozen=True)
class Tensor:
    """A dense array with labelled axes.

    values: float64, NaN where there is no value; counts: int32, how many cells are behind each
    value (0 or 1, more after a mean); axes: axis name -> its labels, in the order of the array.
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int32]
    axes: dict[str, tuple[Label, ...]]

    def __post_init__(self) -> None:
        lengths = tuple(len(labels) for labels in self.axes.values())
        assert self.values.shape == self.counts.shape == lengths, "axes do not fit the array"
        assert np.array_equal(np.isnan(self.values), self.counts == 0), "a value without a cell"

    @property
    def missing(self) -> int:
        """Places without a value."""
        return int((self.counts == 0).sum())

    def select(self, **wanted: Label | Sequence[Label]) -> Tensor:
        """The part at these labels: a label drops its axis, a list of labels keeps it.

        >>> tensor.select(metric="agreement", protocol=["standard", "noise"])  # doctest: +SKIP
        """
        values, counts, axes = self.values, self.counts, dict(self.axes)
        for axis, labels in wanted.items():
            place = self._place(axis, axes)
            alone = isinstance(labels, str | int)
            chosen = [labels] if isinstance(labels, str | int) else list(labels)
            positions = [self._position(axis, label) for label in chosen]
            taken: Any = positions[0] if alone else positions
            values, counts = values.take(taken, axis=place), counts.take(taken, axis=place)
            axes[axis] = tuple(self.axes[axis][position] for position in positions)
            if alone:
                del axes[axis]
        return Tensor(np.asarray(values), np.asarray(counts), axes)

    def mean_over(self, axis: str) -> Tensor:
        """The mean over an axis of the cells that are there, ``counts`` saying over how many."""
        place = self._place(axis, self.axes)
        counts = self.counts.sum(axis=place, dtype=np.int32)
        sums = np.where(self.counts > 0, self.values * self.counts, 0.0).sum(axis=place)
        mean = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
        kept = {name: labels for name, labels in self.axes.items() if name != axis}
        return Tensor(np.asarray(mean), np.asarray(counts), kept)

    def save(self, path: Path) -> None:
        """Write an ``.npz``: ``values``, ``counts``, ``axes`` (names), ``axis_<name>`` (labels).

        It holds no pickled objects: ``np.load(path, allow_pickle=False)`` opens it. A file that
        would come out the same is left as it is.
        """
        labels = {f"axis_{name}": np.array(labels) for name, labels in self.axes.items()}
        arrays = {"values": self.values, "counts": self.counts, "axes": np.array([*self.axes], str)}
        with atomic_path(path, unless_same=True) as temporary, temporary.open("wb") as handle:
            np.savez_compressed(handle, allow_pickle=False, **arrays, **labels)

    @classmethod
    def load(cls, path: Path) -> Tensor:
        """The tensor at ``path``; `StorageError` names a file that holds none."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                names = [str(name) for name in stored["axes"]]
                axes = {name: tuple(stored[f"axis_{name}"].tolist()) for name in names}
                return cls(stored["values"], stored["counts"], axes)
        except (
            OSError,
            ValueError,
            KeyError,
            EOFError,
            AssertionError,
            zipfile.BadZipFile,
        ) as error:
            raise StorageError(f"{path} cannot be read as a tensor: {error}.") from error

    def _place(self, axis: str, axes: Iterable[str]) -> int:
        if axis not in axes:
            raise RaystitchError(f"the tensor has no such axis: {choices(axis, axes)}.")
        return list(axes).index(axis)

    def _position(self, axis: str, label: Label) -> int:
        labels = self.axes[axis]
        if label not in labels:
            raise RaystitchError(
                f"the tensor has nothing there on its axis {axis}: "
                f"{choices(label, map(str, labels))}."
            )
        return labels.index(label)


def long(cells: pl.DataFrame, metrics: Sequence[str] = METRICS) -> pl.DataFrame:
    """One row per cell and metric that has a value: key, place, cut indices, metric, value."""
    return pl.concat(_long_parts(cells, metrics))


def _long_parts(cells: pl.DataFrame, metrics: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The long table metric by metric, of which each has all cells at most."""
    check_places(cells)
    good = cells.filter(pl.col("status") == "ok")
    ordered_cells = good[_order(good)]
    for metric in metrics:
        yield ordered_cells.select(
            *("key", *PLACE, *_CUT_INDEX.values()),
            metric=pl.lit(metric),
            value=pl.col(metric).cast(pl.Float64).fill_nan(None),
        ).filter(pl.col("value").is_not_null())


def _order(cells: pl.DataFrame) -> pl.Series:
    """The rows' numbers in the order of their places; texts as their numbers sort at half price."""
    varying = [name for name in PLACE if cells[name].n_unique() > 1]
    if not varying:
        return pl.Series(range(cells.height), dtype=pl.UInt32)
    texts = {
        name: pl.Enum(cells[name].drop_nulls().unique().sort())
        for name in varying
        if cells.schema[name] == pl.String
    }
    by = [pl.col(name).cast(texts.get(name, cells.schema[name])) for name in varying]
    return cells.select(pl.arg_sort_by(by)).to_series()


def dense(
    cells: pl.DataFrame,
    planned: pl.DataFrame | None = None,
    metrics: Sequence[str] = METRICS,
) -> Tensor:
    """The dense tensor: the axes `PLACE`, then ``metric``.

    Cuts stand in data order, models in natural order. A failed cell has its place and no value, and
    so have the cells of ``planned`` (a frame with the columns of a place and the cut indices) that
    are not stored. `RaystitchError` where two cells share a place, `TooLargeError` where the array
    would have more than `LARGEST` values.
    """
    check_places(cells)
    columns = [*PLACE, *_CUT_INDEX.values()]
    spread = cells.select(columns)
    if planned is not None:
        same_types = [pl.col(name).cast(kind) for name, kind in spread.schema.items()]
        spread = pl.concat([spread, planned.select(same_types)])
    axes: dict[str, tuple[Label, ...]] = {name: _labels(spread, name) for name in PLACE}
    axes["metric"] = tuple(metrics)
    shape = tuple(len(labels) for labels in axes.values())
    if np.prod(shape, dtype=float) > LARGEST:
        long_axes = {name: len(labels) for name, labels in axes.items() if len(labels) > 1}
        raise TooLargeError(
            f"a dense tensor of {' x '.join(map(str, long_axes.values()))} values "
            f"({', '.join(long_axes)}) is too large; take fewer models, cuts or metrics "
            "(`dense(rows, metrics=[...])`), or use the long table, which has all."
        )
    values = np.full(shape, np.nan)
    good = cells.filter(pl.col("status") == "ok")
    figures = good.select(pl.col(name).cast(pl.Float64) for name in metrics).to_numpy()
    values[tuple(_positions(good, name, axes[name]) for name in PLACE)] = figures
    return Tensor(values, (~np.isnan(values)).astype(np.int32), axes)


def write_tensors(
    cells: pl.DataFrame, folder: Path, planned: pl.DataFrame | None = None
) -> tuple[str, ...]:
    """Write ``long.parquet`` and ``dense.npz`` into ``folder``; a sentence for what is not written.

    A file that would come out the same is left as it is. Where the dense tensor of all metrics is
    too large there is none, and an earlier one is removed.
    """
    _write_long(_long_parts(cells, METRICS), folder / "long.parquet")
    path = folder / "dense.npz"
    try:
        dense(cells, planned).save(path)
    except TooLargeError as error:
        path.unlink(missing_ok=True)
        return (f"{path} is not written: {error}",)
    return ()


def _write_long(parts: Iterator[pl.DataFrame], path: Path) -> None:
    """Write the parts of a long table, a row group each: the whole may not fit in memory."""
    with atomic_path(path, unless_same=True) as temporary:
        first = next(parts).to_arrow()
        with pq.ParquetWriter(temporary, first.schema, compression="zstd") as writer:
            writer.write_table(first)
            for part in parts:
                if part.height:
                    writer.write_table(part.to_arrow())


def check_places(cells: pl.DataFrame) -> None:
    """`RaystitchError` where two cells with different keys claim one place, naming what differs.

    cells: with the columns `PLACE`; where ``settings`` is there, it says in which of them.
    """
    if cells.select(PLACE).hash_rows().n_unique() == cells.height:
        return  # equal places have equal hashes: the common case, at a tenth of the price
    settings = pl.col("settings") if "settings" in cells.columns else pl.lit(None, pl.String)
    told = cells.select(*PLACE, settings.alias("settings"))
    twice = told.group_by(*PLACE, maintain_order=True).agg("settings")
    twice = twice.filter(pl.col("settings").list.len() > 1)
    if not twice.height:
        return
    first = twice.row(0, named=True)
    place = ", ".join(f"{name} {first[name]}" for name in PLACE if first[name] is not None)
    differ = ", ".join(_differences(*first["settings"][:2])) or "unknown settings"
    raise RaystitchError(
        f"{twice.height} place{'s have' if twice.height > 1 else ' has'} more than one cell, and "
        f"cells are never merged. The first: {place}; its cells differ in {differ}. Take only the "
        "keys of one plan, or filter the rows first."
    )


def natural(text: str) -> list[tuple[int, int | str]]:
    """A sort key under which ``clean-2`` comes before ``clean-10``."""
    pieces = re.findall(r"\d+|\D+", text)
    return [(0, int(piece)) if piece.isdigit() else (1, piece) for piece in pieces]


def ordered(values: pl.Series, known: Sequence[str]) -> tuple[str, ...]:
    """Each value once: those known in their known order, then the others by name."""
    present = set(values.unique())
    return (*(v for v in known if v in present), *sorted(present - set(known)))


def _labels(spread: pl.DataFrame, name: str) -> tuple[Label, ...]:
    column = _filled(spread, name)
    if name in _CUT_INDEX:
        index = pl.Series("index", spread[_CUT_INDEX[name]])
        first = pl.DataFrame([column, index]).group_by(name).agg(pl.col("index").min())
        return tuple(first.sort("index", name)[name])
    if name in _INTEGER:
        return tuple(column.unique().sort())
    if name in _KNOWN:
        return ordered(column, _KNOWN[name])
    return tuple(sorted(column.unique(), key=lambda text: (text != NO_LABEL, natural(str(text)))))


def _positions(cells: pl.DataFrame, name: str, labels: Sequence[Label]) -> NDArray[np.intp]:
    column = _filled(cells, name)
    if len(labels) <= 1:
        return np.zeros(len(column), dtype=np.intp)
    return column.replace_strict(labels, range(len(labels)), return_dtype=pl.Int64).to_numpy()


def _filled(cells: pl.DataFrame, name: str) -> pl.Series:
    """A column as labels: no marker is `NO_LABEL`, no budget is 1."""
    default: Label = {"budget": 1, "seed": 0}.get(name, NO_LABEL)
    return cells[name].fill_null(default)


def _differences(left: str | None, right: str | None, limit: int = 5) -> list[str]:
    """Dotted names of the settings in which two cells differ, at most ``limit``."""
    a, b = (_flat(json.loads(text)) if text else {} for text in (left, right))
    missing = object()
    return sorted(k for k in a.keys() | b.keys() if a.get(k, missing) != b.get(k, missing))[:limit]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    inner = [_flat(v, f"{name}.{k}" if name else str(k)) for k, v in value.items()]
    return {key: v for part in inner for key, v in part.items()}
