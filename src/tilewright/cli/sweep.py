"""``sweep``: measure every kernel of a space on every problem of a list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import (
    FamilyName,
    Json,
    StorePath,
    TrustStore,
    examples,
    words,
)
from tilewright.cli.options import store as open_store
from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.build import Store
    from tilewright.cli.selection import Selection
    from tilewright.tune.filters import Filters, LeftOut
    from tilewright.tune.measurement import Settings
    from tilewright.tune.problems import Problems
    from tilewright.tune.sweep import Crew, Group, Outcome, Plan

ASSUMED_BUILD_SECONDS = 1.0
"""What a build is assumed to take a processor where the directory has none to go by."""


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(
        short_help="Measure every kernel of a space on every problem.",
        epilog=examples(
            "tilewright sweep gemm:small --out small",
            "tilewright sweep space.json --problems shapes.csv --out DIR --dry-run",
            "tilewright sweep space.json --problems gemm:full --out DIR \\\n"
            "      --where 'tile_m >= 64' --max-kernels 100 --devices 0,3",
            "tilewright sweep gemm:full --out DIR --devices ray",
        ),
    )(sweep)


def sweep(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Space files (JSON), kernel names, or shipped sets.",
            metavar="SPACE.json|NAME|FAMILY:SET…",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Directory of the results.", metavar="DIR")],
    problems: Annotated[
        list[str] | None,
        typer.Option(
            "--problems",
            help="Problem list, or shipped set; may be repeated [default: the spaces' sets]",
            metavar="FILE.json|FILE.csv|FAMILY:SET",
        ),
    ] = None,
    devices: Annotated[
        str,
        typer.Option(
            "--devices",
            help="all GPUs, how many, which by number or UUID (0,3), ray: a cluster's, or cpu: the "
            "interpreter.",
        ),
    ] = "all",
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch",
            help="Architecture to compile or count for where there is no such device; what the "
            "interpreter plays.",
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option("--match", help="Only kernels whose name fits, as *_tma_*; may be repeated."),
    ] = None,
    where: Annotated[
        str,
        typer.Option("--where", help="Only kernels for which this holds, as tile_m >= 128."),
    ] = "",
    max_kernels: Annotated[
        int | None,
        typer.Option("--max-kernels", min=1, help="Only so many of them, spread evenly."),
    ] = None,
    signature: Annotated[
        list[str] | None,
        typer.Option(
            "--signature",
            help="What spaces and problems leave open, as dtype=bf16; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    family: FamilyName = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--settings",
            help="How to measure, as budget_seconds=0.5 or verify=false; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that one measurement may take.")
    ] = 60.0,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Compilers at once [default: one for each CPU]"),
    ] = None,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Build what the sweep needs, and stop.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and how long it would take.")
    ] = False,
    store: StorePath = None,
    trust_store: TrustStore = False,
    as_json: Json = False,
) -> None:
    """Measure every kernel of spaces on every problem of lists, on every device, into a directory.

    What the directory has is not measured again: stop a sweep at any time, and run it again to go
    on. Kernels that fail, crash or hang are results like others. Exits with 1 if a kernel
    measured now did not come out right.
    """
    from tilewright.tune.filters import Filters

    kept = open_store(store, trust_store)
    request = Request(
        tuple(inputs),
        tuple(problems or _own_problems(inputs)),
        family,
        words(signature),
        Filters(tuple(match or ()), where, max_kernels),
        _settings(words(settings)),
        out,
        kept,
        workers,
    )
    if arch is not None and (dry_run or compile_only) and devices == "all":
        archs: list[str] = [_arch(arch)]
        groups: list[Group] = []
    else:
        groups, crew = _groups(devices, arch, kept, request.settings, timeout)
        archs = list(dict.fromkeys(group.device.arch for group in groups))
    chosen = {name: request.choose(name) for name in archs}
    if dry_run:
        _report(_foreseen(request, chosen, groups), as_json)
    elif compile_only:
        _compile(request, chosen, as_json)
    else:
        _sweep(request, chosen, groups, crew, as_json)


# --- what is asked for ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a sweep takes on one architecture, and what it leaves out."""

    selection: Selection
    configs: tuple[Any, ...]
    left: tuple[LeftOut, ...]
    problems: Problems


