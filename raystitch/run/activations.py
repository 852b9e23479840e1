"""What frozen networks answer on a set of images: kept where that pays, else computed when asked.

A frozen half gives the same answer in every epoch, so it is computed once for all objectives and
epochs, and what several units need once for a node: in files that its workers map
(`activation_cache`). What one unit alone needs is kept in its worker's memory. Where there is no
room, or where reading takes longer than computing (`worth_keeping`), it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.linalg import vector_norm

from raystitch.cards import NetworkCard
from raystitch.compute import Compute
from raystitch.data.images import LabelledImages
from raystitch.run.activation_cache import ActivationCache, Entry
from raystitch.stitching.evaluate import Answers
from raystitch.stitching.objectives import Answer
from raystitch.sweep.keeping import COMPUTE_BATCH, LOGITS, pass_flops, worth_keeping
from raystitch.sweep.keys import content_key
from raystitch.zoo.cuts import CutNetwork, Tail
from raystitch.zoo.pixels import to_unit

CACHE_VERSION = 1
"""Part of every key: raised when halves come to answer otherwise."""

Network = Callable[[Tensor], Answer]
"""Images (batch, channels, height, width) in [0, 1] -> the network's answer."""


@dataclass(frozen=True)
class Frozen:
    """A frozen network to be observed. identity: all that its answers depend on but the images."""

    network: CutNetwork
    identity: Mapping[str, Any]

    @property
    def card(self) -> NetworkCard:
        return self.network.card

    def at(self, places: Sequence[str]) -> Network:
        """What it answers at these places: cuts, or `LOGITS`. Runs no further than it must."""
        cuts = tuple(place for place in places if place != LOGITS)
        if LOGITS in places or len(cuts) != 1:
            return observed(self.network, cuts)
        half = self.network.front(cuts[0])
        return lambda images: Answer({cuts[0]: half(images)})


def observed(network: CutNetwork, taps: tuple[str, ...]) -> Network:
    """The whole network as a function of images that answers at these cuts."""
    return answering(network.observer(taps), taps)


def answering(observer: Tail, taps: tuple[str, ...]) -> Network:
    """The same of an observer that is there already, made with these taps."""

    def answer(images: Tensor) -> Answer:
        logits, activations = observer.observe(images)
        return Answer(dict(zip(taps, activations, strict=True)), logits)

    return answer


class Recomputed:
    """Answers computed each time they are asked for; activations rounded as kept ones are."""

    def __init__(
        self,
        network: Network,
        pixels: npt.NDArray[np.uint8],
        device: torch.device,
        keep: torch.dtype = torch.float32,
    ) -> None:
        self.network, self.pixels, self.device, self.keep = network, pixels, device, keep

    def __len__(self) -> int:
        return len(self.pixels)

    def __call__(self, positions: Tensor) -> Answer:
        with torch.no_grad():
            found = self.network(to_unit(self.pixels[positions.numpy()], self.device))
        if self.keep == torch.float32:
            return found
        rounded = {cut: held.to(self.keep).float() for cut, held in found.activations.items()}
        return Answer(rounded, found.logits)


class Kept:
    """Answers held as arrays, in memory or mapped from a file."""

    def __init__(self, held: Mapping[str, _Held], device: torch.device) -> None:
        self.held, self.device = held, device

    def __len__(self) -> int:
        return len(next(iter(self.held.values())).array)

    def __call__(self, positions: Tensor) -> Answer:
        found = {place: held.rows(positions, self.device) for place, held in self.held.items()}
        return Answer({p: found[p] for p in found if p != LOGITS}, found.get(LOGITS))


@dataclass(frozen=True)
class _Held:
    """One array: rows are images. last: its maps have their channels last, as they lie in memory.

    error: largest relative error of its precision over batches; entry: where it is mapped from.
    """

    array: Tensor
    last: bool
    error: float = 0.0
    entry: Entry | None = None

    def rows(self, positions: Tensor, device: torch.device) -> Tensor:
        # Rows are copied whole: several times as fast as general indexing.
        found = self.array.index_select(0, positions.to(self.array.device))
        if found.device != device:
            found = found.pin_memory().to(device, non_blocking=True)
        found = found.float()
        return found.permute(0, 3, 1, 2) if self.last else found


