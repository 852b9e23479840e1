"""From a sweep file to what is to be done: all faults first, then cells less what is stored.

Loads torch only where a network's card is not stored yet, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import ValidationError

from raystitch.cards import ModelCard, NetworkCard
from raystitch.data.sources import SourceFacts
from raystitch.errors import Fault, RaystitchError, StorageError
from raystitch.files import write_text
from raystitch.results.reading import MEASURED, TYPES, Reading
from raystitch.results.schema import COLUMNS
from raystitch.results.store import CellStore, Storage
from raystitch.run.fitting import AllImages, attack_faults, fit
from raystitch.run.image_sets import Images
from raystitch.sweep.cells import Cell, Status, Unit, units
from raystitch.sweep.keys import Identity, content_key
from raystitch.sweep.limits import limited
from raystitch.sweep.plan import expand, identities
from raystitch.sweep.read import card_faults, read_sweep, require
from raystitch.sweep.resume import SUBTRACTED, pending, subtract
from raystitch.sweep.shortages import Shortage, shortages
from raystitch.sweep.spec import Sweep

CARD_VERSION = 3
"""Part of a stored card's key: raised when cards of the same network come out otherwise."""

STANDING = (*SUBTRACTED, "unit", "finished_at")
"""What a plan must know of a stored row."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Context:
    """What every stage needs to know of a sweep: plain values that travel to any worker.

    cards: by entry of the zoo; networks: the identity of each network in use, by ENTRY-SEED.
    images: of the sweep, and of the entries that have their own.
    """

    sweep: Sweep
    storage: Storage
    cards: Mapping[str, NetworkCard]
    images: AllImages
    networks: Mapping[str, Identity]

    @property
    def facts(self) -> SourceFacts:
        """Of the images that stitches are trained and tested on."""
        return self.images.of_sweep.facts

    @property
    def data_identity(self) -> Mapping[str, Any]:
        return self.images.of_sweep.identity

    def rows(self) -> CellStore:
        """The rows of the sweep."""
        return CellStore(self.storage, self.sweep.name)

    def images_of(self, model: str) -> Images:
        """The images that a network is trained on, and its card's accuracies measured on."""
        return self.images.of(self.sweep.models()[model].entry)

    def model_key(self, model: str) -> str:
        """Key of the model's artifact."""
        return content_key(self.networks[model])

    def card_of(self, model: str) -> NetworkCard:
        return self.cards[self.sweep.models()[model].entry]

    def digests(self) -> dict[str, str | None]:
        """Digest of each network's stored weights, None where none are stored."""
        return {model: self._digest(model) for model in self.networks}

    def _digest(self, model: str) -> str | None:
        path = self.storage.model_card(self.model_key(model))
        if not path.is_file():
            return None
        try:
            return ModelCard.read(path).digest
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise StorageError(
                f"the stored network {path.parent} ({model}) cannot be used: its card.json is "
                "damaged. Move the folder away and run the sweep again; it is then made anew."
            ) from error


@dataclass(frozen=True)
class Plan:
    """The cells of a sweep and how each stands with what is stored.

    stored: the columns `STANDING` of all stored rows, of earlier plans too.
    """

    context: Context
    cells: list[Cell]
    stored: Reading
    digests: Mapping[str, str | None]
    statuses: list[Status]

    @cached_property
    def pending(self) -> list[Cell]:
        return pending(self.cells, self.statuses)

    @cached_property
    def units(self) -> list[Unit]:
        return units(self.pending)

    @cached_property
    def rows(self) -> pl.DataFrame:
        """All columns of the rows that count; warns of files set aside. See `read`."""
        reading = self.read()
        reading.warn()
        return reading.frame

    def read(self, columns: Collection[str] | None = None) -> Reading:
        """The stored rows that count: those of done and finally failed cells of this plan.

        They stand under this plan's names: an entry may have been renamed since a row was stored.
        columns: these alone; read from the store at this moment.
        """
        wanted = [name for name in COLUMNS if columns is None or name in columns]
        named = [name for name in self.places.columns if name in wanted and name != "key"]
        reading = self.context.rows().scan({*wanted, *MEASURED}.difference(named))
        counting = self.places.filter(pl.Series(self.statuses, dtype=pl.String) != "pending")
        counting = counting.select(
            "key",
            *(pl.col(name).cast(TYPES[name]) for name in named),
            front_wanted=_looked_up("front_model", self.digests),
            end_wanted=_looked_up("end_model", self.digests),
        )
        rows = reading.frame.join(counting, on="key", maintain_order="left")
        same = [pl.col(f"{side}_digest") == pl.col(f"{side}_wanted") for side in ("front", "end")]
        return Reading(rows.filter(same).select(wanted), reading.warnings)

    @cached_property
    def places(self) -> pl.DataFrame:
        """Where each planned cell stands among the others, each once: the axes of tensors."""
        return self._places(self.cells, [cell.variant for cell in self.cells])

    @cached_property
    def layout(self) -> pl.DataFrame:
        """The same with a cell under every variant that shares it: what is compared is together."""
        variants = self.context.sweep.variants
        if not variants:
            return self.places
        named = [(cell, variant) for cell in self.cells for variant in (cell.variant, *cell.also)]
        order = {name: place for place, name in enumerate((None, *variants))}
        named.sort(key=lambda one: order[one[1]])
        return self._places([cell for cell, _ in named], [variant for _, variant in named])

    def _places(self, cells: Sequence[Cell], variants: Sequence[str | None]) -> pl.DataFrame:
        sweep = self.context.sweep
        budgets = {name: sweep.varied(name).budget for name in (None, *sweep.variants)}
        columns = {name: [getattr(cell, name) for cell in cells] for name in _PLACED}
        optional = ("stitch_marker", "test_marker", "control", "variant")
        text: dict[str, Any] = dict.fromkeys(optional, pl.String)
        frame = pl.DataFrame({**columns, "variant": variants}, schema_overrides=text)
        return frame.with_columns(
            budget=pl.col("variant").replace_strict(budgets, return_dtype=pl.Int64),
            data=pl.lit(sweep.data.source),
            preset=pl.lit(sweep.preset),
        )


