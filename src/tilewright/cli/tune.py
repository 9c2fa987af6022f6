"""``tune`` and ``retune``: find proven kernels for problems, and keep them in a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import StoreOptions
from tilewright.cli.options import (
    FamilyName,
    Json,
    OnlyOurs,
    OpenWords,
    Timeout,
    command,
    words,
)
from tilewright.cli.vocabulary import FAMILY
from tilewright.errors import BadArgument
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.measure.sweep import Group
    from tilewright.tune.tuner import Tuned
    from tilewright.tune.work import Work


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How the candidates are measured."""

    kept: StoreOptions
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Directory of the measurements [default: the table's name with .sweep]",
            metavar="DIR",
        ),
    ] = None
    devices: Annotated[
        str,
        typer.Option("--devices", help="As `sweep` takes them: all GPUs, how many, which, or cpu."),
    ] = "all"
    budget: Annotated[
        float | None,
        typer.Option("--budget", min=0, help="Minutes after which no search takes another step."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            help="How the search measures, as budget_seconds=0.5; may be repeated. method=graph: "
            "search and finals time calls in CUDA graphs, over copies of the inputs.",
            metavar="KEY=VALUE",
        ),
    ] = None
    timeout: Timeout = 60.0


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Which candidates are measured, and whether they are."""

    effort: Annotated[
        Literal["few", "quick", "usual", "exhaustive"],
        typer.Option(
            "--effort",
            help="few: measure the first four candidates and the library's algorithms, once. "
            "quick: measure few candidates, once. usual: measure until more candidates bring "
            "nothing, then measure those near the best again. exhaustive: measure every "
            "candidate, then those near the best again.",
        ),
    ] = "usual"
    only_ours: OnlyOurs = False
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the work to do, and its longest time.")
    ] = False


app = typer.Typer()


@command(
    app,
    "Find the proven kernel for each problem of a list.",
    "tilewright tune --problems shapes.csv --table mine.twt",
    f"tilewright tune space.json --problems {FAMILY}:small --table mine.twt \\\n      --budget 15",
)
def tune(
    *,
    problems: Annotated[
        list[str],
        typer.Option(
            "--problems",
            help="Problem list, captured file or shipped set; may be repeated.",
            metavar="FILE.json|FILE.csv|FAMILY:SET",
        ),
    ],
    table: Annotated[
        Path,
        typer.Option(
            "--table", help="Table to write; if it exists, it is read first.", metavar="FILE.twt"
        ),
    ],
    spaces: Annotated[
        list[str] | None,
        typer.Argument(
            help="Candidates: space files, kernel names, shipped sets [default: the tuning space "
            "of each problem's family, splits of K included, and the algorithms of the vendor's "
            "library]",
            metavar="SPACE.json|NAME|FAMILY:SET…",
        ),
    ] = None,
    measuring: MeasureOptions,
    search: SearchOptions,
    missing: Annotated[
        bool,
        typer.Option(
            "--missing", help="Only problems for which the table has no row of these devices."
        ),
    ] = False,
    family: FamilyName = None,
    signature: OpenWords = None,
    arch: Annotated[
        str | None, typer.Option("--arch", help="Architecture that the interpreter stands in for.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the proven kernel for each problem, and write it into a table.

    A search first measures the present choice, what the vendor's library offers if no candidates
    are given, and the best kernels by estimate. It measures more until they bring nothing, or the
    budget ends. Kernels near the best are then measured again, together. A fixed rule breaks ties.
    The table is written along the way: stop the command at any time, and repeat it to continue;
    nothing is measured twice. Exits with 1 if a problem has no correct kernel; the others are still
    tuned.
    """
    from tilewright.arch import arch as arch_called
    from tilewright.cli.selection import select
    from tilewright.measure.problems import load_problems, shipped

    said = words(signature)
    work = work_of(table, measuring, arch, search.only_ours)
    for group in work.groups:
        name = group.device.arch
        configs: Sequence[Any] = ()
        if spaces:
            files = [str(shipped(word, "space.json") or word) for word in spaces]
            configs = select(files, name, family, said).configs
        listed = load_problems(problems, arch_called(name), family, said).problems
        work.add(group, listed, configs, missing)
    _finish(work, search, as_json)


