"""The unit loop: trains the cells of one unit and stores their rows as they end.

Every runner calls this and nothing else to train stitches, so that all of them store the same rows.
Whoever calls it again after a loss redoes at most what came after the last saved state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import polars as pl

from raystitch.errors import CellError
from raystitch.results.store import CellStore
from raystitch.run.bench import Bench
from raystitch.run.process import peak_bytes
from raystitch.run.rows import Row, failed_rows
from raystitch.run.states import Digests, StateStore
from raystitch.run.work import UnitReport, UnitWork
from raystitch.run.workshop import Workshop
from raystitch.stitching.fit import UnitFit
from raystitch.stitching.state import CellState
from raystitch.sweep.cells import Cell
from raystitch.sweep.resume import SUBTRACTED, pending, subtract

States = Mapping[str, CellState]


def run_unit(work: UnitWork, workshop: Workshop) -> Iterator[UnitReport]:
    """Train what is pending of a unit; a report after every epoch, when its rows are stored."""
    reports = _UnitRun(work, workshop).reports()
    began = time.monotonic()
    for report in reports:
        yield replace(report, seconds=time.monotonic() - began, peak_bytes=peak_bytes())
        began = time.monotonic()


class _UnitRun:
    def __init__(self, work: UnitWork, workshop: Workshop) -> None:
        self.work, self.unit, self.workshop = work, work.unit, workshop
        self.cells = {cell.key: cell for cell in work.unit.cells}
        storage, name = workshop.context.storage, workshop.context.sweep.name
        self.store, self.states = CellStore(storage, name), StateStore(storage, name)
        self.every = workshop.context.sweep.execution.state_seconds
        self.saved = time.monotonic()
        self.stored = 0

    def reports(self) -> Iterator[UnitReport]:
        cells = self._pending(self.unit.cells)
        self.stored = len(self.unit.cells) - len(cells)
        if not cells:
            yield self._report([])
            return
        if self.work.failure is not None:
            yield self._store(failed_rows(cells, self.work.failure, self.workshop))
            return
        try:
            bench = Bench(self.work, self.workshop)
        except CellError as error:
            yield self._store(failed_rows(cells, str(error), self.workshop))
            return
        found = {cell.key: self.states.load(cell.key, self._digests(cell)) for cell in cells}
        states = {key: state for key, state in found.items() if state is not None}
        groups = _groups(cells, states, alone=bench.training.alone)
        for group in groups:
            for report in self._train(bench, group, states):
                yield replace(report, done=report.live == 0 and group is groups[-1])

    def _train(self, bench: Bench, cells: Sequence[Cell], states: States) -> Iterator[UnitReport]:
        """Train cells that stand at one epoch; the states are those of all of them or of none."""
        own = {cell.key: states[cell.key] for cell in cells if cell.key in states}
        resumed = next((state.epochs for state in own.values()), None)
        for epoch in bench.run(cells, own):
            report = self._store(epoch.rows)
            self._save_now_and_then(epoch.fit)
            live = len(epoch.fit.live)
            yield replace(report, epoch=epoch.fit.epochs, live=live, resumed=resumed)
            resumed = None

    def _pending(self, cells: Sequence[Cell]) -> list[Cell]:
        """These cells less those that have their row.

        Some may have it though they were planned: from a worker that was lost after it, or that was
        thought lost and went on.
        """
        digests = {
            model: self.workshop.card(model).digest
            for cell in cells
            for model in (cell.front_model, cell.end_model)
        }
        stored = self.store.of_unit(self.unit.key, (*SUBTRACTED, "finished_at"))
        if self.work.again:
            rows = zip(stored["key"], stored["finished_at"], strict=True)
            stored = stored.filter(pl.Series([row not in self.work.again for row in rows]))
        return pending(cells, subtract(cells, stored, digests))

    def _digests(self, cell: Cell) -> Digests:
        return (
            self.workshop.card(cell.front_model).digest,
            self.workshop.card(cell.end_model).digest,
        )

    def _store(self, rows: Sequence[Row]) -> UnitReport:
        """Store rows, forget the states of their cells, and say so."""
        if not rows:
            return self._report(rows)
        missing = {cell.key for cell in self._pending([self.cells[row["key"]] for row in rows])}
        if new := [row for row in rows if row["key"] in missing]:
            self.store.write(new, self.unit.key)
        for row in rows:
            self.states.remove(row["key"])
        self.stored += len(rows)
        return self._report(rows)

    def _report(self, rows: Sequence[Row]) -> UnitReport:
        report = UnitReport(
            self.unit.key, self.work.part, epoch=0, live=0, done=True, stored=self.stored
        )
        if not rows:
            return report
        row = rows[-1]
        place = f"{row['front_model']} → {row['end_model']} {row['end_cut']}"
        return replace(
            report,
            failed=sum(row["status"] == "failed" for row in rows),
            latest=f"{place} {row['objective']} {row['protocol']}",
            agreement=row.get("agreement"),
        )

    def _save_now_and_then(self, fit: UnitFit) -> None:
        if not fit.epochs or time.monotonic() - self.saved < self.every:
            return
        for key, state in fit.capture().items():
            self.states.save(key, self._digests(self.cells[key]), state)
        self.saved = time.monotonic()


def _groups(cells: Sequence[Cell], states: States, *, alone: bool) -> list[list[Cell]]:
    """Cells that can be trained together: the same test images, and the same epoch behind them.

    alone: each cell by itself, on copies of the halves that only it drifts.
    """
    groups: dict[tuple[str | None, ...], list[Cell]] = {}
    for cell in cells:
        epochs = states[cell.key].epochs if cell.key in states else 0
        own = (cell.key,) if alone else ()
        groups.setdefault((cell.test_marker, str(epochs), *own), []).append(cell)
    return list(groups.values())
