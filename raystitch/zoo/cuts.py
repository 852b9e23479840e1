"""Cutting a network: its cut points, the half before one and the half after it.

A cut is a place that no data passes by, found in the graph of the network's operations and not
listed by hand. The halves share the network's weights and buffers as they are when it is cut: move
a network to its device and load its weights first. Image size and evaluation mode are fixed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from raystitch.cards import CutCard, NetworkCard
from raystitch.compute import Compute
from raystitch.errors import RaystitchError
from raystitch.zoo.graph import DataFlow, data_flow
from raystitch.zoo.lean import Leaner
from raystitch.zoo.models import Network, build, evaluating
from raystitch.zoo.modes import fixed_bn, fixed_dropout
from raystitch.zoo.naming import IDLE, Place, find_places
from raystitch.zoo.tracing import in_net, own_structure


class Front(nn.Module):
    """The early half: images (batch, channels, height, width) in [0, 1] to the cut's activation.

    Holds the normaliser, and of the network's weights only those it needs.
    """

    def __init__(self, normaliser: nn.Module, half: nn.Module) -> None:
        super().__init__()
        self.normaliser = normaliser
        self.graph = half

    def forward(self, images: Tensor) -> Tensor:
        return self.graph(self.normaliser(images))[0]


class Tail(nn.Module):
    """The late half: a cut's activation z (batch, ...) to logits (batch, classes).

    An observer is a tail that begins at the images, normaliser included.
    """

    def __init__(self, half: nn.Module, normaliser: nn.Module | None = None) -> None:
        super().__init__()
        self.normaliser = normaliser if normaliser is not None else nn.Identity()
        self.graph = half

    def forward(self, z: Tensor) -> Tensor:
        return self.graph(self.normaliser(z))[0]

    def observe(self, z: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The logits and the activations at the taps, in the order the taps were given."""
        logits, *activations = self.graph(self.normaliser(z))
        return logits, tuple(activations)


class CutNetwork:
    """A network that can be cut.

    The network is not changed: it is traced as a copy of its structure that shares its weights,
    in evaluation mode. Raises `RaystitchError` naming the network and the operation where it
    cannot be traced, or where the trace does not give the network's own logits bit for bit.

    card: its cuts with names, kinds, shapes, FLOPs and sets.
    """

    card: NetworkCard

    def __init__(self, network: Network) -> None:
        self._network = network
        self._flow = data_flow(network.net, network.input_shape, network.arch)
        self._normaliser = own_structure(network.normaliser).eval()
        places, notes = find_places(self._flow, network.arch)
        self._places = {place.name: place for place in places}
        self._lean = Leaner(Compute())
        self.card = _card(network, self._flow, places, notes)
        self._check_trace()

    def under(self, compute: Compute) -> CutNetwork:
        """The same network whose halves compute as these settings say: not bit for bit as it."""
        lean = copy.copy(self)
        lean._lean = Leaner(compute)
        return lean

    def front(self, cut: str) -> Front:
        """Everything up to and with ``cut``."""
        half = self._flow.half(self._flow.images, [self._place(cut).node])
        return Front(self._normaliser, self._lean(half))

    def tail(self, cut: str, taps: Sequence[str] = ()) -> Tail:
        """Everything after ``cut``; ``taps`` are cuts at or after it that `observe` returns.

        A tap that is the cut itself returns z.
        """
        start = self._place(cut)
        before = {c.name for c in self.card.cuts[: self.card.cut(cut).index - 1]}
        if early := [tap for tap in taps if self.card.cut(tap).name in before]:
            raise RaystitchError(
                f"{self.card.arch}: the tail that begins at {cut!r} does not reach "
                f"{', '.join(map(repr, early))}, which comes before it; tap cuts at or after it."
            )
        return Tail(self._half_to_logits(start.node, taps))

    def observer(self, taps: Sequence[str]) -> Tail:
        """The whole network from the images on, observed at ``taps``."""
        return Tail(self._half_to_logits(self._flow.images, taps), self._normaliser)

    def check(self, cut: str, images: Tensor) -> None:
        """Raise `RaystitchError` unless tail(front(images)) is the network's answer bit for bit."""
        with torch.no_grad(), evaluating(self._network):
            whole = self._network(images)
            halves = self.tail(cut)(self.front(cut)(images))
        if not _equal(whole, halves):
            raise RaystitchError(
                f"{self.card.arch} cut at {cut!r} does not give its own logits: they differ by "
                f"up to {_difference(whole, halves):.3g}. Do not use this cut; report the network."
            )

    def _half_to_logits(self, start: fx.Node, taps: Sequence[str]) -> nn.Module:
        outputs = [self._flow.logits, *(self._place(tap).node for tap in taps)]
        return self._lean(self._flow.half(start, outputs))

    def _place(self, cut: str) -> Place:
        return self._places[self.card.cut(cut).name]

    def _check_trace(self) -> None:
        """What fx gets wrong it gets wrong silently: compare once, on two images."""
        network = self._network
        first = next(iter(network.parameters()), torch.empty(0))
        count = 2 * torch.Size(network.input_shape).numel()
        images = torch.linspace(0, 1, count, device=first.device, dtype=first.dtype)
        images = images.view(2, *network.input_shape)
        with torch.no_grad(), evaluating(network):
            whole, traced = network(images), self.observer(())(images)
        if not _equal(whole, traced):
            raise RaystitchError(
                f"{network.arch} cannot be cut: its trace gives other logits than the network, by "
                f"up to {_difference(whole, traced):.3g}. It writes into a view of an activation, "
                "draws random numbers, or depends on hooks; rewrite that part."
            )


