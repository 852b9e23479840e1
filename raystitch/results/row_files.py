"""One file of rows: plain Parquet with a seal, so that what is read of it is known to be sound.

The seal stands where Parquet allows anything, between the columns and the footer: the extent and
SHA-256 of every column's bytes, and the SHA-256 of the footer. A reader looks at nothing that it
has not checked, and checks only the columns that it takes: a summary of a million rows needs a
few of each file's many. Any Parquet reader opens such a file without knowing of the seal.

    PAR1 | columns | seal | SHA-256 of seal | its length | MAGIC | footer | its length | PAR1
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raystitch.errors import StorageError
from raystitch.results.schema import COLUMNS

FORMAT_KEY = b"raystitch.format"
FORMAT = b"cells/2"
WITHOUT_SEAL = b"cells/1"
"""The format before: a digest of the JSON text of all rows, among Parquet's own metadata."""

MAGIC = b"raystitch/cells2"
NEEDED = ("key", "status")
"""What every row has."""

_DIGEST_KEY = b"raystitch.digest"
_TAIL = 8  # the footer's length, and PAR1
_LONG = ("settings", "curve", "error")
"""Columns worth compressing: of the others the dictionaries alone make little."""

_OWN = ("key", *_LONG)
"""Columns in which hardly two rows are alike."""


class ForeignError(Exception):
    """The file is sound Parquet but not rows of this project."""


class TornError(Exception):
    """The bytes of a file are not those that were written."""


@dataclass(frozen=True)
class Seal:
    """The checked seal of a file: by column where its bytes begin and end, and their SHA-256."""

    extents: dict[str, tuple[int, int, str]]

    def check(self, data: bytes, columns: Iterable[str]) -> None:
        """`TornError` where the bytes of one of these columns are not those that were written."""
        view = memoryview(data)
        for name in columns:
            start, stop, digest = self.extents[name]
            if _sha256(view[start:stop]) != digest:
                raise TornError(f"its column {name} does not match its digest")


def encode(table: pa.Table) -> bytes:
    """Rows as the bytes of one file."""
    assert table.num_rows, "no rows to write"
    assert not any(table.column(name).null_count for name in NEEDED), "a row without key or status"
    marked = table.replace_schema_metadata({FORMAT_KEY: FORMAT})
    kinds = dict(zip(table.column_names, table.schema.types, strict=True))
    texts = [name for name, kind in kinds.items() if pa.types.is_string(kind)]
    options: dict[str, Any] = {  # of more types than the stubs know
        "compression": {_leaf(name, kind): _compression(name) for name, kind in kinds.items()},
        "use_dictionary": [name for name in texts if name not in _OWN],
    }
    sink = pa.BufferOutputStream()
    pq.write_table(
        marked,
        sink,
        row_group_size=table.num_rows,
        write_statistics=False,
        store_schema=False,
        **options,
    )
    data = sink.getvalue().to_pybytes()
    end = _footer(data)
    text = _seal_text(data)
    tail = hashlib.sha256(text).digest() + len(text).to_bytes(4, "little") + MAGIC
    return data[:end] + text + tail + data[end:]


def seal_of(data: bytes) -> Seal | None:
    """The seal of a file's bytes, checked with the footer; None where there is none.

    Raises `TornError` where they do not match.
    """
    end = _footer(data)
    stop = end - len(MAGIC) - 4 - 32
    if stop < 0 or data[end - len(MAGIC) : end] != MAGIC:
        return None
    length = int.from_bytes(data[stop + 32 : stop + 36], "little")
    text = data[max(stop - length, 0) : stop]
    if hashlib.sha256(text).digest() != data[stop : stop + 32]:
        raise TornError("its seal does not match its digest")
    found = json.loads(text)
    if _sha256(data[end:]) != found["footer"]:
        raise TornError("its footer does not match its digest")
    return Seal({name: (start, stop, sha) for name, (start, stop, sha) in found["columns"].items()})


def unsealed(data: bytes, path: Path) -> pa.Table:
    """All columns of a file without a seal, checked as its own release wrote them.

    path: where it lies, for the error's sentence.
    Raises `StorageError` for the format of a later release, anything else for bytes that are no
    sound rows.
    """
    # One thread: to share out a few kilobytes takes longer than to read them.
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    metadata = table.schema.metadata or {}
    marker = metadata.get(FORMAT_KEY)
    if marker is None or not marker.startswith(b"cells/"):
        raise ForeignError("it was not written by raystitch")
    if marker == FORMAT:
        raise TornError("its seal is damaged")
    if marker != WITHOUT_SEAL:
        raise StorageError(
            f"{path} has the format {marker.decode(errors='replace')!r} of a later raystitch; this "
            f"one reads {FORMAT.decode()!r}. Upgrade raystitch to go on with this sweep."
        )
    if metadata.get(_DIGEST_KEY) != _digest(table):
        raise TornError("its rows do not match their digest")
    for name in NEEDED:
        if name not in table.column_names or table.column(name).null_count:
            raise ForeignError(f"it has rows without {name}")
    for field in table.schema:
        if field.name in COLUMNS and not field.type.equals(COLUMNS[field.name].type):
            raise ForeignError(f"its column {field.name} is {field.type}")
    return table


def _seal_text(data: bytes) -> bytes:
    group = pq.read_metadata(pa.BufferReader(data)).row_group(0)
    spans: dict[str, tuple[int, int]] = {}
    for number in range(group.num_columns):
        chunk = group.column(number)
        name = chunk.path_in_schema.split(".")[0]
        first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
        start = chunk.data_page_offset if first is None else first
        spans[name] = (spans.get(name, (start,))[0], start + chunk.total_compressed_size)
    columns = {
        name: [start, stop, _sha256(data[start:stop])] for name, (start, stop) in spans.items()
    }
    found = {"footer": _sha256(data[_footer(data) :]), "columns": columns}
    return json.dumps(found, separators=(",", ":")).encode()


def _footer(data: bytes) -> int:
    """Where the footer begins; below 0 where the bytes are no Parquet."""
    return len(data) - _TAIL - int.from_bytes(data[-_TAIL:-4], "little")


def _leaf(name: str, kind: pa.DataType) -> str:
    """The name of a column in Parquet, where a list's values are a column of their own."""
    return f"{name}.list.element" if pa.types.is_list(kind) else name


def _compression(name: str) -> str:
    return "zstd" if name in _LONG else "none"


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest(table: pa.Table) -> bytes:
    """SHA-256 of the rows, names of columns included, of the format without a seal."""
    text = json.dumps(table.to_pylist(), default=str)
    return hashlib.sha256(text.encode()).hexdigest().encode()
