"""Measures raystitch against a plain loop, or against itself, on the same work in one run.

    python scripts/bench.py COMMAND [--json FILE]

docs/performance.md says what each command measures and how to read it.
"""

from __future__ import annotations

import os

# Before torch is loaded: spinning threads would take the core of whoever works.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import typer

from benchmarks import (
    engine,
    iri,
    overhead,
    plan,
    query,
    quickstart,
    rules,
    scale,
    stitch,
    stopping,
)

app = typer.Typer(add_completion=False, help=__doc__, rich_markup_mode=None)


@app.callback()
def main() -> None:
    """Each benchmark prints a table."""


app.command("stitch")(stitch.main)
app.command("iri")(iri.main)
app.command("rules")(rules.main)
app.command("overhead")(overhead.main)
app.command("engine")(engine.main)
app.command("scale")(scale.main)
app.command("plan")(plan.main)
app.command("query")(query.main)
app.command("stopping")(stopping.main)
app.command("quickstart")(quickstart.main)

if __name__ == "__main__":
    app()
