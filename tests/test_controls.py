"""Controls by name: a front of class vectors and noise, IRIs on one side, variants of settings."""

import numpy as np
import pytest
import torch

import sweeping
from raystitch import names
from raystitch.cards import CutCard
from raystitch.errors import SweepFileError
from raystitch.results.statistics import statistics
from raystitch.results.store import Storage
from raystitch.run.planning import load_sweep, make_plan
from raystitch.stitching.controls import ClassNoise

CPU = torch.device("cpu")
LABELS = np.array([0, 1, 2, 1], dtype=np.int64)


def class_noise(cut, labels=LABELS, salt="own", seed=0, start=0):
    index = np.arange(start, start + len(labels))
    return ClassNoise(cut, labels, index, seed, salt, CPU)


@pytest.mark.parametrize(
    "cut",
    [
        CutCard(1, "c", "map", (6, 3, 4), 0),
        CutCard(1, "c", "map_last", (3, 4, 6), 0),
        CutCard(1, "c", "tokens", (5, 6), 0),
        CutCard(1, "c", "vector", (6,), 0),
    ],
)
def test_class_noise_is_a_vector_per_class_plus_unit_noise(cut):
    labels = np.repeat(np.arange(3), 400)
    found = class_noise(cut, labels)(torch.arange(1200)).activations["c"]
    assert found.shape == (1200, *cut.shape)
    last = found.movedim(1, -1) if cut.kind == "map" else found
    rows = last.reshape(3, 400, -1, 6).double()
    vectors = rows.mean(dim=(1, 2))
    spread = rows - vectors[:, None, None]
    assert spread.std().item() == pytest.approx(1, abs=0.05)
    assert spread.mean(dim=1).abs().max() < 0.3  # the same vector at every position
    apart = (vectors[0] - vectors[1]).norm()
    assert apart > 1


def test_class_noise_depends_on_seed_salt_label_and_index_alone():
    cut = CutCard(1, "c", "map", (6, 3, 4), 0)
    whole = class_noise(cut)(torch.arange(4)).activations["c"]
    part = class_noise(cut)(torch.tensor([2])).activations["c"]
    assert torch.equal(whole[2:3], part)
    for other in ({"salt": "test"}, {"seed": 1}, {"start": 7}):
        assert not torch.equal(class_noise(cut, **other)(torch.arange(4)).activations["c"], whole)


def test_the_controls_are_those_that_users_write():
    assert names.CONTROLS == ("class_noise",)


