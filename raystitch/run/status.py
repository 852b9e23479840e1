"""How stored sweeps stand, and their rows, read from stored files alone: nothing is asked to run.

A sweep is known by the copy of its file that a run leaves in the storage, so that the user's own
file may have changed or be gone.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from raystitch.cards import ModelCard
from raystitch.errors import RaystitchError, StorageError
from raystitch.results.store import Reading, Storage, find_cells, read_cells
from raystitch.run.planning import Context, Plan, Say, load_sweep, make_plan
from raystitch.sweep.cells import Cell, Status, counts
from raystitch.sweep.estimate import Cost, estimate, total
from raystitch.sweep.keeping import keeping
from raystitch.sweep.keys import iri_keys
from raystitch.sweep.memory import worker_bytes
from raystitch.sweep.resume import EXPLAINED, why

NAMED = 3
"""Cells that one reason names before it only counts them."""


@dataclass(frozen=True)
class Standing:
    """How one stored sweep stands.

    networks: by name, their card where they are stored; iri_sets: shards stored of each set of
    IRIs that the sweep trains on, by the set's key.
    """

    plan: Plan
    counted: dict[Status, int]
    networks: dict[str, ModelCard | None]
    iri_sets: dict[str, int]


def stored_plan(name: str, storage: Storage, say: Say) -> Plan:
    """The plan of a sweep as it was last run. Raises `StorageError` when it cannot be made."""
    path = storage.sweep_file(name)
    if not path.is_file():
        known = ", ".join(storage.sweeps()) or "none yet"
        raise StorageError(
            f"no sweep {name!r} has been run into {storage.root} (there: {known}). Run it first, "
            "or pass --storage."
        )
    try:
        return make_plan(load_sweep(path, storage, stored=True, say=say))
    except StorageError:
        raise
    except RaystitchError as error:
        raise StorageError(
            f"the sweep {name} cannot be planned as it was last run. {error}\n"
            f"Run it again from its file, or take every stored row: "
            f"`raystitch query {name} ... --all`."
        ) from error


def standing(name: str, storage: Storage, say: Say) -> Standing:
    """How the stored sweep of that name stands."""
    plan = stored_plan(name, storage, say)
    context = plan.context
    cards = {model: storage.model_card(context.model_key(model)) for model in context.networks}
    return Standing(
        plan,
        counts(plan.statuses),
        {model: ModelCard.read(path) if path.is_file() else None for model, path in cards.items()},
        {key: len(list(storage.iris(key).glob("part-*.parquet"))) for key in iri_keys(plan.cells)},
    )


def cost(plan: Plan) -> Cost:
    """What the pending units of a plan cost at most."""
    context = plan.context
    facts = context.facts
    return total(
        estimate(unit, context.sweep, context.cards, facts.train, facts.test) for unit in plan.units
    )


def planned_memory(plan: Plan) -> int:
    """Bytes that a worker of the pending units holds at its peak, on a CPU."""
    context = plan.context
    facts = context.facts
    counts = (facts.shape, facts.train, facts.test)
    return worker_bytes(plan.units, context.sweep, context.cards, *counts)


def rows_of(
    run: str, storage: Storage, *, every: bool, say: Say, columns: Collection[str] | None = None
) -> Reading:
    """The rows of a sweep's current plan, under the plan's names; all that are stored if ``every``.

    columns: these at least, if given. run: a sweep's name under the storage, or the path of a
    folder with rows. Rows in a folder that belongs to no sweep have no plan: all are taken, which
    is said.
    """
    if not every:
        return planned_rows(run, storage, say, columns)[0]
    found = _sweep_of(run, storage)
    folder = found[0].cells(found[1]) if found else find_cells(run, storage)
    return read_cells(folder, columns=columns)


def planned_rows(
    run: str, storage: Storage, say: Say, columns: Collection[str] | None = None
) -> tuple[Reading, pl.DataFrame | None]:
    """The rows of a sweep's current plan, and how it lays them out; None where there is no plan.

    run, columns: as for `rows_of`.
    """
    found = _sweep_of(run, storage)
    if found is None:
        say(f"{run} belongs to no stored sweep: every row in it is taken")
        # Rows of several plans may claim one place: their settings tell what they differ in.
        wanted = None if columns is None else {*columns, "settings"}
        return read_cells(find_cells(run, storage), columns=wanted), None
    plan = stored_plan(found[1], found[0], say)
    reading = plan.read(columns)
    return Reading(reading.frame, (*plan.stored.warnings, *reading.warnings)), plan.layout


def reasons(plan: Plan) -> list[tuple[str, list[Cell]]]:
    """Why cells are not done: each reason once with its cells, the most common first."""
    open_cells = [
        cell for cell, status in zip(plan.cells, plan.statuses, strict=True) if status != "done"
    ]
    groups: dict[str, list[Cell]] = {}
    found = why(open_cells, plan.context.rows().scan(EXPLAINED).frame, plan.digests)
    for cell, reason in zip(open_cells, found, strict=True):
        groups.setdefault(reason, []).append(cell)
    return sorted(groups.items(), key=lambda group: -len(group[1]))


def reason_lines(plan: Plan) -> Iterator[str]:
    """One line per reason: how many cells, the reason, and the first few of them."""
    for reason, cells in reasons(plan):
        yield f"{len(cells)} × {reason}"
        yield from (f"    {cell_name(cell)}" for cell in cells[:NAMED])
        if len(cells) > NAMED:
            yield f"    and {len(cells) - NAMED} more"


def plan_lines(plan: Plan) -> Iterator[str]:
    """What a sweep would do, in figures."""
    found = cost(plan)
    yield counted_line(plan.context.sweep.name, counts(plan.statuses))
    yield f"units pending: {len(plan.units)}"
    yield from _keeping_lines(plan)
    yield f"memory of a worker on a CPU: about {in_bytes(planned_memory(plan))}"
    yield f"work at most: {in_flops(found.flops)}"
    missing = [model for model, digest in plan.digests.items() if digest is None]
    yield f"networks not stored yet: {_listed(missing)}"


def _keeping_lines(plan: Plan) -> Iterator[str]:
    """What is kept of frozen networks' answers, and what is computed whenever it is asked for."""
    context = plan.context
    sweep, facts = context.sweep, context.facts
    found = keeping(plan.units, sweep, context.cards, facts.train, facts.test)
    shared, own = in_bytes(found.shared_bytes), in_bytes(found.own_bytes)
    execution = sweep.execution
    yield (
        f"activations on real images: {shared} in files that a node's workers share "
        f"(`cache_bytes`: {in_bytes(execution.cache_bytes)})"
    )
    yield (
        f"activations on a unit's own images: {own} in a worker's memory at most "
        f"(`activation_bytes`: {in_bytes(execution.activation_bytes)})"
    )
    if found.again:
        less = f"less than `flops_per_byte`: {execution.flops_per_byte:g}"
        yield f"computed again each time ({less}): {_listed(found.again)}"


