"""Hand-made cards and sweeps for the tests of planning: no network is built."""

from __future__ import annotations

from typing import Any

from raystitch.cards import CutCard, NetworkCard
from raystitch.sweep.spec import Sweep

IMAGES = {"source": "digits"}
MAP_SHAPES = ((16, 16, 16), (32, 8, 8), (32, 8, 8), (64, 4, 4), (64, 4, 4))


def map_card(blocks: int = 5, classes: int = 10) -> NetworkCard:
    """A CNN with ``blocks`` map cuts in the sets blocks and paper, then a vector `pool`."""
    cuts = [
        CutCard(
            index=n + 1,
            name=f"blocks.{n}",
            kind="map",
            shape=MAP_SHAPES[n % 5],
            flops=1000 * (n + 1),
            aliases=(f"blocks.{n}.2",),
            sets=("blocks", "paper") if n % 2 == 0 else ("blocks",),
        )
        for n in range(blocks)
    ]
    pool = CutCard(blocks + 1, "pool", "vector", (64,), 1000 * blocks + 64)
    cuts.append(pool)
    return NetworkCard(
        "raystitch/cnn5", {}, (3, 16, 16), classes, 100_000, 1000 * blocks + 704, tuple(cuts)
    )


def token_card(tokens: int = 17, width: int = 32) -> NetworkCard:
    """A transformer with three token cuts in the set blocks."""
    cuts = tuple(
        CutCard(n + 1, f"layers.{n}", "tokens", (tokens, width), 500 * (n + 1), (), ("blocks",))
        for n in range(3)
    )
    return NetworkCard("timm/vit", {}, (3, 16, 16), 10, 100_000, 2000, cuts)


def sweep(**changes: Any) -> Sweep:
    """A small sweep: clean-0, clean-1 and shortcut-2, the latter with a marker."""
    fields: dict[str, Any] = {
        "name": "small",
        "data": "digits",
        "zoo": {
            "clean": {"arch": "raystitch/cnn5", "seeds": [0, 1]},
            "shortcut": {"arch": "raystitch/cnn5", "seeds": [2], "marker": {"size": 4}},
        },
        "pairs": [{"front": "clean-1", "end": "clean-0"}],
        "cuts": ["blocks.0", "blocks.2", "blocks.4"],
        "stitch_images": 512,
    }
    return Sweep.model_validate(fields | changes)


def cards() -> dict[str, NetworkCard]:
    return {"clean": map_card(), "shortcut": map_card()}