@command(
    app,
    "Tune a table's problems again.",
    "tilewright retune mine.twt",
    "tilewright retune h200.twt --all --devices 0,1",
)
def retune(
    *,
    table: Annotated[Path, typer.Argument(help="The table.", metavar="FILE.twt")],
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Tune the problems of other devices' rows too, on these devices."
        ),
    ] = False,
    measuring: MeasureOptions,
    search: SearchOptions,
    as_json: Json = False,
) -> None:
    """Tune a table's problems again: those in rows of the live devices, or all.

    The kernel of a row is measured beside the others, and is replaced only by a kernel that is
    faster by more than the noise. Rows of other devices stay as they are. Results that the
    directory has for the same binaries under the same driver are not measured again; give another
    --out to measure everything anew.
    """
    work = work_of(table, measuring, only_ours=search.only_ours)
    if work.table is None:
        raise BadArgument(f"{table} does not exist: make it with tune")
    for group in work.groups:
        rows = [row for row in work.table if every or row.device == group.device]
        work.add(group, list(dict.fromkeys(row.problem for row in rows)))
    if not work.jobs and not work.unsupported:
        names = ", ".join(dict.fromkeys(device.name for device in work.table.devices))
        raise BadArgument(
            f"{table} has no row of these devices (it is for {names}); --all takes its problems"
        )
    _finish(work, search, as_json)


def work_of(
    path: Path, how: MeasureOptions, arch: str | None = None, only_ours: bool = False
) -> Work:
    """The work of a command that tunes into the table `path`."""
    from tilewright.cli.settings import read_settings
    from tilewright.compile import show_progress
    from tilewright.measure.progress import show_measuring
    from tilewright.select.constraints import Constraints
    from tilewright.tune.tuner import SEARCH
    from tilewright.tune.work import Shown, Work

    return Work(
        path,
        how.kept.open(),
        read_settings(words(how.settings), SEARCH),
        out=how.out,
        devices=how.devices,
        timeout=how.timeout,
        arch=arch,
        seconds=None if how.budget is None else 60 * how.budget,
        constraints=Constraints(only_ours=only_ours),
        shown=Shown(output.busy, show_progress, show_measuring),
    )


def _finish(work: Work, search: SearchOptions, as_json: bool) -> None:
    """Tune, and print the results; or, if asked, only print the work to do. Exits with 1 if a
    problem is left without a kernel."""
    if search.dry_run:
        output.answer(_forecast(work), as_json, _show_forecast)
        return
    document = tuned(work, search.effort)
    output.answer(document, as_json, show)
    if not document["ok"]:
        raise typer.Exit(FAILED)


def _forecast(work: Work) -> dict[str, Any]:
    """The most work that a tuning would do, as plain data."""
    from tilewright.cli.sweep_forecast import costs
    from tilewright.measure.database import FILE
    from tilewright.measure.results import Results
    from tilewright.measure.sweep import plan_some

    known: set[tuple[str, ...]] = set()
    if (work.out / FILE).is_file():
        with Results(work.out) as results:
            known = results.keys()
    wanted: dict[Group, list[tuple[Any, Sequence[Any]]]] = {}
    for job in work.jobs:
        wanted.setdefault(job.group, []).append((job.problem, [*job.configs.values()]))
    this = plan_some([*wanted.items()], work.settings, known)
    return {
        "table": str(work.path),
        "problems": len(work.jobs),
        "skipped": work.skipped,
        "alike": work.alike,
        "candidates": sum(len(job.configs) for job in work.jobs),
        "library": _library(work),
        **costs(this, work.out, work.store, work.settings),
        "unsupported": _unsupported(work),
    }


