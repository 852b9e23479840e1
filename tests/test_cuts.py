"""Cuts: found, named, exact, and harmless to the network that is cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raystitch.cards import NetworkCard
from raystitch.errors import RaystitchError
from raystitch.zoo.cuts import CutNetwork, describe
from raystitch.zoo.layout import regroup
from raystitch.zoo.models import Network, build, digest, freeze

SMALL_VIT = {"img_size": 32, "patch_size": 8}
FAST = [
    ("raystitch/cnn5", {}, 16),
    ("torchvision/resnet18", {}, 32),
    ("torchvision/mobilenet_v3_small", {}, 32),
    ("timm/vit_tiny_patch16_224", SMALL_VIT, 32),
]
# Beside each the number of cuts found, so that a release of torch that loses some is noticed.
SLOW = {
    "torchvision/resnet18": 21,
    "torchvision/vgg16_bn": 49,
    "torchvision/vit_b_16": 29,
    "torchvision/densenet121": 23,
    "torchvision/googlenet": 23,
    "torchvision/mobilenet_v3_small": 56,
    "torchvision/convnext_tiny": 28,
    "torchvision/swin_t": 37,
    "torchvision/regnet_y_400mf": 36,
    "timm/resnet18": 21,
    "timm/vit_tiny_patch16_224": 29,
    "timm/deit_tiny_patch16_224": 29,
    "timm/mixer_b16_224": 27,
    "timm/convnext_atto": 22,
    "timm/efficientnet_b0": 61,
    "timm/swin_tiny_patch4_window7_224": 37,
}


def make(arch: str, kwargs: dict[str, object], size: int, **more: object) -> Network:
    """A frozen network with random weights in which every part counts.

    Many start with a head, a layer scale or a last BatchNorm of (almost) zero: halves that differ
    there would still give equal logits. Running statistics are near those of the images, else the
    signal dies on its way.
    """
    network = build(arch, kwargs, classes=10, input_shape=(3, size, size), seed=1, **more)
    generator = torch.Generator().manual_seed(0)
    for parameter in freeze(network).parameters():
        if parameter.abs().max() < 1e-3:
            parameter.normal_(0, 0.1, generator=generator)
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.train().momentum = 1.0
    network(images(network, 8))
    for norm in norms:
        norm.eval().momentum = 0.1
        spread = torch.rand(norm.num_features, generator=generator)
        norm.running_mean.add_((spread - 0.5) * norm.running_var.sqrt())
        norm.running_var.mul_(0.5 + spread)
    return network


def wrap(net: nn.Module, *shape: int) -> Network:
    """A net of a test's own, as a network of the zoo."""
    return Network(
        net, nn.Identity(), arch="own/net", kwargs={}, classes=10, input_shape=shape or (3, 8, 8)
    ).eval()