@dataclass(frozen=True, slots=True)
class Request:
    """A command line, read."""

    inputs: tuple[str, ...]
    problems: tuple[str, ...]
    family: str | None
    signature: Mapping[str, str]
    filters: Filters
    settings: Settings
    out: Path
    store: Store
    workers: int | None

    def choose(self, arch_name: str) -> Chosen:
        """Kernels and problems for an architecture."""
        from tilewright.arch import arch
        from tilewright.cli.selection import select
        from tilewright.tune.problems import load_problems, shipped

        files = [str(shipped(word, "space.json") or word) for word in self.inputs]
        selection = select(files, arch_name, self.family, self.signature)
        configs, left = self.filters.apply(selection.configs)
        listed = load_problems(self.problems, arch(arch_name), self.family, self.signature)
        return Chosen(selection, configs, left, listed)


def _own_problems(inputs: Sequence[str]) -> list[str]:
    """The problem lists of the shipped sets among the inputs."""
    from tilewright.tune.problems import shipped

    found = [word for word in inputs if shipped(word, "problems.csv")]
    if not found:
        raise BadArgument("which problems? say --problems FILE.json, FILE.csv or FAMILY:SET")
    return found


def _arch(name: str) -> str:
    from tilewright.arch import arch

    return arch(name).name


def _settings(given: Mapping[str, str]) -> Settings:
    """`Settings` with these words in the place of what is usual."""
    from dataclasses import fields

    import msgspec

    from tilewright.errors import nearest
    from tilewright.tune.measurement import Settings

    known = [f.name for f in fields(Settings)]
    for word in given:
        if word not in known:
            raise BadArgument(
                f"--settings: there is no '{word}'{nearest(word, known)}; there are "
                f"{', '.join(known)}"
            )
    try:
        return msgspec.convert(dict(given), Settings, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".")
        raise BadArgument(f"--settings: {f'{where}: ' if where else ''}{message}") from None


def _groups(
    devices: str, arch: str | None, kept: Store, settings: Settings, timeout: float
) -> tuple[list[Group], Callable[[], Crew]]:
    """The devices that words name, those that are alike together, and what starts their crew."""
    from tilewright.tune.groups import groups

    return groups(devices, kept, settings, timeout=timeout, arch=arch)


def _plan(request: Request, chosen: Mapping[str, Chosen], groups: Sequence[Group]) -> Plan:
    from tilewright.tune.results import FILE, Results
    from tilewright.tune.sweep import plan

    known: set[tuple[str, ...]] = set()
    if (request.out / FILE).is_file():
        with Results(request.out) as results:
            known = results.keys()
    with output.busy("asking the rules about every pair"):
        return plan(
            groups,
            {name: one.configs for name, one in chosen.items()},
            {name: one.problems.problems for name, one in chosen.items()},
            request.settings,
            known,
        )


# --- dry run, compile only --------------------------------------------------------------------


def _foreseen(
    request: Request, chosen: Mapping[str, Chosen], groups: Sequence[Group]
) -> dict[str, Any]:
    """What a sweep would do, as plain data."""
    import os

    from tilewright.build import build_keys
    from tilewright.tune.results import FILE, Results
    from tilewright.tune.summary import seconds_each

    measuring = building = None
    if (request.out / FILE).is_file():
        with Results(request.out) as results:
            measuring, building = seconds_each(results)
    document: dict[str, Any] = {
        "out": str(request.out),
        "archs": [_choice(one) for one in chosen.values()],
    }
    if groups:
        this = _plan(request, chosen, groups)
        requests = this.to_build()
        basis = f"the last ones in {request.out}"
        if measuring is None:
            s = request.settings
            measuring = s.warm_up_seconds / s.interleave + s.budget_seconds
            basis = "the budget of each, at most; loading and verifying come on top"
        parts: list[dict[str, Any]] = [
            {
                "device": part.group.device.name,
                "count": part.group.count,
                "pairs": part.kernels * part.problems - part.strangers,
                "unsupported": part.rules(),
                "known": part.known,
                "measurements": len(part.todo),
                "seconds": len(part.todo) * measuring / part.group.count,
            }
            for part in this.parts
        ]
        longest = max(part["seconds"] for part in parts)  # groups measure at the same time
        document |= {"devices": parts, "measuring": {"seconds": longest, "by": basis}}
    else:
        requests = [(c, name) for name, one in chosen.items() for c in one.configs]
        longest = 0.0
    missing = 0
    for name in chosen:
        configs = [config for config, arch in requests if arch == name]
        missing += sum(not (k and request.store.has(k)) for k in build_keys(configs, name))
    each = building if building is not None else ASSUMED_BUILD_SECONDS
    seconds = missing * each / (request.workers or len(os.sched_getaffinity(0)))
    by = f"{each:.2g} s each, " + ("as measured" if building is not None else "assumed")
    document["builds"] = {"missing": missing, "seconds": seconds, "by": by}
    document["seconds"] = longest + seconds
    return document