def test_class_vectors_stitch_in_though_they_saw_no_image(tmp_path):
    """Smith 2025, on digits and a network that was trained on them."""
    path = sweeping.write(
        tmp_path,
        zoo={"net": {"arch": "raystitch/cnn5", "epochs": 6, "batch": 64, "seeds": [0]}},
        pairs=[{"front": "net-0", "end": "net-0", "control": "class_noise"}],
        cuts=["blocks.2"],
        objectives=["hlm"],
        protocols=["standard", "invariance"],
        stitch_images=300,
        test_images=200,
        training={"init": "random", "epochs": 12, "min_epochs": 12},
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    (row,) = outcome.plan.rows.rows(named=True)  # the other protocol is not planned
    assert (row["protocol"], row["control"], row["accuracy_front"]) == (
        "standard",
        "class_noise",
        None,
    )
    assert row["accuracy"] >= 99


def test_iris_on_one_side_alone(tmp_path):
    path = sweeping.write(
        tmp_path,
        cuts=["blocks.4"],
        objectives=["dm_lstsq", "identity", "hlm"],
        protocols=["standard", "invariance", "iris_front", "iris_end"],
    )
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 0
    rows = {(r["objective"], r["protocol"]): r for r in outcome.plan.rows.rows(named=True)}
    assert len(rows) == 12
    losses = {protocol: rows["identity", protocol]["loss_init"] for _, protocol in rows}
    assert len({round(loss, 4) for loss in losses.values()}) == 4
    # T = identity is tested on ordinary images whatever the protocol.
    assert len({rows["identity", protocol]["agreement"] for _, protocol in rows}) == 1
    assert len(list((tmp_path / "runs" / "artifacts" / "iris").iterdir())) == 1
    assert rows["hlm", "iris_front"]["iri_residual"] == rows["hlm", "invariance"]["iri_residual"]
    assert rows["hlm", "standard"]["iri_residual"] is None


def test_a_control_without_the_standard_protocol_is_a_fault(tmp_path):
    pairs = [{"front": "net-1", "end": "net-0", "control": "class_noise"}]
    path = sweeping.write(tmp_path, pairs=pairs, protocols=["noise"], objectives=["dm"])
    with pytest.raises(SweepFileError, match=r"pairs\[0\]\.control: class_noise is stitched under"):
        load_sweep(path, Storage(tmp_path / "runs"))


def test_a_control_has_no_views_of_images(tmp_path):
    pairs = [{"front": "net-1", "end": "net-0", "control": "class_noise"}]
    path = sweeping.write(tmp_path, pairs=pairs, training={"augment": "flip_crop"})
    with pytest.raises(SweepFileError, match=r"pairs\[0\]\.control: .* sees no images"):
        load_sweep(path, Storage(tmp_path / "runs"))


def test_attacked_images_drift_each_stitch_by_itself(tmp_path):
    """With batch statistics a cell's attacked images move its front: no other cell may see it."""
    training = {
        **{"attack_share": 0.5, "attack_steps": 2, "bn": "batch", "dropout": True},
        **{"epochs": 2, "batch": 27, "init_count": 60},
    }
    found = []
    for objectives in (["slm", "fula", "dm"], ["fula"]):
        folder = tmp_path / str(len(objectives))
        folder.mkdir()
        path = sweeping.write(
            folder,
            training=training,
            protocols=["standard"],
            cuts=["blocks.2"],
            objectives=objectives,
        )
        outcome = sweeping.run(path, folder / "runs")
        assert outcome.exit_code == 0
        found.append(outcome.plan.rows.filter(objective="fula").row(0, named=True))
    together, alone = found
    assert together["key"] == alone["key"]
    assert together["curve"] == alone["curve"]
    assert together["agreement"] == alone["agreement"]


def test_batch_statistics_of_one_image_are_a_fault(tmp_path):
    path = sweeping.write(
        tmp_path, training={"bn": "batch", "batch": 53}, protocols=["standard"]
    )  # 54 of 60 images are trained on
    with pytest.raises(SweepFileError, match=r"stitch_images: 54 images .* a batch of one image"):
        load_sweep(path, Storage(tmp_path / "runs"))


def test_dropout_that_halves_cannot_switch_on_is_a_fault_of_the_file(tmp_path):
    kwargs = {"img_size": 16, "patch_size": 4, "drop_path_rate": 0.1, "embed_dim": 24, "depth": 2}
    vit = {"arch": "timm/vit_tiny_patch16_224", "recipe": "untrained", "kwargs": kwargs}
    path = sweeping.write(
        tmp_path,
        zoo={"vit": {**vit, "seeds": [0, 1]}},
        pairs=[{"front": "vit-1", "end": "vit-0"}],
        cuts=["blocks"],
        preset="published",
        training={"batch": 32},
        iris={},
    )
    with pytest.raises(SweepFileError, match=r"zoo\.vit\.arch: .* in 'blocks\.1\.drop_path1'"):
        load_sweep(path, Storage(tmp_path / "runs"))


def test_a_variant_shares_the_cells_that_it_leaves_as_they_are(tmp_path):
    path = sweeping.write(
        tmp_path,
        cuts=["blocks.4"],
        objectives=["dm"],
        protocols=["standard", "invariance"],
        variants={
            "moving": {"training_of": {"standard": {"bn": "batch", "augment": "flip_crop"}}},
            "longer": {"budget": 2},
        },
    )
    plan = make_plan(load_sweep(path, Storage(tmp_path / "runs")))
    found = [(cell.variant, cell.protocol) for cell in plan.cells]
    assert sorted(found, key=str) == [
        ("longer", "invariance"),
        ("longer", "standard"),
        ("moving", "standard"),
        (None, "invariance"),
        (None, "standard"),
    ]
    outcome = sweeping.run(path, tmp_path / "runs")
    assert outcome.exit_code == 0
    rows = {(r["variant"], r["protocol"]): r for r in outcome.plan.rows.rows(named=True)}
    assert {key: row["epochs"] for key, row in rows.items()} == {
        place: 4 if place[0] == "longer" else 2 for place in found
    }
    assert rows["longer", "standard"]["budget"] == 2
    standard = {variant: rows[variant, "standard"]["agreement"] for variant, _ in found}
    assert len(set(standard.values())) == 3
    # The shared cell stands beside the variant's own, and counts once.
    assert (outcome.summary.planned, outcome.summary.missing) == (5, 0)
    got = statistics(outcome.plan.rows, outcome.plan.layout, show="differences").frame
    shared = {None: None, "moving": None, "longer": "longer"}
    assert dict(got.select("variant", "mean").rows()) == pytest.approx(
        {v: standard[v] - rows[shared[v], "invariance"]["agreement"] for v in shared}
    )
    shown = outcome.summary.frame
    assert dict(shown.select("variant", "dm_difference").rows()) == pytest.approx(
        dict(got.select("variant", "mean").rows())
    )
    assert len(outcome.plan.places) == 5