def images(network: Network, batch: int) -> Tensor:
    """Noise of unequal brightness, so that even pooled activations differ between images."""
    generator = torch.Generator().manual_seed(batch)
    noise = torch.rand(batch, *network.input_shape, generator=generator)
    return noise * torch.linspace(0.2, 1, batch).view(-1, 1, 1, 1)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """The nets that a test makes itself have the same weights in every run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def cut_networks() -> Callable[[str], tuple[Network, CutNetwork]]:
    """The fast networks by architecture, each built and traced once."""
    made: dict[str, tuple[Network, CutNetwork]] = {}

    def get(arch: str) -> tuple[Network, CutNetwork]:
        if arch not in made:
            _, kwargs, size = next(case for case in FAST if case[0] == arch)
            network = make(arch, kwargs, size)
            made[arch] = network, CutNetwork(network)
        return made[arch]

    return get


def assert_exact_everywhere(network: Network, cut: CutNetwork) -> None:
    """tail(front(x)) is the network bit for bit, and gradients reach z, at every cut."""
    batches = {batch: images(network, batch) for batch in (2, 5)}
    with torch.no_grad():
        whole = {batch: network(x) for batch, x in batches.items()}
    assert whole[5].std(0).max() > 1e-3, "the logits hardly depend on the images"
    for card in cut.card.cuts:
        front, tail = cut.front(card.name), cut.tail(card.name)
        for batch, x in batches.items():
            with torch.no_grad():
                z = front(x)
                assert torch.equal(tail(z), whole[batch]), f"{card.name} at batch {batch}"
            assert tuple(z.shape) == (batch, *card.shape), card.name
            if batch == 2:
                z = z.requires_grad_()
                (gradient,) = torch.autograd.grad(tail(z).square().sum(), z)
                assert gradient.isfinite().all(), card.name
                assert gradient.abs().max() > 0, card.name


@pytest.mark.parametrize("arch", [case[0] for case in FAST])
def test_halves_give_the_network_bit_for_bit(cut_networks, arch: str) -> None:
    assert_exact_everywhere(*cut_networks(arch))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", SLOW)
def test_halves_give_the_network_bit_for_bit_at_full_size(arch: str) -> None:
    network = make(arch, {}, 224)
    cut = CutNetwork(network)
    print(arch, len(cut.card.cuts), "cuts")
    assert_exact_everywhere(network, cut)
    assert len(cut.card.cuts) == SLOW[arch]


@pytest.mark.slow
def test_auxiliary_heads_are_left_out() -> None:
    network = make("torchvision/googlenet", {"aux_logits": True}, 224)
    cut = CutNetwork(network)
    assert len(cut.card.cuts) == SLOW["torchvision/googlenet"]
    cut.check("inception4c", images(network, 2))
    half = cut.tail("inception3b")
    assert not [name for name, _ in half.named_parameters() if "aux" in name]


@pytest.mark.parametrize("arch", [case[0] for case in FAST])
def test_a_cut_named_after_a_module_is_what_that_module_returns(cut_networks, arch: str) -> None:
    network, cut = cut_networks(arch)
    returned: dict[str, list[Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
            returned.setdefault(name, []).append(output.clone())

        return keep

    modules = dict(network.net.named_modules())
    named = {n: c for c in cut.card.cuts for n in (c.name, *c.aliases) if n in modules}
    handles = [modules[name].register_forward_hook(hook(name)) for name in named]
    x = images(network, 2)
    with torch.no_grad():
        network(x)
        for name, card in named.items():
            z = cut.front(card.name)(x)
            output = returned[name][0]
            if name != card.name and output.shape != z.shape:  # the same values in another shape
                output, z = output.flatten().sort()[0], z.flatten().sort()[0]
            assert torch.equal(output.reshape(z.shape), z), name
    for handle in handles:
        handle.remove()
    assert len(named) >= len(cut.card.cuts) // 2


@pytest.mark.parametrize("arch", [case[0] for case in FAST])
def test_each_half_holds_only_its_own_parameters(cut_networks, arch: str) -> None:
    network, cut = cut_networks(arch)
    everything = {id(p) for p in network.parameters()}
    for card in cut.card.cuts:
        early = {id(p) for p in cut.front(card.name).parameters()}
        late = {id(p) for p in cut.tail(card.name).parameters()}
        assert not early & late, card.name
        assert early | late == everything, card.name


@pytest.mark.parametrize("arch", [case[0] for case in FAST])
def test_names_are_unique_and_shares_of_work_grow(cut_networks, arch: str) -> None:
    _, cut = cut_networks(arch)
    names = [name for card in cut.card.cuts for name in (card.name, *card.aliases)]
    assert len(names) == len(set(names))
    flops = [card.flops for card in cut.card.cuts]
    assert flops == sorted(flops)
    assert flops[0] > 0
    assert flops[-1] <= cut.card.flops
    assert [card.index for card in cut.card.cuts] == list(range(1, len(flops) + 1))
    assert NetworkCard.from_json(cut.card.to_json()) == cut.card


def names_of(cut: CutNetwork, chosen: str) -> list[str]:
    return [card.name for card in cut.card.select(chosen)]


def test_the_named_sets_of_cnn5(cut_networks) -> None:
    _, cut = cut_networks("raystitch/cnn5")
    blocks = [f"blocks.{k}" for k in range(5)]
    assert names_of(cut, "blocks") == blocks
    assert names_of(cut, "paper") == blocks
    assert names_of(cut, "stages") == ["blocks.0", "blocks.2", "blocks.4"]
    assert [(c.kind, c.shape) for c in cut.card.select("stages")] == [
        ("map", (16, 16, 16)),
        ("map", (32, 8, 8)),
        ("map", (64, 4, 4)),
    ]
    inside = [f"{block}{part}" for block in blocks for part in (".0", ".1", "")]
    assert names_of(cut, "all") == [*inside, "pool"]
    assert (cut.card.cut("pool").kind, cut.card.cut("pool").shape) == ("vector", (64,))


def test_the_named_sets_of_resnet18(cut_networks) -> None:
    _, cut = cut_networks("torchvision/resnet18")
    blocks = [f"layer{stage}.{k}" for stage in (1, 2, 3, 4) for k in (0, 1)]
    assert names_of(cut, "blocks") == blocks
    assert names_of(cut, "stages") == blocks[1::2]
    assert names_of(cut, "paper") == ["relu", *blocks]
    ends = [name for block in blocks for name in (f"{block}.add", block)]
    assert names_of(cut, "all") == ["conv1", "bn1", "relu", "maxpool", *ends, "avgpool"]
    assert cut.card.cut("layer2.0.relu_1").name == "layer2.0"
    assert cut.card.cut("layer3").name == "layer3.1"
    assert {c.kind for c in cut.card.cuts[:-1]} == {"map"}
    assert (cut.card.cuts[-1].kind, cut.card.cuts[-1].shape) == ("vector", (512,))


def test_the_named_sets_of_vit_tiny(cut_networks) -> None:
    _, cut = cut_networks("timm/vit_tiny_patch16_224")
    blocks = [f"blocks.{k}" for k in range(12)]
    assert names_of(cut, "blocks") == [*blocks, "head_drop"]
    assert names_of(cut, "paper") == [*blocks, "head_drop"]
    assert names_of(cut, "stages") == ["blocks.11", "head_drop"]
    ends = [name for block in blocks for name in (f"{block}.add", block)]
    assert names_of(cut, "all") == ["patch_embed", "cat", "norm_pre", *ends, "norm", "head_drop"]
    assert (cut.card.cut("blocks.5").kind, cut.card.cut("blocks.5").shape) == ("tokens", (17, 192))
    assert (cut.card.cut("head_drop").kind, cut.card.cut("head_drop").shape) == ("vector", (192,))


def test_the_blocks_of_mobilenet(cut_networks) -> None:
    _, cut = cut_networks("torchvision/mobilenet_v3_small")
    assert names_of(cut, "blocks") == [f"features.{k}" for k in range(1, 12)]


def test_the_papers_cuts_of_vgg16_bn() -> None:
    card = describe("torchvision/vgg16_bn", {}, 10, (3, 32, 32))
    wanted = [f"features.{place}" for place in (2, 5, 12, 22, 32, 42)]
    assert [cut.name for cut in card.select("paper")] == wanted


def test_the_papers_cuts_of_cifars_resnet18() -> None:
    card = describe("raystitch/resnet18_cifar", {}, 10, (3, 32, 32))
    # The count of parameters usual for this network with 10 classes.
    assert card.parameters == 11_173_962
    paper = card.select("paper")
    assert [cut.name for cut in paper] == [
        "relu",
        *(f"layer{stage}.{k}" for stage in (1, 2, 3, 4) for k in (0, 1)),
    ]
    shapes = [(64 * 2**stage, 32 // 2**stage, 32 // 2**stage) for stage in range(4)]
    assert [cut.shape for cut in paper] == [shapes[0], *(s for s in shapes for _ in range(2))]


def test_a_narrower_resnet18_has_the_same_cuts() -> None:
    narrow = describe("raystitch/resnet18_cifar", {"width": 16}, 10, (3, 32, 32))
    wide = describe("raystitch/resnet18_cifar", {}, 10, (3, 32, 32))
    assert [cut.name for cut in narrow.cuts] == [cut.name for cut in wide.cuts]
    assert [4 * cut.channels for cut in narrow.cuts] == [cut.channels for cut in wide.cuts]


def test_the_papers_cuts_of_vit_tiny_and_vit_base() -> None:
    """ViT-Base's are every other block; narrow here, for its names do not hang on its width."""
    tiny = describe("timm/vit_tiny_patch16_224", {"img_size": 32, "patch_size": 4}, 10, (3, 32, 32))
    paper = tiny.select("paper")
    assert [cut.shape for cut in paper] == [(65, 192)] * 12 + [(192,)]
    narrow = {"embed_dim": 24, "num_heads": 3}
    base = describe("timm/vit_base_patch16_224", narrow, 10, (3, 224, 224)).select("paper")
    assert [cut.name for cut in base] == [*(f"blocks.{k}" for k in range(0, 12, 2)), "head_drop"]
    assert [cut.shape for cut in base] == [(197, 24)] * 6 + [(24,)]


