"""The command line: parse, call, print."""

from __future__ import annotations

import os

# Torch's OpenMP threads spin while they wait unless told otherwise: two busy processes on one
# machine then slow each other by up to 15 times. Only counts before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raystitch import __version__
from raystitch.errors import RaystitchError
from raystitch.run import terminal
from raystitch.run.terminal import DEFAULT_STORAGE, Commands, console, open_storage, say, warn

if TYPE_CHECKING:
    from raystitch.run.planning import Context

# Torch, polars and the rest are imported inside the commands that need them: help comes at once.


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": terminal.WIDTH},
)

SweepFile = Annotated[Path, typer.Argument(metavar="FILE", help="The sweep file (YAML).")]
Root = Annotated[
    str, typer.Option("--storage", metavar="FOLDER", help="Where everything is stored.")
]
LimitImages = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="At most N stitch and test images: a trial run."),
]
MaxEpochs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="At most N epochs for each stitch.")
]


def main() -> None:
    """Entry of the console script."""
    app()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raystitch {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """Do two trained vision networks work alike inside? Stitch them together, and see.

    A sweep file names networks, cuts, objectives and protocols; `sweep` trains every stitch and
    stores one row of figures for each. What is stored is done: the same command goes on from there.

    \b
    raystitch check sweeps/quickstart.yaml    what would stop it, before it starts
    raystitch sweep sweeps/quickstart.yaml    run it
    raystitch query quickstart "SELECT front_model, end_model, agreement FROM cells"

    \b
    Exit codes of all commands: 0 well; 1 something stored is failed, damaged or missing;
    2 something asked for is wrong (the message says what is allowed); 130 stopped by Ctrl-C.
    """


@app.command()
def sweep(
    file: SweepFile,
    storage: Root = DEFAULT_STORAGE,
    limit_images: LimitImages = None,
    max_epochs: MaxEpochs = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run cells again that failed by themselves.")
    ] = False,
    local: Annotated[
        bool, typer.Option("--local", help="Run everything in this process, without Ray.")
    ] = False,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Join the Ray cluster there (`auto`: the one up here) instead of starting one.",
        ),
    ] = None,
) -> None:
    """Run what is pending of a sweep, on Ray.

    Trains its networks, makes its IRIs, trains and scores its stitches, and shows the summary.
    Each cell is stored as it ends: stop at any moment, and run the same command to go on.

    \b
    raystitch sweep sweeps/quickstart.yaml
    raystitch sweep sweeps/quickstart.yaml --limit-images 64 --max-epochs 2 --storage /tmp/trial
    raystitch sweep sweeps/quickstart.yaml --address auto --storage /shared/runs

    \b
    Exit codes: 0 every cell is done; 1 cells failed or were left pending, or the storage is
    damaged; 2 the sweep file has faults (all are listed); 130 stopped by Ctrl-C.
    """
    if local and address is not None:
        raise RaystitchError("--local runs without Ray: it takes no --address.")
    context = None
    try:
        from raystitch.run import runners
        from raystitch.run.pipeline import run_sweep
        from raystitch.run.planning import load_sweep
        from raystitch.run.progress import Reporter

        reporter = Reporter(console(stderr=True))
        context = load_sweep(
            file,
            open_storage(storage),
            limit_images=limit_images,
            max_epochs=max_epochs,
            say=reporter.say,
        )
        start = runners.local if local else runners.on_ray(address)
        outcome = run_sweep(context, reporter, start=start, retry_failed=retry_failed)
    except KeyboardInterrupt:
        say(_how_to_go_on(context))
        raise typer.Exit(130) from None
    terminal.show_outcome(outcome, storage)
    raise typer.Exit(outcome.exit_code)


@app.command()
def plan(
    file: SweepFile,
    why: Annotated[
        bool, typer.Option("--why", help="Say why cells are not done: one line per reason.")
    ] = False,
    storage: Root = DEFAULT_STORAGE,
    limit_images: LimitImages = None,
    max_epochs: MaxEpochs = None,
) -> None:
    """Show what a sweep would do, without doing it.

    Cells done, failed and pending, units of work, the bytes of the largest unit's activations, and
    FLOPs were every cell to train for all its epochs. With --why also the reasons: never ran,
    failed and how, a network that was made anew, or which setting differs from the nearest stored
    cell.

    \b
    raystitch plan sweeps/quickstart.yaml --why

    \b
    Exit codes: 0 planned; 1 the storage is damaged; 2 the sweep file has faults (all are listed).
    """
    from raystitch.run.planning import load_sweep, make_plan
    from raystitch.run.status import plan_lines, reason_lines

    context = load_sweep(
        file, open_storage(storage), limit_images=limit_images, max_epochs=max_epochs, say=say
    )
    found = make_plan(context)
    warn(found.stored.warnings)
    for line in [*plan_lines(found), *(reason_lines(found) if why else ())]:
        typer.echo(line)


@app.command()
def check(
    file: SweepFile,
    storage: Root = DEFAULT_STORAGE,
    limit_images: LimitImages = None,
    max_epochs: MaxEpochs = None,
) -> None:
    """Check all that can be checked before a sweep starts.

    The file, the storage and its room, the images and their labels, that every network builds and
    loads, that each of its cuts gives its own logits bit for bit, and that memory suffices.

    \b
    raystitch check sweeps/quickstart.yaml

    \b
    Exit codes: 0 all is well; 2 something is not (each check has its line).
    """
    from raystitch.run.check import check_sweep

    failed = 0
    for found in check_sweep(
        file, open_storage(storage), limit_images=limit_images, max_epochs=max_epochs, say=say
    ):
        failed += not found.ok
        typer.echo(f"{'ok     ' if found.ok else 'FAILED '}{found.name}: {found.message}")
    if failed:
        say(f"{failed} check{'s' if failed > 1 else ''} failed.")
        raise typer.Exit(2)


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


def _how_to_go_on(context: Context | None) -> str:
    if context is None:
        return "Stopped before anything was run. Run the same command again to start."
    from raystitch.run.status import stopped_text

    return stopped_text(context)
