"""``sweep``: measure every kernel of a space on every problem of a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.build import TIMEOUT_SECONDS, Workers, compile_all
from tilewright.cli.errors import FAILED
from tilewright.cli.options import (
    FamilyName,
    Json,
    OpenWords,
    StorePath,
    Timeout,
    TrustStore,
    examples,
    names,
    targets,
    words,
)
from tilewright.cli.options import store as open_store
from tilewright.cli.sweep_forecast import foreseen, show
from tilewright.cli.sweep_request import (
    Chosen,
    Request,
    choice,
    own_problems,
    read_settings,
    read_statuses,
    show_choice,
)
from tilewright.cli.vocabulary import FAMILY, WHERE

if TYPE_CHECKING:
    from tilewright.compile import Store
    from tilewright.measure.crew import Crew
    from tilewright.measure.measurement import Settings
    from tilewright.measure.sweep import Group, Outcome


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(
        short_help="Measure every kernel of a space on every problem.",
        epilog=examples(
            f"tilewright sweep {FAMILY}:small --out small",
            "tilewright sweep space.json --problems shapes.csv --out DIR --dry-run",
            f"tilewright sweep space.json --problems {FAMILY}:full --out DIR \\\n"
            f"      --where '{WHERE}' --max-kernels 100 --devices 0,3",
            f"tilewright sweep {FAMILY}:full --out DIR --devices ray",
            f"tilewright sweep {FAMILY}:small --out seen --devices emulated:mi300x",
            f"tilewright sweep {FAMILY}:small --out small --retry timeout --retry crashed",
        ),
    )(sweep)


def sweep(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Space files (JSON), kernel names, shipped sets, or operations: every kernel that "
            "tuning chooses from.",
            metavar="SPACE.json|NAME|FAMILY:SET|OPERATION…",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory of the results.", metavar="DIR")],
    problems: Annotated[
        list[str] | None,
        typer.Option(
            "--problems",
            help="Problem list (.json, .csv, aiter's .csv, .txt, a capture's .jsonl), or shipped "
            "set; may be repeated [default: the spaces' sets]",
            metavar="FILE|FAMILY:SET",
        ),
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            help="all GPUs, how many, which by number, product or UUID (0,3), ray: those of a "
            "cluster, cpu: the interpreter, or emulated:mi300x: an emulated GPU.",
        ),
    ] = "all",
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            help="Architecture to compile or count for without its device, or a list of them "
            "[default with --compile-only: as of `build`]; on cpu, the architecture that "
            "the interpreter stands in for.",
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            "--match", help="Only kernels with names that match, as *_tma_*; may be repeated."
        ),
    ] = None,
    where: Annotated[
        str,
        typer.Option("--where", help=f"Only kernels that meet this condition, as {WHERE}."),
    ] = "",
    max_kernels: Annotated[
        int | None,
        typer.Option("--max-kernels", min=1, help="At most this many kernels, spread evenly."),
    ] = None,
    signature: OpenWords = None,
    family: FamilyName = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            help="How to measure, as budget_seconds=0.5, verify=false, or method=graph: calls in "
            "CUDA graphs, over copies of the inputs; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    timeout: Timeout = 60.0,
    workers: Workers = None,
    build_timeout: Annotated[
        float, typer.Option("--build-timeout", min=1, help="Longest time of one build, in seconds.")
    ] = TIMEOUT_SECONDS,
    retry: Annotated[
        list[str] | None,
        typer.Option(
            "--retry",
            help="Repeat measurements with this status, as timeout; may be repeated.",
            metavar="STATUS",
        ),
    ] = None,
    no_vendor: Annotated[
        bool,
        typer.Option("--no-vendor", help="Do not measure the vendor's library beside the kernels."),
    ] = False,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Only build the kernels that the sweep needs.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show the work to do, and an estimate of its time."),
    ] = False,
    store: StorePath = None,
    trust_store: TrustStore = False,
    as_json: Json = False,
) -> None:
    """Measure every kernel of spaces on every problem of lists, on every device, into a directory.

    Results already in the directory are not measured again: stop a sweep at any time, and repeat
    the command to continue. Kernels that fail, crash or hang are recorded as results. On GPUs, the
    vendor's library is measured on each problem too. With --retry, an old result stays until the
    new one replaces it. On an emulated GPU nothing is timed: a kernel is `executed` (right, with no
    finding), or has the status of its fault. Exits with 1 if a kernel measured now failed.
    """
    from tilewright.measure.filters import Filters

    kept = open_store(store, trust_store)
    request = Request(
        tuple(inputs),
        tuple(problems or own_problems(inputs)),
        family,
        words(signature),
        Filters(tuple(match or ()), where, max_kernels),
        read_settings(words(settings)),
        out,
        kept,
        workers,
        build_timeout,
        not no_vendor,
        read_statuses(retry or ()),
    )
    with ExitStack() as stack:
        if devices == "all" and (compile_only or (dry_run and arch is not None)):
            archs = names(targets([arch] if arch is not None else None))
            groups: list[Group] = []
        else:
            groups, start = _groups(devices, arch, kept, request.settings, timeout)
            archs = list(dict.fromkeys(group.device.arch for group in groups))
            if not (dry_run or compile_only):
                crew = stack.enter_context(closing(start()))
                crew.prepare()
        chosen = {name: request.choose(name) for name in archs}
        if dry_run:
            document = foreseen(request, chosen, groups)
            if as_json:
                output.emit(document)
            else:
                show(document)
        elif compile_only:
            _compile(request, chosen, as_json)
        else:
            _sweep(request, chosen, groups, crew, as_json)


def _groups(
    devices: str, arch: str | None, kept: Store, settings: Settings, timeout: float
) -> tuple[list[Group], Callable[[], Crew]]:
    """The devices that words name, in groups of equal devices, and a function that starts their
    crew."""
    from tilewright.measure.groups import groups

    return groups(devices, kept, settings, timeout=timeout, arch=arch)


def _compile(request: Request, chosen: Mapping[str, Chosen], as_json: bool) -> None:
    from collections import Counter

    requests = [(config, name) for name, one in chosen.items() for config in one.configs]
    report = compile_all(requests, request.store, request.workers, request.build_timeout)
    if as_json:
        output.emit(
            {
                "store": str(request.store.path),
                "seconds": report.seconds,
                "archs": [choice(one) for one in chosen.values()],
                "counts": dict(Counter(result.status for result in report.results)),
                "failures": [str(result) for result in report.failures],
            }
        )
    else:
        for one in chosen.values():
            show_choice(choice(one))
        output.line(f"{report}, in {request.store.path}")
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
    from tilewright.measure.progress import show_measuring
    from tilewright.measure.results import Results
    from tilewright.measure.sweep import sweep as do

    with Results(request.out, write=True) as results:
        this = request.plan(chosen, groups)
        if not as_json:
            for one in chosen.values():
                show_choice(choice(one))
        try:
            outcome = do(
                this,
                results,
                request.store,
                lambda: crew,
                building=show_progress,
                measuring=show_measuring,
                workers=request.workers,
                build_timeout=request.build_timeout,
            )
        except KeyboardInterrupt:
            output.say(
                f"stopped; {len(results)} results are in {request.out}; repeat the command to "
                "continue",
                err=True,
            )
            raise
        document = {
            "out": str(request.out),
            "archs": [choice(one) for one in chosen.values()],
            "known": sum(part.known for part in this.parts),
            "again": sum(part.again for part in this.parts),
            "unsupported": outcome.refused,
            "statuses": dict(outcome.statuses),
            "vendor": dict(outcome.vendor),
            "results": len(results),
        }
    if as_json:
        output.emit(document)
    else:
        _show_outcome(outcome, document)
    if not outcome.ok:
        raise typer.Exit(FAILED)


def _show_outcome(outcome: Outcome, document: dict[str, Any]) -> None:
    output.line()
    output.fields(
        {
            "measured": output.counts(outcome.statuses) or "nothing",
            **({"the vendor's": output.counts(outcome.vendor)} if outcome.vendor else {}),
            "known before": document["known"],
            "unsupported": document["unsupported"],
            "results": f"{document['results']} in {document['out']}; see tilewright results",
        }
    )