@pytest.mark.parametrize(
    ("arch", "kwargs", "size", "patches", "counts"),
    [
        ("timm/vit_tiny_patch16_224", {"img_size": (16, 32), "patch_size": 8}, (16, 32), (2, 4), 9),
        ("timm/vit_small_patch14_reg4_dinov2", {"img_size": 42}, (42, 42), (3, 3), 14),
        ("timm/mixer_s32_224", {"img_size": 64}, (64, 64), (2, 2), 4),
    ],
)
def test_tokens_know_their_patches(arch, kwargs, size, patches, counts) -> None:
    narrow = {} if "mixer" in arch else {"depth": 2, "embed_dim": 24, "num_heads": 3}
    card = describe(arch, {**kwargs, **narrow}, 10, (3, *size))
    blocks = [cut for cut in card.select("blocks") if cut.kind == "tokens"]
    assert {(cut.shape[0], cut.patches) for cut in blocks} == {(counts, patches)}
    assert all(cut.patches is None for cut in card.cuts if cut.kind != "tokens")


@pytest.mark.parametrize(
    ("arch", "linear"), [("raystitch/cnn5", True), ("torchvision/squeezenet1_1", False)]
)
def test_a_card_tells_whether_a_linear_layer_gives_the_logits(arch, linear) -> None:
    assert describe(arch, {}, 10, (3, 32, 32)).linear_head == linear