def _choice(one: Chosen) -> dict[str, Any]:
    from tilewright.cli.selection import summary

    return {
        **summary(one.selection),
        "left_out": [asdict(left) for left in one.left],
        "kernels": len(one.configs),
        "problems": len(one.problems.problems),
        "repeated_problems": one.problems.repeated,
    }


def _report(document: dict[str, Any], as_json: bool) -> None:
    from tilewright.tune.progress import duration

    if as_json:
        output.emit(document)
        return
    for one in document["archs"]:
        _show_choice(one)
    output.line()
    if "devices" in document:
        output.table(
            ("device", "count", "pairs", "known", "unsupported", "to measure", "about"),
            [
                (
                    part["device"],
                    part["count"],
                    part["pairs"],
                    part["known"],
                    sum(part["unsupported"].values()),
                    part["measurements"],
                    duration(part["seconds"]),
                )
                for part in document["devices"]
            ],
        )
        for part in document["devices"]:
            for rule, count in part["unsupported"].items():
                output.line(f"{part['device']}: {count} pairs unsupported by rule {rule}")
    builds = document["builds"]
    output.line(f"{builds['missing']} kernels to build, about {duration(builds['seconds'])}")
    output.line(f"  ({builds['by']})")
    if "measuring" in document:
        measuring = document["measuring"]
        output.line(f"measuring takes about {duration(measuring['seconds'])}")
        output.line(f"  (by {measuring['by']})")
    output.line("nothing was done: --dry-run")


def _show_choice(one: dict[str, Any]) -> None:
    output.heading(f"{one['arch']}: {one['kernels']} kernels × {one['problems']} problems")
    if one["rules"]:
        output.table(
            ("dropped by", "count", "for example"),
            [(rule["rule"], rule["count"], rule["example"]) for rule in one["rules"]],
        )
    for left in one["left_out"]:
        output.line(f"{left['count']} legal kernels left out: {left['why']}")
    if one["repeated_problems"]:
        output.line(f"{one['repeated_problems']} problems said twice")
    for note in one["notes"]:
        output.line(f"note: {note}")


def _compile(request: Request, chosen: Mapping[str, Chosen], as_json: bool) -> None:
    from collections import Counter

    from tilewright.cli.build import compile_all

    requests = [(config, name) for name, one in chosen.items() for config in one.configs]
    report = compile_all(requests, request.store, request.workers)
    if as_json:
        output.emit(
            {
                "store": str(request.store.path),
                "seconds": report.seconds,
                "archs": [_choice(one) for one in chosen.values()],
                "counts": dict(Counter(result.status for result in report.results)),
                "failures": [str(result) for result in report.failures],
            }
        )
    else:
        for one in chosen.values():
            _show_choice(_choice(one))
        output.line(f"{report}, in {request.store.path}")
    if report.failures:
        raise typer.Exit(FAILED)


# --- the sweep --------------------------------------------------------------------------------


def _sweep(
    request: Request,
    chosen: Mapping[str, Chosen],
    groups: Sequence[Group],
    crew: Callable[[], Crew],
    as_json: bool,
) -> None:
    from tilewright.build import show_progress
    from tilewright.tune.progress import show_measuring
    from tilewright.tune.results import Results
    from tilewright.tune.sweep import sweep as do

    with Results(request.out, write=True) as results:
        this = _plan(request, chosen, groups)
        if not as_json:
            for one in chosen.values():
                _show_choice(_choice(one))
        try:
            outcome = do(
                this,
                results,
                request.store,
                crew,
                building=show_progress,
                measuring=show_measuring,
                workers=request.workers,
            )
        except KeyboardInterrupt:
            typer.echo(
                f"stopped; {len(results)} results are in {request.out}, and the same command "
                "goes on from there",
                err=True,
            )
            raise
        document = {
            "out": str(request.out),
            "archs": [_choice(one) for one in chosen.values()],
            "known": sum(part.known for part in this.parts),
            "unsupported": outcome.refused,
            "statuses": dict(outcome.statuses),
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
    counts = ", ".join(f"{count} {status}" for status, count in outcome.statuses.items())
    output.fields(
        {
            "measured": counts or "nothing",
            "known before": document["known"],
            "unsupported": document["unsupported"],
            "results": f"{document['results']} in {document['out']}; see tilewright results",
        }
    )
