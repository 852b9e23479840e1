"""Writing files so that a reader never sees half of one, and hashing them.

Shards, weights, cards and rows all pass through here: a file is written under a temporary name in
its own folder, flushed to disk, then renamed over its final name.
"""

from __future__ import annotations

import filecmp
import hashlib
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of unfinished files: no reader takes a file whose name begins with it."""


@contextmanager
def atomic_path(path: Path, *, unless_same: bool = False) -> Generator[Path]:
    """Yield a temporary path beside ``path``; on success it is fsynced and renamed to ``path``.

    On an error the temporary file is removed and ``path`` is as it was. So it is with
    ``unless_same`` where it holds the same bytes already.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(6)}-{path.name}")
    try:
        yield temporary
        if unless_same and path.is_file() and filecmp.cmp(temporary, path, shallow=False):
            return
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data``, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
