"""The further figures of a row, each computed once more by other means from what is stored."""

import pytest
import torch

import sweeping
from raystitch.results.store import Storage
from raystitch.run.planning import load_sweep
from raystitch.run.workshop import Workshop
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
