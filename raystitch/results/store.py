"""Where everything is stored, and the rows of a sweep: written once, atomically, never rewritten.

Nothing but what is stored here is the truth: a cell with a good row is done, any other is pending.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from raystitch.errors import StorageError
from raystitch.files import TEMPORARY, atomic_path
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

_FORMAT_KEY = b"raystitch.format"
_FORMAT = b"cells/1"
_DIGEST_KEY = b"raystitch.digest"
_SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+@=-]*")


class SetAsideWarning(UserWarning):
    """A stored file could not be taken as rows; the message names it and where it is now."""


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


@dataclass(frozen=True)
class Reading:
    """Rows as read, in the declared schema, and a sentence per file set aside.

    frame: one row per cell as it was measured: per key and the digests of both networks.
    """

    frame: pl.DataFrame
    warnings: tuple[str, ...]


class CellStore:
    """The rows of one sweep. Any number of writers at once: each write is a file of its own."""

    def __init__(self, storage: Storage, sweep: str) -> None:
        self.folder = storage.cells(sweep)

    def write(self, rows: Sequence[Mapping[str, Any]], unit: str) -> Path:
        """Store rows as one new file ``<unit>-<random>.parquet``, whole or not at all.

        A column that a row lacks is null, NaN among the metrics too (a ratio that is not defined);
        ``finished_at`` is stamped where it is missing.
        """
        assert rows, "no rows to write"
        path = self.folder / f"{_name(unit)}-{secrets.token_hex(8)}.parquet"
        table = pa.Table.from_pylist([_checked(row) for row in rows], schema=CELL_SCHEMA)
        table = table.replace_schema_metadata({_FORMAT_KEY: _FORMAT, _DIGEST_KEY: _digest(table)})
        with atomic_path(path) as temporary:
            pq.write_table(
                table, temporary, compression="zstd", use_dictionary=False, write_statistics=False
            )
        return path

    def read(self, keys: Iterable[str] | None = None) -> pl.DataFrame:
        """One row per key, a good one and the latest of these; warns of files set aside.

        keys: only these, if given.

        A reader of a sweep passes the keys of its current plan, so that an earlier trial run with
        fewer images never mixes in.
        """
        reading = self.scan()
        for text in reading.warnings:
            warnings.warn(text, SetAsideWarning, stacklevel=2)
        frame = _latest_good(reading.frame, "key")
        return frame if keys is None else frame.filter(pl.col("key").is_in(list(keys)))

    def of_unit(self, unit: str) -> pl.DataFrame:
        """The rows that were stored for one unit, without reading any other's."""
        return read_cells(self.folder, f"{_name(unit)}-*.parquet").frame

    def scan(self) -> Reading:
        """All that counts for some training of the networks (see `read_cells`), and warnings."""
        return read_cells(self.folder)


def read_cells(folder: Path, pattern: str = "*.parquet") -> Reading:
    """The rows of every file in ``folder``: a good row beats a failed one, the latest of each.

    Rows of one key that were measured on other networks (other digests) stay beside each other:
    which of them count is known only with the networks that are stored.
    Files of an older release lack columns: these are null. A torn or foreign Parquet file is moved
    to ``set-aside/`` and named in the warnings; unfinished files of writers are not looked at.
    `StorageError` where the disk cannot be read or a later release changed the format.
    pattern: names of the files to take, a glob.
    """
    tables, notes = [CELL_SCHEMA.empty_table()], list[str]()
    for path in _row_files(folder, pattern):
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # another reader has just set it aside
            continue
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}.") from error
        try:
            table, note = _parse(data, path)
        except StorageError:
            raise
        except Exception as error:  # whatever a Parquet reader makes of arbitrary bytes
            table, note = None, _set_aside(path, error)
        tables += [] if table is None else [table]
        notes += [] if note is None else [note]
    rows = pl.DataFrame(pl.from_arrow(pa.concat_tables(tables)))
    return Reading(_latest_good(rows, "key", "front_digest", "end_digest"), tuple(notes))


