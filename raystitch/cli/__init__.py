"""The command line: parse, call, print."""

from __future__ import annotations

import os

# Torch's OpenMP threads spin while they wait unless told otherwise: two busy processes on one
# machine then slow each other by up to 15 times. Only counts before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from raystitch.cli import running, showing  # The commands, in the order of the help.
from raystitch.cli.app import app

__all__ = ["app", "main", "running", "showing"]


def main() -> None:
    """Entry of the console script."""
    app()
