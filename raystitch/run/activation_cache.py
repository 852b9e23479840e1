"""Arrays that the workers of a node share: memory-mapped files on its own disk, least recent out.

A file is known by its content's key, built once under a lock, and renamed into place when it is
whole. Whoever maps it holds a shared lock on it, so that what is in use is never counted as free;
the locks of a process that is killed go with it. Losing the folder loses nothing but time.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from filelock import FileLock
from torch import Tensor

from raystitch.files import TEMPORARY

_LENGTH = 8
"""Bytes at a file's end that hold the length of the description before them."""


def default_folder() -> Path:
    """On this machine's own disk, apart for each user."""
    return Path(tempfile.gettempdir()) / f"raystitch-activations-{os.getuid()}"


@dataclass(frozen=True)
class Entry:
    """An array in the cache. tensor: mapped, not to be written to; facts: what was noted with it.

    hold: the file, open and locked as long as the entry is there.
    """

    tensor: Tensor
    facts: dict[str, Any]
    hold: IO[bytes]


@dataclass(frozen=True)
class New:
    """An array that is being made: its memory, to be written to, and facts, to be added to."""

    tensor: Tensor
    facts: dict[str, Any]


class ActivationCache:
    """The arrays under one folder: at most ``limit`` bytes, whoever makes them."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def get(self, key: str) -> Entry | None:
        """The array of that key, if it is there; it then counts as just used."""
        path = self._path(key)
        try:
            hold = path.open("rb")
        except FileNotFoundError:
            return None
        # Between the two another process may have taken it out; mapped, it stays readable.
        fcntl.flock(hold, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            os.utime(path)
        return _read(hold)

    def building(self, key: str) -> FileLock:
        """Held by whoever makes what lies under that key; the others wait for it."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return FileLock(self.folder / f"{key[:2]}.lock")

    @contextmanager
    def making(self, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> Generator[New | None]:
        """A new array to be filled inside; it is there once the block has ended well.

        None where there is no room for it: all that would have to go is in use, or the disk is
        full.
        """
        count, path = prod(shape), self.folder / f"{TEMPORARY}{secrets.token_hex(6)}"
        try:
            with path.open("wb") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH)
                if not self._reserve(handle, count * dtype.itemsize):
                    yield None
                    return
                array = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
                new = New(array.view(shape), {"shape": list(shape), "dtype": str(dtype)[6:]})
                yield new
                text = json.dumps(new.facts).encode()
                handle.seek(0, os.SEEK_END)
                handle.write(text + len(text).to_bytes(_LENGTH, "little"))
                handle.flush()
                os.fsync(handle.fileno())
                path.replace(self._path(key))
        finally:
            path.unlink(missing_ok=True)

    def _reserve(self, handle: IO[bytes], count: int) -> bool:
        """Give a new file its room, at the cost of those that were not used for longest."""
        with FileLock(self.folder / "room.lock"):
            found = [(file.stat(), file) for file in self._files()]
            taken = sum(stat.st_size for stat, _ in found)
            for stat, file in sorted(found, key=lambda one: one[0].st_mtime_ns):
                if taken + count <= self.limit:
                    break
                if _drop(file):
                    taken -= stat.st_size
            if taken + count > self.limit:
                return False
            try:
                _allocate(handle, count)
            except OSError:
                return False
            return True

    def _files(self) -> list[Path]:
        return [file for file in self.folder.iterdir() if file.suffix != ".lock"]

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.bin"


def _allocate(handle: IO[bytes], count: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle.fileno(), 0, max(count, 1))
    handle.truncate(count)


def _read(hold: IO[bytes]) -> Entry:
    hold.seek(-_LENGTH, os.SEEK_END)
    length = int.from_bytes(hold.read(_LENGTH), "little")
    hold.seek(-_LENGTH - length, os.SEEK_END)
    facts = json.loads(hold.read(length))
    shape, dtype = tuple(facts["shape"]), getattr(torch, facts["dtype"])
    name = f"/proc/self/fd/{hold.fileno()}" if Path("/proc/self/fd").is_dir() else hold.name
    array = torch.from_file(name, shared=False, size=prod(shape), dtype=dtype)
    return Entry(array.view(shape), facts, hold)


def _drop(file: Path) -> bool:
    """Remove a file that nobody uses; whether it is gone."""
    try:
        with file.open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
