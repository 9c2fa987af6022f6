"""``report``: write a sweep's results as one page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.options import Json, command
from tilewright.wording import many

app = typer.Typer()


@command(
    app,
    "Write a sweep's results as one page for a browser.",
    "tilewright report sweep",
    "tilewright report sweep -o sweep.html --json",
)
def report(
    folder: Annotated[Path, typer.Argument(help="Directory of a sweep.", metavar="DIR")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "report.html"
    ),
    as_json: Json = False,
) -> None:
    """Write one self-contained page: best kernels, roofline, heat map, failures, environment.

    The page needs no network, opens in any browser, and works by keyboard. An existing page is
    replaced.
    """
    from tilewright.report import write

    with output.busy(f"reading {folder}"):
        written = write(folder, out)
    if as_json:
        output.emit({**asdict(written), "path": str(written.path)})
    else:
        setups = "" if written.setups == 1 else f", {written.setups} setups never mixed"
        output.line(
            f"{written.path}: {many(written.measurements, 'measurement')} of "
            f"{many(written.kernels, 'kernel')} on {many(written.problems, 'problem')}{setups}, "
            f"{output.size(written.bytes)}"
        )
