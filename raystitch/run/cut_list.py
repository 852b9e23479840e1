"""The cuts of an architecture as a table, for whoever writes a sweep file."""

from __future__ import annotations

import json
import re
from typing import Any

import polars as pl

from raystitch.cards import NetworkCard
from raystitch.errors import RaystitchError
from raystitch.results.query import format_frame
from raystitch.run.planning import Say, network_card

OWN_SIDE, OTHER_SIDE = 16, 224
"""Side of the images in pixels where no size is given: the embedded digits', and ImageNet's."""

_SIZE = re.compile(r"(?:(?P<channels>[1-9]\d*)x(?P<height>[1-9]\d*)x)?(?P<width>[1-9]\d*)")


def describe_arch(arch: str, size: str | None, classes: int, kwargs: str, say: Say) -> NetworkCard:
    """The card of an architecture from what a user typed; loads torch.

    size: ``N``, ``CxHxW`` or None; kwargs: a JSON object. Raises `RaystitchError`.
    """
    return network_card(arch, _arguments(kwargs), classes, _shape(arch, size), None, say)


def cut_table(card: NetworkCard, chosen: str) -> str:
    """The chosen cuts: index, name, kind, shape, share of FLOPs, sets."""
    rows = [
        {
            "index": cut.index,
            "cut": cut.name,
            "kind": cut.kind,
            "shape": "×".join(map(str, cut.shape)),
            "FLOPs": f"{100 * cut.flops / max(card.flops, 1):5.1f} %",
            "sets": " ".join(cut.sets) or None,
        }
        for cut in card.select(chosen)
    ]
    answer = format_frame(pl.DataFrame(rows, schema_overrides={"sets": pl.String}))
    assert isinstance(answer, str)
    return answer


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise RaystitchError(f"--kwargs {text}: this is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise RaystitchError(
            f"--kwargs {text}: should be a JSON object, as '{{\"img_size\": 32}}'."
        )
    return found


def _shape(arch: str, size: str | None) -> tuple[int, int, int]:
    if size is None:
        side = OWN_SIDE if arch.startswith("raystitch/") else OTHER_SIDE
        return (3, side, side)
    found = _SIZE.fullmatch(size)
    if found is None:
        raise RaystitchError(f"--size {size}: should be N or CxHxW, as 32 or 3x32x32.")
    width = int(found["width"])
    return (int(found["channels"] or 3), int(found["height"] or width), width)
