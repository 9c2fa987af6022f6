"""The application, made of all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli import (
    archs,
    build,
    bundle,
    compare,
    demo,
    expand,
    explain,
    kernels,
    kernels_offered,
    learn,
    listen,
    merge,
    prepare,
    pretune,
    problems,
    profile,
    registry,
    report,
    results,
    run,
    sweep,
    table,
    table_aiter,
    table_tuning,
    tune,
    vocabulary,
)
from tilewright.cli.errors import Commands
from tilewright.cli.options import examples
from tilewright.cli.vocabulary import LARGE

_EPILOG = "\n\n".join(
    [
        "Exit codes: 0 done, 1 the work failed, 2 the request was wrong.",
        "Tilewright's words and CK Tile's:",
        "\b\n" + vocabulary.as_text(),
        examples(
            "tilewright demo",
            "tilewright expand space.json --arch sm_90 --arch gfx942",
            f"tilewright explain {LARGE} dtype=fp8",
        ),
    ]
)

app = typer.Typer(
    cls=Commands,
    help="Run the best tile kernel for each problem on each GPU: declare, build anywhere, "
    "verify, choose, launch.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: panels wrap badly in narrow windows
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from tilewright.version import __version__

        typer.echo(f"tilewright {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


for module in (
    archs,
    expand,
    build,
    prepare,
    bundle,
    explain,
    run,
    compare,
    profile,
    problems,
    sweep,
    results,
    tune,
    pretune,
    merge,
    report,
    demo,
):
    app.add_typer(module.app)
kernels.app.add_typer(kernels_offered.app)
app.add_typer(kernels.app, name="kernels")
app.add_typer(registry.app, name="registry")
app.add_typer(learn.app, name="learn")
app.add_typer(listen.app, name="listen")
table.app.add_typer(table_tuning.app)
table.app.add_typer(table_aiter.app)
app.add_typer(table.app, name="table")
