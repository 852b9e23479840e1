"""Makes ``raystitch/data/digits.parquet`` from scikit-learn's copy of the UCI digits.

    python scripts/make_digits.py

Needs the extra ``dev``. The data card is ``raystitch/data/digits.md``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from raystitch.data.scramble import scramble

TARGET = Path(__file__).resolve().parents[1] / "raystitch" / "data" / "digits.parquet"
TEST = 360
_SPLIT_TAG = 0x73706C6974


def stratified_test(labels: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Mask of ``count`` test images: every class in proportion, by the largest remainder."""
    classes, sizes = np.unique(labels, return_counts=True)
    exact = sizes * count / len(labels)
    quota = np.floor(exact).astype(int)
    quota[np.argsort(quota - exact, kind="stable")[: count - quota.sum()]] += 1
    test = np.zeros(len(labels), dtype=bool)
    for label, number in zip(classes, quota, strict=True):
        members = np.flatnonzero(labels == label)
        shuffled = members[np.argsort(scramble(_SPLIT_TAG, members), kind="stable")]
        test[shuffled[:number]] = True
    return test


def main() -> None:
    digits: Any = load_digits()
    pixels = np.asarray(digits.images).reshape(len(digits.images), -1).astype(np.uint8)
    labels = np.asarray(digits.target).astype(np.int32)
    split = np.where(stratified_test(labels, TEST), "test", "train")
    table = pa.table(
        {
            "index": pa.array(np.arange(len(labels), dtype=np.int64)),
            "label": pa.array(labels),
            "split": pa.array(split.tolist(), pa.string()),
            "pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), pixels.shape[1]),
        }
    )
    pq.write_table(table, TARGET, compression="zstd", compression_level=19)
    print(f"{TARGET}: {table.num_rows} images, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