def test_a_linear_layer_that_something_follows_is_no_head() -> None:
    parts = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
    assert CutNetwork(wrap(parts)).card.linear_head
    assert CutNetwork(wrap(nn.Sequential(parts, nn.Dropout()))).card.linear_head
    assert not CutNetwork(wrap(nn.Sequential(parts, nn.Softmax(1)))).card.linear_head


def test_a_card_of_an_earlier_version_reads_without_patches() -> None:
    card = describe("raystitch/cnn5", {}, 10, (3, 16, 16))
    old = card.to_json().replace('"patches": null,', "")
    assert "patches" not in old
    assert NetworkCard.from_json(old) == card


def test_a_swin_has_its_channels_last() -> None:
    card = describe(
        "timm/swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2}, 10, (3, 64, 64)
    )
    blocks = card.select("blocks")
    assert [(cut.kind, cut.shape) for cut in blocks[:3]] == [
        ("map_last", (16, 16, 96)),
        ("map_last", (16, 16, 96)),
        ("map_last", (8, 8, 192)),
    ]
    assert len(blocks) == 12
    assert card.cuts[-1].kind == "vector"


def test_flops_of_cnn5_are_those_of_its_formula(cut_networks) -> None:
    _, cut = cut_networks("raystitch/cnn5")
    layers = [(3, 16, 16), (16, 32, 8), (32, 32, 8), (32, 64, 4), (64, 64, 4)]
    own = [2 * 9 * ins * outs * side**2 for ins, outs, side in layers]
    for k in range(5):
        assert cut.card.cut(f"blocks.{k}").flops == sum(own[: k + 1])
    assert cut.card.flops == sum(own) + 2 * 64 * 10
    assert cut.card.parameters == sum(9 * i * o + 2 * o for i, o, _ in layers) + 64 * 10 + 10


