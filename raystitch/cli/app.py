"""The command that all others hang on, and the options that several of them take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raystitch import __version__
from raystitch.run import terminal
from raystitch.run.terminal import Commands

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
    typer.Option(
        min=1, metavar="N", help="At most N images to train and N to test on: a trial run."
    ),
]
MaxEpochs = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="At most N epochs for each network and stitch, 10 N steps for IRIs: a trial run.",
    ),
]


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
