"""From a sweep file to a `Sweep`: all faults of the file at once, each with its place.

``read_sweep(path)`` gives the valid part and the faults; with the networks' cards, ``card_faults``
then finds those that need to know the networks. `require` raises them all as one error.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raystitch.errors import Fault, RaystitchError, SweepFileError
from raystitch.settings import Data
from raystitch.sweep.card_faults import card_faults
from raystitch.sweep.draft import Draft
from raystitch.sweep.references import report_references
from raystitch.sweep.spec import Sweep
from raystitch.sweep.yaml_text import load_yaml
from raystitch.sweep.zoo_entry import ZooEntry

__all__ = ["card_faults", "parse_sweep", "read_sweep", "require"]


def read_sweep(path: Path) -> tuple[Sweep | None, tuple[Fault, ...]]:
    """The valid part of a sweep file (the whole of it when there is no fault) and its faults.

    Raises `RaystitchError` when the file cannot be read at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RaystitchError(f"{path} is not a text file in UTF-8: {error}.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise RaystitchError(f"The sweep file {path} cannot be read: {reason}.") from error
    return parse_sweep(text, path.parent)


def parse_sweep(text: str, folder: Path | None = None) -> tuple[Sweep | None, tuple[Fault, ...]]:
    """The valid part of a sweep file's text, and all its faults.

    folder: the file's own: weights are looked for from there, and not at all when None.
    """
    values, faults = load_yaml(text)
    if faults and values is None:
        return None, tuple(faults)
    if not isinstance(values, dict):
        message = "should be a mapping: `name:`, `data:`, `zoo:`, `pairs:` and so on"
        return None, (*faults, Fault("file", message))
    draft = Draft(values)
    sweep = draft.validate()
    if sweep is not None:
        report_references(draft, sweep, folder)
        sweep = draft.validate()
    return _placed(sweep, folder), (*faults, *draft.sorted_faults())


def require(path: Path, sweep: Sweep | None, faults: Sequence[Fault]) -> Sweep:
    """The sweep of a file without faults; `SweepFileError` with all of them otherwise."""
    if faults or sweep is None:
        raise SweepFileError(str(path), faults)
    return sweep


def _placed(sweep: Sweep | None, folder: Path | None) -> Sweep | None:
    """The sweep with its weight files and images counted from the working directory."""
    if sweep is None or folder is None:
        return sweep
    zoo: dict[str, ZooEntry] = {}
    for name, entry in sweep.zoo.items():
        weights = None if entry.weights is None else str(folder / entry.weights)
        data = None if entry.data is None else _placed_data(entry.data, folder)
        zoo[name] = entry.model_copy(update=_given(weights=weights, data=data))
    return sweep.model_copy(update={"zoo": zoo, "data": _placed_data(sweep.data, folder)})


def _placed_data(data: Data, folder: Path) -> Data:
    path = None if data.path is None else str(folder / data.path)
    classes = str(folder / data.classes) if isinstance(data.classes, str) else None
    return data.model_copy(update=_given(path=path, classes=classes))


def _given(**changes: object) -> dict[str, object]:
    """What is not None: a field that was not written stays unwritten."""
    return {name: value for name, value in changes.items() if value is not None}
