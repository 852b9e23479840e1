"""Where networks come from: this project's own, torchvision's and timm's.

A family is one entry of `FAMILIES`; an own architecture is one entry of `OWN`.
"""

from __future__ import annotations

import difflib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

from torch import nn

from raystitch.errors import RaystitchError, choices

CNN5_WIDTHS_STRIDES = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1))

SET_ELSEWHERE = frozenset(
    {"num_classes", "in_chans", "pretrained", "weights", "weights_backbone", "checkpoint_path"}
    | {"pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "progress"}
)
"""Arguments that the sweep file sets by other means; some of them would load files unchecked."""

# Both return a tuple in training mode when they have auxiliary heads, which this zoo has no use
# for; `init_weights` is what torchvision does anyway, with a warning that it takes long.
_TORCHVISION_ARGUMENTS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


@dataclass(frozen=True)
class Built:
    """A network as its family makes it.

    mean, std: per channel, what pretrained weights expect of pixels in [0, 1]; None otherwise.
    """

    net: nn.Module
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def cnn5(classes: int, channels: int) -> nn.Module:
    """Five 3x3 convolution-BatchNorm-ReLU blocks (`blocks.0` to `blocks.4`), mean pool, linear."""
    blocks: list[nn.Module] = []
    width = channels
    for wider, stride in CNN5_WIDTHS_STRIDES:
        convolution = nn.Conv2d(width, wider, 3, stride=stride, padding=1, bias=False)
        blocks.append(nn.Sequential(convolution, nn.BatchNorm2d(wider), nn.ReLU()))
        width = wider
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts = {"blocks": nn.Sequential(*blocks), "pool": pool, "fc": nn.Linear(width, classes)}
    return nn.Sequential(OrderedDict(parts))


def resnet18_cifar(classes: int, channels: int, width: int = 64) -> nn.Module:
    """ResNet-18 for images of 32 × 32: a 3×3 stem of stride 1 and no max-pool (He et al. 2016).

    width: of the first stage, doubled in each of the three after it.
    """
    from torchvision.models.resnet import BasicBlock, ResNet

    class Narrow(ResNet):
        def __init__(self) -> None:
            super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=classes)
            if width != 64:
                self.inplanes, self.bn1 = width, nn.BatchNorm2d(width)
                for stage in range(4):
                    blocks = self._make_layer(BasicBlock, width << stage, 2, 1 + (stage > 0))
                    setattr(self, f"layer{stage + 1}", _initialised(blocks))
                self.fc = nn.Linear(8 * width, classes)

    net = Narrow()
    net.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    _initialised(net.conv1)
    net.maxpool = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return net


def _initialised(part: nn.Module) -> nn.Module:
    """The part with its convolutions drawn as torchvision draws those of a ResNet."""
    for module in part.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return part


OWN: dict[str, Callable[..., nn.Module]] = {"cnn5": cnn5, "resnet18_cifar": resnet18_cifar}
"""Each takes classes and channels, and keyword arguments of its own."""


def make(
    arch: str, kwargs: Mapping[str, Any], classes: int, channels: int, pretrained: bool
) -> Built:
    """Build ``FAMILY/NAME`` with the family's own arguments, on the CPU.

    Raises `RaystitchError` for an unknown name (naming the nearest), arguments that the
    architecture does not take, and pretrained weights that do not exist or cannot be fetched.
    """
    family, slash, name = arch.partition("/")
    if not slash or family not in FAMILIES:
        raise RaystitchError(
            f"an architecture is written FAMILY/NAME, as raystitch/cnn5; in {arch!r} the family "
            f"{choices(family, FAMILIES)}."
        )
    if taken := SET_ELSEWHERE & set(kwargs):
        raise RaystitchError(
            f"kwargs of {arch} may not hold {', '.join(sorted(taken))}: classes and channels "
            "follow from the data, and weights are given by `pretrained: true` or `weights: FILE`."
        )
    return FAMILIES[family](name, kwargs, classes, channels, pretrained)


