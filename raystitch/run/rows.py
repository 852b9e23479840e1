"""The row of results that a cell becomes: which cell it is, what ran it, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from raystitch import __version__
from raystitch.run.workshop import Workshop
from raystitch.stitching.jobs import Finished
from raystitch.sweep.cells import Cell
from raystitch.sweep.keys import canonical

Row = dict[str, Any]


def failed_rows(cells: Sequence[Cell], reason: str, workshop: Workshop) -> list[Row]:
    """A failed row for every one of these cells."""
    outcomes = [Finished(cell.key, None, 0, 0, 0.0, "failed", error=reason) for cell in cells]
    return [
        {**identity_columns(cell, workshop), **outcome_columns(found)}
        for cell, found in zip(cells, outcomes, strict=True)
    ]


def identity_columns(cell: Cell, workshop: Workshop) -> Row:
    """A row's columns that say which cell it is and what ran it."""
    sweep = workshop.context.sweep.varied(cell.variant)
    names = (
        *("key", "unit", "front_model", "front_cut", "front_cut_index", "end_model", "end_cut"),
        *("end_cut_index", "objective", "protocol", "seed", "stitch_marker", "test_marker"),
        *("control", "variant"),
    )
    return {
        **{name: getattr(cell, name) for name in names},
        "sweep": sweep.name,
        "settings": canonical(cell.settings),
        "data": sweep.data.source,
        "preset": sweep.preset,
        "budget": sweep.budget,
        "front_digest": workshop.card(cell.front_model).digest,
        "end_digest": workshop.card(cell.end_model).digest,
        "raystitch_version": __version__,
        "torch_version": str(torch.__version__),
        "device": str(workshop.device),
    }


def outcome_columns(found: Finished) -> Row:
    """A row's columns that say how the cell ended."""
    return {
        "status": "failed" if found.error else "ok",
        "error": found.error,
        "epochs": found.epochs,
        "steps": found.steps,
        "seconds": found.seconds,
        "stop_reason": found.stop_reason,
        "loss_init": found.loss_init,
        "loss": found.curve[-1] if found.curve else None,
        "curve": list(found.curve),
        "agreement_init": found.agreement_init,
        **found.scores,
    }
