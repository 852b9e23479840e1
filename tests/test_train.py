"""Recipes, attacks and accuracies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from raystitch import names, settings
from raystitch.data import sources
from raystitch.data.images import LabelledImages
from raystitch.data.markers import plant
from raystitch.errors import RaystitchError
from raystitch.zoo import train as training
from raystitch.zoo.attacks import pgd
from raystitch.zoo.batches import learning_rate
from raystitch.zoo.models import Network, build, digest
from raystitch.zoo.pixels import to_unit

SMALL = (3, 16, 16)
QUICK = settings.Recipe(epochs=2, batch=64, lr=0.05)
QUICK_ROBUST = settings.Recipe(
    name="robust", epochs=2, batch=64, lr=0.05, eps=0.1, step=0.05, attack_steps=2
)


def cnn5(seed: int = 0) -> Network:
    return build("raystitch/cnn5", {}, classes=10, input_shape=SMALL, seed=seed)


@pytest.fixture(scope="module")
def digits():
    return sources.load(settings.Data(train=200), "train")


@pytest.fixture(scope="module")
def test_digits():
    return sources.load(settings.Data(), "test")


def wrapped(net: nn.Module, classes: int, shape: tuple[int, int, int]) -> Network:
    return Network(net, nn.Identity(), arch="test", kwargs={}, classes=classes, input_shape=shape)


# --- pixels and attacks


def test_pixels_become_the_unit_interval():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    unit = to_unit(pixels)
    assert unit.dtype == torch.float32
    assert torch.equal((unit * 255).round().to(torch.uint8), torch.tensor(pixels))
    assert (unit.min(), unit.max()) == (0, 1)


def linear(seed: int = 0) -> nn.Module:
    """Two classes; the loss rises along -(w_y - w_other), whatever the image."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).requires_grad_(False)


