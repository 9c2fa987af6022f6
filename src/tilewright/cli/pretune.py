"""``pretune``: tune the shipped problems for this machine's GPU, at install."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import variables
from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import Json, OpenWords, command, words
from tilewright.cli.tune import MeasureOptions, show, tuned, work_of
from tilewright.cli.vocabulary import FAMILY
from tilewright.errors import BadArgument, TilewrightError

if TYPE_CHECKING:
    from tilewright.tune.work import Work

ENVIRONMENT = variables.PRETUNE
"""The variable that lists modules if the command line does not."""


app = typer.Typer()


@command(
    app,
    "Tune shipped problems for this machine's GPU, at install.",
    "tilewright pretune all",
    f"tilewright pretune {FAMILY}:small --table here.twt",
)
def pretune(
    *,
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            help="Shipped sets, families, or all, separated by commas or blanks [default: "
            f"{ENVIRONMENT}]",
            metavar="MODULES…",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            help="Table to write [default: TILEWRIGHT_HOME/tables/ and the GPU's name]",
            metavar="FILE.twt",
        ),
    ] = None,
    measuring: MeasureOptions,
    signature: OpenWords = None,
    as_json: Json = False,
) -> None:
    """Tune the problems of modules for this machine's GPU into a table, and build the winning
    kernels into the store.

    A module is a shipped set, FAMILY:SET. A family's name means its smallest set; all means the
    smallest set of every family. If a module fails, the others are still tuned, and the exit code
    is 1. --budget applies to each module. Dispatchers read the user's folder by themselves; name
    another --table in TILEWRIGHT_TABLES.
    """
    from tilewright.measure.problems import modules as listed
    from tilewright.measure.problems import sets, shipped

    given = ",".join(modules) if modules else os.environ.get(ENVIRONMENT, "")
    if not given:
        raise BadArgument(f"which modules? name them, or all, here or in {ENVIRONMENT}")
    said = words(signature)
    documents: list[dict[str, Any]] = []
    for module in listed(given):
        try:
            if shipped(module, "problems.csv") is None:
                raise BadArgument(
                    f"'{module}' is no module: give FAMILY:SET, FAMILY or all; the sets are "
                    f"{', '.join(sets())}"
                )
            work = work_of(table or _usual_table(measuring.devices), measuring)
            documents.append({"module": module, **_tuned(work, module, said)})
        except (TilewrightError, OSError) as error:
            documents.append({"module": module, "ok": False, "error": str(error)})
            output.say(f"{module} failed: {error}", err=True)
        if not as_json and "rows" in documents[-1]:
            output.heading(module)
            show(documents[-1])
    if as_json:
        output.emit({"modules": documents})
    else:
        failed = [one["module"] for one in documents if not one["ok"]]
        output.line()
        output.line(f"{len(documents) - len(failed)} of {len(documents)} modules are done")
        if failed:
            output.line(f"failed or incomplete: {', '.join(failed)}")
    if not all(one["ok"] for one in documents):
        raise typer.Exit(FAILED)


def _tuned(work: Work, module: str, said: dict[str, str]) -> dict[str, Any]:
    """Tune a module's problems, and build the winning kernels."""
    from tilewright import ops
    from tilewright.arch import arch
    from tilewright.cli.build import compile_all
    from tilewright.measure.problems import load_problems
    from tilewright.tables import file

    for group in work.groups:
        work.add(group, load_problems([module], arch(group.device.arch), words=said).problems)
    document = tuned(work)
    built = {group.device: group.device.arch for group in work.groups if not group.interpreted}
    keys = {ops.family(job.problem.family).tuning_key(job.problem) for job in work.jobs}
    there = file.load(work.path) if work.path.exists() else ()  # none if the budget was over
    rows = [row for row in there if row.problem in keys]
    wanted = dict.fromkeys(
        (name, built[row.device])
        for row in rows
        for name in (row.kernel, row.ours)
        if name and row.device in built
    )
    if wanted:
        requests = [(ops.family_of(name).parse_name(name), on) for name, on in wanted]
        compile_all(requests, work.store).raise_if_failed()
    return document


def _usual_table(devices: str) -> Path:
    """The path in the user's folder, named after the first device."""
    from tilewright.arch import device
    from tilewright.measure.devices import interpreted_device
    from tilewright.measure.places import parse
    from tilewright.plan import PLANNING_DEVICE
    from tilewright.tables import own

    place = parse(devices)[0]
    return own.usual(place.device or interpreted_device(device(PLANNING_DEVICE).arch))
