"""From a sweep and the cards of its networks to its cells, with the identity of each.

A cell's key is the hash of its settings in canonical form. Parts that many cells share (networks,
training, data) are put into that form once, and a cell's text is joined from the parts: a million
cells take seconds. A test holds the keys equal to `keys.content_key` of the whole settings.
"""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from raystitch.cards import CutCard, NetworkCard
from raystitch.errors import RaystitchError
from raystitch.files import file_digest
from raystitch.names import IRI_PROTOCOLS, UNLABELLED_PROTOCOLS, Objective, Protocol
from raystitch.sweep.cells import Cell
from raystitch.sweep.keys import (
    KEY_VERSION,
    Identity,
    canonical,
    compute_part,
    content_key,
    dump,
    dump_marker,
    dump_training,
    keys_of_texts,
    network_identity,
    unit_identity,
)
from raystitch.sweep.pairing import fula_cuts, pair_cuts
from raystitch.sweep.spec import Pair, Sweep


def expand(
    sweep: Sweep,
    cards: Mapping[str, NetworkCard],
    data_identity: Mapping[str, Any],
    networks: Mapping[str, Identity] | None = None,
) -> list[Cell]:
    """All cells of a sweep without faults, each once: pair, cut pair, protocol, objective, seed.

    cards: by entry of the zoo; data_identity: all that defines the images; networks: what
    `identities` gave, if that is known. Leaves out objectives
    that need labels where a protocol has none. Cells of one identity are one cell, under the names
    that come first; `Cell.also` has the other variants. Raises `RaystitchError` where cuts or
    weight files are not there.
    """
    cells: dict[str, Cell] = {}
    networks = networks or identities(sweep, data_identity)
    with _cycles_unsought():
        for variant in (None, *sweep.variants):
            for cell in _Expansion(sweep, variant, cards, data_identity, networks).cells():
                known = cells.setdefault(cell.key, cell)
                if variant is not None and variant not in (known.variant, *known.also):
                    cells[cell.key] = known._replace(also=(*known.also, variant))
        return list(cells.values())


