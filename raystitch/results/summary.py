"""The table at the end of a sweep: front -> end x cut, one column per objective x protocol.

Beside them, per objective, the difference standard - invariance in points, and whether it may be
read as one: a fall under invariance that a stitch trained on plain noise shows just as well is no
invariance difference (see `differs_from_noise`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot

import polars as pl
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from raystitch.names import OBJECTIVES, PROTOCOLS
from raystitch.results.layout import CUTS, GOOD, PAIR, laid_out
from raystitch.results.tensors import ordered

MARGIN = 5.0
"""Points below which a distance to the noise control counts as none."""

REAL, NOISE, NO_CONTROL = "real", "noise", "no control"


@dataclass(frozen=True)
class Summary:
    """What `summarise` gives.

    frame: a row per pair and cut (`PAIR`, `CUTS`), then ``<objective>_<protocol>``: agreement in
    percent, mean over seeds, null where there is none; per objective ``<objective>_difference``
    (points) and ``<objective>_flag`` (`REAL`, `NOISE`, `NO_CONTROL`, or null without a
    difference); last ``…_sd`` (over seeds), ``…_sem``, ``…_seeds`` (cells behind the mean) and
    ``…_planned``.
    planned: cells that there should be; missing: how many have no good row; failed: their rows.
    """

    frame: pl.DataFrame
    objectives: tuple[str, ...]
    protocols: tuple[str, ...]
    planned: int
    missing: int
    failed: pl.DataFrame

    def columns(self, objective: str) -> list[str]:
        """The agreement columns of an objective; none for a pairing no cell was planned for."""
        names = [f"{objective}_{protocol}" for protocol in self.protocols]
        return [name for name in names if name in self.frame.columns]


def differs_from_noise(
    invariance: float,
    noise: float,
    invariance_sem: float | None = None,
    noise_sem: float | None = None,
) -> bool:
    """Whether agreement under invariance stands out from the noise control's.

    True if invariance - noise > max(5 points, 2 standard errors of that difference). The errors,
    over test images, are taken as independent: both are measured on the same images, so the true
    one is smaller and the rule errs towards "no difference". An unknown error counts as 0.
    """
    error = hypot(invariance_sem or 0.0, noise_sem or 0.0)
    return invariance - noise > max(MARGIN, 2 * error)


def summarise(cells: pl.DataFrame, planned: pl.DataFrame | None = None) -> Summary:
    """The summary of a sweep's rows (one per key, as `CellStore.read` gives them).

    planned: the current plan (`laid_out`): only its keys count, its cells without a good row are
    the missing ones, and its order of pairs is kept. Without it, the rows themselves are the plan.
    """
    outcome = ("status", "error", "agreement", "agreement_sem")
    merged = laid_out(cells, planned, outcome).with_row_index("_row")
    good = GOOD & pl.col("agreement").is_not_null()
    objectives = ordered(merged["objective"], OBJECTIVES)
    protocols = ordered(merged["protocol"], PROTOCOLS)
    there = set(merged.select("objective", "protocol").unique().rows())
    pairings = [
        (objective, protocol)
        for objective in objectives
        for protocol in protocols
        if (objective, protocol) in there
    ]
    frame = _in_order(_wide(merged, good, pairings), objectives)
    # A cell that variants share stands under each of them, and is one.
    failed = merged.filter(pl.col("status").eq_missing("failed"))
    failed = failed.unique("key", keep="first", maintain_order=True)
    missing = merged.filter(~good)["key"].n_unique()
    return Summary(frame, objectives, protocols, merged["key"].n_unique(), missing, failed)


def render(summary: Summary) -> Rendered:
    """The summary for a console: as many objectives side by side as its width holds."""
    return Rendered(summary)


def _wide(merged: pl.DataFrame, good: pl.Expr, pairings: list[tuple[str, str]]) -> pl.DataFrame:
    """One row per pair and cut, pairs in order of appearance, cuts in data order."""
    place = (*PAIR, *CUTS)
    agreement = pl.col("agreement").filter(good)
    over_seeds = merged.group_by(*place, "objective", "protocol", maintain_order=True).agg(
        pl.col("_row").min(),
        agreement.mean(),
        agreement.std().alias("_sd"),
        # The seeds share their test images, so averaging over seeds does not lessen this error.
        pl.col("agreement_sem").filter(good).mean().alias("_sem"),
        good.sum().cast(pl.Int32).alias("_seeds"),
        pl.len().cast(pl.Int32).alias("_planned"),
    )
    values: list[pl.Expr] = []
    for objective, protocol in pairings:
        here = (pl.col("objective") == objective) & (pl.col("protocol") == protocol)
        name = f"{objective}_{protocol}"
        values += [pl.col("agreement").filter(here).first().alias(name)]
        values += [pl.col(n).filter(here).first().alias(f"{name}{n}") for n in ("_sd", "_sem")]
        values += [pl.col(n).filter(here).sum().alias(f"{name}{n}") for n in ("_seeds", "_planned")]
    rows = over_seeds.group_by(*place, maintain_order=True).agg(pl.col("_row").min(), *values)
    rows = rows.with_columns(pl.col("_row").min().over(PAIR))
    return rows.sort("_row", "front_cut_index", "end_cut_index").drop("_row")


def _in_order(wide: pl.DataFrame, objectives: tuple[str, ...]) -> pl.DataFrame:
    """Add difference and flag of each objective, agreement first and what is behind it last."""
    for objective in objectives:
        standard, invariance = f"{objective}_standard", f"{objective}_invariance"
        if {standard, invariance} <= set(wide.columns):
            flags = [_flag(row, objective) for row in wide.iter_rows(named=True)]
            wide = wide.with_columns(
                (pl.col(standard) - pl.col(invariance)).alias(f"{objective}_difference"),
                pl.Series(f"{objective}_flag", flags, dtype=pl.String),
            )
    behind = [name for name in wide.columns if name.endswith(("_sd", "_sem", "_seeds", "_planned"))]
    shown = [name for name in wide.columns if name not in behind]
    fixed = len(PAIR) + len(CUTS)
    by_objective = [n for o in objectives for n in shown[fixed:] if n.startswith(f"{o}_")]
    return wide.select(*shown[:fixed], *dict.fromkeys(by_objective), *behind)


def _flag(row: dict[str, float | None], objective: str) -> str | None:
    name = f"{objective}_invariance"
    standard, invariance, noise = (
        row.get(f"{objective}_{protocol}") for protocol in ("standard", "invariance", "noise")
    )
    if standard is None or invariance is None:
        return None
    if noise is None:
        return NO_CONTROL
    errors = row.get(f"{name}_sem"), row.get(f"{objective}_noise_sem")
    return REAL if differs_from_noise(invariance, noise, *errors) else NOISE


_SHORT = {"standard": "std", "invariance": "inv"}
_FLAG_MARK = {REAL: " ", NOISE: "~", NO_CONTROL: "?", None: " "}
_SHOWN_FAILURES = 10


class Rendered:
    """A rich renderable: plain aligned lines, so that a log reads like a terminal."""

    def __init__(self, summary: Summary) -> None:
        self.summary = summary

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line, style in self.lines(options.max_width):
            yield Text(line.rstrip(), style=style, no_wrap=False, overflow="fold")

    def lines(self, width: int) -> Iterator[tuple[str, str]]:
        """Lines with their style, blocks of objectives within ``width`` characters."""
        summary = self.summary
        labels = [_cut_label(row) for row in summary.frame.iter_rows(named=True)]
        titles = _titles(summary.frame)
        margin = max([len(label) + 1 for label in labels], default=0)
        blocks = {name: _block(summary, name, spread=True) for name in summary.objectives}
        spread = all(len(block[0]) <= width - margin for block in blocks.values())
        if not spread:
            blocks = {name: _block(summary, name, spread=False) for name in summary.objectives}
        for group in _packed(blocks, width - margin):
            for head in zip(*(blocks[name][:2] for name in group), strict=True):
                yield " " * margin + "".join(head), "bold"
            for row, label in enumerate(labels):
                if row == 0 or titles[row] != titles[row - 1]:
                    yield titles[row], "bold cyan"
                figures = "".join(blocks[name][2 + row] for name in group)
                yield f" {label}".ljust(margin) + figures, ""
            yield "", ""
        yield from ((text, "dim") for text in _legend(summary, spread))
        yield from ((text, "red") for text in _failures(summary))


def _block(summary: Summary, objective: str, *, spread: bool) -> list[str]:
    """One objective's columns as lines of equal length: two of heading, then one per row.

    spread: with the deviation over seeds, where there is one.
    """
    names = summary.columns(objective)
    heads = [name.removeprefix(f"{objective}_") for name in names]
    columns = [[_SHORT.get(head, head)] for head in heads]
    difference = f"{objective}_difference" in summary.frame.columns
    columns += [["diff "]] if difference else []
    for row in summary.frame.iter_rows(named=True):
        figures = [
            _value(
                row[n], row[f"{n}_sd"] if spread else None, row[f"{n}_seeds"], row[f"{n}_planned"]
            )
            for n in names
        ]
        if difference:
            figures.append(_difference(row[f"{objective}_difference"], row[f"{objective}_flag"]))
        for column, figure in zip(columns, figures, strict=True):
            column.append(figure)
    widths = [max(map(len, column)) + 1 for column in columns]
    lines = [
        "".join(text.rjust(width) for text, width in zip(texts, widths, strict=True))
        for texts in zip(*columns, strict=True)
    ]
    return [" " + objective.center(sum(widths)), *(f" {line}" for line in lines)]


def _packed(blocks: dict[str, list[str]], width: int) -> Iterator[list[str]]:
    """Objectives in groups that fit side by side; one that is too wide alone stands alone."""
    group: list[str] = []
    for name, block in blocks.items():
        taken = sum(len(blocks[other][0]) for other in group)
        if group and taken + len(block[0]) > width:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def _value(value: float | None, sd: float | None, seeds: int, planned: int) -> str:
    if value is None:
        return "-" if planned else ""
    text = "100" if value >= 99.95 else f"{value:.1f}"
    text += "" if sd is None else f"±{sd:.1f}"
    return f"{text}*" if seeds < planned else text


def _difference(value: float | None, flag: str | None) -> str:
    return "- " if value is None else f"{value:+.1f}{_FLAG_MARK[flag]}"


def _cut_label(row: dict[str, str]) -> str:
    front, end = row["front_cut"], row["end_cut"]
    return front if front == end else f"{front} -> {end}"


def _titles(frame: pl.DataFrame) -> list[str]:
    """The pair of each row; variant, data, preset and budget are told only where they vary."""
    told = ("variant", "data", "preset", "budget")
    varying = [name for name in told if frame[name].n_unique() > 1]
    titles = list[str]()
    for row in frame.iter_rows(named=True):
        stitch, test = row["stitch_marker"], row["test_marker"]
        notes = [f"{name} {row[name]}" for name in varying if row[name] is not None]
        if row["control"] is not None:
            notes.insert(0, f"front: {row['control']}")
        if stitch or test:
            both = f"marker of {stitch}"
            apart = f"stitch marker {stitch or 'none'}, test marker {test or 'none'}"
            notes.insert(0, both if stitch == test else apart)
        note = f"  ({', '.join(notes)})" if notes else ""
        titles.append(f"{row['front_model']} -> {row['end_model']}{note}")
    return titles


def _legend(summary: Summary, spread: bool) -> list[str]:
    frame, found = summary.frame, summary.planned - summary.missing
    flags = {f for n in frame.columns if n.endswith("_flag") for f in frame[n].drop_nulls()}
    shown = [name for objective in summary.objectives for name in summary.columns(objective)]
    several = any(frame[f"{name}_sd"].is_not_null().any() for name in shown)
    fewer = any(
        0 < row[f"{name}_seeds"] < row[f"{name}_planned"]
        for row in frame.iter_rows(named=True)
        for name in shown
    )
    head = "Agreement in percent, mean over seeds; std: standard, inv: invariance"
    lines = [f"{head}, diff: std - inv, in points." if flags else f"{head}."]
    if NOISE in flags:
        lines.append(
            f"~ no invariance difference: inv is no more than {MARGIN:g} points "
            "(or 2 standard errors) above its noise control."
        )
    if NO_CONTROL in flags:
        lines.append("? no control: there is no noise cell to compare with (hlm has none).")
    if spread and several:
        lines.append("± standard deviation over seeds.")
    if fewer:
        lines.append("* mean over fewer seeds than planned.")
    if summary.missing:
        lines.append("- no result.")
    lines.append(f"{found} of {summary.planned} cells have a result; {summary.missing} missing.")
    return lines


def _failures(summary: Summary) -> list[str]:
    failed = summary.failed
    lines = [f"{failed.height} failed:"] if failed.height else []
    for row in failed.head(_SHOWN_FAILURES).iter_rows(named=True):
        pair = f"{row['front_model']} -> {row['end_model']} at {_cut_label(row)}"
        cell = f"{row['objective']} {row['protocol']} seed {row['seed']}"
        lines.append(f"  {pair}, {cell}: {row['error']}")
    if failed.height > _SHOWN_FAILURES:
        lines.append(
            f"  and {failed.height - _SHOWN_FAILURES} more: "
            "SELECT key, error FROM cells WHERE status = 'failed'"
        )
    return lines
