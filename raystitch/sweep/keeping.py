"""What is kept of frozen networks' answers, and what is computed again: counted before anything is.

The same counts decide while a sweep runs (`run.activations`) and tell a plan's reader beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raystitch.cards import NetworkCard
from raystitch.sweep.cells import Cell, Unit
from raystitch.sweep.estimate import at_most
from raystitch.sweep.spec import Sweep

LOGITS = ""
"""In place of a cut's name: what a network answers in the end."""

COMPUTE_BATCH = 128
"""Images per forward pass of a frozen network."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Asked:
    """Answers that a unit asks for: of one network at these places, on images of one kind.

    images: what they are, where other units need them too; None for a unit's own (IRIs, noise).
    """

    model: str
    places: tuple[str, ...]
    images: tuple[str, str | None] | None
    count: int


@dataclass(frozen=True)
class Keeping:
    """What a sweep keeps. shared_bytes: on real images, by all units; own_bytes: by the largest
    unit, on images of its own; again: what is computed whenever it is asked for, in words.
    """

    shared_bytes: int
    own_bytes: int
    again: tuple[str, ...]


def worth_keeping(bytes_read: int, flops: int, flops_per_byte: float) -> bool:
    """Whether answers are to be kept: to compute them takes longer than to read them.

    bytes_read, flops: of one pass over the images; flops_per_byte: what a worker computes in the
    time in which it reads a byte that is kept.
    """
    return flops > flops_per_byte * bytes_read


def pass_flops(card: NetworkCard, places: Sequence[str]) -> int:
    """FLOPs per image of a pass that answers at these places."""
    if LOGITS in places or len(places) > 1:
        return card.flops
    return card.cut(places[0]).flops


def place_bytes(card: NetworkCard, place: str, item_bytes: int) -> int:
    """Bytes per image of what is kept there; logits are always float32."""
    return 4 * card.classes if place == LOGITS else card.cut(place).bytes * item_bytes // 4


def taps(cells: Iterable[Cell]) -> tuple[str, ...]:
    """The cuts at which the cells of one end are compared with it."""
    return tuple(dict.fromkeys(cut for cell in cells for cut in (cell.end_cut, *cell.fula_cuts)))


def keeping(
    units: Iterable[Unit],
    sweep: Sweep,
    cards: Mapping[str, NetworkCard],
    train_images: int,
    test_images: int,
) -> Keeping:
    """What is kept of all answers that these units ask for; cards by entry of the zoo."""
    item, models = ITEM_BYTES[sweep.compute.keep], sweep.models()
    shared: dict[tuple[object, ...], int] = {}
    again: dict[str, None] = {}
    most = 0
    for unit in units:
        own = 0
        for asked in _asked(unit, sweep, train_images, test_images):
            card = cards[models[asked.model].entry]
            sizes = {place: place_bytes(card, place, item) for place in asked.places}
            flops = pass_flops(card, asked.places)
            if not worth_keeping(sum(sizes.values()), flops, sweep.execution.flops_per_byte):
                ratio = flops / sum(sizes.values())
                again[f"{asked.model} at {asked.places[0]} ({ratio:.0f} FLOP a byte)"] = None
            elif asked.images is None:
                own += asked.count * sum(sizes.values())
            else:
                for place, size in sizes.items():
                    shared[asked.model, place, asked.images] = asked.count * size
        most = max(most, own)
    return Keeping(sum(shared.values()), most, tuple(again))


def _asked(unit: Unit, sweep: Sweep, train_images: int, test_images: int) -> Iterator[Asked]:
    """As `run.bench` asks for them."""
    train = at_most(sweep.stitch_images, train_images)
    test = at_most(sweep.test_images, test_images)
    real = ("stitch", unit.stitch_marker)
    given = real if unit.protocol == "standard" else None
    if unit.control is None:
        yield Asked(unit.front_model, (unit.front_cut,), given, train)
    of_end: dict[str, list[Cell]] = {}
    for cell in unit.cells:
        of_end.setdefault(cell.end_model, []).append(cell)
    for marker in dict.fromkeys(cell.test_marker for cell in unit.cells):
        yield Asked(unit.front_model, (unit.front_cut, LOGITS), ("test", marker), test)
        yield from (Asked(end, (LOGITS,), ("test", marker), test) for end in of_end)
    for end, cells in of_end.items():
        yield Asked(end, (*taps(cells), LOGITS), given, train)
