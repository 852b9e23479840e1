"""Where everything is stored, and the rows of a sweep: written once, atomically, never rewritten.

Nothing but what is stored here is the truth: a cell with a good row is done, any other is pending.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from raystitch.errors import StorageError
from raystitch.files import write_bytes
from raystitch.results.reading import Reading, SetAsideWarning, read_cells, row_files
from raystitch.results.row_files import encode
from raystitch.results.schema import CELL_SCHEMA, COLUMNS, METRICS, PLACE, Column

__all__ = [
    "CELL_SCHEMA",
    "COLUMNS",
    "METRICS",
    "PLACE",
    "CellStore",
    "Column",
    "Reading",
    "SetAsideWarning",
    "Storage",
    "find_cells",
    "read_cells",
]

_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@=-]*")


@dataclass(frozen=True)
class Storage:
    """Every path under one storage root. Paths are named here and nowhere else; none is made."""

    root: Path

    def model(self, key: str) -> Path:
        """Folder of one network: ``weights.safetensors``, then ``card.json`` as its done marker."""
        return self.root / "artifacts" / "models" / _name(key)

    def model_card(self, key: str) -> Path:
        """The card of one network: there once the network is finished."""
        return self.model(key) / "card.json"

    def images(self, key: str) -> Path:
        """Folder of one split's decoded images: shards ``part-*.parquet``."""
        return self.root / "artifacts" / "images" / _name(key)

    def image_part(self, key: str, part: int) -> Path:
        return self.images(key) / _part(part)

    def image_pixels(self, key: str) -> Path:
        """The pixels of all its shards once more, to be mapped where they are too many."""
        return self.images(key) / "pixels.npy"

    def iris(self, key: str) -> Path:
        """Folder of IRI shards ``part-*.parquet``."""
        return self.root / "artifacts" / "iris" / _name(key)

    def iri_part(self, key: str, part: int) -> Path:
        return self.iris(key) / _part(part)

    def network_card(self, key: str) -> Path:
        """Facts of one architecture at one resolution, for planning without torch."""
        return self.root / "artifacts" / "cards" / f"{_name(key)}.json"

    def sweep(self, name: str) -> Path:
        return self.root / "sweeps" / _name(name)

    def sweep_file(self, name: str) -> Path:
        """The sweep file as it was last run."""
        return self.sweep(name) / "sweep.yaml"

    def cells(self, name: str) -> Path:
        return self.sweep(name) / "cells"

    def states(self, name: str) -> Path:
        """Folder of the cells in training: how far each had come when it was last saved."""
        return self.sweep(name) / "states"

    def incidents(self, name: str) -> Path:
        """Folder of what went wrong around the work: one text for each unit left pending."""
        return self.sweep(name) / "incidents"

    def tensors(self, name: str) -> Path:
        return self.sweep(name) / "tensors"

    def sweeps(self) -> list[str]:
        """Names of the sweeps stored here, sorted."""
        folder = self.root / "sweeps"
        return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


class CellStore:
    """The rows of one sweep. Any number of writers at once: each write is a file of its own."""

    def __init__(self, storage: Storage, sweep: str) -> None:
        self.folder = storage.cells(sweep)

    def write(self, rows: Sequence[Mapping[str, Any]], unit: str) -> Path:
        """Store rows as one new file ``<unit>-<random>.parquet``, whole or not at all.

        A column that a row lacks is null, NaN among the metrics too (a ratio that is not defined);
        ``finished_at`` is stamped where it is missing.
        """
        table = pa.Table.from_pylist([_checked(row) for row in rows], schema=CELL_SCHEMA)
        return self.write_table(table, unit)

    def write_table(self, table: pa.Table, unit: str) -> Path:
        """The same for rows that are a table with all the declared columns already."""
        path = self.folder / f"{_name(unit)}-{secrets.token_hex(8)}.parquet"
        write_bytes(path, encode(table))
        return path

    def read(
        self, keys: Iterable[str] | None = None, columns: Collection[str] | None = None
    ) -> pl.DataFrame:
        """One row per key, a good one and the latest of these; warns of files set aside.

        keys: only these, if given. columns: these alone, if given, in the schema's order.

        A reader of a sweep passes the keys of its current plan, so that an earlier trial run with
        fewer images never mixes in.
        """
        wanted = columns if columns is None else {*columns, "key"}
        reading = read_cells(self.folder, columns=wanted, by=["key"])
        reading.warn()
        frame = reading.frame
        kept = frame if keys is None else frame.filter(pl.col("key").is_in(list(keys)))
        return kept if columns is None else kept.select(n for n in kept.columns if n in columns)

    def of_unit(self, unit: str, columns: Collection[str] | None = None) -> pl.DataFrame:
        """The rows that were stored for one unit, without reading any other's."""
        return read_cells(self.folder, f"{_name(unit)}-*.parquet", columns).frame

    def scan(self, columns: Collection[str] | None = None) -> Reading:
        """All that counts for some training of the networks (see `read_cells`), and warnings."""
        return read_cells(self.folder, columns=columns)


def find_cells(run: str, storage: Storage) -> Path:
    """The folder of rows meant by ``run``: a sweep's name under the storage, or a path.

    The path is a sweep's folder or its folder of cells. `StorageError` lists the sweeps there are.
    """
    candidates = [Path(run) / "cells", Path(run)]
    if _SAFE.fullmatch(run):
        candidates.insert(0, storage.cells(run))
    for folder in candidates:
        if folder.is_dir() and (folder.name == "cells" or row_files(folder)):
            return folder
    known = ", ".join(storage.sweeps()) or "none yet"
    raise StorageError(
        f"no stored sweep {run!r}: it is neither a sweep under {storage.root} (there: {known}) "
        "nor a folder with rows. Run the sweep first, or pass --storage."
    )


def _checked(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as stored: our own invariants asserted, undefined metrics null, the time stamped."""
    unknown = set(row) - set(COLUMNS)
    assert not unknown, f"columns that are not declared: {sorted(unknown)}"
    assert row.get("key"), "a row without a key"
    status, error = row.get("status"), row.get("error")
    assert (status == "ok" and error is None) or (status == "failed" and error), (status, error)
    assert status != "ok" or not _is_nan(row.get("agreement")), "a good row with agreement NaN"
    stored = {k: None if k in METRICS and _is_nan(v) else v for k, v in row.items()}
    return {**stored, "finished_at": row.get("finished_at") or datetime.now(UTC)}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _name(text: str) -> str:
    """``text`` as a single safe file name: keys, sweeps and units are checked where they arise."""
    assert _SAFE.fullmatch(text), f"not usable as a file name: {text!r}"
    return text


def _part(part: int) -> str:
    return f"part-{part:05d}.parquet"
