"""The benchmarks of scripts/bench.py at small sizes: the fields of their JSON, their results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench.py"


def figures(tmp_path: Path, *command: str) -> dict[str, Any]:
    path = tmp_path / "figures.json"
    line = [sys.executable, str(SCRIPT), *command, "--json", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text("utf-8"))


def test_plan(tmp_path: Path) -> None:
    got = figures(tmp_path, "plan", "--cells", "2000")
    assert (got["cells"], got["pending"], got["pending_right"]) == (2000, 1000, True)
    assert got["keys_checked"] == 1000
    assert {"expand and key", "read stored rows", "subtract", "units"} < set(got["seconds"])
    assert got["peak_mebibytes"] > 50


def test_query(tmp_path: Path) -> None:
    got = figures(tmp_path, "query", "--rows", "2000", "--files", "20")
    assert (got["rows"], got["files"], got["missing"], got["sums_right"]) == (2000, 20, 0, True)
    assert {"read rows", "long table", "dense tensor", "summary"} <= set(got["seconds"])
    assert got["peak_mebibytes"] > 50