def describe(
    arch: str, kwargs: dict[str, Any], classes: int, input_shape: tuple[int, int, int]
) -> NetworkCard:
    """The card of an architecture, made from an untrained network."""
    network = build(arch, kwargs, classes=classes, input_shape=input_shape, seed=0)
    return CutNetwork(network).card


def _card(network: Network, flow: DataFlow, places: list[Place], notes: list[str]) -> NetworkCard:
    flops = flow.flops()
    cuts = tuple(
        CutCard(
            index=index,
            name=place.name,
            kind=place.kind,
            shape=place.shape,
            flops=flops[place.node],
            aliases=place.aliases,
            sets=tuple(name for name in ("blocks", "stages", "paper") if name in place.sets),
            patches=place.patches,
        )
        for index, place in enumerate(places, 1)
    )
    return NetworkCard(
        arch=network.arch,
        kwargs=dict(network.kwargs),
        input_shape=network.input_shape,
        classes=network.classes,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        flops=flops[flow.logits],
        cuts=cuts,
        notes=(*notes, *_shared_weights(flow, places)),
        linear_head=_ends_in_linear(network.net, flow),
        fixed_dropout=fixed_dropout(flow.trace),
        fixed_bn=fixed_bn(flow.trace),
    )


def _ends_in_linear(net: nn.Module, flow: DataFlow) -> bool:
    """Whether the last linear layer among the modules gives the logits."""
    linear = [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]
    last = flow.logits
    while last.op == "call_module":
        name = in_net(str(last.target))
        if not isinstance(flow.module(name), IDLE):
            return linear[-1:] == [name]
        last = flow.parents(last)[0]
    return False


def _shared_weights(flow: DataFlow, places: list[Place]) -> list[str]:
    """A note where a weight is read on both sides of a cut: both halves hold it."""
    at = {place.name: flow.data.index(place.node) for place in places}
    notes: list[str] = []
    for weight, readers in flow.weights_at().items():
        between = [n for n, where in at.items() if min(readers) <= where < max(readers)]
        if between:
            span = between[0] if len(between) == 1 else f"{between[0]} to {between[-1]}"
            notes.append(f"{in_net(weight)} is in both halves at {span}.")
    return notes


def _equal(one: Tensor, other: Tensor) -> bool:
    """Bit for bit; NaN, which equals nothing, must stand where NaN stands."""
    return torch.equal(one.isnan(), other.isnan()) and torch.equal(
        one.nan_to_num(), other.nan_to_num()
    )


def _difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())
