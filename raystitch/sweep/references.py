"""Faults between the parts of a sweep file: names of nothing, combinations without a cell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from raystitch.errors import choices
from raystitch.names import IRI_PROTOCOLS, ONE_SIDED_PROTOCOLS, UNLABELLED_PROTOCOLS
from raystitch.sweep import sentences
from raystitch.sweep.draft import Draft
from raystitch.sweep.spec import Grid, Sweep


def report_references(draft: Draft, sweep: Sweep, folder: Path | None) -> None:
    """Report the faults between the parts of ``sweep``, the valid part of ``draft``.

    folder: that of the file, where weights are looked for; not looked for when None.
    """
    _report_zoo(draft, sweep, folder)
    _report_markers(draft, sweep)
    _report_models(draft, sweep)
    _report_repeated_pairs(draft, sweep)
    _report_cuts(draft, sweep)
    _report_combinations(draft, sweep)


def _report_zoo(draft: Draft, sweep: Sweep, folder: Path | None) -> None:
    if not sweep.zoo and not draft.is_touched(("zoo",)):
        draft.report(("zoo",), "is empty; give at least one network")
    for name, entry in sweep.zoo.items():
        if entry.weights is None or folder is None:
            continue
        path = folder / entry.weights
        if not path.is_file():
            draft.report(("zoo", name, "weights"), f"there is no file {path}; give its place")


def _report_markers(draft: Draft, sweep: Sweep) -> None:
    models = sweep.models()
    for name in sweep.markers:
        if name in models:
            draft.report(("markers", name), "is the name of a network too; give it another name")


def _report_models(draft: Draft, sweep: Sweep) -> None:
    models = sweep.models()
    for path, name in list(_references(sweep)):
        entry = name.rpartition("-")[0]
        # What names a faulty entry would be right once the entry is: no fault of its own.
        unknown_zoo = not sweep.zoo or draft.is_touched(("zoo", entry))
        is_marker = str(path[-1]).endswith("_marker")
        if is_marker and (name in sweep.markers or draft.is_touched(("markers", name))):
            if name not in sweep.markers:
                draft.cut_out(path)
            continue
        if is_marker and name not in models and name not in sweep.zoo and not unknown_zoo:
            known = [*_marked(sweep), *sweep.markers]
            draft.report(path, f"there is no such marker; {choices(name, known)}")
            continue
        if name not in models and unknown_zoo:
            draft.cut_out(path)
        elif name not in models:
            draft.report(path, _no_model(sweep, name))
        elif is_marker and sweep.marker_of(name) is None and not unknown_zoo:
            draft.report(path, f"{name} was trained without a marker; {_with_marker(sweep)}")


def _no_model(sweep: Sweep, name: str) -> str:
    if name in sweep.zoo:
        seeds = sweep.zoo[name].seeds
        models = ", ".join(f"{name}-{seed}" for seed in seeds)
        return f"{name!r} is an entry of the zoo; name one of its networks: {models}"
    return f"there is no such network; {choices(name, sweep.models())}"


def _marked(sweep: Sweep) -> list[str]:
    return [m.name for m in sweep.models().values() if sweep.zoo[m.entry].marker is not None]


def _with_marker(sweep: Sweep) -> str:
    return f"networks with one: {', '.join(_marked(sweep)) or '(none)'}"


def _references(sweep: Sweep) -> Iterator[tuple[sentences.Path, str]]:
    """Every mention of a network, with its place."""
    if isinstance(sweep.pairs, Grid):
        for field in ("fronts", "ends"):
            for number, name in enumerate(getattr(sweep.pairs, field)):
                yield ("pairs", field, number), name
    elif isinstance(sweep.pairs, tuple):
        numbers = sweep.pair_numbers()
        for number, pair in zip(numbers, sweep.pairs, strict=True):
            for field in ("front", "end", "stitch_marker", "test_marker"):
                if (name := getattr(pair, field)) is not None:
                    yield ("pairs", number, field), name


def _report_repeated_pairs(draft: Draft, sweep: Sweep) -> None:
    if not isinstance(sweep.pairs, tuple):
        return
    first: dict[object, int] = {}
    for number, pair in zip(sweep.pair_numbers(), sweep.pairs, strict=True):
        if pair in first and not draft.is_touched(("pairs", number)):
            draft.report(("pairs", number), f"is pairs[{first[pair]}] again; give it once")
        first.setdefault(pair, number)
    if not sweep.pairs and not draft.is_touched(("pairs",)):
        draft.report(("pairs",), "is empty; give at least one pair")


def _report_cuts(draft: Draft, sweep: Sweep) -> None:
    if not isinstance(sweep.cuts, dict) or not sweep.zoo:
        return
    for entry in sweep.cuts:
        if entry not in sweep.zoo and not draft.is_touched(("zoo", entry)):
            message = f"there is no such entry of the zoo; {choices(entry, sweep.zoo)}"
            draft.report(("cuts", entry), message)
    used = dict.fromkeys(
        name.rpartition("-")[0] for _, pair in sweep.pair_list() for name in (pair.front, pair.end)
    )
    absent = [e for e in used if e in sweep.zoo and e not in sweep.cuts]
    for entry in absent:
        if not draft.is_touched(("cuts", entry)):
            draft.add(("cuts",), f"says nothing for {entry}, which pairs use; add `{entry}: ...`")


def _report_combinations(draft: Draft, sweep: Sweep) -> None:
    if set(sweep.objectives) == {"hlm"} and set(sweep.protocols) <= UNLABELLED_PROTOCOLS:
        draft.add(
            ("objectives",),
            f"hlm needs labels, and {', '.join(sweep.protocols)} has none: no cell is left; "
            "add another objective or protocol",
        )
    if "standard" not in sweep.protocols:
        for number, pair in sweep.numbered_pairs():
            if pair.control is not None:
                message = f"{pair.control} is stitched under `standard` alone: add that protocol"
                draft.report(("pairs", number, "control"), message)
    for variant in (None, *sweep.variants):
        _report_trainings(draft, sweep, variant)
    _report_evaluation(draft, sweep)


def _report_evaluation(draft: Draft, sweep: Sweep) -> None:
    """Measures that apply to no cell of the sweep."""
    marked = any(pair.test_marker or pair.stitch_marker for _, pair in sweep.pair_list())
    if sweep.evaluation.excessive and not marked and not draft.is_touched(("pairs",)):
        draft.report(
            ("evaluation", "excessive"),
            "no pair has a marker: give one a `test_marker` or `stitch_marker`, or leave it out",
        )
    if sweep.evaluation.test_iris and not IRI_PROTOCOLS & set(sweep.protocols):
        draft.report(
            ("evaluation", "test_iris"),
            f"no protocol uses IRIs; add one of {', '.join(sorted(IRI_PROTOCOLS))}, or drop it",
        )


def _report_trainings(draft: Draft, sweep: Sweep, variant: str | None) -> None:
    place = ("training",) if variant is None else ("variants", variant)
    varied = sweep.varied(variant)
    for protocol in sweep.protocols:
        training = varied.training_under(protocol)
        if training.attack_share and protocol in UNLABELLED_PROTOCOLS:
            draft.add(
                place,
                f"attack_share needs labels, and {protocol} has none: leave {protocol} out, or "
                f"write `training_of: {{{protocol}: {{attack_share: 0}}}}`",
            )
        if training.attack_share and protocol in ONE_SIDED_PROTOCOLS:
            draft.add(
                place,
                f"attack_share needs the same images on both sides, and {protocol} has not: leave "
                f"{protocol} out, or write `training_of: {{{protocol}: {{attack_share: 0}}}}`",
            )
    live = "standard" in sweep.protocols and varied.training_under("standard").live
    for number, pair in sweep.numbered_pairs():
        if pair.control is not None and live:
            draft.report(
                ("pairs", number, "control"),
                f"{pair.control} sees no images, so training cannot change them; use `bn: eval`, "
                "`dropout: false`, `augment: none` and `attack_share: 0` under `standard`",
            )
