"""``listen``: what was heard of models that are not ported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import output
from tilewright.cli.groups import PlanOptions
from tilewright.cli.options import Json, command, examples

if TYPE_CHECKING:
    from tilewright.report.worth import Worth

app = typer.Typer(
    help="What was heard of models that are not ported (TILEWRIGHT_LISTEN): report.",
    short_help="Say what tuning would be worth to a program.",
    no_args_is_help=True,
    epilog=examples(
        "TILEWRIGHT_LISTEN=shapes.jsonl python train.py",
        "tilewright listen report shapes.jsonl",
    ),
)

_SHOWN = (0, 1, 2, 3, 4, 5, 6, 7)
"""Columns of the page that the terminal has."""


@app.callback()
def _group() -> None:
    pass


@command(
    app,
    "Say what tuning would be worth, in milliseconds a step.",
    "tilewright listen report shapes.jsonl",
    "tilewright listen report shapes.jsonl --device h200_sxm --page worth.html",
    "tilewright listen report shapes.jsonl --steps 100 --json",
)
def report(
    files: Annotated[
        list[str], typer.Argument(help="Files of TILEWRIGHT_LISTEN.", metavar="FILE.jsonl…")
    ],
    plan: PlanOptions,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            help="Steps that the calls are of [default: as often as an optimizer stepped]",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Also write a page for a browser.", metavar="FILE.html"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List each problem with the time of torch's calls, as they were heard, and the time of the
    kernel that would be chosen: measured where a table has it, else estimated. Problems that save
    most come first.

    Torch's times are compared only with kernels of the GPU on which they were heard.
    """
    from tilewright.capture_file import read
    from tilewright.report import listened
    from tilewright.report.worth import gathered, worth

    recorded = gathered([read(file) for file in files])
    dispatcher = plan.dispatcher(plan.device)
    device = dispatcher.device_for_planning()
    with output.busy(f"planning {len(recorded.heard)} problems"):
        found = worth(recorded, dispatcher.planner, device, steps)
    if page is not None:
        listened.write(found, page)
    if as_json:
        output.emit(found.data())
    else:
        _show(found, files)


def _show(found: Worth, files: list[str]) -> None:
    from tilewright.report.listened import TITLES, cells, summary

    rows = [[cells(line)[place] for place in _SHOWN] for line in found.lines]
    output.table([TITLES[place] for place in _SHOWN], rows)
    for one in found.unstated:
        output.line(f"{one.by}, {one.count} calls: {one.why}")
    output.line()
    output.line(summary(found))
    if found.untuned:
        output.line(f"tilewright tune --problems {' '.join(files)} --table mine.twt")
