"""A trial run: a sweep with fewer epochs and images, as another sweep with keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from raystitch.settings import Settings
from raystitch.sweep.spec import Sweep
from raystitch.sweep.variants import Variant
from raystitch.sweep.zoo_entry import ZooEntry

IRI_STEPS_AN_EPOCH = 10
"""Steps of IRIs that a trial run takes for each epoch of training it allows."""

Block = TypeVar("Block", bound=Settings)


def limited(sweep: Sweep, max_epochs: int | None) -> Sweep:
    """The sweep with at most so many epochs of training; as it is for None.

    Networks that the sweep trains and stitches take at most ``max_epochs`` epochs, IRIs at most
    `IRI_STEPS_AN_EPOCH` times as many steps.
    """
    if max_epochs is None:
        return sweep
    most = max_epochs
    steps = {"steps": IRI_STEPS_AN_EPOCH * most}
    sweep = _lowered(sweep, {"epochs": most, "min_epochs": most}, steps)

    def shorter(entry: ZooEntry) -> ZooEntry:
        lower = {"epochs": most} if _trains(entry) else {}
        lower |= {"linear_epochs": most} if _trains(entry) and entry.recipe == "simclr" else {}
        return _at_most(entry, lower)

    zoo = {name: shorter(entry) for name, entry in sweep.zoo.items()}
    return sweep.model_copy(update={"zoo": zoo})


def fewer_images(sweep: Sweep, train: int, test: int, most: int) -> Sweep:
    """The sweep with at most ``most`` images of each split, for its networks and stitches alike.

    train, test: how many there are. Batches of stitches and of IRIs become what so many fill.
    """
    data = sweep.data.model_copy(update=_fewer({"train": train, "test": test}, most))
    images = min(train, most, sweep.stitch_images or train)
    fill = max(1, images - sweep.training.held_out_of(images))
    smaller = _lowered(sweep, {"batch": fill}, {"batch": max(2, images)})
    return smaller.model_copy(update={"data": data})


def _fewer(there: Mapping[str, int], most: int) -> dict[str, int]:
    return {split: most for split, count in there.items() if count > most}


def _trains(entry: ZooEntry) -> bool:
    return entry.trained_here and entry.recipe != "untrained"


def _lowered(sweep: Sweep, training: Mapping[str, int], iris: Mapping[str, int]) -> Sweep:
    """The sweep with these fields of every `training` and every `iris` at most so much.

    Where a block only says what is other than elsewhere, what it does not write stays unwritten.
    """

    def other(block: Block, most: Mapping[str, int]) -> Block:
        return _at_most(block, {f: n for f, n in most.items() if f in block.model_fields_set})

    def each(variant: Variant) -> Variant:
        changes = {
            "training": other(variant.training, training),
            "training_of": _of_each(variant.training_of, lambda own: other(own, training)),
            "iris": other(variant.iris, iris),
        }
        return variant.model_copy(update=changes)

    changes = {
        "training": _at_most(sweep.training, training),
        "training_of": _of_each(sweep.training_of, lambda own: other(own, training)),
        "iris": _at_most(sweep.iris, iris),
        "variants": _of_each(sweep.variants, each),
    }
    return sweep.model_copy(update=changes)


def _at_most(block: Block, most: Mapping[str, int]) -> Block:
    lower = {field: n for field, n in most.items() if getattr(block, field) > n}
    return block.model_copy(update=lower)


Name = TypeVar("Name", bound=str)
Value = TypeVar("Value")


def _of_each(values: Mapping[Name, Value], change: Callable[[Value], Value]) -> dict[Name, Value]:
    return {name: change(value) for name, value in values.items()}
