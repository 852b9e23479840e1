"""Commands that show what is stored, and what can be written."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from raystitch.cli.app import Root, app
from raystitch.errors import RaystitchError
from raystitch.run.terminal import DEFAULT_STORAGE, open_storage, say, warn

# Torch, polars and the rest are imported inside the commands that need them: help comes at once.


@app.command()
def status(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Name of a sweep; all when absent.")
    ] = None,
    storage: Root = DEFAULT_STORAGE,
) -> None:
    """Show how stored sweeps stand.

    Cells done, failed and pending, networks and IRIs stored, and why cells failed. Reads stored
    files alone, so it can be asked from anywhere, also while a sweep is running.

    \b
    raystitch status
    raystitch status quickstart

    \b
    Exit codes: 0 shown; 1 no such sweep, or one that cannot be read.
    """
    from raystitch.run.status import standing, standing_lines

    where = open_storage(storage)
    names = where.sweeps() if run is None else [run]
    if not names:
        typer.echo(f"no sweep has been run into {where.root} yet")
    unreadable = 0
    for name in names:
        try:
            found = standing(name, where, say)
        except RaystitchError as error:
            say(str(error))
            unreadable += 1
            continue
        warn(found.plan.stored.warnings)
        for line in standing_lines(found):
            typer.echo(line)
    if unreadable:
        raise typer.Exit(1)


@app.command()
def cuts(
    arch: Annotated[str, typer.Argument(metavar="ARCH", help="As raystitch/cnn5, timm/NAME.")],
    chosen: Annotated[
        str,
        typer.Option("--set", help="blocks, stages, paper, all, the name of a cut, or a glob."),
    ] = "all",
    size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Image size: N or CxHxW; 16 for raystitch/ networks, else 224 when absent.",
        ),
    ] = None,
    classes: Annotated[int, typer.Option(min=2, metavar="N", help="Number of classes.")] = 10,
    kwargs: Annotated[
        str, typer.Option(metavar="JSON", help="Arguments of the architecture.")
    ] = "{}",
) -> None:
    """List the cuts of an architecture, where it can be stitched.

    Cuts are found in the network's graph. FLOPs are the share of the network's that lies before
    and at the cut; sets are what `cuts:` of a sweep file can name.

    \b
    raystitch cuts raystitch/cnn5 --set blocks
    raystitch cuts timm/vit_tiny_patch16_224 --size 32 --kwargs '{"img_size": 32, "patch_size": 4}'

    \b
    Exit codes: 0 listed; 2 no such network or cut, or a network that cannot be traced.
    """
    from raystitch.run.cut_list import cut_table, describe_arch

    card = describe_arch(arch, size, classes, kwargs, say)
    typer.echo(cut_table(card, chosen), nl=False)
    for note in card.notes:
        say(f"note: {note}")


@app.command()
def query(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a sweep, or a folder with rows.")
    ],
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT from the table `cells`.")],
    fmt: Annotated[str, typer.Option("--format", help="table, csv, json or parquet.")] = "table",
    storage: Root = DEFAULT_STORAGE,
    every: Annotated[
        bool, typer.Option("--all", help="Every stored row, not only those of the current plan.")
    ] = False,
) -> None:
    """Ask the rows of a sweep in SQL.

    One SELECT in Polars' dialect; the table is `cells`, one row per cell. Taken are the rows of the
    sweep as it was last run: an earlier trial with fewer images does not mix in. With --all every
    stored row is taken.

    \b
    raystitch query quickstart "SELECT front_model, end_cut, agreement FROM cells
        WHERE objective = 'fula' AND protocol = 'invariance' ORDER BY agreement"
    raystitch query quickstart "SELECT * FROM cells" --format parquet > cells.parquet

    \b
    Exit codes: 0 answered; 1 no such sweep, or one that cannot be read; 2 the query is wrong.
    """
    from raystitch.results import query as sql_query
    from raystitch.run.status import rows_of

    fmt = sql_query.known_format(fmt)
    rows = rows_of(run, open_storage(storage), every=every, say=say)
    warn(rows.warnings)
    answer = sql_query.format_frame(sql_query.query(rows.frame, sql), fmt)
    if isinstance(answer, bytes) and sys.stdout.isatty():
        raise RaystitchError("Parquet is no text: send it to a file, as `... > cells.parquet`.")
    typer.echo(answer, nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a sweep file.

    Editors complete and check YAML with it.

    \b
    raystitch schema > sweep.schema.json

    \b
    Exit codes: 0 always.
    """
    from raystitch.sweep.spec import schema as sweep_schema

    typer.echo(json.dumps(sweep_schema(), indent=2))
