"""Commands about a sweep file: run it, plan it, check it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raystitch.cli.app import LimitImages, MaxEpochs, Root, SweepFile, app
from raystitch.errors import RaystitchError
from raystitch.run import terminal
from raystitch.run.terminal import DEFAULT_STORAGE, console, open_storage, say, warn

if TYPE_CHECKING:
    from raystitch.run.planning import Context

# Torch, polars and the rest are imported inside the commands that need them: help comes at once.


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
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Say hours at most, by a measurement of seconds.")
    ] = False,
    slots: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of so many slots (else those of this machine)."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(min=0, metavar="PER_HOUR", help="Of an hour of all slots: says the cost."),
    ] = None,
    storage: Root = DEFAULT_STORAGE,
    limit_images: LimitImages = None,
    max_epochs: MaxEpochs = None,
) -> None:
    """Show what a sweep would do, without doing it.

    Cells done, failed and pending, units of work, the bytes of the largest unit's activations, and
    FLOPs were every cell to train for all its epochs. With --why also the reasons: never ran,
    failed and how, a network that was made anew, or which setting differs from the nearest stored
    cell. With --calibrate the hours that this takes at most, from the rate at which a slot of this
    machine runs the sweep's largest network.

    \b
    raystitch plan sweeps/quickstart.yaml --why
    raystitch plan sweeps/quickstart.yaml --calibrate --slots 64 --price 3.50

    \b
    Exit codes: 0 planned; 1 the storage is damaged; 2 the sweep file has faults (all are listed).
    """
    if not calibrate and (slots is not None or price is not None):
        raise RaystitchError("--slots and --price tell of hours: they need --calibrate.")
    from raystitch.run.planning import load_sweep, make_plan
    from raystitch.run.status import plan_lines, reason_lines

    context = load_sweep(
        file, open_storage(storage), limit_images=limit_images, max_epochs=max_epochs, say=say
    )
    found = make_plan(context)
    warn(found.stored.warnings)
    for line in [*plan_lines(found), *(reason_lines(found) if why else ())]:
        typer.echo(line)
    if calibrate:
        from raystitch.run.calibration import calibrate as measure
        from raystitch.run.calibration import hour_lines

        for line in hour_lines(found, measure(context), slots, price):
            typer.echo(line)


@app.command()
def check(
    file: SweepFile,
    storage: Root = DEFAULT_STORAGE,
    limit_images: LimitImages = None,
    max_epochs: MaxEpochs = None,
) -> None:
    """Check all that can be checked before a sweep starts.

    The file, the storage and its room, the labels, some of the images, that every network builds
    and loads, that each of its cuts gives its own logits bit for bit, and that memory suffices.

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


def _how_to_go_on(context: Context | None) -> str:
    if context is None:
        return "Stopped before anything was run. Run the same command again to start."
    from raystitch.run.status import stopped_text

    return stopped_text(context)
