"""Networks: how they are built, loaded, frozen, digested and stored."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from raystitch.cards import ModelCard
from raystitch.errors import RaystitchError, StorageError
from raystitch.zoo import artifacts
from raystitch.zoo.architectures import CNN5_WIDTHS_STRIDES, OWN
from raystitch.zoo.models import (
    Network,
    build,
    digest,
    evaluating,
    freeze,
    load_weights,
    seeded,
)

SMALL = (3, 16, 16)


def cnn5(seed: int = 0, **arguments) -> Network:
    return build("raystitch/cnn5", {}, classes=10, input_shape=SMALL, seed=seed, **arguments)


def images(count: int = 2, shape: tuple[int, int, int] = SMALL) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(0))


# --- building


def test_cnn5_is_what_it_says():
    network = cnn5()
    shapes, x = [], images()
    for block in network.net.blocks:
        assert [type(part) for part in block] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
        assert block[0].bias is None
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(16, 16, 16), (32, 8, 8), (32, 8, 8), (64, 4, 4), (64, 4, 4)]
    pooled = network.net.pool(x)
    torch.testing.assert_close(pooled, x.mean((2, 3)))
    assert torch.equal(network(images()), network.net.fc(pooled))
    widths = [3, *(width for width, _ in CNN5_WIDTHS_STRIDES)]
    weights = sum(9 * a * b for a, b in pairwise(widths))
    batchnorm = 2 * sum(widths[1:])
    assert sum(p.numel() for p in network.parameters()) == weights + batchnorm + 65 * 10


@pytest.mark.parametrize(
    ("arch", "kwargs", "shape"),
    [
        ("raystitch/cnn5", {}, (1, 8, 8)),
        ("torchvision/resnet18", {}, (3, 32, 32)),
        ("torchvision/mobilenet_v3_small", {}, (3, 32, 32)),
        ("timm/resnet10t", {}, (1, 32, 32)),
        ("timm/vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8, "depth": 2}, (3, 32, 32)),
    ],
)
def test_every_family_builds_classes_and_channels_of_the_data(arch, kwargs, shape):
    network = build(arch, kwargs, classes=7, input_shape=shape, seed=0)
    assert network(images(2, shape)).shape == (2, 7)
    assert not network.training
    assert (network.arch, network.kwargs, network.classes) == (arch, kwargs, 7)
    assert network.input_shape == shape


def test_a_torchvision_network_with_auxiliary_heads_trains_as_a_classifier():
    network = build("torchvision/googlenet", {}, classes=4, input_shape=(3, 32, 32), seed=0)
    assert network.train()(images(2, (3, 32, 32))).shape == (2, 4)


@pytest.mark.parametrize("arch", ["raystitch/cnn5", "timm/resnet10t"])
def test_the_seed_alone_decides_the_weights_and_the_global_state_stays(arch):
    before = torch.get_rng_state()
    first, again, other = (
        digest(build(arch, {}, classes=3, input_shape=(3, 32, 32), seed=seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again != other
    torch.manual_seed(99)
    assert digest(build(arch, {}, classes=3, input_shape=(3, 32, 32), seed=1)) == first


def test_the_network_owns_its_normaliser():
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    plain, normalised = cnn5(), cnn5(mean=mean, std=std)
    by_hand = (images() - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.equal(normalised(images()), plain.net(by_hand))
    assert plain.state_dict().keys() == normalised.state_dict().keys()
    assert digest(plain) != digest(normalised)


@pytest.mark.parametrize(
    ("arch", "kwargs", "sentence"),
    [
        ("raystitch/cnn6", {}, "did you mean 'cnn5'"),
        ("torchvision/resnet81", {}, "did you mean resnet18"),
        ("timm/vit_tiny_patch16_225", {}, "did you mean vit_tiny_patch16_224"),
        ("tim/resnet18", {}, "did you mean 'timm'"),
        ("resnet18", {}, "FAMILY/NAME"),
        ("raystitch/cnn5", {"width": 3}, "takes no kwargs, not width"),
        ("raystitch/resnet18_cifar", {"wide": 3}, "takes only width, not wide"),
        ("raystitch/resnet18_cifar", {"width": 0.5}, "whole numbers from 1, not width=0.5"),
        ("timm/resnet10t", {"num_classes": 3}, "may not hold num_classes"),
        ("timm/resnet10t", {"checkpoint_path": "x.pth"}, "may not hold checkpoint_path"),
        ("timm/resnet10t", {"widht": 3}, "widht"),
        ("torchvision/resnet18", {"widht": 3}, "widht"),
        ("timm/vit_tiny_patch16_224", {"depth": 1}, "img_size"),
        ("timm/resnet10t", {"global_pool": ""}, "does not take images of"),
    ],
)
def test_what_cannot_be_built_is_said_in_a_sentence(arch, kwargs, sentence):
    with pytest.raises(RaystitchError, match=sentence):
        build(arch, kwargs, classes=10, input_shape=(3, 32, 32), seed=0)


def test_a_network_that_gives_no_logits_is_refused(monkeypatch):
    monkeypatch.setitem(OWN, "map", lambda classes, channels: nn.Conv2d(channels, classes, 1))
    with pytest.raises(RaystitchError, match=r"gives \(1, 10, 16, 16\) for one image, not logits"):
        build("raystitch/map", {}, classes=10, input_shape=SMALL, seed=0)


def test_channels_normalisers_and_pretrained_classes_that_do_not_fit():
    with pytest.raises(RaystitchError, match="3 channels, not 1"):
        build("torchvision/resnet18", {}, classes=2, input_shape=(1, 32, 32), seed=0)
    with pytest.raises(RaystitchError, match="both `mean` and `std`"):
        cnn5(mean=(0.5,))
    with pytest.raises(RaystitchError, match="3 values"):
        cnn5(mean=(0.5,), std=(0.5,))
    with pytest.raises(RaystitchError, match="above 0"):
        cnn5(mean=(0.5,) * 3, std=(0.5, 0.5, 0.0))
    with pytest.raises(RaystitchError, match="no pretrained weights"):
        cnn5(pretrained=True)
    for arch in ("torchvision/resnet18", "timm/resnet18"):
        with pytest.raises(RaystitchError, match="know 1000 classes, the data have 10"):
            build(arch, {}, classes=10, input_shape=(3, 32, 32), seed=0, pretrained=True)


# --- weights


def written(tmp_path, name, content):
    path = tmp_path / name
    if path.suffix == ".safetensors":
        save_file(content, path)
    else:
        torch.save(content, path)
    return path


WRAPPINGS = {
    "plain.safetensors": lambda s: s,
    "plain.pth": lambda s: s,
    "plain.pt": lambda s: s,
    "module.safetensors": lambda s: prefixed("module.", s),
    "compiled.pth": lambda s: {"model": prefixed("_orig_mod.", s), "epoch": 3},
    "lightning.pth": lambda s: {"state_dict": prefixed("module.model.", s), "lr": 0.1},
    "nested.pt": lambda s: {"model": {"state_dict": prefixed("network.", s)}},
    "backbone.pth": lambda s: prefixed("backbone.", s),
}


def prefixed(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize("name", WRAPPINGS)
def test_weights_come_back_however_they_were_wrapped(tmp_path, name):
    theirs, ours = cnn5(seed=1), cnn5(seed=2)
    path = written(tmp_path, name, WRAPPINGS[name](theirs.net.state_dict()))
    load_weights(ours, path)
    assert digest(ours) == digest(theirs)


def test_a_prefix_of_the_networks_own_stays(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 2)

    theirs = Wrapped()
    networks = [
        Network(net, nn.Identity(), arch="x", kwargs={}, classes=2, input_shape=(2, 1, 1))
        for net in (theirs, Wrapped(), Wrapped())
    ]
    load_weights(networks[1], written(tmp_path, "own.pth", theirs.state_dict()))
    doubly = prefixed("model.", theirs.state_dict())
    load_weights(networks[2], written(tmp_path, "wrapped.pth", doubly))
    assert digest(networks[0]) == digest(networks[1]) == digest(networks[2])


def test_weights_that_do_not_fit_are_listed_and_change_nothing(tmp_path):
    network = cnn5()
    before = digest(network)
    state = dict(cnn5(seed=1).net.state_dict())
    state["extra.weight"] = state.pop("fc.bias")
    state["fc.weight"] = torch.zeros(7, 64)
    with pytest.raises(RaystitchError) as caught:
        load_weights(network, written(tmp_path, "w.pth", state))
    message = str(caught.value)
    assert "missing: fc.bias" in message
    assert "unexpected: extra.weight" in message
    assert "fc.weight ([7, 64], not [10, 64])" in message
    assert digest(network) == before


class Bomb:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_bomb_does_not_go_off(tmp_path, zipped):
    trace, path = tmp_path / "exploded", tmp_path / "bomb.pth"
    content = {"state_dict": cnn5().net.state_dict(), "args": Bomb(trace)}
    if zipped:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(Bomb(trace), protocol=2))
    with pytest.raises(RaystitchError, match="could run code when read, so it is refused"):
        load_weights(cnn5(), path)
    assert not trace.exists()


def test_files_that_are_no_weights(tmp_path):
    def refused(path, sentence):
        with pytest.raises(RaystitchError, match=sentence):
            load_weights(cnn5(), path)

    refused(tmp_path / "none.pth", "no such file")
    refused(tmp_path / "weights.pkl", "not one of .safetensors, .pth, .pt")
    refused(written(tmp_path, "list.pth", [1, 2]), "holds list")
    refused(written(tmp_path, "mixed.pth", {"a": 1, "b": torch.zeros(1)}), "no tensors: a")
    for name in ("torn.safetensors", "torn.pth"):
        path = written(tmp_path, name, dict(cnn5().net.state_dict()))
        path.write_bytes(path.read_bytes()[:-1000])
        refused(path, "not a whole")


# --- freezing, modes, digests


def test_a_frozen_network_neither_learns_nor_moves():
    network = freeze(cnn5().train().requires_grad_(True))
    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())
    before = digest(network)
    inputs = images().requires_grad_()
    network(inputs).sum().backward()
    assert inputs.grad is not None
    assert inputs.grad.abs().sum() > 0
    assert digest(network) == before


def test_evaluating_gives_every_module_its_own_mode_back():
    network = cnn5().train()
    network.net.blocks[1].eval()
    modes = [module.training for module in network.modules()]
    with evaluating(network):
        assert not any(module.training for module in network.modules())
    assert [module.training for module in network.modules()] == modes


def test_the_digest_sees_every_bit_of_every_tensor():
    network = cnn5()
    base = digest(network)
    changes = {
        "a parameter": lambda n: n.net.fc.bias.data[3].add_(1e-7),
        "a buffer": lambda n: n.net.blocks[0][1].running_mean[0].add_(1e-7),
        "a counter": lambda n: n.net.blocks[4][1].num_batches_tracked.add_(1),
        "a sign of zero": lambda n: n.net.blocks[2][1].running_mean.mul_(-1),
        "a dtype": lambda n: n.net.fc.to(torch.bfloat16),
    }
    for what, change in changes.items():
        changed = cnn5()
        change(changed)
        assert digest(changed) != base, what
    assert digest(cnn5().train().requires_grad_(False)) == base


def test_seeded_restores_the_global_state():
    before = torch.get_rng_state()
    with seeded(3):
        first = torch.rand(4)
    with seeded(3):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.get_rng_state(), before)


# --- artifacts


def card_of(network: Network) -> ModelCard:
    return ModelCard(
        name="clean-0",
        key="k",
        identity={"arch": network.arch, "recipe": {"name": "untrained"}},
        digest=digest(network),
        parameters=sum(p.numel() for p in network.parameters()),
        accuracy=97.5,
        marker_accuracy=None,
        wrong_marker_accuracy=None,
        robust_accuracy=None,
        seconds=1.5,
    )


@pytest.fixture
def stored(tmp_path):
    network = cnn5(seed=1)
    artifacts.save(tmp_path / "a", network, card_of(network))
    return tmp_path / "a", network


def test_a_stored_network_comes_back_bit_for_bit(stored):
    folder, network = stored
    other = cnn5(seed=2)
    assert artifacts.is_stored(folder)
    assert artifacts.load(folder, other) == card_of(network) == artifacts.read_card(folder)
    assert digest(other) == digest(network)
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "weights.safetensors"]
    load_weights(third := cnn5(seed=3), folder / "weights.safetensors")
    assert digest(third) == digest(network)


def test_a_network_with_shared_weights_can_be_stored(tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4))
    net[2].weight = net[1].weight
    network = Network(net, nn.Identity(), arch="x", kwargs={}, classes=4, input_shape=(1, 2, 2))
    artifacts.save(tmp_path, network, card_of(network))
    assert artifacts.load(tmp_path, network).digest == digest(network)


def tamper_weights(folder):
    state = load_file(folder / "weights.safetensors")
    state["fc.bias"][0] += 1e-6
    save_file(state, folder / "weights.safetensors")


def tamper_card(folder):
    card = json.loads((folder / "card.json").read_text())
    card["digest"] = "0" * 64
    (folder / "card.json").write_text(json.dumps(card))


def tear(name):
    def cut(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return cut


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (tamper_weights, "another digest"),
        (tamper_card, "another digest"),
        (tear("weights.safetensors"), "missing or torn"),
        (tear("card.json"), "missing or damaged"),
        (lambda folder: (folder / "weights.safetensors").unlink(), "missing or torn"),
        (lambda folder: (folder / "card.json").unlink(), "missing or damaged"),
    ],
)
def test_a_harmed_artifact_is_named_and_refused(stored, harm, sentence):
    folder, _ = stored
    harm(folder)
    with pytest.raises(StorageError, match=sentence) as caught:
        artifacts.load(folder, cnn5())
    assert str(folder) in str(caught.value)


def test_an_artifact_of_another_architecture_is_refused(stored):
    folder, _ = stored
    other = build("raystitch/cnn5", {}, classes=7, input_shape=SMALL, seed=0)
    with pytest.raises(StorageError, match="not of raystitch/cnn5"):
        artifacts.load(folder, other)


def test_while_an_artifact_is_replaced_it_is_not_a_finished_one(stored, monkeypatch):
    folder, _ = stored

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(artifacts, "save_file", killed)
    network = cnn5(seed=5)
    with pytest.raises(KeyboardInterrupt):
        artifacts.save(folder, network, replace(card_of(network), key="other"))
    assert not artifacts.is_stored(folder)