def test_flops_of_resnet18_are_those_of_its_formula() -> None:
    card = describe("torchvision/resnet18", {}, 1000, (3, 224, 224))
    expected = 2 * 49 * 3 * 64 * 112**2
    assert card.cut("conv1").flops == expected
    width, side = 64, 56
    for stage in (1, 2, 3, 4):
        outs = 64 * 2 ** (stage - 1)
        side = 56 // 2 ** (stage - 1)
        for block in (0, 1):
            shortcut = 2 * width * outs * side**2 if width != outs else 0
            expected += 2 * 9 * (width + outs) * outs * side**2 + shortcut
            width = outs
            assert card.cut(f"layer{stage}.{block}").flops == expected
    assert card.flops == expected + 2 * 512 * 1000
    assert card.parameters == 11_689_512


def test_flops_of_a_vit_count_its_attention(cut_networks) -> None:
    _, cut = cut_networks("timm/vit_tiny_patch16_224")
    tokens, width = 17, 192
    block = 2 * tokens * width * width * (4 + 8) + 2 * 2 * tokens * tokens * width
    ends = cut.card.select("blocks.?")
    assert ends[1].flops - ends[0].flops == block


def test_taps_come_in_the_order_asked_and_as_the_fronts_give_them(cut_networks) -> None:
    network, cut = cut_networks("torchvision/resnet18")
    x = images(network, 2)
    taps = ["avgpool", "layer2.0", "layer3.1", "layer2.0.add"]
    with torch.no_grad():
        z = cut.front("layer2.0.add")(x)
        logits, activations = cut.tail("layer2.0.add", taps).observe(z)
        seen_logits, seen = cut.observer(taps).observe(x)
        expected = [cut.front(tap)(x) for tap in taps]
        assert torch.equal(logits, network(x))
        assert torch.equal(seen_logits, logits)
    assert activations[3] is z
    for one, other, front in zip(activations, seen, expected, strict=True):
        assert torch.equal(one, front)
        assert torch.equal(other, front)


def test_a_tap_before_the_cut_is_refused_by_name(cut_networks) -> None:
    _, cut = cut_networks("torchvision/resnet18")
    with pytest.raises(RaystitchError, match=r"resnet18.*'layer2\.0'.*'conv1'"):
        cut.tail("layer2.0", ["layer3.0", "conv1"])
    with pytest.raises(RaystitchError, match=r"no such cut.*did you mean 'layer2\.1"):
        cut.front("layer2.11")


