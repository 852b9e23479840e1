"""APGD against the authors' own code, and what must hold of any attack."""

import numpy as np
import pytest
import torch
from torch import nn

from raystitch.data import sources
from raystitch.settings import Data, Recipe
from raystitch.zoo.apgd import LOSSES, apgd, attack, dlr, random_offsets, windows
from raystitch.zoo.models import build, freeze
from raystitch.zoo.pixels import to_unit
from raystitch.zoo.train import train

EPS = 0.06
ABSENT = "pyautoattack (extra `dev`) is not installed"


@pytest.fixture(scope="module")
def trained():
    """A small network trained for a little, with test images that it mostly knows."""
    network = build("raystitch/cnn5", {}, classes=10, input_shape=(3, 16, 16), seed=0)
    images = sources.load(Data(), "train").select(slice(0, 1000))
    train(network, images, Recipe(epochs=6, batch=64), seed=0)
    freeze(network)
    test = sources.load(Data(), "test").select(slice(0, 300))
    return network, to_unit(test.images, torch.device("cpu")), torch.from_numpy(test.labels)


def right(network, images, labels):
    with torch.no_grad():
        return network(images).argmax(1) == labels


def start_of(images, name):
    offsets = random_offsets(np.arange(len(images)), images.shape, name)
    return images + EPS * offsets.to(images)


# Where a loss begins below 0, as DLR's does, their first window takes the first step for no rise:
# it is compared with 0. Ours is compared with the loss at the start, as the paper says.
@pytest.mark.filterwarnings("ignore:there are .* points with zero gradient")
@pytest.mark.parametrize(("name", "alike"), [("ce", 0.95), ("dlr", 0.6)])
def test_the_authors_own_code_fools_the_same_images(trained, name, alike):
    library = pytest.importorskip("pyautoattack.autopgd_base", reason=ABSENT)
    network, images, labels = trained
    judge = library.APGDAttack(network, n_iter=20, eps=EPS, loss=name, device="cpu")
    judge.init_hyperparam(images)
    start = start_of(images, name)
    theirs = judge.attack_single_run(images, labels, x_init=start)[3]
    ours, fooled = apgd(
        network, images, labels, start, LOSSES[name], eps=EPS, step=2 * EPS, steps=20
    )
    assert 0.1 < float(fooled.float().mean()) < 0.95, "an attack that means something"
    survivors = (
        float((~fooled).float().mean()),
        float(right(network, theirs, labels).float().mean()),
    )
    assert 100 * abs(survivors[0] - survivors[1]) <= 1
    same = (ours - theirs).abs().flatten(1).amax(1) < 1e-5
    assert float(same.float().mean()) > alike, "the very same course"


def test_robust_accuracy_is_that_of_the_authors_whole_code(trained):
    """CE then DLR, each from random starts of its own."""
    library = pytest.importorskip("pyautoattack.autoattack", reason=ABSENT)
    autopgd_base = pytest.importorskip("pyautoattack.autopgd_base", reason=ABSENT)
    network, images, labels = trained
    judge = library.AutoAttack(
        network, eps=EPS, version="custom", attacks=["apgd-ce", "apgd-dlr"], seed=0
    )
    judge.apgd = autopgd_base.APGDAttack(network, n_iter=20, eps=EPS, seed=0, device="cpu")
    made = judge.run_standard_evaluation(images, labels, batch_size=100)[0]
    theirs = right(network, made, labels)
    made = attack(network, images, labels, np.arange(len(images)), eps=EPS, step=2 * EPS, steps=20)
    ours = right(network, made, labels)
    assert 100 * abs(float(ours.float().mean()) - float(theirs.float().mean())) <= 1


def test_fooled_images_are_near_and_the_others_untouched(trained):
    network, images, labels = trained
    made = attack(network, images, labels, np.arange(len(images)), eps=EPS, step=0.02, steps=10)
    assert made.min() >= 0
    assert made.max() <= 1
    assert (made - images).abs().max() <= EPS + 1e-6
    moved = (made != images).flatten(1).any(1)
    survived = right(network, made, labels)
    assert not (moved & survived).any(), "what was not fooled stays clean"
    assert not (moved & ~right(network, images, labels)).any(), "what was wrong stays as it is"


def test_dlr_finds_what_ce_did_not(trained):
    network, images, labels = trained
    index = np.arange(len(images))
    both = attack(network, images, labels, index, eps=EPS, step=2 * EPS, steps=3)
    ce_alone = {"eps": EPS, "step": 2 * EPS, "steps": 3}
    fooled = apgd(network, images, labels, start_of(images, "ce"), LOSSES["ce"], **ce_alone)[1]
    assert not (fooled & right(network, both, labels)).any()


def test_no_radius_changes_nothing(trained):
    network, images, labels = trained
    made = attack(network, images, labels, np.arange(len(images)), eps=0, step=0.01, steps=5)
    assert torch.equal(made, images)


def test_an_image_does_not_depend_on_its_batch(trained):
    network, images, labels = trained
    given = {"eps": EPS, "step": 0.02, "steps": 8}
    whole = attack(network, images[:60], labels[:60], np.arange(60), **given)
    parts = [
        attack(network, images[at], labels[at], at.numpy(), **given)
        for at in torch.arange(60).split(17)
    ]
    assert (torch.cat(parts) - whole).abs().max() < 1e-5


@pytest.mark.parametrize("training", [False, True])
def test_modes_and_parameters_are_left_alone(training):
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.1), nn.BatchNorm1d(8))
    net.append(nn.Linear(8, 4)).eval()
    images = torch.rand(6, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    labels = net(images).argmax(1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net[2].train(training)
    modes = [part.training for part in net.modules()]
    attack(net, images, labels, np.arange(6), eps=0.3, step=0.3, steps=4)
    assert [part.training for part in net.modules()] == modes
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert images.grad is None
    assert not images.requires_grad


def test_dlr_known_values():
    logits = torch.tensor([[5.0, 3, 1, 0], [5, 3, 1, 0]])
    found = dlr(logits, torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx([-(5 - 3) / 4, -(3 - 5) / 4])
    assert dlr(10 * logits + 7, torch.tensor([0, 1])).tolist() == pytest.approx(found.tolist())


def test_windows_of_the_paper():
    # p = 0, 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99 of 100 steps.
    assert list(windows(100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert windows(20) == {4: 4, 7: 3, 9: 2, 10: 1, **dict.fromkeys(range(11, 21), 1)}


def test_random_starts_depend_on_the_image_alone():
    shape = torch.Size((0, 3, 4, 4))
    both = random_offsets(np.array([7, 3]), shape, "ce")
    assert torch.equal(random_offsets(np.array([3]), shape, "ce")[0], both[1])
    assert not torch.equal(random_offsets(np.array([3]), shape, "dlr")[0], both[1])
    assert both.flatten(1).abs().amax(1).tolist() == [1, 1]
