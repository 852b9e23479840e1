"""Data sets on disk, each in its real layout: what is read, what is refused, what is the same."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torchvision.transforms.v2 import functional as transforms

import disk
from raystitch.data import cifar as cifar_module
from raystitch.data import sources
from raystitch.data.decoding import resized_size
from raystitch.errors import RaystitchError
from raystitch.settings import Data


def data(source: str, path, **fields) -> Data:
    return Data(source=source, path=str(path), **fields)


def channels_first(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2)


def test_cifar10_batches_are_read_in_order(tmp_path):
    given = data("cifar10", disk.cifar10(tmp_path / "c"), verify=False)
    assert sources.facts(given) == sources.SourceFacts((3, 32, 32), 10, 100, 20)
    found = sources.look(given)
    assert found.names[3] == "cat"
    assert "not verified" in found.notes[0]
    train, test = (sources.load(given, split) for split in ("train", "test"))
    whole = np.concatenate([disk.pixels(20, seed=seed) for seed in range(5)])
    np.testing.assert_array_equal(train.images, channels_first(whole))
    np.testing.assert_array_equal(test.images, channels_first(disk.pixels(20, seed=5)))
    np.testing.assert_array_equal(train.labels, np.tile(disk.labels(20, 10), 5))
    inner = data("cifar10", tmp_path / "c" / "cifar-10-batches-py", verify=False)
    assert sources.identity(inner) == sources.identity(given)


def test_cifar100_takes_the_fine_labels(tmp_path):
    given = data("cifar100", disk.cifar100(tmp_path / "c"), verify=False)
    assert sources.facts(given).classes == 100
    np.testing.assert_array_equal(sources.load(given, "test").labels, np.arange(100))


def test_files_that_are_not_the_official_ones_are_refused_before_they_are_read(tmp_path):
    home = disk.cifar10(tmp_path / "c")
    with pytest.raises(RaystitchError, match=r"MD5 sum .* the official file .*verify: false"):
        sources.look(data("cifar10", home))
    (home / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(RaystitchError, match=r"test_batch cannot be read.*cifar-10-python.tar.gz"):
        sources.look(data("cifar10", home, verify=False))


def test_checked_files_are_taken(tmp_path, monkeypatch):
    home = disk.cifar100(tmp_path / "c")
    sums = {n: hashlib.md5((home / n).read_bytes()).hexdigest() for n in ("train", "test", "meta")}
    layout = cifar_module.LAYOUTS["cifar100"]
    changed = cifar_module.Layout(*[getattr(layout, n) for n in list(vars(layout))[:-1]], sums)
    monkeypatch.setitem(cifar_module.LAYOUTS, "cifar100", changed)
    assert sources.look(data("cifar100", home)).notes == ()


class Malicious:
    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_pickle_runs_no_code(tmp_path):
    home = disk.cifar100(tmp_path / "c")
    trace = tmp_path / "trace"
    (home / "train").write_bytes(pickle.dumps({"data": Malicious(trace)}, protocol=2))
    with pytest.raises(RaystitchError, match=r"asks for \w+\.mkdir"):
        sources.look(data("cifar100", home, verify=False))
    assert not trace.exists()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files_are_grey_images_in_three_channels(tmp_path, suffix):
    given = data("idx", disk.idx(tmp_path / "m", suffix=suffix))
    assert sources.facts(given) == sources.SourceFacts((3, 28, 28), 10, 60, 20)
    images = sources.load(given, "test").images
    grey = disk.pixels(20, 28, 1, seed=1)[..., 0]
    for channel in range(3):
        np.testing.assert_array_equal(images[:, channel], grey)


def test_gzipped_or_not_is_the_same_data(tmp_path):
    plain = data("idx", disk.idx(tmp_path / "a", suffix=""))
    zipped = data("idx", disk.idx(tmp_path / "b", suffix=".gz"))
    assert sources.identity(plain) == sources.identity(zipped)


def test_a_cut_off_idx_file_is_told(tmp_path):
    home = disk.idx(tmp_path / "m", suffix="")
    path = home / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RaystitchError, match=r"train-images-idx3-ubyte holds .* cut off"):
        sources.look(data("idx", home))
    path.unlink()
    with pytest.raises(RaystitchError, match=r"there is no train-images-idx3-ubyte, gzipped or no"):
        sources.look(data("idx", home))


def test_npz_arrays(tmp_path):
    given = data("npz", disk.npz(tmp_path / "a.npz"))
    assert sources.facts(given) == sources.SourceFacts((3, 16, 16), 4, 40, 20)
    found = sources.load(given, "train").images
    np.testing.assert_array_equal(found, channels_first(disk.pixels(40, 16)))
    medical = tmp_path / "b.npz"
    np.savez(
        medical,
        train_images=disk.pixels(8, 28, 1)[..., 0],
        train_labels=disk.labels(8, 2)[:, None],
        test_images=disk.pixels(4, 28, 1)[..., 0],
        test_labels=disk.labels(4, 2)[:, None],
    )
    assert sources.facts(data("npz", medical)) == sources.SourceFacts((3, 28, 28), 2, 8, 4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_test": None}, r"should hold x_test, x_train, y_test, y_train or test_images"),
        ({"x_train": np.zeros((40, 16, 16, 3))}, r"float64 of shape .* should be uint8"),
        ({"y_train": np.arange(39) % 4}, r"40 train images and 39 labels"),
        ({"y_train": np.arange(40) % 4 / 2}, r"labels in .* float64"),
        ({"y_test": np.arange(20) % 5}, r"4 labels in .*\(test\) are outside 0 to 3, as 4"),
        ({"y_train": np.arange(40) % 4 * 2}, r"train images of .* have none of the class 1, 3"),
        ({"x_test": disk.pixels(20, 20)}, r"\(16, 16\) and its test images \(20, 20\); give"),
    ],
)
def test_faults_of_arrays_are_sentences(tmp_path, changes, says):
    path = disk.npz(tmp_path / "a.npz", **changes)
    with pytest.raises(RaystitchError, match=says):
        sources.look(data("npz", path))


def test_images_of_a_folder_are_fitted_as_torchvision_does(tmp_path):
    home = disk.imagefolder(tmp_path / "i")
    given = data("imagefolder", home, resize=32, crop=24)
    assert sources.facts(given) == sources.SourceFacts((3, 24, 24), 4, 24, 12)
    train = sources.load(given, "train")
    assert train.labels.tolist() == np.repeat(np.arange(4), 6).tolist()
    for position, (name, number) in [(0, (disk.WORDNET[0], 0)), (13, (disk.WORDNET[2], 1))]:
        path = home / "train" / name / f"{name}_{number}.JPEG"
        image = transforms.resize(Image.open(path), [32])
        theirs = transforms.pil_to_tensor(transforms.center_crop(image, [24]))
        assert torch.equal(torch.from_numpy(train.images[position]), theirs)


@pytest.mark.parametrize("size", [(40, 48), (48, 40), (375, 500), (33, 100), (7, 7)])
def test_resizing_keeps_the_shape_as_torchvision_does(size):
    theirs = transforms.resize(torch.zeros(3, *size, dtype=torch.uint8), [17])
    assert resized_size(size, 17) == tuple(theirs.shape[1:])


def test_classes_are_labelled_in_the_order_given(tmp_path):
    home = disk.imagefolder(tmp_path / "i")
    wanted = (disk.WORDNET[3], disk.WORDNET[1])
    listed = data("imagefolder", home, resize=16, crop=16, classes=wanted)
    file = tmp_path / "ids.txt"
    file.write_text(f"# two\n{wanted[0]} fountain\n\n{wanted[1]}\n")
    filed = data("imagefolder", home, resize=16, crop=16, classes=str(file))
    assert sources.identity(listed) == sources.identity(filed)
    assert sources.facts(listed) == sources.SourceFacts((3, 16, 16), 2, 12, 6)
    every = sources.load(data("imagefolder", home, resize=16, crop=16), "test")
    some = sources.load(listed, "test")
    np.testing.assert_array_equal(some.images[:3], every.images[every.labels == 3])
    assert some.labels.tolist() == [0, 0, 0, 1, 1, 1]
    other = data("imagefolder", home, resize=16, crop=16, classes=wanted[::-1])
    assert sources.identity(other) != sources.identity(listed)


def test_classes_of_any_other_source_are_chosen_by_name(tmp_path):
    home = disk.cifar10(tmp_path / "c")
    some = data("cifar10", home, verify=False, classes=["ship", "cat"])
    images = sources.load(some, "train")
    every = sources.load(data("cifar10", home, verify=False), "train")
    assert len(images) == 20
    np.testing.assert_array_equal(images.images, every.images[images.index])
    np.testing.assert_array_equal(np.array([8, 3])[images.labels], every.labels[images.index])
    with pytest.raises(RaystitchError, match=r"data.classes: 'shipp' is not one of .*'ship'"):
        sources.look(data("cifar10", home, verify=False, classes=["shipp", "cat"]))
    numbered = data("idx", disk.idx(tmp_path / "m"), classes=[3, 5])
    assert sources.facts(numbered).classes == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, r"images differ in size .*give `resize: N` and `crop: N`"),
        ({"resize": 24}, r"images differ in size .*resize"),
        ({"crop": 40}, r"crop: 40 is larger than .*\(64 × 36\); use a smaller crop, or `resize"),
        ({"resize": 8, "crop": 8, "classes": ["n01440764", "n09"]}, r"data.classes: .*'n09'"),
        ({"resize": 8, "crop": 8, "classes": "none.txt"}, r"none.txt cannot be read"),
    ],
)
def test_faults_of_a_folder_are_sentences(tmp_path, fields, says):
    home = disk.imagefolder(tmp_path / "i")
    with pytest.raises(RaystitchError, match=says):
        sources.look(data("imagefolder", home, **fields))


def test_missing_parts_of_a_folder_are_told(tmp_path):
    with pytest.raises(RaystitchError, match=r"data.path: .*nowhere does not exist"):
        sources.look(data("imagefolder", tmp_path / "nowhere"))
    home = disk.imagefolder(tmp_path / "i", sizes=((20, 20),), test="test")
    assert sources.facts(data("imagefolder", home)).shape == (3, 20, 20)
    for path in (home / "test" / disk.WORDNET[1]).iterdir():
        path.unlink()
    with pytest.raises(RaystitchError, match=r"there is no image in .*n01443537"):
        sources.look(data("imagefolder", home))
    shutil.rmtree(home / "test")
    with pytest.raises(RaystitchError, match=r"there is no val/ or test/ in"):
        sources.look(data("imagefolder", home))


def test_a_damaged_image_is_named(tmp_path):
    home = disk.imagefolder(tmp_path / "i")
    path = home / "train" / disk.WORDNET[0] / f"{disk.WORDNET[0]}_2.JPEG"
    path.write_bytes(path.read_bytes()[:100])
    given = data("imagefolder", home, resize=16, crop=16)
    with pytest.raises(RaystitchError, match=r"n01440764_2.JPEG is no image that can be decoded"):
        sources.load(given, "train")


def test_parquet_files_of_the_hub(tmp_path):
    given = data("parquet", disk.hub(tmp_path / "h"))
    assert sources.facts(given) == sources.SourceFacts((3, 16, 16), 3, 18, 6)
    found = sources.look(given)
    assert found.names == ("ant", "bee", "cat")
    train = sources.load(given, "train")
    both = np.concatenate([disk.pixels(9, 16, seed=seed) for seed in (0, 1)])
    np.testing.assert_array_equal(train.images, channels_first(both))
    few = np.array([1, 4, 8, 9, 17])
    np.testing.assert_array_equal(found.read("train", few), train.images[few])


def test_unlabelled_tests_of_the_hub_are_passed_by(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    home = disk.hub(
        tmp_path / "h",
        {"d/train/0000.parquet": 9, "d/validation/0000.parquet": 6, "d/test/0000.parquet": 3},
        names=None,
        column="img",
    )
    path = home / "d/test/0000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(1, "label", pa.array([-1, -1, -1])), path)
    given = data("parquet", home)
    assert sources.facts(given) == sources.SourceFacts((3, 16, 16), 3, 9, 6)
    np.testing.assert_array_equal(
        sources.load(given, "test").images, channels_first(disk.pixels(6, 16, seed=1))
    )
    shutil.rmtree(home / "d/train")
    with pytest.raises(RaystitchError, match=r"there is no train-\*.parquet with labels"):
        sources.look(given)


def test_where_images_lie_is_not_what_they_are(tmp_path):
    made = {
        "cifar10": disk.cifar10(tmp_path / "cifar10"),
        "imagefolder": disk.imagefolder(tmp_path / "imagefolder", sizes=((20, 20),)),
        "idx": disk.idx(tmp_path / "idx"),
        "parquet": disk.hub(tmp_path / "parquet"),
    }
    for source, path in made.items():
        fields = {"verify": False} if source == "cifar10" else {}
        first = sources.identity(data(source, path, **fields))
        moved = tmp_path / "moved" / source
        shutil.copytree(path, moved)
        assert sources.identity(data(source, moved, **fields)) == first
        assert str(tmp_path) not in str(first)
        assert sources.identity(data(source, moved, resize=20, **fields)) != first
        changed = sorted(p for p in moved.rglob("*train*") if p.is_file())
        changed = changed or sorted(p for p in moved.rglob("*") if p.is_file())
        if source == "imagefolder":
            changed[0].rename(changed[0].with_name("another.JPEG"))
        elif source == "parquet":
            disk.hub(moved, {changed[0].relative_to(moved): 8})
        elif source == "idx":
            disk.write_idx(moved / "train-images-idx3-ubyte.gz", disk.pixels(60, 28, 1, 9)[..., 0])
        else:
            batch = moved / "cifar-10-batches-py" / "data_batch_1"
            held = pickle.loads(batch.read_bytes(), encoding="latin1")
            batch.write_bytes(pickle.dumps({**held, "data": held["data"] ^ 1}, protocol=2))
        assert sources.identity(data(source, moved, **fields)) != first


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"source": "cifar10"}, "say where the data set `cifar10` lies"),
        ({"path": "x"}, "no use for `digits`"),
        ({"source": "idx", "path": "x", "verify": False}, "is for `cifar10` and `cifar100`"),
        ({"source": "idx", "path": "x", "resize": 8, "crop": 9}, "larger than `resize: 8`"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(fields, says):
    with pytest.raises(ValidationError, match=says):
        Data.model_validate(fields)