@dataclass(frozen=True)
class _Wanted:
    """An array to be had: its key, and how it is held (last: with its channels last)."""

    place: str
    key: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    last: bool

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class ActivationSets:
    """All that a worker keeps: its own memory of a unit, and the node's files.

    memory_bytes: for one unit; flops_per_byte: see `worth_keeping`.
    """

    def __init__(
        self,
        cache: ActivationCache,
        memory_bytes: int,
        flops_per_byte: float,
        compute: Compute,
        device: torch.device,
    ) -> None:
        self.cache, self.memory_bytes, self.device = cache, memory_bytes, device
        self.flops_per_byte, self.compute = flops_per_byte, compute
        self.keep: torch.dtype = getattr(torch, compute.keep)
        self.begin()

    def begin(self) -> None:
        """Another unit begins: what the last one kept in memory is no longer counted."""
        self.left, self.error = self.memory_bytes, 0.0

    def __call__(
        self,
        network: Frozen,
        places: Sequence[str],
        images: LabelledImages,
        *,
        shared: bool,
        along: Sequence[str] = (),
    ) -> Answers:
        """The network's answers at ``places`` (cuts, `LOGITS`) on images.

        shared: whether other units need them too: those on real images, not on IRIs or noise.
        along: further places that are wanted if the answers are kept, but not again and again.
        """
        needed = [self._wanted(network, place, images) for place in places]
        further = [place for place in along if place not in places]
        wanted = needed + [self._wanted(network, place, images) for place in further]
        flops = pass_flops(network.card, places) * len(images)
        held: dict[str, _Held] = {}
        if worth_keeping(sum(one.bytes for one in needed), flops, self.flops_per_byte):
            for tier in (self._mapped, self._in_memory) if shared else (self._in_memory,):
                missing = [one for one in wanted if one.place not in held]
                held |= tier(network, missing, images) if missing else {}
        self.error = max([self.error, *(one.error for one in held.values())])
        if len(held) == len(wanted):
            return Kept(held, self.device)
        return Recomputed(network.at(places), images.images, self.device, self.keep)

    def _wanted(self, network: Frozen, place: str, images: LabelledImages) -> _Wanted:
        last = False
        if place == LOGITS:
            shape, dtype = (network.card.classes,), torch.float32
        else:
            cut = network.card.cut(place)
            shape, dtype = cut.shape, self.keep
            if last := cut.kind == "map" and self.compute.layout == "channels_last":
                shape = (*shape[1:], shape[0])
        name = {
            "place": place,
            "last": last,
            "dtype": str(dtype),
            **self._identity(network, images),
        }
        return _Wanted(place, content_key(name), (len(images), *shape), dtype, last)

    def _identity(self, network: Frozen, images: LabelledImages) -> dict[str, Any]:
        identity = {"version": CACHE_VERSION, "network": dict(network.identity)}
        return {**identity, "images": images.digest}

    def _mapped(
        self, network: Frozen, wanted: Sequence[_Wanted], images: LabelledImages
    ) -> dict[str, _Held]:
        """Those that are in the node's files, or can be put there."""
        held: dict[str, _Held] = {}
        if not self.cache.limit:
            return held
        with self.cache.building(content_key(self._identity(network, images))):
            missing = [one for one in wanted if not self._take(one, held)]
            with ExitStack() as stack:
                making = {
                    one: stack.enter_context(self.cache.making(one.key, one.shape, one.dtype))
                    for one in missing
                }
                there = {one: new for one, new in making.items() if new is not None}
                errors = self._fill(network, {o: new.tensor for o, new in there.items()}, images)
                for one, new in there.items():
                    new.facts["error"] = errors[one]
            for one in missing:
                self._take(one, held)
        return held

    def _take(self, one: _Wanted, held: dict[str, _Held]) -> bool:
        if (entry := self.cache.get(one.key)) is None:
            return False
        held[one.place] = _Held(entry.tensor, one.last, entry.facts["error"], entry)
        return True

    def _in_memory(
        self, network: Frozen, wanted: Sequence[_Wanted], images: LabelledImages
    ) -> dict[str, _Held]:
        """All of them, if they fit into what is left of this unit's memory."""
        count = sum(one.bytes for one in wanted)
        if count > self.left:
            return {}
        self.left -= count
        arrays = {
            one: torch.empty(one.shape, dtype=one.dtype, device=self.device) for one in wanted
        }
        errors = self._fill(network, arrays, images)
        return {one.place: _Held(arrays[one], one.last, errors[one]) for one in wanted}

    def _fill(
        self, network: Frozen, arrays: Mapping[_Wanted, Tensor], images: LabelledImages
    ) -> dict[_Wanted, float]:
        """Write the answers, all in one pass; the largest relative error of each array."""
        errors = dict.fromkeys(arrays, 0.0)
        if not arrays:
            return errors
        answers = Recomputed(network.at([one.place for one in arrays]), images.images, self.device)
        for positions in torch.arange(len(images)).split(COMPUTE_BATCH):
            found = answers(positions)
            for one, array in arrays.items():
                value = found.logits if one.place == LOGITS else found.activations[one.place]
                assert value is not None
                rows = value.permute(0, 2, 3, 1) if one.last else value
                array[positions] = rows.to(array)
                if one.dtype != torch.float32:
                    errors[one] = max(errors[one], _relative(rows, rows.to(one.dtype).float()))
        return errors


def _relative(value: Tensor, rounded: Tensor) -> float:
    norm = vector_norm(value)
    return float(vector_norm(rounded - value) / norm) if norm > 0 else 0.0
