"""SimCLR: the loss in closed form, views of their own, a classifier on what is frozen."""

import math

import pytest
import torch
from torch import nn

from raystitch.data import sources
from raystitch.errors import RaystitchError
from raystitch.settings import Data, Recipe
from raystitch.zoo import simclr as module
from raystitch.zoo.models import build, digest
from raystitch.zoo.simclr import nt_xent
from raystitch.zoo.train import train

RECIPE = Recipe(
    name="simclr", epochs=2, batch=64, hidden=32, projection=16, linear_epochs=2, lr=0.05
)


def network(seed=0):
    return build("raystitch/cnn5", {}, classes=10, input_shape=(3, 16, 16), seed=seed)


def digits(count=128):
    return sources.load(Data(train=count), "train")


def test_nt_xent_equals_its_formula_pair_by_pair():
    views = torch.randn(10, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = 0.0
    for i in range(10):
        partner = (i + 5) % 10

        def likeness(k, i=i):
            return math.exp(float(torch.cosine_similarity(views[i], views[k], dim=0)) / 0.5)

        total -= math.log(likeness(partner) / sum(likeness(k) for k in range(10) if k != i))
    assert nt_xent(views, 0.5).item() == pytest.approx(total / 10, abs=1e-12)


def test_nt_xent_in_closed_form():
    # Partners alike and all others at right angles: ln(1 + (2n − 2) e^(−1/τ)).
    views = torch.eye(4, dtype=torch.float64).repeat(2, 1) * 3
    expected = math.log(1 + 6 * math.exp(-1 / 0.5))
    assert nt_xent(views, 0.5).item() == pytest.approx(expected, abs=1e-12)
    # All alike: nothing tells the partner from the 2n − 1 others.
    assert nt_xent(torch.ones(8, 4), 0.5).item() == pytest.approx(math.log(7), abs=1e-5)


def test_the_seed_alone_decides():
    before = torch.random.get_rng_state()
    made = {digest(train(network(), digits(), RECIPE, seed=seed)) for seed in (0, 0, 1)}
    assert len(made) == 2
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_classifier_learns_on_what_is_frozen(monkeypatch):
    trained, heard = network(), []
    frozen = {}
    classify = module._classify

    def watched(net, head, *rest):
        frozen.update({name: value.clone() for name, value in net.net.state_dict().items()})
        classify(net, head, *rest)

    monkeypatch.setattr(module, "_classify", watched)
    train(trained, digits(), RECIPE, seed=0, on_epoch=lambda *given: heard.append(given))
    after = trained.net.state_dict()
    moved = {name for name in after if not torch.equal(after[name], frozen[name])}
    assert moved == {"fc.weight", "fc.bias"}
    assert [epoch for epoch, _ in heard] == [1, 2, 3, 4]
    assert not any(parameter.requires_grad for parameter in trained.parameters())


def test_labels_reach_the_classifier_alone(monkeypatch):
    monkeypatch.setattr(module, "_classify", lambda *given: None)
    images = digits()
    other = sources.LabelledImages(images.images, (images.labels + 1) % 10, images.index)
    one, two = (train(network(), given, RECIPE, seed=0) for given in (images, other))
    assert digest(one) == digest(two)


@pytest.mark.slow
def test_the_contrastive_loss_falls():
    """By the loss and not by accuracy: a linear classifier on this trunk untrained, its BatchNorm
    statistics settled, was as good (84.4 % against 84.7 after 30 epochs).
    """
    heard = []
    recipe = Recipe(name="simclr", epochs=30, batch=128, linear_epochs=1)
    images = sources.load(Data(), "train")
    train(network(), images, recipe, seed=0, on_epoch=lambda _, loss: heard.append(loss))
    # Nothing learnt is ln(255) = 5.54; without steps (lr 1e-6) it stayed at 5.50.
    assert heard[29] < 5.0 < heard[0]


def test_a_network_without_a_last_linear_layer_is_refused():
    net = network()
    net.net = nn.Sequential(net.net, nn.Linear(10, 7), nn.Linear(7, 8))
    with pytest.raises(RaystitchError, match="ends in a linear layer of 10 classes"):
        train(net, digits(), RECIPE, seed=0)