@pytest.mark.parametrize(("eps", "step", "steps"), [(0.1, 0.03, 10), (0.1, 0.03, 2), (0.3, 1, 1)])
def test_pgd_on_a_linear_model_is_its_closed_form(eps, step, steps):
    net = linear()
    images = torch.rand(20, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(20) % 2
    difference = net[1].weight[1] - net[1].weight[0]
    away = torch.where(labels[:, None] == 0, difference, -difference).reshape(images.shape).sign()
    expected = (images + away * min(eps, step * steps)).clamp(0, 1)
    attacked = pgd(net, images, labels, eps=eps, step=step, steps=steps)
    torch.testing.assert_close(attacked, expected)
    loss_before, loss_after = (F.cross_entropy(net(x), labels) for x in (images, attacked))
    assert loss_after > loss_before


def test_pgd_with_no_room_is_the_images_exactly():
    images = torch.rand(8, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(8, dtype=torch.long)
    for start in (False, True):
        attacked = pgd(linear(), images, labels, eps=0, step=0.1, steps=3, random_start=start)
        assert torch.equal(attacked, images)


def test_pgd_stays_within_its_bounds_and_leaves_the_network_alone():
    network = cnn5().train().requires_grad_(True)
    network.net.blocks[0].eval()
    modes = [module.training for module in network.modules()]
    images = torch.rand(6, *SMALL, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(6)
    generator = torch.Generator().manual_seed(0)
    attacked = pgd(
        network,
        images,
        labels,
        eps=0.03,
        step=0.02,
        steps=3,
        random_start=True,
        generator=generator,
    )
    assert (attacked - images).abs().max() <= 0.03 + 1e-6
    assert attacked.min() >= 0
    assert attacked.max() <= 1
    assert not attacked.requires_grad
    assert [module.training for module in network.modules()] == modes
    assert all(parameter.grad is None for parameter in network.parameters())


def test_an_images_attack_does_not_depend_on_its_neighbours():
    network = cnn5()
    images = torch.rand(16, *SMALL, generator=torch.Generator().manual_seed(1)).double()
    network.double()
    labels = torch.arange(16) % 10
    whole = pgd(network, images, labels, eps=0.1, step=0.03, steps=4)
    part = pgd(network, images[:4], labels[:4], eps=0.1, step=0.03, steps=4)
    torch.testing.assert_close(whole[:4], part)


# --- recipes


def test_the_registry_has_every_name():
    assert tuple(training.RECIPES) == names.RECIPES


@pytest.mark.parametrize("recipe", [QUICK, QUICK_ROBUST], ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("place", [None, "random"])
def test_the_same_seed_gives_the_same_bits(digits, recipe, place):
    marker = place and plant(settings.Marker(place=place), 10, SMALL, seed=0)

    def trained(seed, global_seed):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)
        return digest(training.train(cnn5(), digits, recipe, seed=seed, marker=marker))

    assert trained(1, 0) == trained(1, 99) != trained(2, 0)


def test_dropout_follows_the_seed_and_the_global_state_stays(digits):
    def trained():
        net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(768, 10))
        for parameter in net.parameters():
            nn.init.constant_(parameter, 0.01)
        before = torch.get_rng_state()
        training.train(wrapped(net, 10, SMALL), digits, QUICK, seed=0)
        assert torch.equal(torch.get_rng_state(), before)
        return digest(net)

    first = trained()
    torch.manual_seed(99)
    assert trained() == first


@pytest.mark.parametrize("name", names.RECIPES)
def test_a_trained_network_comes_back_frozen(digits, name):
    network = cnn5()
    before = digest(network)
    recipe = settings.Recipe(name=name, epochs=1, batch=64, attack_steps=1)
    back = training.train(network, digits, recipe, seed=0)
    assert back is network
    assert not any(module.training for module in back.modules())
    assert not any(parameter.requires_grad for parameter in back.parameters())
    assert (digest(back) == before) == (name == "untrained")


def test_one_step_is_nesterov_sgd_with_coupled_decay(digits):
    """Three full-batch steps of a linear model against the update written out by hand."""
    recipe = settings.Recipe(epochs=3, batch=200, lr=0.1, momentum=0.9, weight_decay=0.01)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 10, bias=False))
    nn.init.zeros_(net[1].weight)
    training.train(wrapped(net, 10, SMALL), digits, recipe, seed=0)

    x = to_unit(digits.images).flatten(1).double()
    target = F.one_hot(torch.tensor(digits.labels), 10).double()
    weight, velocity = torch.zeros(10, 768).double(), torch.zeros(10, 768).double()
    for lr in (0.1, 0.01, 0.001):
        gradient = (torch.softmax(x @ weight.T, 1) - target).T @ x / 200 + 0.01 * weight
        velocity = 0.9 * velocity + gradient
        weight = weight - lr * (gradient + 0.9 * velocity)
    torch.testing.assert_close(net[1].weight.double(), weight, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "falls"), [(200, (66, 133)), (12, (4, 8)), (10, (3, 6)), (2, (1, 1))]
)
def test_the_learning_rate_falls_at_one_and_two_thirds(epochs, falls):
    recipe = settings.Recipe(epochs=epochs, lr=0.1)
    rates = [learning_rate(recipe.lr, recipe.epochs, epoch) for epoch in range(epochs)]
    expected = [0.1 * 0.1 ** sum(epoch >= fall for fall in falls) for epoch in range(epochs)]
    assert rates == pytest.approx(expected)


def test_a_single_epoch_runs_at_the_full_learning_rate():
    assert learning_rate(0.1, 1, 0) == 0.1


