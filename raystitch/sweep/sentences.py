"""pydantic's errors as sentences a user can act on: what is wrong, what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from raystitch.compute import Compute
from raystitch.errors import choices
from raystitch.evaluation import Evaluation, Representation, Robust
from raystitch.settings import (
    Data,
    Iris,
    Marker,
    Training,
)
from raystitch.sweep.execution import Execution
from raystitch.sweep.refusal import REFUSED
from raystitch.sweep.spec import NAME_PATTERN, Grid, Pair, Sweep
from raystitch.sweep.variants import Variant
from raystitch.sweep.zoo_entry import ZooEntry

Path = tuple[str | int, ...]
"""A place in a sweep file: keys and list positions from the top."""

MODELS: dict[tuple[str, ...], type[BaseModel]] = {
    (): Sweep,
    ("data",): Data,
    ("zoo", "*"): ZooEntry,
    ("zoo", "*", "data"): Data,
    ("zoo", "*", "marker"): Marker,
    ("markers", "*"): Marker,
    ("pairs",): Grid,
    ("pairs", "*"): Pair,
    ("training",): Training,
    ("training_of", "*"): Training,
    ("iris",): Iris,
    ("variants", "*"): Variant,
    ("variants", "*", "training"): Training,
    ("variants", "*", "training_of", "*"): Training,
    ("variants", "*", "iris"): Iris,
    ("compute",): Compute,
    ("evaluation",): Evaluation,
    ("evaluation", "robust"): Robust,
    ("evaluation", "representation"): Representation,
    ("execution",): Execution,
}
"""The model that describes each place; ``*`` stands for an entry's name or a list position."""


NAMED = {
    *(("zoo",), ("markers",), ("training_of",), ("variants",)),
    ("variants", "*", "training_of"),
}
"""Places whose keys are names that the file gives."""


def dotted(path: Path) -> str:
    """A path as people write it.

    >>> dotted(("pairs", 2, "front"))
    'pairs[2].front'
    """
    text = ""
    for part in path:
        text += f"[{part}]" if text and isinstance(part, int) else f".{part}" if text else str(part)
    return text or "file"


def model_at(path: Path) -> type[BaseModel] | None:
    """The model that lists the fields allowed at ``path``."""
    starred: tuple[str, ...] = ()
    for part in path:
        starred += ("*",) if isinstance(part, int) or starred in NAMED else (part,)
    return MODELS.get(starred)


def sentence(error: ErrorDetails, path: Path) -> str:
    """What the error says, for a person; ``path``: its place in the file."""
    kind = error["type"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == REFUSED:
        return context["sentence"]
    if kind == "extra_forbidden":
        return _unknown(path)
    if kind == "missing":
        return _missing(path)
    if kind == "value_error":
        return f"{error['input']!r} {context['error']}"
    if kind in _LIMITS:
        word, key = _LIMITS[kind]
        return f"{_shown(error['input'])} is out of range; it should be {word} {context[key]:g}"
    if kind in _WANTED:
        return f"{_shown(error['input'])} should be {_WANTED[kind]}"
    return _SPECIAL.get(kind, lambda e: e["msg"])(error)


def _unknown(path: Path) -> str:
    model = model_at(path[:-1])
    fields = sorted(model.model_fields) if model else []
    return f"there is no such field; {choices(path[-1], fields)}"


def _missing(path: Path) -> str:
    model = model_at(path[:-1])
    field = model.model_fields.get(str(path[-1])) if model else None
    hint = f" ({field.description.rstrip('.')})" if field and field.description else ""
    return f"is missing{hint}; it must be given"


def _shown(value: Any) -> str:
    # `field:` with nothing behind it is null in YAML.
    text = "nothing is given; it" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _literal(error: ErrorDetails) -> str:
    return choices(error["input"], re.findall(r"'([^']*)'", error.get("ctx", {})["expected"]))


def _too_short(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    least, count = context["min_length"], context["actual_length"]
    number = "one" if least == 1 else least
    return f"{f'has only {count}' if count else 'is empty'}; give at least {number}"


_LIMITS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_WHOLE, _NUMBER, _MAPPING = "a whole number", "a number", "a mapping (`field: value`)"
_WANTED = {
    "int_type": _WHOLE,
    "int_parsing": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a text (put it in quotes)",
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": "a list, as [a, b]",
    "string_too_long": "at most 100 characters long",
}
_SPECIAL: dict[str, Callable[[ErrorDetails], str]] = {
    "literal_error": _literal,
    "string_pattern_mismatch": lambda e: (
        f"{_shown(e['input'])} should be a name of letters, digits, `.`, `_` and `-` that begins "
        f"with a letter or digit ({NAME_PATTERN})"
    ),
    "string_too_short": lambda _: "is empty; give a name",
    "too_short": _too_short,
}
