"""Where the time of a stage's slots goes: in units, or in one of four kinds of waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from raystitch.run.work import UnitReport


@dataclass
class Span:
    """One unit, as its reports came in: seconds on the listener's clock, and those it computed."""

    begin: float
    end: float
    computing: float

    def within(self, since: float, until: float) -> float:
        """Its seconds between two moments."""
        return max(0.0, min(self.end, until) - max(self.begin, since))


@dataclass(frozen=True)
class Parts:
    """The seconds of all slots, from the first slot's start to the last report.

    start: until all slots are at work, end: after they are for the last time; between_epochs: from
    a report to the next epoch's start; between_units: while all slots have work; busy: the share of
    that time that is in units.
    """

    slots: int
    wall: float
    units: int
    computing: float
    start: float
    between_epochs: float
    between_units: float
    end: float
    busy: float

    @property
    def overhead(self) -> float:
        """Seconds of slots outside units, over those inside."""
        return (self.slots * self.wall - self.computing) / self.computing


@dataclass
class Timeline:
    """Hears of units, and tells where time went."""

    clock: Callable[[], float] = time.monotonic
    spans: dict[tuple[str, int], Span] = field(default_factory=dict[tuple[str, int], Span])
    cpu: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def __call__(self, report: UnitReport) -> None:
        now, name = self.clock(), (report.unit, report.part)
        self.cpu.append((now, time.process_time()))
        span = self.spans.setdefault(name, Span(now - report.seconds, now, 0.0))
        span.end, span.computing = now, span.computing + report.seconds

    @property
    def driver_share(self) -> float:
        """CPU time of this process, from the first report to the last, over that time."""
        (begin, first), (end, last) = self.cpu[0], self.cpu[-1]
        return (last - first) / max(end - begin, 1e-9)

    def parts(self, slots: int) -> Parts:
        """Where the time went; reports are all that is needed, whichever slot they come from."""
        spans = list(self.spans.values())
        begin, end = min(span.begin for span in spans), max(span.end for span in spans)
        first, last = self._all_at_work(slots)

        def idle(since: float, until: float) -> float:
            return slots * (until - since) - sum(span.within(since, until) for span in spans)

        within, computing = idle(first, last), sum(span.computing for span in spans)
        whole = sum(span.end - span.begin for span in spans)
        full = slots * (last - first)
        return Parts(
            slots,
            end - begin,
            len(spans),
            computing,
            start=idle(begin, first),
            between_epochs=whole - computing,
            between_units=within,
            end=idle(last, end),
            busy=(1 - within / full) * computing / whole if full else math.nan,
        )

    def _all_at_work(self, slots: int) -> tuple[float, float]:
        """The first and the last moment at which so many units are at work."""
        spans = self.spans.values()
        changes = sorted([(span.begin, 1) for span in spans] + [(span.end, -1) for span in spans])
        working, moments = 0, list[float]()
        for moment, change in changes:
            if working == slots or working + change == slots:
                moments.append(moment)
            working += change
        if not moments:
            return changes[-1][0], changes[-1][0]
        return moments[0], moments[-1]