def test_the_normaliser_is_in_front_and_observer() -> None:
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    network = make("raystitch/cnn5", {}, 16, mean=mean, std=std)
    cut = CutNetwork(network)
    x = images(network, 3)
    with torch.no_grad():
        normal = (x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
        assert torch.equal(cut.front("blocks.1")(x), network.net[0][:2](normal))
        assert torch.equal(cut.observer([])(x), network(x))
        assert torch.equal(cut.tail("blocks.1")(network.net[0][:2](normal)), network(x))


def test_gradients_of_the_halves_are_those_of_the_network(cut_networks) -> None:
    network, cut = cut_networks("raystitch/cnn5")
    whole, halves = (images(network, 3).requires_grad_() for _ in range(2))
    front, tail = cut.front("blocks.2"), cut.tail("blocks.2")
    F.cross_entropy(network(whole), torch.tensor([1, 2, 3])).backward()
    F.cross_entropy(tail(front(halves)), torch.tensor([1, 2, 3])).backward()
    assert whole.grad is not None
    assert torch.allclose(whole.grad, halves.grad, rtol=1e-5, atol=1e-9)
    assert all(p.grad is None for p in network.parameters())


def test_halves_share_the_weights_as_they_are(cut_networks) -> None:
    network = make("raystitch/cnn5", {}, 16)
    cut = CutNetwork(network)
    tail, x = cut.tail("blocks.2"), images(network, 2)
    with torch.no_grad():
        network.net[2].weight.mul_(2.0)
        assert torch.equal(tail(cut.front("blocks.2")(x)), network(x))


def test_check_finds_a_network_that_has_changed() -> None:
    network = make("raystitch/cnn5", {}, 16)
    cut = CutNetwork(network)
    cut.check("blocks.2", images(network, 2))
    network.net[1] = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
    with pytest.raises(RaystitchError, match=r"cnn5 cut at 'blocks\.2'.*differ"):
        cut.check("blocks.2", images(network, 2))


def test_the_network_is_left_as_it_was() -> None:
    network = make("torchvision/resnet18", {}, 32).train()
    network.net.layer1.eval()
    network.net.conv1.weight.requires_grad_(True)
    network.net.layer2.register_forward_hook(lambda *_: None)

    def state() -> object:
        parts = [
            (name, id(m), m.training, getattr(m, "inplace", None), len(m._forward_hooks))
            for name, m in network.named_modules()
        ]
        weights = [(name, id(p), p.requires_grad) for name, p in network.named_parameters()]
        return parts, weights, digest(network)

    before = state()
    cut = CutNetwork(network)
    cut.front("layer1.0")
    cut.tail("layer1.0")(torch.rand(2, 64, 8, 8))
    cut.check("layer1.0", images(network, 2))
    assert state() == before
    # The halves are in evaluation mode although the network is not, and stay so.
    x, tail = images(network, 2), cut.tail("layer1.0")
    z = cut.front("layer1.0")(x)
    with torch.no_grad():
        assert torch.equal(tail(z), network.eval()(x))


class Block(nn.Module):
    """conv, in-place ReLU, and a residual that goes around a second use of that ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(x))
        return self.relu(x + self.conv(x))


class Toy(nn.Module):
    """stem, some body, pooled logits; the body is what a test varies."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.body = body
        self.fc = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


class Plain(nn.Module):
    """A body made of a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_a_module_called_twice_has_two_names_and_is_reported_as_shared() -> None:
    network = wrap(Toy(Block()))
    cut = CutNetwork(network)
    assert [c.name for c in cut.card.cuts] == [
        *("stem", "body.conv", "body.relu", "body.add", "body.relu_1", "mean")
    ]
    assert cut.card.cut("body").name == "body.relu_1"
    assert any("body.conv.weight is in both halves at body.conv to" in n for n in cut.card.notes)
    assert_exact_everywhere(network, cut)


@pytest.mark.parametrize(
    "body",
    [
        nn.ReLU(inplace=True),
        Plain(lambda x: F.relu(x, inplace=True)),
        Plain(lambda x: F.relu(x, True)),
        Plain(lambda x: x.relu_().mul_(2)),
        Plain(lambda x: torch.relu_(x)),
        Plain(lambda x: (x.relu_(), x)[1]),
        Plain(lambda x: (F.relu(x, inplace=True), x.add_(1), x * 2)[2]),
    ],
)
def test_what_is_captured_is_not_overwritten_in_place(body: nn.Module) -> None:
    network = wrap(Toy(body))
    cut = CutNetwork(network)
    assert_exact_everywhere(network, cut)
    with torch.no_grad():
        x = images(network, 2)
        z = network.net.stem(x)
        assert (z < 0).any()
        given = z.clone()
        _, (tapped,) = cut.tail("stem", ["stem"]).observe(given)
        _, (observed,) = cut.observer(["stem"]).observe(x)
        assert torch.equal(given, z)
        assert torch.equal(tapped, z)
        assert torch.equal(observed, z)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Tanh())
        self.right = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * self.right(x)


def test_a_branch_that_passes_by_leaves_no_cut_inside() -> None:
    network = wrap(Toy(Branches()))
    cut = CutNetwork(network)
    assert [card.name for card in cut.card.cuts] == ["stem", "body", "mean"]
    assert_exact_everywhere(network, cut)


class Folded(nn.Module):
    """Puts the halves of every image into the batch and back, by sizes it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 1)
        self.offset = nn.Parameter(torch.randn(1, 4, 1, 1))
        self.mix = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        halves = self.conv(x.reshape(batch * 2, channels // 2, height, width)).tanh()
        whole = halves.reshape(batch, channels, height, width)
        return self.mix(whole + self.offset.expand(batch, -1, -1, -1).to(x.dtype))


def test_batch_sizes_are_computed_again_and_multiplied_batches_hidden() -> None:
    network = wrap(Toy(Folded()))
    cut = CutNetwork(network)
    assert [card.name for card in cut.card.cuts] == ["stem", "body", "mean"]
    assert len(cut.card.notes) == 2
    assert_exact_everywhere(network, cut)


def test_sizes_and_types_follow_the_halfs_own_input() -> None:
    network = wrap(Toy(Folded())).double()
    cut = CutNetwork(network)
    x = images(network, 4).double()
    with torch.no_grad():
        assert torch.equal(cut.tail("stem")(cut.front("stem")(x)), network(x))


def _writes_into_a_view(x: Tensor) -> Tensor:
    flat = x.flatten(1)
    flat.relu_()
    return x


def _writes_into_a_slice(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


def _writes_by_augmented_assignment(x: Tensor) -> Tensor:
    same = x
    x += 1
    return same


def _branches_on_values(x: Tensor) -> Tensor:
    return x if x.mean() > 0 else -x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_branches_on_values, r"cannot follow body at `return x if x\.mean\(\) > 0 else -x`"),
        (_writes_into_a_slice, r"cannot follow body at `x\[:, 0\] = 0`"),
        (_writes_into_a_view, "'relu' in 'body'"),
        (_writes_by_augmented_assignment, "other logits than the network"),
    ],
)
def test_what_cannot_be_traced_is_named(function: Callable[[Tensor], Tensor], words: str) -> None:
    with pytest.raises(RaystitchError, match=rf"own/net cannot be cut: .*{words}") as caught:
        CutNetwork(wrap(Toy(Plain(function))))
    assert "\n" not in str(caught.value)


