"""Small data sets in the layouts in which real ones lie on disk."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def pixels(count: int, side: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Random uint8 images, (n, side, side, channels)."""
    shape = (count, side, side, channels)
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def labels(count: int, classes: int) -> np.ndarray:
    return np.arange(count) % classes


class _Python2(pickle._Pickler):
    """Writes bytes as the `str` of Python 2, as CIFAR's batches hold them."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)

    def save_str(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    dispatch[bytes] = save_str


def python2(value: object) -> bytes:
    raw = io.BytesIO()
    _Python2(raw, protocol=2).dump(value)
    return raw.getvalue()


def cifar10(folder: Path, per_batch: int = 20, test: int = 20) -> Path:
    """The python batches of CIFAR-10, with fewer images: written as Python 2 did."""
    home = folder / "cifar-10-batches-py"
    home.mkdir(parents=True)
    names = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    for seed, name in enumerate(names):
        count = test if name == "test_batch" else per_batch
        rows = pixels(count, seed=seed).transpose(0, 3, 1, 2).reshape(count, 3072)
        batch = {
            b"batch_label": name.encode(),
            b"labels": labels(count, 10).tolist(),
            b"data": rows,
            b"filenames": [b"x.png"] * count,
        }
        (home / name).write_bytes(python2(batch))
    words = [b"airplane", b"automobile", b"bird", b"cat", b"deer"]
    words += [b"dog", b"frog", b"horse", b"ship", b"truck"]
    meta = {b"label_names": words, b"num_vis": 3072, b"num_cases_per_batch": per_batch}
    (home / "batches.meta").write_bytes(python2(meta))
    return folder


def cifar100(folder: Path, train: int = 300, test: int = 100) -> Path:
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate({"train": train, "test": test}.items()):
        rows = pixels(count, seed=seed).transpose(0, 3, 1, 2).reshape(count, 3072)
        batch = {
            b"fine_labels": labels(count, 100).tolist(),
            b"coarse_labels": labels(count, 20).tolist(),
            b"data": rows,
        }
        (folder / name).write_bytes(python2(batch))
    meta = {b"fine_label_names": [f"class{n}".encode() for n in range(100)]}
    (folder / "meta").write_bytes(python2(meta))
    return folder


WORDNET = ("n01440764", "n01443537", "n02091831", "n03379051")


def imagefolder(
    folder: Path,
    classes: tuple[str, ...] = WORDNET,
    each: int = 6,
    sizes: tuple[tuple[int, int], ...] = ((40, 48), (64, 36)),
    test: str = "val",
) -> Path:
    """JPEG files of ImageNet's layout; sizes (height, width) take turns."""
    for split, count in (("train", each), (test, max(2, each // 2))):
        for label, name in enumerate(classes):
            home = folder / split / name
            home.mkdir(parents=True)
            for number in range(count):
                height, width = sizes[number % len(sizes)]
                seed = 1000 * label + number + (500 if split != "train" else 0)
                image = pixels(1, max(height, width), seed=seed)[0, :height, :width]
                Image.fromarray(image).save(home / f"{name}_{number}.JPEG", quality=95)
    return folder


def write_idx(path: Path, values: np.ndarray) -> None:
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    raw = head + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def idx(folder: Path, train: int = 60, test: int = 20, suffix: str = ".gz") -> Path:
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate({"train": train, "t10k": test}.items()):
        images = pixels(count, 28, 1, seed)[..., 0]
        write_idx(folder / f"{name}-images-idx3-ubyte{suffix}", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte{suffix}", labels(count, 10))
    return folder


def npz(path: Path, train: int = 40, test: int = 20, side: int = 16, **changes) -> Path:
    arrays = {
        "x_train": pixels(train, side),
        "y_train": labels(train, 4),
        "x_test": pixels(test, side, seed=1),
        "y_test": labels(test, 4),
    }
    np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
    return path


def png(image: np.ndarray) -> bytes:
    raw = io.BytesIO()
    Image.fromarray(image).save(raw, "PNG")
    return raw.getvalue()


def hub(
    folder: Path,
    files: dict[str, int] | None = None,
    names: tuple[str, ...] | None = ("ant", "bee", "cat"),
    side: int = 16,
    column: str = "image",
) -> Path:
    """Parquet files as the hub has them: file name -> number of images, in row groups of 4."""
    files = files or {
        "data/train-00000-of-00002.parquet": 9,
        "data/train-00001-of-00002.parquet": 9,
        "data/test-00000-of-00001.parquet": 6,
    }
    for seed, (name, count) in enumerate(files.items()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        held = [{"bytes": png(image), "path": None} for image in pixels(count, side, seed=seed)]
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({column: pa.array(held, kind), "label": pa.array(labels(count, 3))})
        if names is not None:
            features = {"label": {"names": list(names), "_type": "ClassLabel"}}
            info = json.dumps({"info": {"features": features}})
            table = table.replace_schema_metadata({"huggingface": info})
        pq.write_table(table, path, row_group_size=4)
    return folder
