"""States of cells in training, in the store: a long unit that is stopped goes on where it was.

One file for each cell, so that a unit may be split otherwise when it goes on. A state counts only
with the two networks that it was trained between; one that cannot be read counts as none.
"""

from __future__ import annotations

import json
from dataclasses import fields

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from raystitch.files import atomic_path
from raystitch.results.store import Storage
from raystitch.stitching.state import CellState

FORMAT = "cell-state/1"

Digests = tuple[str, str]
"""Of the front's and of the end's weights."""


class StateStore:
    """The states of one sweep's cells, each under the cell's key."""

    def __init__(self, storage: Storage, sweep: str) -> None:
        self.folder = storage.states(sweep)

    def save(self, key: str, digests: Digests, state: CellState) -> None:
        header = {"format": FORMAT, "digests": list(digests), "facts": state.facts()}
        with atomic_path(self.folder / f"{key}.safetensors") as temporary:
            save_file(state.tensors, temporary, {"state": json.dumps(header)})

    def load(self, key: str, digests: Digests) -> CellState | None:
        """The cell's last saved state, if there is one that counts."""
        path = self.folder / f"{key}.safetensors"
        try:
            with safe_open(path, framework="pt") as stored:
                header = json.loads((stored.metadata() or {})["state"])
                tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, json.JSONDecodeError):
            return None
        known = {field.name for field in fields(CellState)} - {"tensors"}
        if header.get("format") != FORMAT or set(header["facts"]) != known:
            return None
        if tuple(header["digests"]) != digests:
            return None
        return CellState(**header["facts"], tensors=tensors)

    def remove(self, key: str) -> None:
        (self.folder / f"{key}.safetensors").unlink(missing_ok=True)
