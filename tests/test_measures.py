"""The further figures of a row, each computed once more by other means from what is stored."""

import numpy as np
import pytest
import torch

import sweeping
from raystitch.data.shards import read_shard
from raystitch.results.store import Storage
from raystitch.run.attacked import evenly
from raystitch.run.planning import load_sweep
from raystitch.run.workshop import Workshop
from raystitch.stitching.iris import synthesise
from raystitch.stitching.metrics import agreement_probability
from raystitch.stitching.similarity import cka, cka_unbiased
from raystitch.zoo.apgd import attack
from raystitch.zoo.pixels import to_unit

ZOO = {"net": {"arch": "raystitch/cnn5", "recipe": "untrained", "seeds": [0, 1]}}
SMALL = {
    "zoo": ZOO,
    "objectives": ["dm", "identity"],
    "protocols": ["standard"],
    "training": {"epochs": 1, "batch": 32, "init_count": 60},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A small sweep that asks for no further measure, and its workshop."""
    folder = tmp_path_factory.mktemp("plain")
    path = sweeping.write(folder, **SMALL)
    outcome = sweeping.run(path, folder / "runs")
    return outcome.plan.rows, Workshop(load_sweep(path, Storage(folder / "runs")))


def probabilities(workshop, model):
    images = to_unit(workshop.test_images(None).images, workshop.device)
    with torch.no_grad():
        return workshop.network(model)(images).double().softmax(1)


def test_the_front_alone_is_held_against_the_end(plain):
    rows, workshop = plain
    f, g = probabilities(workshop, "net-1"), probabilities(workshop, "net-0")
    norm = torch.stack([(f * f).sum(1), (g * g).sum(1)]).amax(0)
    expected = 100 * float(((f * g).sum(1) / norm).mean())
    assert rows["agreement_front"].to_list() == pytest.approx([expected] * len(rows))


def test_the_identity_has_full_rank_and_condition_one(plain):
    rows = plain[0].filter(objective="identity")
    assert sorted(rows["effective_rank"]) == pytest.approx([32, 64])
    assert (rows["condition_number"] == 1).all()


def test_a_trained_stitch_has_a_spectrum(plain):
    rows = plain[0].filter(objective="dm")
    assert rows["effective_rank"].is_between(1, 64).all()
    assert (rows["condition_number"] > 1).all()


MARKED = {
    "zoo": ZOO,
    "markers": {"patch": {"kind": "pixel", "size": 6, "place": "per_class", "seed": 3}},
    "objectives": ["identity"],  # the one stitched network that is known without its T
    "protocols": ["standard", "invariance"],
}
PAIR = {"front": "net-1", "end": "net-0"}


def measured(folder, evaluation, **changes):
    path = sweeping.write(folder, **{**MARKED, "evaluation": evaluation, **changes})
    outcome = sweeping.run(path, folder / "runs")
    assert outcome.exit_code == 0
    return outcome.plan.rows, Workshop(load_sweep(path, Storage(folder / "runs")))


def halves(workshop, cut):
    return workshop.cut_network("net-1").front(cut), workshop.cut_network("net-0").tail(cut)


def agreement(workshop, cut, images):
    front, tail = halves(workshop, cut)
    with torch.no_grad():
        h, g = tail(front(images)), workshop.network("net-0")(images)
    return 100 * float(agreement_probability(h, g).mean())


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    """Pairs with a marker in the test images, in the stitch's alone, and in neither."""
    evaluation = {"excessive": True, "representation": {"images": 40}, "robust": {"eps": 0}}
    pairs = [
        {**PAIR, "test_marker": "patch"},
        {**PAIR, "stitch_marker": "patch"},
        PAIR,
        {"front": "net-0", "end": "net-0", "test_marker": "patch"},
    ]
    return measured(tmp_path_factory.mktemp("marked"), evaluation, pairs=pairs)


def test_excessive_agreement_is_matched_less_rolled(marked):
    rows, workshop = marked
    expected = {}
    for cut in ("blocks.2", "blocks.4"):
        matched, rolled = (
            agreement(workshop, cut, to_unit(workshop.test_images("patch", roll).images))
            for roll in (0, 1)
        )
        expected[cut] = (matched, rolled, matched - rolled)
    found = rows.filter((rows["front_model"] == "net-1") & ~_unmarked(rows))
    assert len(found) == 8
    for row in found.iter_rows(named=True):
        figures = tuple(
            row[name] for name in ("agreement_matched", "agreement_rolled", "excessive_agreement")
        )
        assert figures == pytest.approx(expected[row["end_cut"]], abs=1e-4)
    tested = found.filter(found["test_marker"] == "patch")
    assert tested["agreement_matched"].to_list() == tested["agreement"].to_list()


def _unmarked(rows):
    return rows["test_marker"].is_null() & rows["stitch_marker"].is_null()


def test_a_network_with_itself_has_no_excess_and_a_pair_without_marker_no_figure(marked):
    rows, _ = marked
    itself = rows.filter(rows["front_model"] == "net-0")
    assert itself["agreement_rolled"].to_list() == pytest.approx([100] * len(itself))
    assert itself["excessive_agreement"].to_list() == pytest.approx([0] * len(itself), abs=1e-4)
    assert rows.filter(_unmarked(rows))["excessive_agreement"].is_null().all()


def test_attacked_with_no_radius_the_figures_are_the_clean_ones(marked):
    rows, _ = marked
    for name in ("agreement", "accuracy", "accuracy_end"):
        assert rows[f"robust_{name}"].to_list() == rows[name].to_list()


def test_cka_is_that_of_the_two_cuts_on_images_spread_over_the_test_set(marked):
    rows, workshop = marked
    images = to_unit(workshop.test_images("patch").images[evenly(50, 40)])
    for cut in ("blocks.2", "blocks.4"):
        with torch.no_grad():
            f = workshop.cut_network("net-1").front(cut)(images)
            g = workshop.cut_network("net-0").front(cut)(images)
        at = (rows["front_model"] == "net-1") & (rows["test_marker"] == "patch")
        found = rows.filter(at & (rows["end_cut"] == cut))
        assert len(found) == 2
        assert found["cka"].to_list() == pytest.approx([cka(f, g)] * 2)
        assert found["cka_unbiased"].to_list() == pytest.approx([cka_unbiased(f, g)] * 2)


def test_stir_stands_where_there_are_iris(marked):
    rows, workshop = marked
    real = workshop.stitch_images(None)
    where = {"front_model": "net-1", "test_marker": "patch", "protocol": "invariance"}
    (row,) = rows.filter(end_cut="blocks.2", **where).iter_rows(named=True)
    folders = workshop.context.storage.root.glob("artifacts/iris/*/part-*.parquet")
    shards = [read_shard(path) for path in folders]
    at = evenly(len(real), 40)
    with torch.no_grad():
        network = workshop.cut_network("net-0").front("blocks.2")
        g = network(to_unit(real.images[at]))
        candidates = [cka(g, network(to_unit(one.images.images[at]))) for one in shards]
    assert min(abs(row["stir"] - value) for value in candidates) < 1e-6
    assert row["stir_unbiased"] < 1
    assert rows.filter(protocol="standard")["stir"].is_null().all()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    robust = {"eps": 0.05, "step": 0.05, "steps": 6, "images": 30}
    return measured(tmp_path_factory.mktemp("attacked"), {"robust": robust}, protocols=["standard"])


def test_robust_figures_are_those_on_images_attacked_through_front_stitch_and_tail(attacked):
    rows, workshop = attacked
    test = workshop.test_images(None).select(evenly(50, 30))
    images, labels = to_unit(test.images), torch.from_numpy(test.labels)
    end = workshop.network("net-0")
    for row in rows.iter_rows(named=True):
        front, tail = halves(workshop, row["end_cut"])
        made = attack(
            lambda x, front=front, tail=tail: tail(front(x)),
            images,
            labels,
            test.index,
            eps=0.05,
            step=0.05,
            steps=6,
        )
        with torch.no_grad():
            h, g = tail(front(made)), end(made)
        right = [100 * float((logits.argmax(1) == labels).double().mean()) for logits in (h, g)]
        assert [row["robust_accuracy"], row["robust_accuracy_end"]] == pytest.approx(right)
        expected = 100 * float(agreement_probability(h, g).mean())
        assert row["robust_agreement"] == pytest.approx(expected, abs=1e-3)
        assert not any(parameter.requires_grad for parameter in tail.parameters())
        assert all(parameter.grad is None for parameter in end.parameters())
        assert not any(part.training for part in workshop.network("net-1").modules())


def test_images_are_spread_over_all_there_are():
    assert evenly(10, 4).tolist() == [0, 2, 5, 7]
    assert evenly(3, 9).tolist() == evenly(3, None).tolist() == [0, 1, 2]
    assert len(np.unique(evenly(1000, 999))) == 999


@pytest.fixture(scope="module")
def on_test_iris(tmp_path_factory):
    folder = tmp_path_factory.mktemp("test_iris")
    pairs = [{**PAIR, "test_marker": "patch"}, PAIR]
    protocols = ["standard", "invariance", "foreign"]
    return measured(folder, {"test_iris": True}, pairs=pairs, protocols=protocols)


def test_agreement_on_iris_of_test_images(on_test_iris):
    """Each set is found among those stored by making it once more."""
    rows, workshop = on_test_iris
    found = rows.filter(protocol="invariance", end_cut="blocks.2")
    assert len(found) == 2
    for row in found.iter_rows(named=True):
        test = workshop.test_images(row["test_marker"])
        front, _ = halves(workshop, "blocks.2")
        made = synthesise(front, test, workshop.context.sweep.iris, 0, workshop.device)
        images = to_unit(made.images.images)
        expected = agreement(workshop, "blocks.2", images)
        assert row["agreement_test_iris"] == pytest.approx(expected, abs=1e-3)
        assert row["test_iri_residual"] == pytest.approx(float(made.residual.mean()), abs=1e-5)


def test_only_protocols_with_iris_have_them(on_test_iris):
    rows, workshop = on_test_iris
    assert rows.filter(protocol="standard")["agreement_test_iris"].is_null().all()
    with_iris = rows.filter(rows["protocol"] != "standard")
    assert with_iris["agreement_test_iris"].null_count() == 0
    # Two cuts and two fronts (the network and its untrained twin), each with one set that is
    # trained on and two, by marker, that are measured on.
    assert len(list(workshop.context.storage.root.glob("artifacts/iris/*"))) == 2 * 2 * 3
