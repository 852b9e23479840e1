"""Data sets that are arrays already: NumPy's `.npz` and the IDX files of the MNIST family."""

from __future__ import annotations

import gzip
import hashlib
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raystitch import settings
from raystitch.data.catalogue import (
    SPLITS,
    Catalogue,
    Split,
    check_labels,
    digest,
    need_folder,
    whole,
)
from raystitch.data.decoding import fit, fitted_size
from raystitch.errors import RaystitchError
from raystitch.files import file_digest

NPZ_NAMES: tuple[Mapping[str, tuple[str, str]], ...] = (
    {"train": ("x_train", "y_train"), "test": ("x_test", "y_test")},
    {"train": ("train_images", "train_labels"), "test": ("test_images", "test_labels")},
)
"""Names of the images and labels of each split, as Keras and MedMNIST write them."""

IDX_SPLITS: Mapping[str, str] = {"train": "train", "test": "(?:t10k|test)"}
_IDX_UBYTE = 0x08


@dataclass(frozen=True)
class Arrays:
    """images: uint8 (n, height, width, 3) by split, read at the positions asked for."""

    images: Mapping[str, NDArray[np.uint8]]
    data: settings.Data

    def read(self, split: Split, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return fit(coloured(self.images[split][positions]), self.data)


def of_arrays(
    images: Mapping[str, NDArray[np.uint8]],
    labels: Mapping[str, NDArray[Any]],
    names: tuple[str, ...] | None,
    content: str,
    data: settings.Data,
    where: str,
    notes: tuple[str, ...] = (),
) -> Catalogue:
    """A catalogue of arrays: images uint8 (n, height, width) or (n, height, width, 1 or 3).

    names: of the classes; None where there are as many as the largest training label says.
    """
    sizes = {split: of.shape[1:3] for split, of in images.items()}
    if sizes["train"] != sizes["test"] and (data.resize is None or data.crop is None):
        raise RaystitchError(
            f"data: the train images of {where} are {sizes['train']} and its test images "
            f"{sizes['test']}; give `resize: N` and `crop: N`, which make all of them N × N."
        )
    for split in SPLITS:
        if len(images[split]) != len(labels[split]):
            raise RaystitchError(
                f"data: {where} has {len(images[split])} {split} images and {len(labels[split])} "
                "labels for them; there should be one label per image."
            )
        if not len(images[split]):
            raise RaystitchError(f"data: {where} has no {split} images; both splits are needed.")
    if names is None:
        check_labels(labels["train"], 2**31, f"{where} (train)")
        names = tuple(map(str, range(int(labels["train"].max()) + 1)))
    known = {s: check_labels(labels[s], len(names), f"{where} ({s})") for s in SPLITS}
    height, width = fitted_size(sizes["train"], data, f"an image of {where}")
    return whole((3, height, width), names, known, content, Arrays(images, data).read, notes)


def coloured(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey images, (n, height, width) or with one channel, as RGB: (n, height, width, 3)."""
    images = images[..., None] if images.ndim == 3 else images
    return np.ascontiguousarray(np.broadcast_to(images, (*images.shape[:3], 3)))


def npz(data: settings.Data) -> Catalogue:
    """One `.npz` file with the arrays of `NPZ_NAMES`."""
    assert data.path is not None
    path = Path(data.path)
    if not path.is_file():
        raise RaystitchError(
            f"data.path: there is no file {path}; `npz` takes one `.npz` file. A relative path "
            "counts from the sweep file's folder."
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files if name in _npz_names()}
            there = file.files
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise RaystitchError(
            f"data.path: {path} is no `.npz` file of plain arrays ({error}); save it with "
            "`numpy.savez(path, x_train=..., y_train=..., x_test=..., y_test=...)`."
        ) from error
    found = next((names for names in NPZ_NAMES if _all(names) <= held.keys()), None)
    if found is None:
        wanted = " or ".join(", ".join(sorted(_all(names))) for names in NPZ_NAMES)
        raise RaystitchError(
            f"data.path: {path} holds the arrays {', '.join(there) or '(none)'}; it should hold "
            f"{wanted}."
        )
    images = {s: _pixels(held[found[s][0]], f"{path}, {found[s][0]}") for s in SPLITS}
    # Some files hold their labels as one column.
    labels = {s: _column(held[found[s][1]]) for s in SPLITS}
    return of_arrays(images, labels, None, file_digest(path), data, str(path))


def _npz_names() -> set[str]:
    return {name for names in NPZ_NAMES for name in _all(names)}


def _all(names: Mapping[str, tuple[str, str]]) -> set[str]:
    return {name for pair in names.values() for name in pair}


def _column(labels: NDArray[Any]) -> NDArray[Any]:
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _pixels(images: NDArray[Any], where: str) -> NDArray[np.uint8]:
    right = images.ndim == 3 or (images.ndim == 4 and images.shape[3] in (1, 3))
    if images.dtype != np.uint8 or not right:
        raise RaystitchError(
            f"data: the images in {where} are {images.dtype} of shape {images.shape}; they should "
            "be uint8 of shape (n, height, width) or (n, height, width, 1 or 3)."
        )
    return images


def idx(data: settings.Data) -> Catalogue:
    """A folder with the four IDX files of an MNIST-like data set, gzipped or not."""
    folder = need_folder(data)
    paths = {(s, what): _idx_path(folder, s, what) for s in SPLITS for what in ("images", "labels")}
    arrays = {place: _read_idx(path) for place, path in paths.items()}
    for (_, what), array in arrays.items():
        if array.ndim != (3 if what == "images" else 1):
            raise RaystitchError(
                f"data: the {what} in {folder} have the shape {array.shape}; images should be "
                "(n, height, width), labels (n,)."
            )
    return of_arrays(
        {split: arrays[split, "images"] for split in SPLITS},
        {split: arrays[split, "labels"] for split in SPLITS},
        None,
        digest(map(_array_digest, arrays.values())),
        data,
        str(folder),
    )


def _array_digest(array: NDArray[np.uint8]) -> str:
    """Of what is in a file, gzipped or not."""
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()


def _idx_path(folder: Path, split: Split, what: str) -> Path:
    number = 3 if what == "images" else 1
    pattern = re.compile(rf"(?:.*-)?{IDX_SPLITS[split]}-{what}[-.]idx{number}-ubyte(\.gz)?")
    found = sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))
    stems = {path.name.removesuffix(".gz"): path for path in reversed(found)}
    if len(stems) == 1:
        return next(iter(stems.values()))
    prefix = "train" if split == "train" else "t10k"
    name = f"{prefix}-{what}-idx{number}-ubyte"
    if not stems:
        raise RaystitchError(f"data.path: there is no {name}, gzipped or not, in {folder}.")
    raise RaystitchError(
        f"data.path: {folder} has {', '.join(sorted(stems))}; keep one data set in a folder."
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file: two zero bytes, the type, the number of axes, each axis's length, the values."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (OSError, EOFError) as error:
        raise RaystitchError(f"data: {path} cannot be read: {error}.") from error
    axes = raw[3] if len(raw) >= 4 else 0
    if raw[:2] != b"\0\0" or raw[2:3] != bytes([_IDX_UBYTE]) or len(raw) < 4 + 4 * axes:
        raise RaystitchError(f"data: {path} is no IDX file of unsigned bytes; fetch it anew.")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", count=axes, offset=4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if len(values) != int(np.prod(shape)):
        raise RaystitchError(
            f"data: {path} holds {len(values)} values where its head says {shape}; it is cut off: "
            "fetch it anew."
        )
    return values.reshape(shape)