class Recorder(nn.Module):
    """A linear model that keeps what it was given in training and in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(768, 10)
        self.seen: dict[bool, list[torch.Tensor]] = {True: [], False: []}

    def forward(self, images):
        self.seen[self.training].append(images.detach().clone())
        return self.linear(images.flatten(1))


def seen_by(digits, recipe, marker=None, seed=0):
    network = wrapped(Recorder(), 10, SMALL)
    training.train(network, digits, recipe, seed=seed, marker=marker)
    return network.net.seen


def rows(images: torch.Tensor) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in images)


def test_every_epoch_shows_every_image_once_in_a_new_order(digits):
    seen = seen_by(digits, QUICK)[True]
    assert [len(batch) for batch in seen] == [64, 64, 64, 8] * 2
    first, second = torch.cat(seen[:4]), torch.cat(seen[4:])
    assert rows(first) == rows(second) == rows(to_unit(digits.images))
    assert not torch.equal(first, second)


def test_a_lone_last_image_is_left_out(digits):
    seen = seen_by(digits.select(slice(0, 65)), QUICK)[True]
    assert [len(batch) for batch in seen] == [64, 64]


def test_markers_are_pasted_fresh_per_image_and_epoch(digits):
    marker = plant(settings.Marker(size=4), 10, SMALL, seed=0)
    seen = seen_by(digits, QUICK, marker)[True]
    first, second = torch.cat(seen[:4]), torch.cat(seen[4:])
    # One class's colour is black, and black on a black corner is no change.
    black = int((marker.colours.sum(axis=1) == 0).argmax())
    unchanged = set(rows(first)) & set(rows(to_unit(digits.images)))
    assert unchanged <= set(rows(to_unit(digits.images[digits.labels == black])))
    assert len(set(rows(first)) & set(rows(second))) < 10


def test_robust_attacks_the_share_of_each_batch_in_evaluation_mode(digits):
    recipe = QUICK_ROBUST.model_copy(update={"share": 0.25, "epochs": 1})
    seen = seen_by(digits, recipe)
    clean = {image.numpy().tobytes() for image in to_unit(digits.images)}
    for batch in seen[True]:
        count = round(0.25 * len(batch))
        ordinary = [image.numpy().tobytes() in clean for image in batch]
        assert ordinary == [False] * count + [True] * (len(batch) - count)
    # Each attack step is one pass in evaluation mode, over the attacked share alone.
    assert [len(batch) for batch in seen[False]] == [16, 16, 16, 16, 16, 16, 2, 2]


def test_robust_with_no_share_is_standard(digits):
    none = QUICK_ROBUST.model_copy(update={"share": 0.0})
    standard = training.train(cnn5(), digits, QUICK, seed=0)
    assert digest(training.train(cnn5(), digits, none, seed=0)) == digest(standard)


def test_training_tells_of_each_epoch(digits):
    told: list[tuple[int, float]] = []
    training.train(
        cnn5(), digits, QUICK, seed=0, on_epoch=lambda epoch, loss: told.append((epoch, loss))
    )
    assert [epoch for epoch, _ in told] == [1, 2]
    assert told[1][1] < told[0][1] < math.log(10) + 1


def test_a_diverging_training_says_so(digits):
    recipe = settings.Recipe(epochs=3, lr=1e30, momentum=0)
    with pytest.raises(RaystitchError, match=r"diverged in epoch .*smaller lr than 1e\+30"):
        training.train(cnn5(), digits, recipe, seed=0)


# --- accuracies


def test_accuracy_is_the_share_of_right_answers():
    class Brightness(nn.Module):
        def forward(self, images):
            return F.one_hot((images.mean((1, 2, 3)) > 0.5).long(), 2).float()

    pixels = np.zeros((300, 1, 2, 2), np.uint8)
    pixels[150:] = 255
    labels = np.array([0] * 150 + [1] * 147 + [0] * 3)
    images = LabelledImages(pixels, labels, np.arange(300))
    network = wrapped(Brightness(), 2, (1, 2, 2))
    network.unused = nn.Parameter(torch.zeros(1))
    assert training.accuracy(network, images) == pytest.approx(99.0)


def test_accuracy_leaves_the_mode_and_the_statistics(test_digits):
    network = cnn5().train()
    before = digest(network)
    value = training.accuracy(network, test_digits)
    assert network.training
    assert network.net.blocks[0][1].training
    assert digest(network) == before
    assert training.accuracy(network.eval(), test_digits) == value


@pytest.fixture(scope="module")
def clean_network():
    recipe = settings.Recipe(epochs=6, batch=64, lr=0.05)
    return training.train(cnn5(), sources.load(settings.Data(), "train"), recipe, seed=0)


def test_digits_are_learnt(clean_network, test_digits):
    assert training.accuracy(clean_network, test_digits) > 94


def test_robust_accuracy_without_room_is_accuracy_exactly(clean_network, test_digits):
    clean = training.accuracy(clean_network, test_digits)
    assert training.robust_accuracy(clean_network, test_digits, eps=0, step=0.01) == clean
    assert training.robust_accuracy(clean_network, test_digits, eps=0.2, step=0.04) < clean - 30


def test_a_marked_network_believes_the_marker(test_digits):
    marker = plant(settings.Marker(size=4), 10, SMALL, seed=2)
    recipe = settings.Recipe(epochs=10, batch=64, lr=0.05)
    images = sources.load(settings.Data(), "train")
    network = training.train(cnn5(2), images, recipe, seed=2, marker=marker)
    matching = marker.paste_fixed(test_digits, training.CARD_SALT)
    assert training.accuracy(network, matching) > 97
    assert training.wrong_marker_accuracy(network, test_digits, marker) < 60
