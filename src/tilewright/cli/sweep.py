"""``sweep``: measure every kernel of a space on every problem of a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.build import compile_all
from tilewright.cli.errors import FAILED
from tilewright.cli.options import Json, command, names, targets
from tilewright.cli.sweep_forecast import foreseen, show
from tilewright.cli.sweep_request import Chosen, Request, SweepOptions, choice, show_choice
from tilewright.cli.vocabulary import FAMILY, WHERE

if TYPE_CHECKING:
    from tilewright.measure.crew import Crew
    from tilewright.measure.sweep import Group


app = typer.Typer()


@command(
    app,
    "Measure every kernel of a space on every problem.",
    f"tilewright sweep {FAMILY}:small --out small",
    "tilewright sweep space.json --problems shapes.csv --out DIR --dry-run",
    f"tilewright sweep space.json --problems {FAMILY}:full --out DIR \\\n"
    f"      --where '{WHERE}' --max-kernels 100 --devices 0,3",
    f"tilewright sweep {FAMILY}:full --out DIR --devices ray",
    f"tilewright sweep {FAMILY} --problems shapes.csv --out DIR --sample 64",
    f"tilewright sweep {FAMILY}:small --out seen --devices emulated:mi300x",
    f"tilewright sweep {FAMILY}:small --out small --retry timeout --retry crashed",
)
def sweep(
    options: SweepOptions,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Only build the kernels that the sweep needs.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the work to do, and an estimate of its time."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure every kernel of spaces on every problem of lists, on every device, into a directory.

    Results already in the directory are not measured again: stop a sweep at any time, and repeat
    the command to continue. Kernels that fail, crash or hang are recorded as results. On GPUs, the
    vendor's library is measured on each problem too. With --retry, an old result stays until the
    new one replaces it. On an emulated GPU nothing is timed: a kernel is `executed` (right, with no
    finding), or has the status of its fault. Exits with 1 if a kernel measured now failed.
    """
    request = Request.of(options)
    with ExitStack() as stack:
        arch = options.arch
        if options.devices == "all" and (compile_only or (dry_run and arch is not None)):
            archs = names(targets([arch] if arch is not None else None))
            groups: list[Group] = []
        else:
            groups, start = request.devices()
            archs = list(dict.fromkeys(group.device.arch for group in groups))
            if not (dry_run or compile_only):
                crew = stack.enter_context(closing(start()))
                crew.prepare()
        chosen = {name: request.choose(name, groups) for name in archs}
        if dry_run:
            output.answer(foreseen(request, chosen, groups), as_json, show)
        elif compile_only:
            _compile(request, chosen, as_json)
        else:
            _sweep(request, chosen, groups, crew, as_json)


def _compile(request: Request, chosen: Mapping[str, Chosen], as_json: bool) -> None:
    from collections import Counter

    requests = [(config, name) for name, one in chosen.items() for config in one.configs]
    options, store = request.options, request.store
    report = compile_all(requests, store, options.workers, options.build_timeout)
    archs = [choice(one) for one in chosen.values()]
    if as_json:
        output.emit(
            {
                "store": str(store.path),
                "seconds": report.seconds,
                "archs": archs,
                "counts": dict(Counter(result.status for result in report.results)),
                "failures": [str(result) for result in report.failures],
            }
        )
    else:
        for one in archs:
            show_choice(one)
        output.line(f"{report}, in {store.path}")
    if report.failures:
        raise typer.Exit(FAILED)


def _sweep(
    request: Request,
    chosen: Mapping[str, Chosen],
    groups: Sequence[Group],
    crew: Crew,
    as_json: bool,
) -> None:
    from tilewright.compile import show_progress
    from tilewright.measure.designs import FILE
    from tilewright.measure.progress import show_measuring
    from tilewright.measure.results import Results
    from tilewright.measure.sweep import sweep as do

    options = request.options
    archs = [choice(one) for one in chosen.values()]
    with Results(options.out, write=True) as results:
        this = request.plan(chosen, groups)
        for name, found in chosen.items():
            if found.sample is not None:
                found.sample.save(options.out / (FILE if len(chosen) == 1 else f"{name}_{FILE}"))
        if not as_json:
            for one in archs:
                show_choice(one)
        try:
            outcome = do(
                this,
                results,
                request.store,
                lambda: crew,
                building=show_progress,
                measuring=show_measuring,
                workers=options.workers,
                build_timeout=options.build_timeout,
            )
        except KeyboardInterrupt:
            output.say(
                f"stopped; {len(results)} results are in {options.out}; repeat the command to "
                "continue",
                err=True,
            )
            raise
        document = {
            "out": str(options.out),
            "archs": archs,
            "known": sum(part.known for part in this.parts),
            "again": sum(part.again for part in this.parts),
            "unsupported": outcome.refused,
            "statuses": dict(outcome.statuses),
            "vendor": dict(outcome.vendor),
            "results": len(results),
        }
    output.answer(document, as_json, _show_outcome)
    if not outcome.ok:
        raise typer.Exit(FAILED)


def _show_outcome(document: dict[str, Any]) -> None:
    output.line()
    vendor = document["vendor"]
    output.fields(
        {
            "measured": output.counts(document["statuses"]) or "nothing",
            **({"the vendor's": output.counts(vendor)} if vendor else {}),
            "known before": document["known"],
            "unsupported": document["unsupported"],
            "results": f"{document['results']} in {document['out']}; see tilewright results",
        }
    )
