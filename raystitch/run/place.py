# pyright: basic
"""Where a worker of Ray runs, and the end of its log."""

from __future__ import annotations

import os
import socket
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import ray
from ray._private.worker import global_worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

TAIL_LINES = 40

TAIL_SECONDS = 10.0
"""Time for a node to send the end of a log."""


@dataclass(frozen=True)
class Place:
    """One worker process: its host, Ray's id of its node, its process id and its log files."""

    host: str
    node: str
    process: int
    logs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.host} (process {self.process})"


def here() -> Place:
    """The place of the worker that asks."""
    files = (global_worker.get_err_file_path(), global_worker.get_out_file_path())
    node = ray.get_runtime_context().get_node_id()
    return Place(socket.gethostname(), node, os.getpid(), tuple(file for file in files if file))


def log_tail(place: Place) -> str:
    """The last lines that a worker wrote, or why they cannot be had."""
    there = NodeAffinitySchedulingStrategy(place.node, soft=False)
    try:
        answer = _tail.options(scheduling_strategy=there).remote(place.logs)
        return ray.get(answer, timeout=TAIL_SECONDS)
    except Exception as error:
        return f"the log of {place} cannot be read: {type(error).__name__}"


@ray.remote(num_cpus=0)
def _tail(files: tuple[str, ...]) -> str:
    parts: list[str] = []
    for file in map(Path, files):
        if file.is_file():
            with file.open(encoding="utf-8", errors="replace") as lines:
                parts += [
                    f"-- end of {file}",
                    *(line.rstrip() for line in deque(lines, TAIL_LINES)),
                ]
    return "\n".join(parts)
