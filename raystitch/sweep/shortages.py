"""Pairs of cuts whose least squares would have too few rows: known before any work is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raystitch.cards import CutCard, NetworkCard, refusal
from raystitch.errors import Fault
from raystitch.lstsq import images_for_lstsq, positions, shortage, unknowns
from raystitch.names import TRAINED_OBJECTIVES, UNLABELLED_PROTOCOLS, Protocol
from raystitch.settings import Training
from raystitch.sweep.card_faults import select_cuts
from raystitch.sweep.pairing import pair_cuts
from raystitch.sweep.spec import Pair, Sweep

CLOSED_FORM = "dm_lstsq"
"""The objective that is a least squares over all inputs that a stitch would train on."""


SHOWN = 3
"""Pairs of cuts that one fault spells out."""


@dataclass(frozen=True)
class Shortage:
    """Two entries of the zoo, some of whose cuts have too few rows.

    place: of the first pair of theirs, in the file; told: what is short; remedy: what to do.
    """

    place: str
    told: str
    remedy: str

    def fault(self) -> Fault:
        return Fault(self.place, f"{self.told}; {self.remedy}")


@dataclass(frozen=True)
class _Fit:
    """Least squares of some cells: the training whose images they are, and whether all are taken.

    images: of the stitch, those held out among them.
    """

    training: Training
    images: int
    every: bool

    @property
    def remedy(self) -> str:
        return f"leave out `{CLOSED_FORM}`" if self.every else "use `init: random`"

    def short(self, front: CutCard, end: CutCard) -> str | None:
        there = self.images - self.training.held_out_of(self.images)
        if there < 1:
            return None  # A fault of its own: no stitch would be trained.
        if self.every:
            return shortage(front, end, there)
        return shortage(front, end, images_for_lstsq(front, end, self.training.init_count, there))

    def least(self, front: CutCard, end: CutCard) -> int:
        """The fewest stitch images that are enough."""
        needed = unknowns(front) // positions(front, end) + 1
        images = needed
        while (missing := needed - (images - self.training.held_out_of(images))) > 0:
            images += missing
        return images


def shortages(sweep: Sweep, cards: Mapping[str, NetworkCard], train: int) -> Iterator[Shortage]:
    """Where least squares has too few rows: once for each two entries, whatever their seeds.

    train: images that stitches can train on, of which `stitch_images` says how many they do.
    Entries without a card, and cuts that cannot be stitched, are passed by.
    """
    selected, _ = select_cuts(sweep, cards)
    models = sweep.models()
    alike: dict[tuple[str, str], list[tuple[str, Pair]]] = {}
    for place, pair in sweep.pair_list():
        entries = models[pair.front].entry, models[pair.end].entry
        alike.setdefault(entries, []).append((place, pair))
    for entries, pairs in alike.items():
        if not set(entries) <= set(selected):
            continue
        only_controls = all(pair.control is not None for _, pair in pairs)
        fits = _fits(sweep, sweep.stitch_images or train, only_controls=only_controls)
        front, end = (selected[entry] for entry in entries)
        found = _short(fits, pair_cuts(front, end, cross_layer=sweep.cross_layer))
        if found:
            yield _shortage(pairs[0][0], " → ".join(entries), found, train)


def _fits(sweep: Sweep, images: int, *, only_controls: bool) -> list[_Fit]:
    """The different least squares of cells, in all variants and protocols.

    only_controls: whether all are of pairs with a control, which are stitched under `standard`.
    """
    found: dict[_Fit, None] = {}
    for variant in (None, *sweep.variants):
        varied = sweep.varied(variant)
        for protocol in varied.protocols:
            if only_controls and protocol != "standard":
                continue
            training = varied.training_under(protocol)
            if training.init == "lstsq" and _trains(varied, protocol):
                found[_Fit(training, images, every=False)] = None
            if CLOSED_FORM in varied.objectives:
                found[_Fit(training, images, every=True)] = None
    return list(found)


def _trains(sweep: Sweep, protocol: Protocol) -> bool:
    """Whether any stitch is trained under that protocol."""
    unlabelled = {"hlm"} if protocol in UNLABELLED_PROTOCOLS else set[str]()
    return bool(set(TRAINED_OBJECTIVES) & set(sweep.objectives) - unlabelled)


@dataclass(frozen=True)
class _Short:
    """One pair of cuts with too few rows for ``fit``."""

    front: CutCard
    end: CutCard
    fit: _Fit
    told: str


def _short(fits: Iterable[_Fit], cuts: Iterable[tuple[CutCard, CutCard]]) -> list[_Short]:
    return [
        _Short(front, end, fit, told)
        for front, end in cuts
        if refusal(front, end) is None
        for fit in fits
        if (told := fit.short(front, end)) is not None
    ]


def _shortage(place: str, entries: str, found: Sequence[_Short], train: int) -> Shortage:
    told = list(dict.fromkeys(one.told for one in found))
    shown = ", ".join(told[:SHOWN])
    rest = f" (and {len(told) - SHOWN} more)" if len(told) > SHOWN else ""
    least = max(one.fit.least(one.front, one.end) for one in found)
    more = f"take at least {least} `stitch_images`"
    if least > train:
        more = f"that needs {least} images, and there are {train} to train on: take more"
    others = " and ".join(dict.fromkeys(one.fit.remedy for one in found))
    return Shortage(
        place,
        f"{entries}: least squares at {shown}{rest}",
        f"{more}, {others}, or choose other `cuts`",
    )
