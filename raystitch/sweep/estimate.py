"""What a unit costs, counted from the cards of its networks before anything is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from raystitch.cards import CutCard, NetworkCard
from raystitch.names import IRI_PROTOCOLS, TRAINED_OBJECTIVES
from raystitch.sweep.cells import Cell, Unit
from raystitch.sweep.spec import Sweep

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Cost:
    """What work takes at most.

    activation_bytes: float32 activations and targets worth keeping at once; flops: floating point
    operations, were every cell to train for all its epochs.
    """

    activation_bytes: int
    flops: int


def estimate(
    unit: Unit, sweep: Sweep, cards: Mapping[str, NetworkCard], train_images: int, test_images: int
) -> Cost:
    """The cost of a unit; cards by entry; the numbers of images are those of the whole data.

    With n images that stitches train on, m test images, E epochs at most (budget included), F(i)
    the FLOPs per image up to cut i, G those of the whole end, and C(T) those of a stitch:

    - activations: n × bytes at the front's cut, and for each end n × bytes of its targets (each
      cut that a `dm` or `fula` cell compares, once; the logits for `slm`);
    - FLOPs: IRIs, n × steps × 2 F(i) (forward, and backward to the input alone), with m in
      place of n for `test_iris`; the front's activations, n × F(i); targets, n × G for each end;
      training, for each cell
      E × n × (3 C(T) + 2 (F(last) − F(j))), with the end's tail run forward and backward from its
      cut j to the last layer the objective looks at (`dm`: j itself); tests, for each cell
      m × (F(i) + C(T) + G − F(j)), and twice that for each step of the two attacks of `robust`, on
      its images. Where nothing can be kept (`training.live`) the activations and targets are
      computed in every epoch too: once for all cells, or with attacked images for each cell, beside
      the attack's steps through the whole stitched network, forward and backward.
    """
    sweep = sweep.varied(unit.variant)
    training = sweep.training_under(unit.protocol)
    stitch = at_most(sweep.stitch_images, train_images)
    test = at_most(sweep.test_images, test_images)
    models = sweep.models()
    front = cards[models[unit.front_model].entry].cut(unit.front_cut)
    of_end: dict[str, list[Cell]] = {}
    for cell in unit.cells:
        of_end.setdefault(cell.end_model, []).append(cell)
    ends = {name: cards[models[name].entry] for name in of_end}
    kept = front.bytes + sum(_target_bytes(of_end[name], card) for name, card in ends.items())
    iri_steps = sweep.iris.steps if unit.protocol in IRI_PROTOCOLS else 0
    answers = front.flops + sum(card.flops for card in ends.values())
    epochs = training.epochs * sweep.budget
    attacked = training.attack_share * training.attack_steps
    shared = epochs if training.live and not attacked else 0
    flops = test * 2 * front.flops * iri_steps if sweep.evaluation.test_iris else 0
    flops += stitch * (2 * front.flops * iri_steps + (1 + shared) * answers)
    for cell in unit.cells:
        card = ends[cell.end_model]
        cut = card.cut(cell.end_cut)
        mixing = _stitch_flops(front, cut)
        whole = front.flops + mixing + card.flops - cut.flops
        if cell.objective in TRAINED_OBJECTIVES:
            step = 3 * mixing + 2 * (_last_flops(cell, card) - cut.flops)
            if attacked:  # images of its own, and both sides' answers on them
                step += 2 * attacked * whole + front.flops + card.flops
            flops += round(epochs * stitch * step)
        flops += test * whole
        robust = sweep.evaluation.robust
        if robust is not None and cell.control is None:
            flops += 2 * (robust.steps + 1) * 2 * whole * at_most(robust.images, test)
    return Cost(stitch * kept, flops)


def total(costs: Iterable[Cost]) -> Cost:
    """The cost of units run one after another: the most bytes at once, the sum of FLOPs."""
    found = list(costs)
    return Cost(
        max((cost.activation_bytes for cost in found), default=0), sum(cost.flops for cost in found)
    )


def at_most(wanted: int | None, there: int) -> int:
    """How many images are taken of those there."""
    return there if wanted is None else min(wanted, there)


def _target_bytes(cells: Iterable[Cell], card: NetworkCard) -> int:
    """Bytes per image of what an end's cells compare with."""
    compared: set[str] = set()
    logits = 0
    for cell in cells:
        if cell.objective == "slm":
            logits = FLOAT_BYTES * card.classes
        elif cell.objective in ("dm", "dm_lstsq", "identity"):
            compared.add(cell.end_cut)
        compared |= set(cell.fula_cuts)
    return logits + sum(card.cut(name).bytes for name in compared)


def _stitch_flops(front: CutCard, end: CutCard) -> int:
    """A linear map of channels at each position of the end: two operations per weight."""
    return 2 * front.channels * prod(end.shape)


def _last_flops(cell: Cell, card: NetworkCard) -> int:
    """FLOPs of the end up to the last layer that the cell's loss looks at."""
    if cell.objective in ("dm", "dm_lstsq", "identity"):
        return card.cut(cell.end_cut).flops
    if cell.objective == "fula":
        return card.cut(cell.fula_cuts[-1]).flops
    return card.flops
