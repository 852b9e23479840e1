"""Reading weight files of other tools, and putting them into a network strictly.

No file can run code here: ``.pth`` is read with ``weights_only=True``, ``.safetensors`` holds
nothing but tensors.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from raystitch.errors import RaystitchError, choices

NESTS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts put the weights among other things, in the order tried."""

PREFIXES = ("module.", "_orig_mod.", "model.", "network.", "net.", "backbone.")
"""What wrappers (DataParallel, compile, training modules) put before every name."""

_LISTED = 6


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a weight file by name, as stored.

    Raises `RaystitchError` for a missing or damaged file, an unknown ending, and a file that
    holds anything that would run code when read.
    """
    if path.suffix not in READERS:
        raise RaystitchError(f"weights {path}: the file ending {choices(path.suffix, READERS)}.")
    if not path.is_file():
        raise RaystitchError(f"weights {path}: there is no such file.")
    content = READERS[path.suffix](path)
    while isinstance(content, Mapping):
        inner = next((content[nest] for nest in NESTS if _is_nest(content, nest)), None)
        if inner is None:
            break
        content = inner
    return _only_tensors(content, path)


def load(net: nn.Module, given: Mapping[str, Tensor], what: str) -> None:
    """Put ``given`` into ``net``, every tensor of it and no other.

    A known prefix common to all names is taken off where the names then fit better.
    what: names file and network in the `RaystitchError` that lists what does not fit.
    """
    wanted = cast(dict[str, Tensor], net.state_dict())
    state = _best_names(given, wanted)
    faults = {
        "missing": sorted(wanted.keys() - state.keys()),
        "unexpected": sorted(state.keys() - wanted.keys()),
        "of another shape": [
            f"{name} ({list(state[name].shape)}, not {list(tensor.shape)})"
            for name, tensor in wanted.items()
            if name in state and state[name].shape != tensor.shape
        ],
    }
    if any(faults.values()):
        listed = "; ".join(f"{kind}: {_some(names)}" for kind, names in faults.items() if names)
        raise RaystitchError(
            f"weights {what} do not fit. {listed}. Check that arch, kwargs and the number of "
            "classes are those the weights were trained with."
        )
    net.load_state_dict(state, strict=True)


def _read_safetensors(path: Path) -> Any:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as fault:
        raise RaystitchError(f"weights {path}: not a whole safetensors file ({fault}).") from fault


def _read_pickled(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as fault:
        raise RaystitchError(
            f"weights {path}: the file is damaged or holds more than tensors, which could run "
            "code when read, so it is refused. Save the state dict alone, best as .safetensors."
        ) from fault
    except Exception as fault:
        # A torn archive shows as one of many kinds of error, by where it was torn.
        reason = (str(fault).splitlines() or [type(fault).__name__])[0]
        raise RaystitchError(f"weights {path}: not a whole PyTorch file ({reason}).") from fault


READERS: dict[str, Callable[[Path], Any]] = {
    ".safetensors": _read_safetensors,
    ".pth": _read_pickled,
    ".pt": _read_pickled,
}


def _is_nest(content: Mapping[Any, Any], nest: str) -> bool:
    return isinstance(content.get(nest), Mapping)


def _only_tensors(content: Any, path: Path) -> dict[str, Tensor]:
    if not isinstance(content, Mapping) or not content:
        raise RaystitchError(
            f"weights {path}: holds {type(content).__name__}, not names with tensors, neither "
            f"itself nor under {', '.join(NESTS)}."
        )
    others = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if others:
        raise RaystitchError(
            f"weights {path}: these entries are no tensors: {_some(others)}. Save the state dict "
            f"alone, or under one of {', '.join(NESTS)}."
        )
    return {str(name): value for name, value in content.items()}


def _best_names(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of the names with no, one, two ... common prefixes taken off, those most of which fit."""
    candidates = [dict(given)]
    while prefix := _common_prefix(candidates[-1]):
        candidates.append({n.removeprefix(prefix): t for n, t in candidates[-1].items()})
    return max(candidates, key=lambda state: len(state.keys() & wanted.keys()))


def _common_prefix(names: Iterable[str]) -> str | None:
    listed = list(names)
    return next((p for p in PREFIXES if all(name.startswith(p) for name in listed)), None)


def _some(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
