"""Cells and units: what a sweep computes, a row of results each, and what goes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from raystitch.names import Control, Objective, Protocol

Status = Literal["done", "failed", "pending"]
STATUSES: tuple[Status, ...] = ("done", "failed", "pending")


class Cell(NamedTuple):
    """One stitch to train and score: (front, front cut, end, end cut, objective, protocol, seed).

    key: hash of ``settings``; unit: key of the unit it is computed in. Models are named ENTRY-SEED,
    cut indices are places among all cuts of the network, from 1.
    stitch_marker, test_marker: models or markers by name, planted in stitch and test images.
    control: what stands in for the front's activation; variant: of the sweep's settings.
    fula_cuts: the end's cuts that `fula` compares, in data order; empty for other objectives.
    shared: the settings but for objective, protocol, seed and fula cuts; one dict for many cells,
    so never to be changed.
    also: further variants that leave the cell as it is, and so share it.

    A named tuple, for a sweep may have a million: it is made in half the time of a dataclass.
    """

    key: str
    unit: str
    front_model: str
    front_cut: str
    front_cut_index: int
    end_model: str
    end_cut: str
    end_cut_index: int
    objective: Objective
    protocol: Protocol
    seed: int
    stitch_marker: str | None
    test_marker: str | None
    control: Control | None
    variant: str | None
    fula_cuts: tuple[str, ...]
    shared: Mapping[str, Any]
    also: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """All that can change the cell's numbers: its identity, a new dict of shared parts."""
        own = {"objective": self.objective, "protocol": self.protocol, "seed": self.seed}
        fula = {"fula_cuts": list(self.fula_cuts)} if self.fula_cuts else {}
        return {**self.shared, **own, **fula}


@dataclass(frozen=True)
class Unit:
    """Pending cells that share front, cut, inputs and seed, and so are trained together.

    key: hash of what they share, whichever of them are pending; names a unit's files.
    """

    key: str
    front_model: str
    front_cut: str
    protocol: Protocol
    seed: int
    stitch_marker: str | None
    control: Control | None
    variant: str | None
    cells: tuple[Cell, ...]


def units(pending: Iterable[Cell]) -> list[Unit]:
    """The cells by unit, in the order in which their units first come."""
    members: dict[str, list[Cell]] = {}
    for cell in pending:
        members.setdefault(cell.unit, []).append(cell)
    return [_unit(key, cells) for key, cells in members.items()]


def _unit(key: str, cells: Sequence[Cell]) -> Unit:
    one = cells[0]
    return Unit(
        key,
        one.front_model,
        one.front_cut,
        one.protocol,
        one.seed,
        one.stitch_marker,
        one.control,
        one.variant,
        tuple(cells),
    )


def counts(statuses: Iterable[Status]) -> dict[Status, int]:
    """How many cells are done, failed and pending.

    >>> counts(["done", "pending", "done"])
    {'done': 2, 'failed': 0, 'pending': 1}
    """
    found = Counter(statuses)
    return {status: found[status] for status in STATUSES}
