"""CIFAR-10 and CIFAR-100: the python batches as distributed, checked before they are read.

They are pickles, which can run any code: files that are not the official ones are refused unless
`verify: false` takes them as they are, and nothing is unpickled but arrays and plain values.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raystitch import settings
from raystitch.data.arrays import of_arrays
from raystitch.data.catalogue import SPLITS, Catalogue, digest, need_folder
from raystitch.errors import RaystitchError


@dataclass(frozen=True)
class Layout:
    """The files of one of the two data sets.

    archive: as distributed; files: by split, in order; labels, names: their keys in batches and
    in the ``meta`` file; md5: of the official files, by name.
    """

    archive: str
    folder: str
    files: Mapping[str, tuple[str, ...]]
    meta: str
    labels: str
    names: str
    md5: Mapping[str, str]


LAYOUTS: Mapping[str, Layout] = {
    "cifar10": Layout(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        {
            "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
            "test": ("test_batch",),
        },
        "batches.meta",
        "labels",
        "label_names",
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": Layout(
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        {"train": ("train",), "test": ("test",)},
        "meta",
        "fine_labels",
        "fine_label_names",
        {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
}
"""The MD5 sums are the data set's own, as torchvision has them too."""


def cifar(data: settings.Data) -> Catalogue:
    """The batches in ``data.path``, or in the archive's folder in there."""
    layout, folder = LAYOUTS[data.source], need_folder(data)
    if (folder / layout.folder).is_dir():
        folder = folder / layout.folder
    raw = {name: _checked(folder / name, layout, data.verify) for name in layout.md5}
    images: dict[str, NDArray[np.uint8]] = {}
    labels: dict[str, NDArray[Any]] = {}
    for split in SPLITS:
        batches = [_batch(folder / name, raw[name], layout) for name in layout.files[split]]
        images[split] = np.concatenate([pixels for pixels, _ in batches])
        labels[split] = np.concatenate([given for _, given in batches])
    found = _unpickled(folder / layout.meta, raw[layout.meta]).get(layout.names)
    if not isinstance(found, list):
        raise RaystitchError(f"data: {folder / layout.meta} has no list {layout.names!r}.")
    content = digest(hashlib.sha256(raw[name]).hexdigest() for name in layout.md5)
    notes = () if data.verify else (f"the files in {folder} are not verified (`verify: false`)",)
    return of_arrays(
        images, labels, tuple(str(_text(name)) for name in found), content, data, str(folder), notes
    )


def _checked(path: Path, layout: Layout, verify: bool) -> bytes:
    """A file's bytes, once its MD5 sum is the official one."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RaystitchError(
            f"data.path: {path} cannot be read ({error.strerror or error}); the folder should hold "
            f"what {layout.archive} unpacks to."
        ) from error
    found = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    if verify and found != layout.md5[path.name]:
        raise RaystitchError(
            f"data.path: {path} has the MD5 sum {found}, the official file "
            f"{layout.md5[path.name]}; unpack {layout.archive} anew, or write `verify: false` to "
            "take the files as they are."
        )
    return raw


def _batch(path: Path, raw: bytes, layout: Layout) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Images (n, 32, 32, 3) and labels of one file."""
    values = _unpickled(path, raw)
    pixels, labels = values.get("data"), values.get(layout.labels)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        raise RaystitchError(f"data: {path} has no array 'data' of uint8 rows.")
    if pixels.shape[1] != 3 * 32 * 32 or not isinstance(labels, list):
        raise RaystitchError(
            f"data: {path} should hold rows of 3072 pixels in 'data' and a list {layout.labels!r}."
        )
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels)


class _Arrays(pickle.Unpickler):
    """Unpickles arrays of plain numbers and plain values, nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        array = np.zeros(1)
        known: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            # What these pickles call to make an array; numpy has moved it since.
            ("numpy.core.multiarray", "_reconstruct"): array.__reduce__()[0],
            ("numpy._core.multiarray", "_reconstruct"): array.__reduce__()[0],
            ("_codecs", "encode"): _encode,
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known[module, name]


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into a pickle that Python 2 can read."""
    return text.encode(encoding)


def _unpickled(path: Path, raw: bytes) -> dict[Any, Any]:
    try:
        values = _Arrays(io.BytesIO(raw), encoding="latin1").load()
    except Exception as error:  # whatever a pickle makes of arbitrary bytes
        raise RaystitchError(
            f"data: {path} is no pickle of arrays and plain values ({error}); it is not read."
        ) from error
    if not isinstance(values, dict):
        raise RaystitchError(f"data: {path} holds a {type(values).__name__}, not a dictionary.")
    return {_text(name): value for name, value in values.items()}


def _text(value: Any) -> Any:
    """Text, also where Python 3 wrote it as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else value
