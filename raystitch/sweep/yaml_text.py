"""YAML text to plain values: safe_load, but a key given twice is a fault, and faults have lines."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from raystitch.errors import Fault


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` that notes repeated keys; the first value under a key stays."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.faults: list[Fault] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Hashable, int] = {}
        kept: list[tuple[yaml.Node, yaml.Node]] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                kept.append((key_node, value_node))
                continue
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if not isinstance(key, Hashable):
                self.faults.append(Fault(f"line {line}", "a key should be a name, not a list"))
            elif key in lines:
                message = f"{key!r} is given twice (first in line {lines[key]}); give it once"
                self.faults.append(Fault(f"line {line}", message))
            else:
                lines[key] = line
                kept.append((key_node, value_node))
        node.value = kept
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> tuple[Any, list[Fault]]:
    """The values of a YAML text and its faults; at a syntax error, None and that one fault.

    Every mapping and list is one of its own, aliases written out.
    """
    try:
        loader = _Loader(text)
        values = _unshared(loader.get_single_data())
    except yaml.YAMLError as error:
        return None, [Fault(_line(error), f"this is not YAML: {_problem(error)}")]
    except RecursionError:
        return None, [Fault("file", "an alias (`*name`) lies within what it names; write it out")]
    except ValueError as error:
        return None, [Fault("file", f"this cannot be read as YAML: {error}")]
    return values, loader.faults


def _unshared(node: Any) -> Any:
    """A copy in which what an alias names is written out: cutting in one place spares the other."""
    if isinstance(node, dict):
        return {key: _unshared(value) for key, value in node.items()}
    return [_unshared(item) for item in node] if isinstance(node, list) else node


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f"line {mark.line + 1}" if mark is not None else "file"


def _problem(error: yaml.YAMLError) -> str:
    parts = [getattr(error, name, None) for name in ("context", "problem", "reason")]
    return ", ".join(part for part in parts if part) or str(error)