def tuned(work: Work, effort: str = "usual") -> dict[str, Any]:
    """Tune, and return the results as plain data. ``ok``: every problem has a kernel."""
    from tilewright.tune.search import EFFORTS

    try:
        found = work.run(EFFORTS[effort])
    except KeyboardInterrupt:
        output.say(
            f"stopped; the results are in {work.path}; repeat the command to continue", err=True
        )
        raise
    return _document(work, found)


def _document(work: Work, tuned: Tuned) -> dict[str, Any]:
    jobs = work.jobs
    return {
        "table": str(work.path),
        "measurements": str(work.out),
        "measured": tuned.measured,
        "skipped": work.skipped,
        "alike": work.alike,
        "out_of_time": tuned.out_of_time,
        "rows": [
            {
                "problem": str(jobs[number].problem),
                "device": row.device.name,
                "kernel": row.kernel,
                "before": jobs[number].present,
                "from_table": jobs[number].row is not None,
                "median_us": row.median_us,
                "interval_us": row.interval_us,
                "tflops": row.tflops,
                "ties": len(row.ties),
                "final": number in tuned.final,
            }
            for number, row in sorted(tuned.rows.items())
        ],
        "without": [str(jobs[number].problem) for number in tuned.without],
        "untried": [str(jobs[number].problem) for number in tuned.untried],
        "library": _library(work),
        "unsupported": _unsupported(work),
        "ok": not tuned.without and not work.unsupported,
    }


def _library(work: Work) -> dict[str, Any]:
    """How many algorithms the vendor's library offered, and how often it offered none, by the
    reason."""
    none = Counter(offer.reason for offer in work.offers if not offer.configs)
    return {"offered": sum(len(offer.configs) for offer in work.offers), "none": dict(none)}


def _unsupported(work: Work) -> list[dict[str, str]]:
    return [{"problem": str(p), "reason": reason} for p, reason in work.unsupported]


def _show_forecast(document: dict[str, Any]) -> None:
    from tilewright.cli.sweep_forecast import show_costs

    output.line(
        f"{many(document['problems'], 'problem')}, {many(document['candidates'], 'candidate')} in "
        "all; at most, if no search ends early:"
    )
    show_costs(document)
    _show_library(document)
    _show_unsupported(document)
    output.line("finals come on top; nothing was done: --dry-run")


def show(document: dict[str, Any]) -> None:
    """Print the results of `tuned`, for people."""
    rows = document["rows"]
    output.records(
        {
            "problem": row["problem"],
            "µs": output.short(row["median_us"]),
            "TFLOP/s": output.operations(row["tflops"]),
            "ties": row["ties"],
            "": "kept" if row["kernel"] == row["before"] else "new",
            "kernel": row["kernel"],
        }
        for row in rows
    )
    _show_library(document)
    for problem in document["without"]:
        output.line(f"no kernel gave a right result for {problem}")
    _show_unsupported(document)
    kept = sum(row["kernel"] == row["before"] for row in rows)
    output.line()
    output.fields(
        {
            "rows": f"{len(rows)}: {kept} as chosen before, {len(rows) - kept} new",
            "measured": f"{document['measured']}, in {document['measurements']}",
            **({"skipped": f"{document['skipped']} with a row"} if document["skipped"] else {}),
            **({"alike": f"{document['alike']} share another's row"} if document["alike"] else {}),
            "table": document["table"],
        }
    )
    if document["out_of_time"]:
        left = many(len(document["untried"]), "problem")
        begun = f"; not begun: {left}" * bool(document["untried"])
        output.line(f"the budget ended: repeat the command to continue{begun}")


def _show_library(document: dict[str, Any]) -> None:
    for reason, count in document["library"]["none"].items():
        problems = many(count, "problem")
        output.line(f"no algorithm of the vendor's library for {problems}: {reason}")


def _show_unsupported(document: dict[str, Any]) -> None:
    for one in document["unsupported"]:
        output.line(f"nothing supports {one['problem']}: {one['reason']}")
