"""Stand-ins for CIFAR-10 and ImageNet in their true on-disk formats: random pixels, few images."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

ROOT = Path(__file__).parents[1]


def cifar10(folder: Path, per_batch: int = 40, test: int = 100) -> Path:
    """`cifar-10-batches-py`: five batches and a test batch of pickled rows of 3072 bytes."""
    home = folder / "cifar-10-batches-py"
    home.mkdir(parents=True)
    rng = np.random.default_rng(0)
    parts = [*((f"data_batch_{n}", per_batch) for n in range(1, 6)), ("test_batch", test)]
    for name, count in parts:
        batch = {
            "batch_label": name,
            "data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
            "labels": [n % 10 for n in range(count)],
            "filenames": [f"{name}_{n}.png" for n in range(count)],
        }
        (home / name).write_bytes(pickle.dumps(batch, protocol=2))
    meta = {"label_names": [f"class {n}" for n in range(10)], "num_vis": 3072}
    (home / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
    return home


def imagenet(folder: Path) -> Path:
    """`train/` and `val/`, a folder per WordNet id, JPEG files of unequal sizes.

    Of the ten classes of LS-ImageNet-10 enough for a batch of 128, of ImageNet-100 enough for least
    squares at a vector of 768 channels, of the others two. Two of each to test on.
    """
    ten = yaml.safe_load((ROOT / "sweeps/ls_imagenet10.yaml").read_text())["data"]["classes"]
    home = folder / "imagenet"
    rng = np.random.default_rng(0)
    hundred = wordnet_ids("imagenet100.txt")
    for wordnet_id in [*hundred, *wordnet_ids("imagenet_b100.txt")]:
        train = 14 if wordnet_id in ten else 8 if wordnet_id in hundred else 2
        for split, count in (("train", train), ("val", 2)):
            place = home / split / wordnet_id
            place.mkdir(parents=True)
            for n in range(count):
                height, width = 60 + n, 80
                pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{wordnet_id}_{n}.JPEG", quality=60)
    return home


def wordnet_ids(file: str) -> list[str]:
    """The classes of a list: those of ImageNet-100, or the 100 further ones."""
    return (ROOT / "sweeps/classes" / file).read_text().split()


def sweep_file(name: str, datasets: Path, folder: Path) -> Path:
    """The sweep file of that name with its data looked for under ``datasets``."""
    text = (ROOT / f"sweeps/{name}.yaml").read_text(encoding="utf-8")
    text = text.replace("../datasets/", f"{datasets}/").replace(
        "classes/", f"{ROOT / 'sweeps/classes'}/"
    )
    # Its files are not the official ones, whose digests are known.
    text = text.replace("cifar-10-batches-py}", "cifar-10-batches-py, verify: false}")
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path
