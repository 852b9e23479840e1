"""The rows of a folder: every file checked, those that are not sound named and set aside."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import polars as pl

from raystitch.errors import StorageError
from raystitch.files import TEMPORARY
from raystitch.results.row_files import NEEDED, ForeignError, seal_of, unsealed
from raystitch.results.schema import CELL_SCHEMA, COLUMNS

TYPES = pl.Schema(CELL_SCHEMA)
"""The declared columns with their types in Polars."""

MEASURED = ("key", "front_digest", "end_digest")
"""What tells rows apart: a cell as it was measured, on networks of these digests."""

_TOGETHER = 64
"""Files read at once by one thread: their bytes are in memory together."""
_THREADS = min(4, os.cpu_count() or 1)
_Notes = list[str]


class SetAsideWarning(UserWarning):
    """A stored file could not be taken as rows; the message names it and where it is now."""


@dataclass(frozen=True)
class Reading:
    """Rows as read, in the declared schema, and a sentence per file set aside.

    frame: one row per cell as it was measured (`MEASURED`), unless said otherwise.
    """

    frame: pl.DataFrame
    warnings: tuple[str, ...]

    def warn(self) -> None:
        """The sentences as Python warnings, for who calls from a program of their own."""
        for text in self.warnings:
            warnings.warn(text, SetAsideWarning, stacklevel=3)


def read_cells(
    folder: Path,
    pattern: str = "*.parquet",
    columns: Collection[str] | None = None,
    by: Sequence[str] = MEASURED,
) -> Reading:
    """The rows of every file in ``folder``: a good row beats a failed one, the latest of each.

    Rows of one key that were measured on other networks (other digests) stay beside each other:
    which of them count is known only with the networks that are stored.
    Files of an older release lack columns: these are null. A torn or foreign Parquet file is moved
    to ``set-aside/`` and named in the warnings; unfinished files of writers are not looked at.
    `StorageError` where the disk cannot be read or a later release changed the format.
    pattern: names of the files to take, a glob. columns: these alone (all declared when absent), in
    the schema's order; a file is checked for damage in the columns that are read. by: what tells
    rows apart; one row is taken for each.
    """
    wanted = [name for name in COLUMNS if columns is None or name in columns]
    read = [name for name in COLUMNS if name in {*wanted, *NEEDED, *by, "finished_at"}]
    files = row_files(folder, pattern)
    batches = [files[n : n + _TOGETHER] for n in range(0, len(files), _TOGETHER)]
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(partial(_read_files, columns=read), batches))
    frames = [pl.DataFrame(schema={name: TYPES[name] for name in read})]
    frames += [frame for found, _ in parts for frame in found]
    notes = [note for _, found in parts for note in found]
    return Reading(_latest_good(pl.concat(frames), by).select(wanted), tuple(notes))


def row_files(folder: Path, pattern: str = "*.parquet") -> list[Path]:
    """The files of rows in a folder, by name."""
    return sorted(p for p in folder.glob(pattern) if not p.name.startswith(TEMPORARY))


@dataclass(frozen=True)
class _File:
    """A file whose bytes are sound: sealed ones wait to be read together, others are read."""

    path: Path
    data: bytes
    frame: pl.DataFrame | None


def _read_files(paths: Sequence[Path], columns: Sequence[str]) -> tuple[list[pl.DataFrame], _Notes]:
    """The rows of these files in their order, and what is to be said of them."""
    notes: _Notes = []
    files = [file for path in paths if (file := _checked(path, columns, notes)) is not None]
    frames: list[pl.DataFrame] = []
    for together, run in groupby(files, lambda file: file.frame is None):
        if together:
            frames += _sealed(list(run), columns, notes)
        else:
            frames += [file.frame for file in run if file.frame is not None]
    return frames, notes


def _checked(path: Path, columns: Sequence[str], notes: _Notes) -> _File | None:
    """The file at ``path``; None where it is gone, or set aside, of which there is a note."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # another reader has just set it aside
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error}.") from error
    try:
        seal = seal_of(data)
        if seal is None:
            frame = pl.DataFrame(pl.from_arrow(unsealed(data, path)))
            names = frame.columns
        else:
            frame, names = None, list(seal.extents)
            seal.check(data, [name for name in columns if name in seal.extents])
    except StorageError:
        raise
    except Exception as error:  # whatever a Parquet reader makes of arbitrary bytes
        notes.append(_set_aside(path, error))
        return None
    if unread := [name for name in names if name not in COLUMNS]:
        said = f"not read are its columns {', '.join(unread)}"
        notes.append(f"{path} comes from a later raystitch: {said}.")
    return _File(path, data, None if frame is None else _completed(frame, columns))


def _completed(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """These columns; those that the file's release did not have are null."""
    stored = set(frame.columns)
    return frame.select(
        pl.col(name) if name in stored else pl.lit(None, TYPES[name]).alias(name)
        for name in columns
    )


def _sealed(files: Sequence[_File], columns: Sequence[str], notes: _Notes) -> list[pl.DataFrame]:
    """The rows of files with sound bytes, of which none should be refused: read at one go."""
    try:
        return [_scan(files, columns)]
    except pl.exceptions.PolarsError as error:
        if len(files) > 1:
            return [frame for file in files for frame in _sealed([file], columns, notes)]
        notes.append(
            _set_aside(files[0].path, ForeignError(f"its columns are not as declared: {error}"))
        )
        return []


def _scan(files: Sequence[_File], columns: Sequence[str]) -> pl.DataFrame:
    rows = pl.scan_parquet(
        [file.data for file in files],
        schema={name: TYPES[name] for name in columns},
        missing_columns="insert",
        extra_columns="ignore",
    )
    return rows.select(columns).collect().rechunk()


def _latest_good(rows: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """One row for each of ``by``: a good one, and the latest of these; in order of finishing."""
    if rows.select(by).hash_rows().n_unique() < rows.height:  # equal rows have equal hashes
        # Stable sorts: where times are equal, the order of the files' names decides, everywhere.
        ordered = rows.sort(pl.col("status") == "ok", "finished_at", maintain_order=True)
        rows = ordered.unique(by, keep="last")
    # To sort the numbers of the rows and gather these is half the work of sorting the rows.
    return rows[rows.select(pl.arg_sort_by("finished_at", "key")).to_series()]


def _set_aside(path: Path, why: Exception) -> str:
    """Move a file out of the readers' way, never deleting one; the sentence that says so."""
    target = path.parent / "set-aside" / path.name
    if target.exists():
        target = target.with_name(f"{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    kind = "foreign" if isinstance(why, ForeignError) else "torn"
    reason = (str(why).strip() or type(why).__name__).splitlines()[0].rstrip(".")
    try:
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
    except OSError as error:
        return f"{path} is {kind} ({reason}) and not read; it could not be moved aside: {error}."
    return f"{path} is {kind} ({reason}) and not read; it is kept as {target}."