class TwoAnswers(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def test_a_network_without_one_tensor_of_logits_is_named() -> None:
    with pytest.raises(RaystitchError, match=r"own/net cannot be cut.*one tensor of logits"):
        CutNetwork(wrap(nn.Sequential(nn.Conv2d(3, 4, 1), TwoAnswers())))


@pytest.mark.parametrize(
    ("layout", "old", "new", "expected"),
    [
        ("NCHW", (2, 8, 4, 4), (2, 8, 16), "NCT"),
        ("NCHW", (2, 8, 1, 1), (2, 8), "NC"),
        ("NCHW", (2, 8, 4, 4), (2, 128), "NF"),
        ("NHWC", (2, 4, 4, 8), (2, 16, 8), "NTC"),
        ("NTC", (2, 16, 8), (2, 4, 4, 8), "NHWC"),
        ("NCT", (2, 8, 16), (2, 8, 4, 4), "NCHW"),
        ("NTC", (2, 16, 24), (2, 16, 3, 2, 4), "NTCCC"),
        ("NHWC", (2, 4, 4, 8), (2, 2, 2, 2, 2, 8), "NHhWwC"),
        ("NHWhwC", (2, 2, 2, 2, 2, 8), (2, 2, 2, 32), "NHWC"),
        ("NHhWwC", (2, 2, 2, 2, 2, 8), (2, 4, 4, 8), "NHWC"),
        ("NHWC", (2, 4, 4, 8), (32, 8), "?C"),
    ],
)
def test_reshaping_keeps_track_of_the_axes(
    layout: str, old: tuple[int, ...], new: tuple[int, ...], expected: str
) -> None:
    assert math.prod(old) == math.prod(new)
    assert "".join(regroup(tuple(layout), old, new)) == expected
