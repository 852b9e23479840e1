"""Lean halves: the same function of the images to rounding, and the network itself untouched."""

import pytest
import torch
from torch import nn

from raystitch.compute import Compute
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import Network, build, digest, freeze
from raystitch.zoo.modes import private_copy

LEAN = Compute(layout="channels_last", fold_bn=True)


@pytest.fixture(scope="module")
def network() -> Network:
    made = build(
        "raystitch/resnet18_cifar", {"width": 8}, classes=10, input_shape=(3, 16, 16), seed=0
    )
    generator = torch.Generator().manual_seed(0)
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.2, generator=generator)
            part.running_var.uniform_(0.5, 2, generator=generator)
    return freeze(made)


def images() -> torch.Tensor:
    return torch.rand(5, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def norms(half: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in half.modules())


@pytest.mark.parametrize(
    ("compute", "error"),
    [
        (Compute(), 0.0),
        (Compute(fold_bn=True), 1e-5),
        (Compute(layout="channels_last"), 1e-5),
        (LEAN, 1e-5),
        (Compute(precision="bfloat16"), 0.05),
        (LEAN.model_copy(update={"precision": "bfloat16"}), 0.05),
    ],
)
@pytest.mark.parametrize("cut", ["conv1", "relu", "layer2.1", "layer4.1"])
def test_lean_halves_answer_as_the_network_does(network, compute, error, cut) -> None:
    cuts = CutNetwork(network).under(compute)
    activation = cuts.front(cut)(images())
    tail = cuts.tail(cut, (cut, "layer4.1"))
    with torch.no_grad():
        whole, plain = network(images()), CutNetwork(network).front(cut)(images())
        logits, (first, last) = tail.observe(activation)
    assert activation.dtype == logits.dtype == torch.float32
    assert torch.equal(first, activation)
    assert float((activation - plain).norm() / plain.norm()) <= error
    assert float((logits - whole).norm() / whole.norm()) <= error
    assert last.shape == (5, 64, 2, 2)


def test_gradients_pass_through_lean_halves(network) -> None:
    found = []
    for compute in (Compute(), LEAN):
        z = torch.rand(3, 16, 8, 8, generator=torch.Generator().manual_seed(2)).requires_grad_()
        CutNetwork(network).under(compute).tail("layer2.1")(z).square().sum().backward()
        found.append(z.grad)
    assert float((found[0] - found[1]).norm() / found[0].norm()) < 1e-5


def test_every_batchnorm_is_folded_but_those_that_a_cut_reads(network) -> None:
    cuts = CutNetwork(network)
    lean = cuts.under(Compute(fold_bn=True))
    assert norms(cuts.observer(())) == 20
    assert norms(lean.observer(())) == 0
    # The stem's convolution is a cut: what it gives is looked at, so it must stay as it is.
    assert norms(lean.observer(("conv1",))) == 1
    assert norms(lean.tail("conv1")) == 1


def test_the_network_itself_is_not_touched(network) -> None:
    before = digest(network)
    plain = CutNetwork(network)
    whole = plain.observer(())(images())
    lean = plain.under(LEAN)
    lean.tail("relu")(lean.front("relu")(images()))
    assert digest(network) == before
    assert torch.equal(plain.observer(())(images()), whole)
    assert all(p.is_contiguous() for p in network.parameters())


def test_lean_halves_of_a_network_share_their_weights(network) -> None:
    lean = CutNetwork(network).under(LEAN)
    one, other = (dict(lean.tail(cut).named_parameters()) for cut in ("relu", "layer2.1"))
    assert {p.data_ptr() for p in other.values()} <= {p.data_ptr() for p in one.values()}
    assert {p.data_ptr() for p in private_copy(lean.tail("relu")).parameters()} == {
        p.data_ptr() for p in one.values()
    }


@pytest.mark.slow
def test_a_compiled_half_answers_as_the_network_does(network) -> None:
    tail = CutNetwork(network).under(Compute(compile=True)).tail("layer4.1")
    z = torch.rand(4, 64, 2, 2).requires_grad_()
    plain = CutNetwork(network).tail("layer4.1")(z)
    assert torch.allclose(tail(z), plain, atol=1e-5)
    (gradient,) = torch.autograd.grad(tail(z).sum(), z)
    (wanted,) = torch.autograd.grad(plain.sum(), z)
    assert torch.allclose(gradient, wanted, atol=1e-5)