_PLACED = (
    *("key", "front_model", "end_model", "front_cut", "end_cut", "front_cut_index"),
    *("end_cut_index", "stitch_marker", "test_marker", "control"),
    *("objective", "protocol", "seed"),
)
"""What of a cell says where it stands, its variant aside."""


def _looked_up(column: str, values: Mapping[str, str | None]) -> pl.Expr:
    return pl.col(column).replace_strict(values, return_dtype=pl.String)


def load_sweep(
    path: Path,
    storage: Storage,
    *,
    limit_images: int | None = None,
    max_epochs: int | None = None,
    stored: bool = False,
    say: Say = print,
) -> Context:
    """Read and check a sweep file. Raises `SweepFileError` with all its faults at once.

    Too few images for a cell are a fault, but in a trial run, of ``limit_images``, only a note: it
    is there to try the others. stored: the file is the copy that a run left, perhaps a trial, and
    its cells tell by themselves.
    """
    found, faults = read_sweep(path.resolve())
    cards: dict[str, NetworkCard] = {}
    images: AllImages | None = None
    more: list[Fault] = []
    short: list[Shortage] = []
    if found is not None:
        found, images, more = fit(found, limit_images)
        if images is not None:
            cards, missing = _cards(found, images, storage, say)
            more += [*missing, *card_faults(found, cards)]
            if not stored:
                short = list(shortages(found, cards, images.of_sweep.facts.train))
            if limit_images is None and not stored:
                more += [one.fault() for one in short]
                more += attack_faults(found, images.of_sweep.facts.test)
    sweep = limited(require(path, found, [*faults, *more]), max_epochs)
    assert images is not None
    for note in [*images.notes(), *([_failing(short)] if short else [])]:
        say(f"note: {note}")
    own = {entry: one.identity for entry, one in images.own.items()}
    networks = identities(sweep, images.of_sweep.identity, own)
    return Context(sweep, storage, cards, images, networks)


def _failing(short: Sequence[Shortage]) -> str:
    """What a trial run says of cells that its few images make fail."""
    return (
        "too few images in this trial, so these cells will fail (more --limit-images help): "
        + "; ".join(one.told for one in short)
    )


def make_plan(context: Context, *, retry_failed: bool = False) -> Plan:
    """All cells of the sweep, less those that are stored."""
    cells = expand(context.sweep, context.cards, context.data_identity, networks=context.networks)
    stored = context.rows().scan(STANDING)
    digests = context.digests()
    statuses = subtract(cells, stored.frame, digests, retry_failed=retry_failed)
    return Plan(context, cells, stored, digests, statuses)


def network_card(
    arch: str,
    kwargs: Mapping[str, Any],
    classes: int,
    input_shape: tuple[int, int, int],
    storage: Storage | None,
    say: Say,
) -> NetworkCard:
    """The card of an architecture: the stored one, else made (which loads torch) and stored."""
    path = None
    if storage is not None:
        path = storage.network_card(_card_key(arch, kwargs, classes, input_shape))
        if path.is_file():
            return _stored_card(path)
    say(f"looking for the cuts of {arch} at {'×'.join(map(str, input_shape))} (once)")
    from raystitch.zoo.cuts import describe

    card = describe(arch, dict(kwargs), classes, input_shape)
    if path is not None:
        write_text(path, card.to_json())
    return card


def _stored_card(path: Path) -> NetworkCard:
    try:
        return NetworkCard.read(path)
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise StorageError(
            f"the stored card {path} is damaged. Move it away; it is then made anew."
        ) from error


def _card_key(
    arch: str, kwargs: Mapping[str, Any], classes: int, input_shape: tuple[int, int, int]
) -> str:
    library = arch.partition("/")[0]
    return content_key(
        {
            "card": CARD_VERSION,
            "arch": arch,
            "kwargs": dict(kwargs),
            "classes": classes,
            "input_shape": list(input_shape),
            "library": version(library),
        }
    )


def _cards(
    sweep: Sweep, images: AllImages, storage: Storage, say: Say
) -> tuple[dict[str, NetworkCard], list[Fault]]:
    """Cards of the entries in use, and a fault for each that has none."""
    cards: dict[str, NetworkCard] = {}
    faults: list[Fault] = []
    for name in dict.fromkeys(model.entry for model in sweep.used_models().values()):
        entry, facts = sweep.zoo[name], images.of(name).facts
        try:
            cards[name] = network_card(
                entry.arch, entry.kwargs, facts.classes, facts.shape, storage, say
            )
        except StorageError:
            raise
        except RaystitchError as error:
            faults.append(Fault(f"zoo.{name}.arch", str(error)))
    return cards, faults
