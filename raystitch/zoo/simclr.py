"""SimCLR (Chen et al. 2020): a network trained without labels, then a linear classifier on it.

Two random views of an image shall be nearer to each other, behind a small projector, than to the
views of all other images of the batch. The classifier is the network's own last linear layer,
trained on labels while everything before it is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raystitch.data.images import LabelledImages
from raystitch.data.markers import PlantedMarker
from raystitch.errors import RaystitchError
from raystitch.seeds import derive
from raystitch.settings import Recipe
from raystitch.zoo.augment import marked
from raystitch.zoo.batches import OnEpoch, batches_of, descend, run_epochs, sgd
from raystitch.zoo.models import Network, freeze

Views = Callable[[Tensor], Tensor]

JITTER = 0.5
"""Strength of the colour jitter at 32 × 32 (Chen et al. 2020, appendix B.9)."""


def nt_xent(projections: Tensor, temperature: float) -> Tensor:
    """Normalised temperature-scaled cross-entropy: a scalar, the mean over all views.

    projections: (2 n, width), the views of image i at i and at n + i. Each view's partner is told
    from the 2 n - 2 others by cosine similarity / temperature.
    """
    unit = F.normalize(projections, dim=1)
    likeness = unit @ unit.T / temperature
    count = len(projections)
    itself = torch.eye(count, dtype=torch.bool, device=projections.device)
    partner = torch.arange(count, device=projections.device).roll(count // 2)
    return F.cross_entropy(likeness.masked_fill(itself, -torch.inf), partner)


def simclr(
    network: Network,
    images: LabelledImages,
    recipe: Recipe,
    seed: int,
    marker: PlantedMarker | None,
    on_epoch: OnEpoch,
) -> None:
    """Train in place: ``epochs`` on views alone, then ``linear_epochs`` of the last layer.

    Raises `RaystitchError` for a network that does not end in a linear layer.
    """
    name, head = _head(network)
    network.train().requires_grad_(True)
    _replace(network.net, name, nn.Identity())
    projector = nn.Sequential(
        nn.Linear(head.in_features, recipe.hidden),
        nn.ReLU(),
        nn.Linear(recipe.hidden, recipe.projection),
    ).to(network.device)
    try:
        _contrast(network, projector, images, recipe, seed, marker, on_epoch)
    finally:
        _replace(network.net, name, head)
    _classify(network, head, images, recipe, seed, marker, on_epoch)


def _contrast(
    network: Network,
    projector: nn.Module,
    images: LabelledImages,
    recipe: Recipe,
    seed: int,
    marker: PlantedMarker | None,
    on_epoch: OnEpoch,
) -> None:
    optimizer = sgd([*network.parameters(), *projector.parameters()], recipe)
    views = _views(images.shape)

    def loss_of(both: Tensor, labels: Tensor) -> Tensor:
        return nt_xent(projector(network(both)), recipe.temperature)

    def loss_of_epoch(epoch: int) -> float:
        places = np.random.default_rng(derive("view marker places", seed, epoch))

        def both_views() -> Iterator[tuple[Tensor, Tensor]]:
            for pixels, labels in batches_of(images, None, recipe.batch, seed, epoch):
                both = torch.cat([torch.stack([*map(views, pixels)]) for _ in range(2)])
                if marker is not None:
                    both = marked(both, labels.repeat(2).numpy(), marker, places)
                yield both, labels

        return descend(optimizer, both_views(), loss_of, network.device)

    whose = f"training of {network.arch} by the recipe 'simclr'"
    run_epochs(optimizer, recipe.epochs, recipe.lr, loss_of_epoch, on_epoch, whose)


def _classify(
    network: Network,
    head: nn.Linear,
    images: LabelledImages,
    recipe: Recipe,
    seed: int,
    marker: PlantedMarker | None,
    on_epoch: OnEpoch,
) -> None:
    freeze(network)
    head.requires_grad_(True)
    head.reset_parameters()
    optimizer = sgd(head.parameters(), recipe)

    def loss_of(pixels: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(network(pixels), labels)

    def loss_of_epoch(epoch: int) -> float:
        first = recipe.epochs + epoch  # orders and places of their own
        batches = batches_of(images, marker, recipe.batch, seed, first)
        return descend(optimizer, batches, loss_of, network.device)

    def later(epoch: int, loss: float) -> None:
        on_epoch(recipe.epochs + epoch, loss)

    whose = f"training of the linear classifier of {network.arch} (`linear_lr`)"
    run_epochs(optimizer, recipe.linear_epochs, recipe.linear_lr, loss_of_epoch, later, whose)


def _views(shape: tuple[int, int, int]) -> Views:
    """The views of SimCLR at small sizes: crop, mirror, colours, grey; no blur."""
    from torchvision.transforms import v2

    channels, height, width = shape
    strong = (0.8 * JITTER, 0.8 * JITTER, 0.8 * JITTER, 0.2 * JITTER)
    colours: list[nn.Module] = [
        v2.RandomApply([v2.ColorJitter(*strong)], p=0.8),
        v2.RandomGrayscale(p=0.2),
    ]
    parts: list[nn.Module] = [
        v2.RandomResizedCrop((height, width), antialias=True),
        v2.RandomHorizontalFlip(),
        *(colours if channels == 3 else []),
    ]
    return v2.Compose(parts)


def _head(network: Network) -> tuple[str, nn.Linear]:
    """The last linear layer, which gives the logits, and its name."""
    found = [(n, m) for n, m in network.net.named_modules() if isinstance(m, nn.Linear)]
    if not found or found[-1][1].out_features != network.classes:
        raise RaystitchError(
            f"recipe: simclr needs a network that ends in a linear layer of {network.classes} "
            f"classes, which {network.arch} does not; use another recipe or architecture."
        )
    return found[-1]


def _replace(net: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(net.get_submodule(parent), child, module)