def _own(
    name: str, kwargs: Mapping[str, Any], classes: int, channels: int, pretrained: bool
) -> Built:
    if name not in OWN:
        raise RaystitchError(f"raystitch has no such architecture: {choices(name, OWN)}.")
    taken = list(signature(OWN[name]).parameters)[2:]
    if unknown := sorted(set(kwargs) - set(taken)):
        told = f"only {', '.join(taken)}" if taken else "no kwargs"
        raise RaystitchError(f"raystitch/{name} takes {told}, not {', '.join(unknown)}.")
    if wrong := [key for key, value in kwargs.items() if type(value) is not int or value < 1]:
        given = ", ".join(f"{key}={kwargs[key]!r}" for key in wrong)
        raise RaystitchError(f"raystitch/{name} takes whole numbers from 1, not {given}.")
    if pretrained:
        raise RaystitchError(
            f"there are no pretrained weights of raystitch/{name}: leave out `pretrained`."
        )
    return Built(OWN[name](classes, channels, **kwargs))


def _torchvision(
    name: str, kwargs: Mapping[str, Any], classes: int, channels: int, pretrained: bool
) -> Built:
    # Imported here, as timm below: each takes about a second, and most sweeps use one at most.
    from torchvision import models

    _known("torchvision", name, name, models.list_models(module=models))
    arch = f"torchvision/{name}"
    if channels != 3:
        raise RaystitchError(
            f"{arch} takes images of 3 channels, not {channels}; timm networks take any number."
        )
    arguments: dict[str, Any] = {**_TORCHVISION_ARGUMENTS.get(name, {}), **kwargs}
    if not pretrained:
        return Built(_call(arch, models.get_model, name, num_classes=classes, **arguments))
    weights: Any = cast(Any, models.get_model_weights(name)).DEFAULT
    _same_classes(arch, classes, len(weights.meta["categories"]))
    preset = weights.transforms()
    net = _fetch(arch, models.get_model, name, weights=weights, progress=False, **arguments)
    return Built(net, tuple(preset.mean), tuple(preset.std))


def _timm(
    name: str, kwargs: Mapping[str, Any], classes: int, channels: int, pretrained: bool
) -> Built:
    import timm

    _known("timm", name, name.split(".")[0], timm.list_models())
    arch = f"timm/{name}"
    arguments = {"num_classes": classes, "in_chans": channels, **kwargs}
    if not pretrained:
        return Built(_call(arch, timm.create_model, name, **arguments))
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise RaystitchError(f"there are no pretrained weights of {arch}: leave out `pretrained`.")
    _same_classes(arch, classes, config.num_classes)
    net = _fetch(arch, timm.create_model, name, pretrained=True, **arguments)
    return Built(net, tuple(config.mean), tuple(config.std))


FAMILIES: dict[str, Callable[[str, Mapping[str, Any], int, int, bool], Built]] = {
    "raystitch": _own,
    "torchvision": _torchvision,
    "timm": _timm,
}


def _known(family: str, given: str, name: str, names: Iterable[str]) -> None:
    allowed = set(names)
    if name not in allowed:
        near = difflib.get_close_matches(name, sorted(allowed), n=3)
        nearest = f"did you mean {' or '.join(near)}?" if near else "no name of it is near."
        raise RaystitchError(
            f"{family} has no architecture {given!r} (it has {len(allowed)}); {nearest}"
        )


def _same_classes(arch: str, classes: int, theirs: int | None) -> None:
    # Both libraries would give such a network a random last layer and say nothing.
    if classes != theirs:
        raise RaystitchError(
            f"the pretrained weights of {arch} know {theirs} classes, the data have {classes}: "
            "give weights of your own that were trained for these classes (`weights: FILE`)."
        )


def _call(arch: str, builder: Callable[..., Any], name: str, **arguments: Any) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return builder(name, **arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError, KeyError) as fault:
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise RaystitchError(
            f"{arch} cannot be built with {given}: {fault}. Check its kwargs."
        ) from fault


def _fetch(arch: str, builder: Callable[..., Any], name: str, **arguments: Any) -> nn.Module:
    try:
        return _call(arch, builder, name, **arguments)
    except OSError as fault:
        raise RaystitchError(
            f"the pretrained weights of {arch} could not be fetched ({fault}): see that this "
            "machine reaches them, or download them and give the file as `weights: FILE`."
        ) from fault
