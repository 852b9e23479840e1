"""Data sets of encoded images: a folder for each class, and the hub's Parquet files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from raystitch import settings
from raystitch.data.catalogue import (
    SPLITS,
    Catalogue,
    Split,
    check_labels,
    digest,
    need_folder,
    read_classes,
    whole,
)
from raystitch.data.decoding import Encoded, common_size, decode
from raystitch.errors import RaystitchError, choices

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".tif", ".tiff")
FOLDERS: Mapping[str, tuple[str, ...]] = {"train": ("train",), "test": ("val", "test")}
"""Names of a split's folder; the first that is there."""

HUB_SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "test": ("test", "validation", "val"),
}
"""Names of a split's files; the first that is there and labelled."""

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


def imagefolder(data: settings.Data) -> Catalogue:
    """``train/CLASS/*`` and ``val/CLASS/*`` (or ``test/CLASS/*``), as ImageNet is laid out."""
    root = need_folder(data)
    folders = {split: _split_folder(root, split) for split in SPLITS}
    names = read_classes(data) or tuple(_class_folders(folders["train"]))
    if not names:
        raise RaystitchError(
            f"data.path: {folders['train']} has no folders of classes; images lie in "
            "train/CLASS/ and val/CLASS/ or test/CLASS/."
        )
    files: dict[str, tuple[Path, ...]] = {}
    labels: dict[str, NDArray[np.int64]] = {}
    listing: list[object] = [names]
    for split in SPLITS:
        found = [_images_of(folders[split], name, data) for name in names]
        files[split] = tuple(path for of_class in found for path, _ in of_class)
        counts = [len(of_class) for of_class in found]
        labels[split] = np.repeat(np.arange(len(names)), counts).astype(np.int64)
        listing += [
            (split, n, p.name, size) for n, c in zip(names, found, strict=True) for p, size in c
        ]
    height, width = common_size(((str(p), p) for p in chain(*files.values())), data)

    def read(split: Split, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        paths = (files[split][position] for position in positions)
        return decode(((str(path), path) for path in paths), data)

    return whole((3, height, width), names, labels, digest(listing), read)


def _split_folder(root: Path, split: Split) -> Path:
    found = [root / name for name in FOLDERS[split] if (root / name).is_dir()]
    if not found:
        wanted = " or ".join(f"{name}/" for name in FOLDERS[split])
        raise RaystitchError(
            f"data.path: there is no {wanted} in {root}; images lie in train/CLASS/ and val/CLASS/ "
            "or test/CLASS/."
        )
    return found[0]


def _class_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())


def _images_of(folder: Path, name: str, data: settings.Data) -> list[tuple[Path, int]]:
    """The images of one class with their sizes in bytes, by name."""
    place = folder / name
    if not place.is_dir():
        there = _class_folders(folder)
        shown = choices(name, there) if len(there) <= 20 else f"{name!r} is not there"
        asked = "data.classes" if data.classes is not None else "data.path"
        raise RaystitchError(
            f"{asked}: {folder} has no folder of that class: {shown}. Every class needs one in "
            "each split."
        )
    found = [
        (Path(entry.path), entry.stat().st_size)
        for entry in os.scandir(place)
        if entry.name.lower().endswith(IMAGE_SUFFIXES) and not entry.name.startswith(".")
    ]
    if not found:
        raise RaystitchError(
            f"data: there is no image in {place}; it should hold files ending in "
            f"{', '.join(IMAGE_SUFFIXES)}."
        )
    return sorted(found)


@dataclass(frozen=True)
class HubFiles:
    """The Parquet files of one split, in order, with the first row of each."""

    paths: tuple[Path, ...]
    starts: tuple[int, ...]
    column: str

    def encoded(self, positions: NDArray[np.int64]) -> Iterator[Encoded]:
        """The images at ascending positions, one row group in memory at a time."""
        for path, start in zip(self.paths, self.starts, strict=True):
            with pq.ParquetFile(path) as file:
                first = start
                for group in range(file.num_row_groups):
                    last = first + file.metadata.row_group(group).num_rows
                    chosen = positions[(positions >= first) & (positions < last)]
                    if len(chosen):
                        held = file.read_row_group(group, columns=[self.column])[self.column]
                        for position in chosen:
                            yield _hub_image(held[int(position) - first], path, int(position))
                    first = last