@contextmanager
def _cycles_unsought() -> Generator[None]:
    """Python seeks cycles of objects again and again while their number grows.

    Among a million cells, which have none, that is a third of the time of a plan.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def identities(
    sweep: Sweep,
    data_identity: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Identity]:
    """The identity of every network that some pair uses, by its name; reads weight files.

    data_identity: all that defines the sweep's images; own: the same for entries with their own.
    """
    of_entry = own or {}
    digests = {
        name: _weights_digest(name, entry.weights)
        for name in dict.fromkeys(model.entry for model in sweep.used_models().values())
        if (entry := sweep.zoo[name]).weights is not None
    }
    return {
        name: network_identity(
            sweep.zoo[model.entry],
            model.seed,
            of_entry.get(model.entry, data_identity),
            digests.get(model.entry),
        )
        for name, model in sweep.used_models().items()
    }


def _weights_digest(entry: str, weights: str | None) -> str:
    assert weights is not None
    try:
        return file_digest(Path(weights))
    except OSError as error:
        reason = error.strerror or str(error)
        raise RaystitchError(
            f"zoo.{entry}.weights: the file {weights} cannot be read: {reason}."
        ) from error


class _Expansion:
    """The parts of a sweep's cells, each with its canonical text."""

    def __init__(
        self,
        whole: Sweep,
        variant: str | None,
        cards: Mapping[str, NetworkCard],
        data_identity: Mapping[str, Any],
        networks: Mapping[str, Identity],
    ) -> None:
        sweep = self.sweep = whole.varied(variant)
        self.variant = variant
        self.models = sweep.models()
        self.cards = {name: cards[m.entry] for name, m in sweep.used_models().items()}
        self.networks = networks
        self.texts = {name: canonical(identity) for name, identity in self.networks.items()}
        self.selected: dict[str, tuple[CutCard, ...]] = {}
        self.fula: dict[tuple[str, str], tuple[str, ...]] = {}
        self.units: dict[tuple[object, ...], list[str]] = {}
        self.seed_texts = [canonical(seed) for seed in sweep.seeds]
        budget = {"budget": sweep.budget} if sweep.budget != 1 else {}
        self.common: dict[str, Any] = {
            "version": KEY_VERSION,
            "data": dict(data_identity),
            **budget,
            **compute_part(sweep.compute),
        }
        self.common_texts = _texts(self.common)
        self.of_protocol = {protocol: self._of(protocol) for protocol in sweep.protocols}
        self.of_protocol_texts = {name: _texts(part) for name, part in self.of_protocol.items()}

    def _of(self, protocol: Protocol) -> dict[str, Any]:
        """The settings that cells of one protocol share."""
        training = {"training": dump_training(self.sweep.training_under(protocol))}
        return training | ({"iris": dump(self.sweep.iris)} if protocol in IRI_PROTOCOLS else {})

    def _measured(self, pair: Pair, protocol: Protocol) -> dict[str, Any]:
        """What is measured of a pair's cells of a protocol, where that is more than always."""
        evaluation = self.sweep.evaluation_of(
            pair.stitch_marker, pair.test_marker, protocol, pair.control
        )
        found = dump(evaluation)
        return {"evaluation": found} if found else {}

    def cells(self) -> Iterator[Cell]:
        for _, pair in self.sweep.pair_list():
            images = {
                "stitch": self._images(self.sweep.stitch_images, pair.stitch_marker),
                "test": self._images(self.sweep.test_images, pair.test_marker),
            }
            networks = {"front": self.networks[pair.front], "end": self.networks[pair.end]}
            texts = {"front": self.texts[pair.front], "end": self.texts[pair.end]}
            control = {} if pair.control is None else {"control": pair.control}
            part = {**self.common, **images, **networks, **control}
            part_texts = {**self.common_texts, **_texts(images), **texts, **_texts(control)}
            protocols = self.sweep.protocols if pair.control is None else ("standard",)
            measured = {name: self._measured(pair, name) for name in protocols}
            for front_cut, end_cut in self._cut_pairs(pair):
                names = {"front_cut": front_cut.name, "end_cut": end_cut.name}
                shared, shared_texts = {**part, **names}, {**part_texts, **_texts(names)}
                for protocol in self.sweep.protocols:
                    if protocol not in measured:
                        continue
                    yield from self._of_protocol(
                        pair,
                        (front_cut, end_cut),
                        protocol,
                        {**shared, **self.of_protocol[protocol], **measured[protocol]},
                        {
                            **shared_texts,
                            **self.of_protocol_texts[protocol],
                            **_texts(measured[protocol]),
                        },
                    )

    def _of_protocol(
        self,
        pair: Pair,
        cuts: tuple[CutCard, CutCard],
        protocol: Protocol,
        shared: dict[str, Any],
        texts: dict[str, str],
    ) -> Iterator[Cell]:
        front_cut, end_cut = cuts
        units = self._units(pair, front_cut, protocol, shared)
        around = _Around(texts, protocol)
        for objective in self.sweep.objectives:
            if objective == "hlm" and protocol in UNLABELLED_PROTOCOLS:
                continue
            fula = self._fula(pair.end, end_cut) if objective == "fula" else ()
            before, after = around.seed(objective, fula)
            keys = keys_of_texts(before, self.seed_texts, after)
            for seed, unit, key in zip(self.sweep.seeds, units, keys, strict=True):
                yield Cell(
                    key,
                    unit,
                    pair.front,
                    front_cut.name,
                    front_cut.index,
                    pair.end,
                    end_cut.name,
                    end_cut.index,
                    objective,
                    protocol,
                    seed,
                    pair.stitch_marker,
                    pair.test_marker,
                    pair.control,
                    self.variant,
                    fula,
                    shared,
                )

    def _images(self, count: int | None, marker: str | None) -> Identity:
        return {"images": count, "marker": dump_marker(self.sweep.marker_of(marker))}

    def _cut_pairs(self, pair: Pair) -> list[tuple[CutCard, CutCard]]:
        front, end = self._cuts(pair.front), self._cuts(pair.end)
        return pair_cuts(front, end, cross_layer=self.sweep.cross_layer)

    def _cuts(self, model: str) -> tuple[CutCard, ...]:
        entry = self.models[model].entry
        if entry not in self.selected:
            choice = self.sweep.cuts_of(entry)
            assert choice is not None, f"cuts says nothing for {entry}"
            self.selected[entry] = self.cards[model].select(choice)
        return self.selected[entry]

    def _fula(self, end: str, end_cut: CutCard) -> tuple[str, ...]:
        place = (self.models[end].entry, end_cut.name)
        if place not in self.fula:
            chosen = fula_cuts(self.sweep.fula_cuts, self.cards[end], end_cut)
            self.fula[place] = tuple(cut.name for cut in chosen)
        return self.fula[place]

    def _units(
        self, pair: Pair, cut: CutCard, protocol: Protocol, shared: Mapping[str, Any]
    ) -> list[str]:
        """The keys of the units of a front and its cut, one for each seed."""
        place = (pair.front, cut.index, pair.stitch_marker, pair.control, protocol)
        if place not in self.units:
            same = {**shared, "protocol": protocol}
            seeds = self.sweep.seeds
            self.units[place] = [content_key(unit_identity({**same, "seed": n})) for n in seeds]
        return self.units[place]


def _texts(part: Mapping[str, Any]) -> dict[str, str]:
    return {name: canonical(value) for name, value in part.items()}


class _Around:
    """The canonical text of the settings that cells of a protocol share, open for their own.

    Where ``objective``, ``fula_cuts`` and ``seed`` stand among the others is found once.
    """

    def __init__(self, shared: Mapping[str, str], protocol: Protocol) -> None:
        texts = {**shared, "protocol": canonical(protocol)}
        self.parts = ["", "", "", ""]
        for name in sorted(texts):
            self.parts[bisect_left(_OWN, name)] += f'"{name}":{texts[name]},'

    def seed(self, objective: Objective, fula: tuple[str, ...]) -> tuple[str, str]:
        """The text before and after the value of the seed."""
        first, second, third, last = self.parts
        cuts = f'"fula_cuts":{_text(fula)},' if fula else ""
        before = f'{{{first}{cuts}{second}"objective":{_text(objective)},{third}"seed":'
        return before, f",{last[:-1]}}}"


_text = cache(canonical)
"""For the few values that a million cells have between them."""

_OWN = ("fula_cuts", "objective", "seed")
"""The settings that are a cell's own, in canonical order."""
