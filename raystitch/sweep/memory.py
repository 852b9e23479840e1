"""The most memory that a worker's process holds on a CPU, counted before it is started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from raystitch.cards import NetworkCard
from raystitch.sweep.cells import Unit
from raystitch.sweep.estimate import FLOAT_BYTES, at_most, estimate
from raystitch.sweep.keeping import COMPUTE_BATCH
from raystitch.sweep.spec import Sweep

BASE_BYTES = 930 * 2**20
"""A worker that trains next to nothing: Python, Ray, torch and its libraries (measured)."""

MAPS_AT_ONCE = 3
"""Largest activations that a forward pass holds: an operation's inputs and its output."""


def worker_bytes(
    units: Iterable[Unit],
    sweep: Sweep,
    cards: Mapping[str, NetworkCard],
    shape: tuple[int, int, int],
    train_images: int,
    test_images: int,
) -> int:
    """The peak of a worker that trains these units; cards by entry, shape: of an image.

    Beside the process itself: weights; pixels of all images, twice; of the largest unit what is
    kept of frozen networks' answers (mapped files count while they are read); and the larger one of
    a training step (every activation of the end from its cut on, forward and backward) and a
    forward pass of a whole network. Without what attacks and `torch.compile` hold.
    """
    most = max(
        (_unit_bytes(unit, sweep, cards, train_images, test_images) for unit in units), default=0
    )
    models = sweep.used_models()
    weights = FLOAT_BYTES * sum(cards[model.entry].parameters for model in models.values())
    return BASE_BYTES + weights + 2 * (train_images + test_images) * prod(shape) + most


def _unit_bytes(
    unit: Unit, sweep: Sweep, cards: Mapping[str, NetworkCard], train: int, test: int
) -> int:
    varied = sweep.varied(unit.variant)
    models, batch = varied.models(), varied.training_under(unit.protocol).batch
    front = cards[models[unit.front_model].entry]
    kept = estimate(unit, sweep, cards, train, test).activation_bytes
    kept += at_most(varied.test_images, test) * front.cut(unit.front_cut).bytes
    places = {(models[cell.end_model].entry, cell.end_cut) for cell in unit.cells}
    step = max(_step_bytes(cards[entry], cut, batch) for entry, cut in places)
    largest = max(cut.bytes for cut in front.cuts)
    return kept + max(step, MAPS_AT_ONCE * COMPUTE_BATCH * largest)


def _step_bytes(card: NetworkCard, end_cut: str, batch: int) -> int:
    """A training step: each activation from the cut on, once forward and once backward."""
    start = card.cut(end_cut).index - 1
    return 2 * batch * sum(cut.bytes for cut in card.cuts[start:])