def find_cells(run: str, storage: Storage) -> Path:
    """The folder of rows meant by ``run``: a sweep's name under the storage, or a path.

    The path is a sweep's folder or its folder of cells. `StorageError` lists the sweeps there are.
    """
    candidates = [Path(run) / "cells", Path(run)]
    if _SAFE.fullmatch(run):
        candidates.insert(0, storage.cells(run))
    for folder in candidates:
        if folder.is_dir() and (folder.name == "cells" or _row_files(folder)):
            return folder
    known = ", ".join(storage.sweeps()) or "none yet"
    raise StorageError(
        f"no stored sweep {run!r}: it is neither a sweep under {storage.root} (there: {known}) "
        "nor a folder with rows. Run the sweep first, or pass --storage."
    )


class _ForeignError(Exception):
    """The file is sound Parquet but not rows of this project."""


def _parse(data: bytes, path: Path) -> tuple[pa.Table, str | None]:
    """The rows in the declared schema, and a warning about columns of a later release, if any."""
    # One thread: to share out a few kilobytes takes longer than to read them.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    metadata = table.schema.metadata or {}
    marker = metadata.get(_FORMAT_KEY)
    if marker is None or not marker.startswith(b"cells/"):
        raise _ForeignError("it was not written by raystitch")
    if marker != _FORMAT:
        raise StorageError(
            f"{path} has the format {marker.decode(errors='replace')!r} of a later raystitch; this "
            f"one reads {_FORMAT.decode()!r}. Upgrade raystitch to go on with this sweep."
        )
    if metadata.get(_DIGEST_KEY) != _digest(table):
        raise ValueError("its rows do not match their digest")
    for field in table.schema:
        if field.name in COLUMNS and not field.type.equals(COLUMNS[field.name].type):
            raise _ForeignError(f"its column {field.name} is {field.type}")
    unread = [name for name in table.column_names if name not in COLUMNS]
    note = f"{path} comes from a later raystitch: not read are its columns {', '.join(unread)}."
    return _completed(table), note if unread else None


def _digest(table: pa.Table) -> bytes:
    """SHA-256 of the rows, names of columns included: Parquet's own checksums leave out names."""
    text = json.dumps(table.to_pylist(), default=str)
    return hashlib.sha256(text.encode()).hexdigest().encode()


def _completed(table: pa.Table) -> pa.Table:
    """The declared columns in order; those an older release did not have are null."""
    stored = dict(zip(table.column_names, table.columns, strict=True))
    for name in ("key", "status"):
        if name not in stored or stored[name].null_count:
            raise _ForeignError(f"it has rows without {name}")
    columns = [
        stored[field.name] if field.name in stored else pa.nulls(table.num_rows, field.type)
        for field in CELL_SCHEMA
    ]
    return pa.table(columns, schema=CELL_SCHEMA)


def _latest_good(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    # Stable sorts: where times are equal, the order of the files' names decides, on every machine.
    ordered = rows.sort(pl.col("status") == "ok", "finished_at", maintain_order=True)
    return ordered.unique(by, keep="last").sort("finished_at", "key")


def _row_files(folder: Path, pattern: str = "*.parquet") -> list[Path]:
    return sorted(p for p in folder.glob(pattern) if not p.name.startswith(TEMPORARY))


def _set_aside(path: Path, why: Exception) -> str:
    """Move a file out of the readers' way, never deleting one; the sentence that says so."""
    target = path.parent / "set-aside" / path.name
    if target.exists():
        target = target.with_name(f"{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    kind = "foreign" if isinstance(why, _ForeignError) else "torn"
    reason = (str(why).strip() or type(why).__name__).splitlines()[0].rstrip(".")
    try:
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    except OSError as error:
        return f"{path} is {kind} ({reason}) and not read; it could not be moved aside: {error}."
    return f"{path} is {kind} ({reason}) and not read; it is kept as {target}."


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
