"""From an architecture and its weights to a network that owns its normaliser."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raystitch.errors import RaystitchError
from raystitch.seeds import derive
from raystitch.zoo import weights
from raystitch.zoo.architectures import make

Module = TypeVar("Module", bound=nn.Module)


class Normaliser(nn.Module):
    """(x - mean) / std per channel, for images (batch, channels, height, width) in [0, 1].

    The figures are settings, not weights: they are no part of the state dict.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


class Network(nn.Module):
    """A classifier of images in [0, 1]: its normaliser, then the net itself.

    input_shape: (channels, height, width). forward: (batch, *input_shape) to logits
    (batch, classes).
    """

    def __init__(
        self,
        net: nn.Module,
        normaliser: nn.Module,
        *,
        arch: str,
        kwargs: Mapping[str, Any],
        classes: int,
        input_shape: tuple[int, int, int],
    ) -> None:
        super().__init__()
        self.normaliser = normaliser
        self.net = net
        self.arch = arch
        self.kwargs = dict(kwargs)
        self.classes = classes
        self.input_shape = input_shape

    def forward(self, images: Tensor) -> Tensor:
        return self.net(self.normaliser(images))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device


def build(
    arch: str,
    kwargs: Mapping[str, Any],
    *,
    classes: int,
    input_shape: tuple[int, int, int],
    seed: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    pretrained: bool = False,
) -> Network:
    """A network on the CPU, in evaluation mode, with initial weights of ``seed``.

    arch: ``FAMILY/NAME`` of `architectures.FAMILIES`; kwargs: the architecture's own arguments.
    mean, std: the normaliser, per channel; with ``pretrained`` that of the weights by default.
    The global random state is left as it was. Raises `RaystitchError` where the architecture or
    its arguments are unknown, and where it does not take images of ``input_shape``.
    """
    if (mean is None) != (std is None):
        raise RaystitchError(f"{arch}: give both `mean` and `std`, or neither.")
    with seeded(derive("initial weights", seed)):
        built = make(arch, kwargs, classes, input_shape[0], pretrained)
    normaliser = _normaliser(arch, mean or built.mean, std or built.std, input_shape[0])
    network = Network(
        built.net, normaliser, arch=arch, kwargs=kwargs, classes=classes, input_shape=input_shape
    ).eval()
    _try_out(network)
    return network


def load_weights(network: Network, path: Path) -> None:
    """Put a file's weights into the network: all of them, and nothing else.

    Takes ``.safetensors``, and ``.pth``, ``.pt`` (read without running code). The weights may lie
    under ``model`` or ``state_dict`` and carry a common prefix such as ``module.``. Raises
    `RaystitchError` listing what is missing, unexpected or of another shape; the network is then
    as it was.
    """
    weights.load(network.net, weights.read(path), f"{path} for {network.arch}")


def freeze(network: Module) -> Module:
    """Evaluation mode, and no parameter asks for a gradient; the network itself is returned."""
    return network.eval().requires_grad_(False)


def digest(module: nn.Module) -> str:
    """SHA-256 over every parameter and buffer: name, dtype, shape and bytes, by name."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Generator[None]:
    """Draw from ``seed`` inside; the global random state (CPU and ``device``) returns after."""
    device = torch.device(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        # torch.manual_seed would also seed the devices that are not restored.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@contextmanager
def evaluating(module: nn.Module) -> Generator[None]:
    """Evaluation mode inside; after it, every submodule is in the mode it was in."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _normaliser(
    arch: str, mean: Sequence[float] | None, std: Sequence[float] | None, channels: int
) -> nn.Module:
    if mean is None or std is None:
        return nn.Identity()
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise RaystitchError(
            f"{arch}: mean {list(mean)} and std {list(std)} must each have {channels} values, one "
            "per channel, and every std must be above 0."
        )
    return Normaliser(mean, std)


def _try_out(network: Network) -> None:
    """One image through the network, so that a wrong size is found here and not in a run."""
    shape, classes = network.input_shape, network.classes
    try:
        with torch.no_grad():
            logits = network(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, AssertionError, TypeError, IndexError) as fault:
        raise RaystitchError(
            f"{network.arch} does not take images of {shape} (channels, height, width): "
            f"{str(fault).rstrip('.')}. "
            "Some architectures must be told the size in `kwargs`, as `img_size` (timm) or "
            "`image_size` (torchvision)."
        ) from fault
    if not isinstance(logits, Tensor) or logits.shape != (1, classes):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise RaystitchError(
            f"{network.arch} gives {got} for one image, not logits of shape (1, {classes}): "
            "this zoo takes classifiers only; check its `kwargs`."
        )
