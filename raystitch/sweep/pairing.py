"""Which cuts of two networks are stitched together, and which cuts `fula` compares."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from raystitch.cards import CutCard, NetworkCard


def pair_cuts(
    front: Sequence[CutCard], end: Sequence[CutCard], *, cross_layer: bool = False
) -> list[tuple[CutCard, CutCard]]:
    """The cuts of a front and an end that are stitched: one pair per cut of the end.

    The k-th with the k-th where both have as many; otherwise the front's are mapped by rounding
    ``linspace(1, len(front), len(end))``, halves to the even place (method: cuts). With
    ``cross_layer`` each one with each one.
    """
    assert front
    assert end
    if cross_layer:
        return [(one, other) for one in front for other in end]
    if len(front) == len(end):
        return list(zip(front, end, strict=True))
    gaps = max(len(end) - 1, 1)
    places = [round(Fraction(k * (len(front) - 1), gaps)) for k in range(len(end))]
    return [(front[place], cut) for place, cut in zip(places, end, strict=True)]


def fula_cuts(
    choice: str | Sequence[str], card: NetworkCard, end_cut: CutCard
) -> tuple[CutCard, ...]:
    """The end's cuts that `fula` compares: the chosen ones from ``end_cut`` on, itself among them.

    In data order. Raises `RaystitchError` when the choice names no cut of the network.
    """
    later = (cut for cut in card.select(choice) if cut.index > end_cut.index)
    return (end_cut, *later)
