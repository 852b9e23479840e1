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
    wanted = sql_query.columns(sql)
    rows = rows_of(run, open_storage(storage), every=every, say=say, columns=wanted)
    warn(rows.warnings)
    _print(sql_query.format_frame(sql_query.query(rows.frame, sql), fmt))


@app.command()
def statistics(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a sweep, or a folder with rows.")
    ],
    show: Annotated[
        str,
        typer.Option(
            "--show", metavar="TABLE", help="means, differences, directions, raua or rescaled."
        ),
    ] = "means",
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="GROUPS",
            help="models: over stitch seeds; entries: over networks that differ in seed, too.",
        ),
    ] = "models",
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="A column of the rows with numbers.")
    ] = "agreement",
    fmt: Annotated[str, typer.Option("--format", help="table, csv, json or parquet.")] = "table",
    storage: Root = DEFAULT_STORAGE,
) -> None:
    """Show statistics over seeds: mean, deviation, number and a 95 % interval.

    \b
    means        each cell, over its seeds; for agreement also the interval over test images
    differences  standard - invariance and invariance - noise, cell by cell
    directions   A -> B beside B -> A, and their difference
    raua         mean agreement over the cuts of a pair, under invariance
    rescaled     agreement between its noise floor (0) and the end stitched to itself (100)

    \b
    raystitch statistics quickstart --show differences
    raystitch statistics quickstart --by entries --metric accuracy --format csv > accuracy.csv

    \b
    Exit codes: 0 shown; 1 no such sweep, or one that cannot be read; 2 a name is wrong.
    """
    from raystitch.results import query as sql_query
    from raystitch.results import statistics as over_seeds
    from raystitch.run.status import planned_rows

    fmt = sql_query.known_format(fmt)
    over_seeds.check_names(show, by, metric)
    rows, places = planned_rows(run, open_storage(storage), say, over_seeds.columns(metric))
    found = over_seeds.statistics(rows.frame, places, show=show, by=by, metric=metric)
    warn([*rows.warnings, *found.warnings])
    frame = over_seeds.readable(found.frame) if fmt == "table" else found.frame
    _print(sql_query.format_frame(frame, fmt))


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


def _print(answer: str | bytes) -> None:
    """An answer as text, or as bytes into a file."""
    if isinstance(answer, bytes) and sys.stdout.isatty():
        raise RaystitchError("Parquet is no text: send it to a file, as `... > cells.parquet`.")
    typer.echo(answer, nl=False)
