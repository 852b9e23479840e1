"""IRIs: one set for each cut of a front, by `synthesise` and by the plain loop.

Both take the same sign steps from the same noise for the same images. As published, the plain loop
runs an image through both whole networks, and so does it for the target, anew in each step; a
second comparison leaves out the end, and a third has our halves lean (`work.LEAN`): paths of sign
steps part where a gradient is near 0, so its pixels are others. Loading and cutting the networks is
outside both times.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

import plain_loop
from benchmarks import work
from benchmarks.report import JsonFile, alternate, compared, show
from raystitch.stitching.iris import start_noise, synthesise
from raystitch.zoo.pixels import to_unit

Pixels = NDArray[np.uint8]


def main(
    full: Annotated[bool, typer.Option("--full", help="The whole width, 64.")] = False,
    short: Annotated[bool, typer.Option("--short", help="A tiny trial.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Sign steps.")] = 30,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each side.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = os.cpu_count() or 1,
    json_file: JsonFile = None,
) -> None:
    """Make IRIs: truncated front and target once, against whole networks in each step."""
    width, images = (4, 64) if short else (64 if full else 16, 256)
    cuts = [work.CUTS[cut] for cut in ((5, 9) if short else work.CUTS)]
    steps, repeats = (2, 1) if short else (steps, repeats)
    jobs = (
        ("as published", {}, True),
        ("whole front alone", {}, False),
        ("as published, lean", work.LEAN, True),
    )
    figures: list[Any] = []
    for name, compute, with_end in jobs:
        with tempfile.TemporaryDirectory() as folder:
            changes: dict[str, Any] = {
                "iris": {**work.IRIS, "steps": steps, "batch": 64},
                "cuts": cuts,
                "protocols": ["standard"],
                "compute": compute,
            }
            file = work.sweep_file(Path(folder), "iri", width, threads, images, **changes)
            prepared = work.prepare(file, Path(folder) / "runs")
            figures.append(_compare(name, prepared, cuts, with_end=with_end, repeats=repeats))
    show(figures, json_file)


def _compare(
    name: str, prepared: work.Prepared, cuts: list[str], *, with_end: bool, repeats: int
) -> Any:
    raw, ours, plain = alternate(
        lambda: _ours(prepared, cuts), _plain(prepared, cuts, with_end=with_end), repeats
    )
    gaps = np.concatenate(
        [np.abs(ours[cut].astype(int) - plain[cut].astype(int)).ravel() for cut in cuts]
    )
    same = float((gaps <= 1).mean())
    return compared(name, raw, len(cuts), float(gaps.max()), share_within_one_grey_level=same)


def _ours(prepared: work.Prepared, cuts: list[str]) -> dict[str, Pixels]:
    workshop = prepared.workshop
    network, images = workshop.lean_network("net-1"), workshop.stitch_images(None)
    iris = prepared.context.sweep.iris
    return {
        cut: synthesise(network.front(cut), images, iris, 0, workshop.device).images.images
        for cut in cuts
    }


def _plain(
    prepared: work.Prepared, cuts: list[str], *, with_end: bool
) -> Callable[[], dict[str, Pixels]]:
    workshop, iris = prepared.workshop, prepared.context.sweep.iris
    front, end = (work.hooked(prepared, model) for model in ("net-1", "net-0"))
    images = workshop.stitch_images(None)
    real = to_unit(images.images, workshop.device)
    start = torch.stack([start_noise(0, int(index), images.shape) for index in images.index])

    def run() -> dict[str, Pixels]:
        return {cut: _rounded(_made(cut)) for cut in cuts}

    def _made(cut: str) -> torch.Tensor:
        return plain_loop.synthesise(
            front, end if with_end else None, cut, real, start, iris.steps, iris.lr, iris.batch
        )

    return run


def _rounded(images: torch.Tensor) -> Pixels:
    return (images * 255).round().to(torch.uint8).numpy()
