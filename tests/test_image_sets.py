"""Images decoded once into shards, read by everything; networks with images of their own."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

import disk
import sweeping
from raystitch.data import sources
from raystitch.errors import RaystitchError, StorageError, SweepFileError
from raystitch.results.store import CellStore, Storage
from raystitch.run import check, image_sets, runners
from raystitch.run.check import check_sweep
from raystitch.run.planning import load_sweep
from raystitch.run.workshop import Workshop

CELLS = {"cuts": ["blocks.2"], "objectives": ["dm"], "protocols": ["standard"]}
FEW = {"stitch_images": 12, "test_images": 8, "training": {"epochs": 1, "batch": 4}}


def write(folder, **changes):
    """A sweep of two untrained networks on JPEG files beside the sweep file."""
    disk.imagefolder(folder / "photos", each=8)
    data = {"source": "imagefolder", "path": "photos", "resize": 20, "crop": 16}
    return sweeping.write(folder, **{"data": data, **CELLS, **FEW, **changes})


def shards(root):
    return sorted((root / "artifacts" / "images").rglob("part-*.parquet"))


def test_a_sweep_decodes_its_images_once(tmp_path, monkeypatch):
    path, root = write(tmp_path), tmp_path / "runs"
    assert sweeping.run(path, root).exit_code == 0
    made = {shard: shard.stat().st_mtime_ns for shard in shards(root)}
    assert len(made) == 2

    context = load_sweep(path, Storage(root), say=lambda _: None)
    decoded = sources.load(context.sweep.data, "train")
    stored = Workshop(context).train_split
    for field in ("images", "labels", "index"):
        np.testing.assert_array_equal(getattr(stored, field), getattr(decoded, field))

    monkeypatch.setattr(image_sets, "build_shard", None)
    again = sweeping.write(tmp_path, **{**yaml.safe_load(path.read_text()), "objectives": ["slm"]})
    assert sweeping.run(again, root).exit_code == 0
    assert {shard: shard.stat().st_mtime_ns for shard in shards(root)} == made


def test_the_stage_resumes_from_the_shards_that_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(image_sets, "SHARD_IMAGES", 5)
    path, root = write(tmp_path), tmp_path / "runs"
    context = load_sweep(path, Storage(root), say=lambda _: None)
    images, shop = context.images.of_sweep, Workshop(context)
    wanted = [(images, split) for split in ("train", "test")]
    specs = image_sets.missing_images(wanted, context.storage)
    assert [(s.start, s.stop) for s in specs if s.split == "test"] == [
        *((0, 5), (5, 10), (10, 15), (15, 16))
    ]
    assert len(specs) == 7 + 4
    for spec in specs[:4]:
        shop.build_images(spec)
    torn = specs[1].path(context.storage)
    torn.write_bytes(torn.read_bytes()[:-20])
    left = image_sets.missing_images(wanted, context.storage)
    assert left == [specs[1], *specs[4:]]
    with pytest.raises(StorageError, match="part"):
        image_sets.load(images, "train", context.storage)
    for spec in left:
        shop.build_images(spec)
    np.testing.assert_array_equal(
        image_sets.load(images, "train", context.storage).images,
        sources.load(images.data, "train").images,
    )


def test_a_set_too_large_for_memory_is_mapped(tmp_path, monkeypatch):
    path, root = write(tmp_path), tmp_path / "runs"
    context = load_sweep(path, Storage(root), say=lambda _: None)
    shop, images = Workshop(context), context.images.of_sweep
    for spec in image_sets.missing_images([(images, "train")], context.storage):
        shop.build_images(spec)
    held = image_sets.load(images, "train", context.storage)
    monkeypatch.setattr(image_sets, "MEMORY_BYTES", 0)
    for _ in range(2):
        mapped = image_sets.load(images, "train", context.storage)
        assert isinstance(mapped.images, np.memmap)
        np.testing.assert_array_equal(mapped.images, held.images)
        np.testing.assert_array_equal(mapped.labels, held.labels)
        np.testing.assert_array_equal(mapped.index, held.index)
    assert not isinstance(sources.draw(mapped, 8).images.base, np.memmap)


def test_images_that_changed_since_the_plan_are_not_taken(tmp_path):
    path = write(tmp_path)
    context = load_sweep(path, Storage(tmp_path / "runs"), say=lambda _: None)
    next((tmp_path / "photos" / "train" / disk.WORDNET[0]).iterdir()).unlink()
    shop, images = Workshop(context), context.images.of_sweep
    (spec,) = image_sets.missing_images([(images, "test")], context.storage)
    with pytest.raises(RaystitchError, match="changed since the sweep was planned"):
        shop.build_images(spec)


def test_a_damaged_image_ends_the_sweep_with_its_name(tmp_path):
    path = write(tmp_path)
    next((tmp_path / "photos" / "val" / disk.WORDNET[2]).iterdir()).write_bytes(b"no image")
    with pytest.raises(RaystitchError, match=r"n02091831_\d.JPEG is no image that can be decoded"):
        sweeping.run(path, tmp_path / "runs")


def test_faults_of_data_have_their_place(tmp_path):
    path = write(tmp_path, data={"source": "imagefolder", "path": "fotos"})
    with pytest.raises(SweepFileError, match=r"data\.path: .*fotos does not exist"):
        load_sweep(path, Storage(tmp_path / "runs"), say=lambda _: None)


def checked(path, root):
    """What a check says, by the name of what it looked at."""
    return {found.name: found for found in check_sweep(path, Storage(root), say=lambda _: None)}


def test_a_check_decodes_images_and_stores_none(tmp_path, monkeypatch):
    path, root = write(tmp_path), tmp_path / "runs"
    found = checked(path, root)
    assert all(one.ok for one in found.values()), found
    assert found["stitch images"].message == "12 images of all 4 classes"
    assert found["images of data"].message == "all 48 can be decoded"
    assert shards(root) == []
    monkeypatch.setattr(check, "MOST_DECODED", 5)
    assert checked(path, root)["images of data"].message.startswith("10 of 48, spread evenly, can")
    sweeping.run(path, root)
    assert checked(path, root)["images of data"].message == "decoded already"


def test_a_check_names_a_damaged_image(tmp_path):
    path = write(tmp_path)
    photo = next((tmp_path / "photos" / "val" / disk.WORDNET[2]).iterdir())
    photo.write_bytes(photo.read_bytes()[:400])
    found = checked(path, tmp_path / "runs")["images of data"]
    assert not found.ok
    assert f"{photo} is no image that can be decoded" in found.message


def test_a_check_looks_at_the_images_of_an_entry_too(tmp_path):
    found = checked(own(tmp_path), tmp_path / "runs")
    assert found["images of zoo.bee.data"].message == "all 24 can be decoded"
    assert "images of data" not in found  # digits


def own(folder, **changes):
    """A sweep on the digits whose front was trained on three classes of images of its own."""
    disk.hub(folder / "bees")
    zoo = {
        "bee": {
            "arch": "raystitch/cnn5",
            "epochs": 1,
            "batch": 8,
            "marker": {},
            "data": {"source": "parquet", "path": "bees"},
        },
        "net": {"arch": "raystitch/cnn5", "recipe": "untrained"},
    }
    pair = {"front": "bee-0", "end": "net-0", "stitch_marker": "bee-0"}
    fields = {"zoo": zoo, "pairs": [pair], **CELLS, "protocols": ["standard", "invariance"]}
    return sweeping.write(folder, **{**fields, **changes})


def test_a_front_may_know_other_classes_from_images_of_its_own(tmp_path):
    path, root = own(tmp_path), tmp_path / "runs"
    assert sweeping.run(path, root).exit_code == 0
    context = load_sweep(path, Storage(root), say=lambda _: None)
    shop = Workshop(context)
    assert context.cards["bee"].classes == 3
    card = shop.card("bee-0")
    assert card.identity["data"]["source"] == "parquet"
    assert card.accuracy == pytest.approx(round(card.accuracy * 6 / 100) * 100 / 6)
    assert shop.own_marker("bee-0").colours.shape == (3, 3)
    assert shop.marker("bee-0").colours.shape == (10, 3)
    rows = CellStore(Storage(root), "small").read()
    assert rows["accuracy_front"].null_count() == len(rows) == 2
    assert rows["accuracy"].null_count() == 0


def test_an_end_answers_in_the_classes_of_the_sweep(tmp_path):
    path = own(tmp_path, pairs=[{"front": "net-0", "end": "bee-0"}])
    with pytest.raises(SweepFileError, match=r"pairs\[0\]: the end bee-0 knows 3 classes, .* 10"):
        load_sweep(path, Storage(tmp_path / "runs"), say=lambda _: None)


def test_own_images_must_have_the_shape_of_the_sweeps(tmp_path):
    path = own(tmp_path)
    disk.hub(tmp_path / "bees", side=20)
    with pytest.raises(SweepFileError, match=r"zoo.bee.data: its images are \(3, 20, 20\)"):
        load_sweep(path, Storage(tmp_path / "runs"), say=lambda _: None)


def test_own_images_are_in_the_key_and_their_tests_are_not(tmp_path):
    path = own(tmp_path)
    found = load_sweep(path, Storage(tmp_path / "runs"), say=lambda _: None)
    fewer = load_sweep(path, Storage(tmp_path / "runs"), limit_images=4, say=lambda _: None)
    assert found.images.own["bee"].facts.train == 18
    assert fewer.images.own["bee"].facts.train == fewer.images.own["bee"].facts.test == 4
    data = found.networks["bee-0"]["data"]
    assert data == {"source": "parquet", "content": data["content"]}
    assert fewer.networks["bee-0"]["data"] == {**data, "train": 4}
    assert found.networks["net-0"]["data"] == {"source": "digits"}


@pytest.mark.slow
def test_ray_makes_the_same_shards(tmp_path):
    path = write(tmp_path)
    sweeping.run(path, tmp_path / "here")
    sweeping.run(path, tmp_path / "ray", start=runners.on_ray(None))
    here, there = (shards(tmp_path / name) for name in ("here", "ray"))
    assert [p.relative_to(tmp_path / "here") for p in here] == [
        p.relative_to(tmp_path / "ray") for p in there
    ]
    assert [p.read_bytes() for p in here] == [p.read_bytes() for p in there]