def standing_lines(found: Standing) -> Iterator[str]:
    """How a sweep stands: its cells, networks and IRIs, and why some failed."""
    name = found.plan.context.sweep.name
    there = [card for card in found.networks.values() if card is not None]
    yield counted_line(name, found.counted)
    yield f"  networks: {len(there)} of {len(found.networks)} stored"
    yield from (f"    {card.name}: accuracy {card.accuracy:.1f} %" for card in there)
    begun = sum(count > 0 for count in found.iri_sets.values())
    yield (
        f"  IRIs: {sum(found.iri_sets.values())} shards stored, in {begun} of "
        f"{len(found.iri_sets)} sets"
    )
    failed = found.plan.read(("status", "error")).frame.filter(pl.col("status") == "failed")
    for reason, count in failed["error"].value_counts(sort=True).iter_rows():
        yield f"  {count} failed: {reason}"


def stopped_text(context: Context) -> str:
    """What is stored of a sweep that was stopped, and how to go on."""
    counted = counts(make_plan(context).statuses)
    return (
        f"Stopped. Stored of {context.sweep.name}: {counted['done']} cells done, "
        f"{counted['failed']} failed; {counted['pending']} are pending. "
        "Run the same command again to go on from there."
    )


def failures_command(name: str, options: Sequence[str]) -> str:
    """The command that shows the failed cells of a sweep, for a shell."""
    columns = "key, front_model, front_cut, end_model, end_cut, objective, protocol, seed, error"
    sql = f"SELECT {columns} FROM cells WHERE status = 'failed'"
    return shlex.join(["raystitch", "query", name, sql, *options])


def counted_line(name: str, counted: dict[Status, int]) -> str:
    numbers = ", ".join(f"{count} {status}" for status, count in counted.items())
    return f"{name}: {sum(counted.values())} cells, {numbers}"


def cell_name(cell: Cell) -> str:
    """A cell in words."""
    return (
        f"{cell.front_model} {cell.front_cut} -> {cell.end_model} {cell.end_cut}, "
        f"{cell.objective} {cell.protocol} seed {cell.seed}"
    )


def in_bytes(count: float) -> str:
    """Bytes for reading: ``1.5 MiB``."""
    return _scaled(count, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB"))


def in_flops(count: float) -> str:
    """Floating point operations for reading: ``2.1 TFLOP``."""
    return _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def _scaled(count: float, step: int, names: Sequence[str]) -> str:
    place = 0
    while count >= step and place < len(names) - 1:
        count, place = count / step, place + 1
    return f"{count:.0f} {names[place]}" if place == 0 else f"{count:.1f} {names[place]}"


def _listed(names: Sequence[str], shown: int = 8) -> str:
    rest = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + rest if names else "none"


def _sweep_of(run: str, storage: Storage) -> tuple[Storage, str] | None:
    """The storage and name of the sweep meant by ``run``; None where rows belong to none."""
    if run in storage.sweeps():
        return storage, run
    folder = find_cells(run, storage).resolve()
    if folder.name != "cells" or folder.parents[1].name != "sweeps":
        return None
    home, name = Storage(folder.parents[2]), folder.parent.name
    return (home, name) if Path(home.sweep_file(name)).is_file() else None
