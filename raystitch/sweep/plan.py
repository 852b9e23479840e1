"""From a sweep and the cards of its networks to its cells, with the identity of each.

A cell's key is the hash of its settings in canonical form. Parts that many cells share (networks,
training, data) are put into that form once, and a cell's text is joined from the parts: a million
cells take seconds. A test holds the keys equal to `keys.content_key` of the whole settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
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
    content_key,
    dump,
    dump_marker,
    dump_training,
    key_of_text,
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
    for variant in (None, *sweep.variants):
        for cell in _Expansion(sweep, variant, cards, data_identity, networks).cells():
            known = cells.setdefault(cell.key, cell)
            if variant is not None and variant not in (known.variant, *known.also):
                cells[cell.key] = replace(known, also=(*known.also, variant))
    return list(cells.values())


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
        self.units: dict[tuple[object, ...], str] = {}
        budget = {"budget": sweep.budget} if sweep.budget != 1 else {}
        self.common: dict[str, Any] = {
            "version": KEY_VERSION,
            "data": dict(data_identity),
            **budget,
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
            for front_cut, end_cut in self._cut_pairs(pair):
                names = {"front_cut": front_cut.name, "end_cut": end_cut.name}
                shared, shared_texts = {**part, **names}, {**part_texts, **_texts(names)}
                for protocol in self.sweep.protocols:
                    if pair.control is not None and protocol != "standard":
                        continue
                    measured = self._measured(pair, protocol)
                    yield from self._of_protocol(
                        pair,
                        (front_cut, end_cut),
                        protocol,
                        {**shared, **self.of_protocol[protocol], **measured},
                        {**shared_texts, **self.of_protocol_texts[protocol], **_texts(measured)},
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
        for objective in self.sweep.objectives:
            if objective == "hlm" and protocol in UNLABELLED_PROTOCOLS:
                continue
            fula = self._fula(pair.end, end_cut) if objective == "fula" else ()
            before, after = _around_seed(texts, objective, protocol, fula)
            for seed in self.sweep.seeds:
                yield Cell(
                    key_of_text(f"{before}{seed}{after}"),
                    self._unit(pair, front_cut, protocol, seed, shared),
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

    def _unit(
        self, pair: Pair, cut: CutCard, protocol: Protocol, seed: int, shared: Mapping[str, Any]
    ) -> str:
        place = (pair.front, cut.index, pair.stitch_marker, pair.control, protocol, seed)
        if place not in self.units:
            settings = {**shared, "protocol": protocol, "seed": seed}
            self.units[place] = content_key(unit_identity(settings))
        return self.units[place]


def _texts(part: Mapping[str, Any]) -> dict[str, str]:
    return {name: canonical(value) for name, value in part.items()}


def _around_seed(
    shared: Mapping[str, str], objective: Objective, protocol: Protocol, fula: tuple[str, ...]
) -> tuple[str, str]:
    """The canonical text of a cell's settings before and after the value of its seed."""
    texts = {**shared, **_texts({"objective": objective, "protocol": protocol}), "seed": ""}
    if fula:
        texts["fula_cuts"] = canonical(fula)
    names = sorted(texts)
    place = names.index("seed") + 1
    before = ",".join(f'"{name}":{texts[name]}' for name in names[:place])
    after = ",".join(f'"{name}":{texts[name]}' for name in names[place:])
    return f"{{{before}", f",{after}}}"
