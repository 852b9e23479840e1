"""Hold the figures of a mini sweep against what the paper found: its shapes, not its digits.

    python scripts/check_shapes.py mini_information [--storage runs]

Prints measured against expected for each shape. Exit codes: 0 all hold; 1 a shape fails or a figure
is missing; 2 there is nothing to check.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from raystitch.errors import RaystitchError
from raystitch.results.store import Storage
from raystitch.run.status import rows_of

EARLY, MIDDLE, LAST = "blocks.0", "blocks.2", "blocks.4"
CUTS = (EARLY, MIDDLE, LAST)


class MissingFigureError(Exception):
    """A figure that a shape needs is not there."""


@dataclass(frozen=True)
class Figures:
    """The rows of a sweep, asked for by place."""

    rows: pl.DataFrame

    def all(self, column: str = "agreement", /, **place: str | None) -> list[float]:
        """The figures of every cell at that place (a column given None must be null)."""
        found = self.rows
        for name, value in place.items():
            wanted = pl.col(name).is_null() if value is None else pl.col(name) == value
            found = found.filter(wanted)
        figures: list[float | None] = found[column].to_list() if column in found.columns else []
        if not figures or None in figures:
            where = ", ".join(f"{name} {value}" for name, value in place.items())
            raise MissingFigureError(f"no {column} of {where}")
        return [figure for figure in figures if figure is not None]

    def one(
        self, front: str, end: str, cut: str, objective: str, protocol: str, **more: str
    ) -> float:
        """The mean over seeds of one place without a control."""
        place = {"front_model": front, "end_model": end, "end_cut": cut, "control": None, **more}
        figures = self.all(objective=objective, protocol=protocol, **place)
        return sum(figures) / len(figures)


@dataclass(frozen=True)
class Shape:
    """What must hold: a figure between two limits."""

    says: str
    measured: Callable[[Figures], float]
    low: float = float("-inf")
    high: float = float("inf")

    def line(self, figures: Figures) -> tuple[bool, str]:
        """Whether it holds, and measured against expected in words."""
        expected = f">= {self.low:g}" if self.low > float("-inf") else ""
        if self.high < float("inf"):
            expected = f"{expected} and <= {self.high:g}" if expected else f"<= {self.high:g}"
        try:
            value = self.measured(figures)
        except MissingFigureError as missing:
            return False, f"missing  {missing}: {self.says}"
        holds = self.low <= value <= self.high
        return holds, f"{'ok' if holds else 'FAILS':<8} {value:6.1f}  {expected:<16} {self.says}"


def _information() -> list[Shape]:
    """One and the same network, another seed, SimCLR, and a front that reads a planted colour."""
    same, seed, bias = ("clean-0", "clean-0"), ("clean-1", "clean-0"), ("shortcut-2", "clean-0")
    supervision = ("simclr-6", "clean-0")
    shapes = [
        Shape(
            f"identical, {protocol}: the lowest of all cuts and objectives",
            lambda f, p=protocol: min(
                f.all(front_model=same[0], end_model=same[1], protocol=p, control=None)
            ),
            low=98,
        )
        for protocol in ("standard", "invariance")
    ]
    shapes += [
        Shape(
            f"cross-seed, standard, {objective}, {cut}",
            lambda f, o=objective, c=cut: f.one(*seed, c, o, "standard"),
            low=93,
        )
        for objective in ("hlm", "slm", "fula")
        for cut in (EARLY, MIDDLE)
    ]
    shapes += [
        Shape(
            f"cross-bias, standard, {objective}, {MIDDLE}: plain stitching sees no difference",
            lambda f, o=objective: f.one(*bias, MIDDLE, o, "standard"),
            low=88,
        )
        for objective in ("hlm", "slm", "fula")
    ]
    for objective, high in (("slm", 65.0), ("dm", 45.0), ("fula", 60.0)):
        shapes += [
            Shape(
                f"cross-bias, invariance, {objective}, {MIDDLE}: collapses",
                lambda f, o=objective: f.one(*bias, MIDDLE, o, "invariance"),
                high=high,
            ),
            Shape(
                f"... and by this much more than cross-seed, {objective}",
                lambda f, o=objective: (
                    f.one(*seed, MIDDLE, o, "invariance") - f.one(*bias, MIDDLE, o, "invariance")
                ),
                low=20,
            ),
        ]
    shapes += [
        Shape(
            f"cross-bias, invariance, hlm, {MIDDLE}: blind, its labels ignore the IRIs",
            lambda f: f.one(*bias, MIDDLE, "hlm", "invariance"),
            low=85,
        ),
        Shape(
            f"cross-supervision, standard, hlm, {MIDDLE}",
            lambda f: f.one(*supervision, MIDDLE, "hlm", "standard"),
            low=80,
        ),
        Shape(
            f"cross-supervision above cross-bias, invariance, fula, {MIDDLE}",
            lambda f: (
                f.one(*supervision, MIDDLE, "fula", "invariance")
                - f.one(*bias, MIDDLE, "fula", "invariance")
            ),
            low=15,
        ),
        Shape(
            f"cross-seed, invariance, fula, {MIDDLE}, above its noise control",
            lambda f: (
                f.one(*seed, MIDDLE, "fula", "invariance") - f.one(*seed, MIDDLE, "fula", "noise")
            ),
            low=20,
        ),
    ]
    return [
        *shapes,
        Shape(
            "class noise in place of a front, standard, hlm: lowest accuracy of all cuts",
            lambda f: min(
                f.all("accuracy", control="class_noise", objective="hlm", protocol="standard")
            ),
            low=99,
        ),
    ]


def _shortcut() -> list[Shape]:
    """A patch that the end does not know, planted where the stitch trains."""

    def excessive(
        f: Figures, cut: str, objective: str, protocol: str, front: str = "colour-2"
    ) -> float:
        """Of the front that can tell the patches apart, unless said otherwise."""
        (figure,) = f.all(
            "excessive_agreement",
            front_model=front,
            stitch_marker="patch",
            end_cut=cut,
            objective=objective,
            protocol=protocol,
        )
        return figure

    shapes = [
        Shape(
            f"excessive agreement, standard, {objective}, {MIDDLE}",
            lambda f, o=objective: excessive(f, MIDDLE, o, "standard"),
            low=40,
        )
        for objective in ("hlm", "slm")
    ]
    shapes += [
        Shape(
            f"... slm above fula, standard, {MIDDLE}",
            lambda f: (
                excessive(f, MIDDLE, "slm", "standard") - excessive(f, MIDDLE, "fula", "standard")
            ),
            low=20,
        ),
        Shape(
            f"... of a clean front, standard, hlm, {MIDDLE}: digits so easy need no patch",
            lambda f: excessive(f, MIDDLE, "hlm", "standard", "clean-1"),
            high=30,
        ),
        Shape(
            f"... invariance, hlm, {MIDDLE}: blind, its labels ignore the IRIs",
            lambda f: excessive(f, MIDDLE, "hlm", "invariance"),
            low=40,
        ),
        Shape(
            f"... slm, {MIDDLE}: standard above invariance",
            lambda f: (
                excessive(f, MIDDLE, "slm", "standard") - excessive(f, MIDDLE, "slm", "invariance")
            ),
            low=20,
        ),
    ]
    shapes += [
        Shape(
            f"... invariance, {objective}, {LAST}: gone (size)",
            lambda f, o=objective: abs(excessive(f, LAST, o, "invariance")),
            high=6,
        )
        for objective in ("slm", "dm", "fula")
    ]
    return [
        *shapes,
        Shape(
            "noise marker, every cut, objective and protocol: the largest size",
            lambda f: max(map(abs, f.all("excessive_agreement", stitch_marker="grain"))),
            high=5,
        ),
    ]


def _adversarial() -> list[Shape]:
    """Robust and clean networks as front and end."""
    robust, to_robust = ("robust-3", "robust-4"), ("clean-1", "robust-4")
    shapes = [
        Shape(
            f"robust -> robust, invariance, {objective}, {cut}",
            lambda f, o=objective, c=cut: f.one(*robust, c, o, "invariance"),
            low=low,
        )
        for objective, cut, low in (
            ("fula", MIDDLE, 92),
            ("fula", LAST, 90),
            ("slm", MIDDLE, 92),
            ("slm", LAST, 90),
        )
    ]
    shapes += [
        Shape(
            f"robust -> robust above clean -> robust, invariance, {objective}, {cut}",
            lambda f, o=objective, c=cut: (
                f.one(*robust, c, o, "invariance") - f.one(*to_robust, c, o, "invariance")
            ),
            low=low,
        )
        for objective, cut, low in (
            ("dm", MIDDLE, 5),
            ("fula", MIDDLE, 2),
            ("fula", LAST, 50),
            ("slm", LAST, 50),
        )
    ]
    shapes += [
        Shape(
            f"robust -> clean above clean -> clean, invariance, fula, {LAST}",
            lambda f: (
                f.one("robust-3", "clean-0", LAST, "fula", "invariance")
                - f.one("clean-1", "clean-0", LAST, "fula", "invariance")
            ),
            low=30,
        )
    ]
    shapes += [
        Shape(
            f"robust -> robust above its noise control, fula, {cut}",
            lambda f, c=cut: (
                f.one(*robust, c, "fula", "invariance") - f.one(*robust, c, "fula", "noise")
            ),
            low=low,
        )
        for cut, low in ((MIDDLE, 30), (LAST, 50))
    ]
    return shapes


SHAPES: dict[str, Callable[[], list[Shape]]] = {
    "mini_information": _information,
    "mini_shortcut": _shortcut,
    "mini_adversarial": _adversarial,
}


def main(arguments: list[str] | None = None) -> int:
    """Check the shapes of one stored sweep; the exit code."""
    parser = argparse.ArgumentParser(description="Hold a mini sweep against the paper's shapes.")
    parser.add_argument("run", metavar="RUN", help=f"one of {', '.join(SHAPES)}")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="default: ./runs")
    options = parser.parse_args(arguments)
    if options.run not in SHAPES:
        print(f"no shapes are known for {options.run!r}: there are {', '.join(SHAPES)}.")
        return 2
    try:
        reading = rows_of(options.run, Storage(options.storage), every=False, say=print)
    except RaystitchError as error:
        print(error)
        return 2
    figures = Figures(reading.frame.filter(pl.col("status") == "ok"))
    lines = [shape.line(figures) for shape in SHAPES[options.run]()]
    print("         measured  expected")
    for _, line in lines:
        print(line)
    failing = sum(not holds for holds, _ in lines)
    print(f"{len(lines) - failing} of {len(lines)} shapes hold.")
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())