def parquet(data: settings.Data) -> Catalogue:
    """``train-*.parquet`` and ``test-*.parquet`` (or ``validation-*``), at any depth."""
    root = need_folder(data)
    files: dict[str, HubFiles] = {}
    given: dict[str, NDArray[Any]] = {}
    names: Sequence[str] | None = None
    listing: list[object] = []
    for split in SPLITS:
        paths, given[split], label = _labelled(root, split)
        rows = [pq.read_metadata(path) for path in paths]
        starts = tuple(int(n) for n in np.cumsum([0, *(m.num_rows for m in rows)])[:-1])
        files[split] = HubFiles(paths, starts, _column(paths[0], IMAGE_COLUMNS))
        names = names or _class_names(paths[0], label)
        listing += [(split, path.name, path.stat().st_size, _tail(path)) for path in paths]
    if names is None:
        check_labels(given["train"], 2**31, f"{root} (train)")
        names = tuple(map(str, range(int(given["train"].max(initial=-1)) + 1)))
    labels = {s: check_labels(given[s], len(names), f"{root} ({s})") for s in SPLITS}
    everything = (f.encoded(np.arange(len(labels[s]))) for s, f in files.items())
    height, width = common_size(chain.from_iterable(everything), data)

    def read(split: Split, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return decode(files[split].encoded(positions), data)

    return whole((3, height, width), names, labels, digest(listing), read)


def _labelled(root: Path, split: Split) -> tuple[tuple[Path, ...], NDArray[Any], str]:
    """A split's files, their labels and the label's column; the hub's unlabelled tests have -1."""
    for name in HUB_SPLITS[split]:
        paths = tuple(path for path in sorted(root.rglob("*.parquet")) if _is_of(path, name))
        if not paths:
            continue
        label = _column(paths[0], LABEL_COLUMNS)
        labels = np.concatenate([_read(path, label).to_numpy() for path in paths])
        if len(labels) and (labels != -1).any():
            return paths, labels, label
    wanted = " or ".join(f"{name}-*.parquet" for name in HUB_SPLITS[split])
    raise RaystitchError(
        f"data.path: there is no {wanted} with labels under {root}; it should hold the files as "
        "the hub has them."
    )


def _is_of(path: Path, name: str) -> bool:
    """``train-00000-of-00001.parquet``, ``train.parquet`` or ``train/0000.parquet``, anywhere."""
    return path.stem.split("-")[0] == name or path.parent.name == name


def _column(path: Path, known: Sequence[str]) -> str:
    try:
        there = pq.read_schema(path).names
    except (pa.ArrowInvalid, OSError) as error:
        raise RaystitchError(
            f"data: {path} is no Parquet file ({error}); fetch it anew."
        ) from error
    found = [name for name in known if name in there]
    if not found:
        raise RaystitchError(
            f"data: {path} has the columns {', '.join(there)}; one should be {' or '.join(known)}."
        )
    return found[0]


def _read(path: Path, column: str) -> Any:
    try:
        return pq.read_table(path, columns=[column])[column].combine_chunks()
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise RaystitchError(f"data: {path} cannot be read ({error}); fetch it anew.") from error


def _class_names(path: Path, label: str) -> tuple[str, ...] | None:
    """The classes' names, where the hub's own metadata has them."""
    raw = (pq.read_schema(path).metadata or {}).get(b"huggingface")
    try:
        names = json.loads(raw or b"{}")["info"]["features"][label]["names"]
    except (ValueError, KeyError, TypeError):
        return None
    return tuple(map(str, names))


def _hub_image(value: Any, path: Path, position: int) -> Encoded:
    held = value.as_py()
    held = held.get("bytes") if isinstance(held, dict) else held
    where = f"image {position} of {path}"
    if not isinstance(held, bytes):
        raise RaystitchError(
            f"data: {where} has no bytes; the image's column should hold `bytes` (and `path`)."
        )
    return where, held


def _tail(path: Path) -> str:
    """Digest of a Parquet file's footer: what its row groups hold, where, and how large."""
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        size = int.from_bytes(file.read(4), "little")
        file.seek(-8 - size, os.SEEK_END)
        return digest([file.read(size)])
