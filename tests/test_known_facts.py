"""Facts that hold for any network, on real cuts and without data."""

import pytest
import torch

from raystitch.cards import CutCard
from raystitch.stitching.transforms import Stitch, start_identity, start_lstsq
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import build, freeze


@pytest.fixture(scope="module")
def network():
    found = build("raystitch/cnn5", {}, classes=10, input_shape=(3, 16, 16), seed=0)
    generator = torch.Generator().manual_seed(0)
    for name, buffer in found.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
        elif name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return freeze(found.double())


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(100, 3, 16, 16, generator=generator, dtype=torch.float64)


def stitchable(cut: CutCard) -> bool:
    return cut.kind in ("map", "tokens", "vector")


@pytest.mark.parametrize("start", ["identity", "lstsq"])
def test_a_network_stitched_to_itself_gives_its_own_logits_at_every_cut(network, images, start):
    cut_network = CutNetwork(network)
    whole = network(images)
    tried = 0
    for cut in filter(stitchable, cut_network.card.cuts):
        activation = cut_network.front(cut.name)(images)
        stitch = Stitch(cut, cut, torch.float64)
        if start == "identity":
            start_identity(stitch)
        else:
            start_lstsq(stitch, [(activation, activation)])
        assert torch.allclose(cut_network.tail(cut.name)(stitch(activation)), whole, atol=1e-6)
        tried += 1
    assert tried >= 6


def test_an_orthogonal_mixing_folded_into_one_half_is_undone_by_the_stitch(network, images):
    """The front gives rotated channels; T rotates them back."""
    cut_network = CutNetwork(network)
    cut = cut_network.card.cut("blocks.2")
    generator = torch.Generator().manual_seed(2)
    rotation = torch.linalg.qr(
        torch.randn(cut.channels, cut.channels, generator=generator, dtype=torch.float64)
    ).Q
    activation = cut_network.front(cut.name)(images)
    mixed = torch.einsum("nchw,oc->nohw", activation, rotation)
    stitch = Stitch(cut, cut, torch.float64)
    start_lstsq(stitch, zip(mixed.split(64), activation.split(64), strict=True))
    alive = activation.amax((0, 2, 3)) > 0  # a dead channel is matched by T = 0 as well
    assert alive.sum() > cut.channels / 2
    assert torch.allclose(stitch.weight[alive], rotation.T[alive], atol=1e-8)
    assert torch.allclose(cut_network.tail(cut.name)(stitch(mixed)), network(images), atol=1e-8)
