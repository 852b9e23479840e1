"""Faults of a sweep that show only when its networks are known: cuts, kinds, shapes, classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from raystitch.cards import CutCard, NetworkCard, refusal
from raystitch.errors import Fault, RaystitchError
from raystitch.sweep.pairing import pair_cuts
from raystitch.sweep.spec import Sweep

LEAST_CLASSES = 3
"""Of an end that is attacked by APGD-DLR."""

SHOWN = 3
"""Refused cut pairs, or modules, that one fault spells out."""


def card_faults(sweep: Sweep, cards: Mapping[str, NetworkCard]) -> tuple[Fault, ...]:
    """The faults found with the cards of the zoo's entries; entries without a card are passed by.

    Takes the valid part of a faulty file too. Reads ``cuts`` and ``fula_cuts`` against each
    network, and for each pair its kinds, shapes and classes (at ``pairs[i]``).
    """
    selected, cut_faults = select_cuts(sweep, cards)
    found = [
        *_zoo_faults(sweep, cards),
        *_mode_faults(sweep, cards),
        *cut_faults,
        *_fula_faults(sweep, cards),
        *_pair_faults(sweep, cards, selected),
        *_evaluation_faults(sweep, cards),
    ]
    return tuple(dict.fromkeys(found))


def _zoo_faults(sweep: Sweep, cards: Mapping[str, NetworkCard]) -> Iterator[Fault]:
    for name, entry in sweep.zoo.items():
        if name not in cards:
            continue
        channels = cards[name].input_shape[0]
        if entry.mean is not None and len(entry.mean) != channels:
            message = f"has {len(entry.mean)} channels, and the images have {channels}"
            yield Fault(f"zoo.{name}.mean", message)
        if entry.recipe == "simclr" and not cards[name].linear_head:
            message = (
                "`simclr` needs a network whose last linear layer gives its logits, which "
                f"{entry.arch} does not have; use another recipe or architecture"
            )
            yield Fault(f"zoo.{name}.recipe", message)


def _evaluation_faults(sweep: Sweep, cards: Mapping[str, NetworkCard]) -> Iterator[Fault]:
    if sweep.evaluation.robust is None:
        return
    models = sweep.models()
    for entry in dict.fromkeys(models[pair.end].entry for _, pair in sweep.pair_list()):
        if entry in cards and cards[entry].classes < LEAST_CLASSES:
            yield Fault(
                "evaluation.robust",
                f"{entry} has {cards[entry].classes} classes, and APGD-DLR compares "
                f"{LEAST_CLASSES} of them; leave it out",
            )


def _mode_faults(sweep: Sweep, cards: Mapping[str, NetworkCard]) -> Iterator[Fault]:
    """Networks whose frozen halves cannot be put into the mode that a training asks for."""
    trainings = sweep.trainings()
    dropout = any(training.dropout for training in trainings)
    batch = any(training.bn == "batch" for training in trainings)
    if sweep.compute.compile and (dropout or batch):
        yield Fault(
            "compute.compile",
            "a compiled half cannot change its mode; use it with `bn: eval` and `dropout: false` "
            "in `training` (preset `published` asks for others), or leave it out",
        )
    for entry in dict.fromkeys(model.entry for model in sweep.used_models().values()):
        card = cards.get(entry)
        if card is None:
            continue
        if dropout and card.fixed_dropout:
            yield Fault(
                f"zoo.{entry}.arch",
                f"{card.arch} drops activations in {_some(card.fixed_dropout)}, which cannot be "
                "switched on in its halves; use `dropout: false` in `training` (with preset "
                "published in `training_of.standard`), or `kwargs` without it",
            )
        if batch and card.fixed_bn:
            yield Fault(
                f"zoo.{entry}.arch",
                f"{card.arch} calls batch normalisation as a function in {_some(card.fixed_bn)}, "
                "which cannot be put into training mode in its halves; use `bn: eval`",
            )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown


def select_cuts(
    sweep: Sweep, cards: Mapping[str, NetworkCard]
) -> tuple[dict[str, tuple[CutCard, ...]], list[Fault]]:
    """The cuts of each entry in use, and the faults of those whose cuts cannot be selected."""
    selected: dict[str, tuple[CutCard, ...]] = {}
    faults: list[Fault] = []
    for entry in dict.fromkeys(model.entry for model in sweep.used_models().values()):
        choice = sweep.cuts_of(entry)
        if entry not in cards or choice is None:
            continue
        place = f"cuts.{entry}" if isinstance(sweep.cuts, dict) else "cuts"
        try:
            selected[entry] = cards[entry].select(choice)
        except RaystitchError as error:
            faults.append(Fault(place, str(error)))
    return selected, faults


def _fula_faults(sweep: Sweep, cards: Mapping[str, NetworkCard]) -> Iterator[Fault]:
    if "fula" not in sweep.objectives:
        return
    models = sweep.models()
    for entry in dict.fromkeys(models[pair.end].entry for _, pair in sweep.pair_list()):
        if entry not in cards:
            continue
        try:
            cards[entry].select(sweep.fula_cuts)
        except RaystitchError as error:
            yield Fault("fula_cuts", str(error))


def _pair_faults(
    sweep: Sweep, cards: Mapping[str, NetworkCard], selected: Mapping[str, Sequence[CutCard]]
) -> Iterator[Fault]:
    models = sweep.models()
    cross = sweep.cross_layer
    identity = "identity" in sweep.objectives or any(
        training.init == "identity" for training in sweep.trainings()
    )

    @cache
    def compare(front: str, end: str) -> tuple[str, ...]:
        if front not in cards or end not in cards:
            return ()
        other_task = sweep.zoo[front].data is not None
        whole = list(_network_faults(cards[front], cards[end], other_task))
        if not whole and front in selected and end in selected:
            whole = list(_stitch_faults(selected[front], selected[end], identity, cross))
        return tuple(whole)

    for place, pair in sweep.pair_list():
        for message in compare(models[pair.front].entry, models[pair.end].entry):
            yield Fault(place, f"{pair.front} → {pair.end}: {message}")


def _network_faults(front: NetworkCard, end: NetworkCard, other_task: bool) -> Iterator[str]:
    """other_task: the front has images of its own, so perhaps other classes."""
    if front.classes != end.classes and not other_task:
        yield f"the front has {front.classes} classes and the end {end.classes}; they must match"
    if front.input_shape != end.input_shape:
        yield (
            f"the front takes images of {front.input_shape} and the end of {end.input_shape}; "
            "they must match"
        )


def _alike(front: CutCard, end: CutCard) -> bool:
    return (front.kind, front.shape) == (end.kind, end.shape)


def _stitch_faults(
    front: Sequence[CutCard], end: Sequence[CutCard], identity: bool, cross_layer: bool
) -> Iterator[str]:
    pairs = pair_cuts(front, end, cross_layer=cross_layer)
    refused = [reason for pair in pairs if (reason := refusal(*pair)) is not None]
    if refused:
        rest = f", and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
        yield (f"{'; '.join(refused[:SHOWN])}{rest}. Choose other `cuts`")
    unequal = [pair for pair in pairs if refusal(*pair) is None and not _alike(*pair)]
    if identity and unequal:
        first, second = unequal[0]
        yield (
            f"T = identity needs equal shapes, but {first.name} is {first.shape} and "
            f"{second.name} is {second.shape}; use `init: lstsq` or `random`, and no objective "
            "`identity`"
        )
