"""``build``: build kernels for any architecture, on any machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import SpaceOptions, StoreOptions
from tilewright.cli.options import Json, Kernels, command, names
from tilewright.cli.vocabulary import FAMILY, PROFILE

if TYPE_CHECKING:
    from tilewright.cli.selection import Selection
    from tilewright.compile import BuildReport, BuildResult, Store
    from tilewright.compile.report import Status

TIMEOUT_SECONDS = 120.0
"""Longest time to build one kernel, by default."""

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", min=1, help="Number of compilers at once [default: one for each CPU]"
    ),
]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How kernels are built, and where they are kept."""

    kept: StoreOptions
    workers: Workers = None
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=1, help="Longest time to build one kernel, in seconds."),
    ] = TIMEOUT_SECONDS

    def compile(self, requests: list[tuple[Any, Any]], kept: Store) -> BuildReport:
        """Build into the store, with progress on stderr."""
        return compile_all(requests, kept, self.workers, self.timeout)


app = typer.Typer()


@command(
    app,
    "Build kernels for any architecture, without a GPU.",
    "tilewright build space.json --arch sm_90 --arch gfx942",
    "tilewright build space.json --arch gfx950 --signature dtype=fp8 --limit 20",
    "tilewright build KERNEL_NAME --arch sm_100",
    "tilewright build tuned.twt --arch gfx942:304,gfx950",
    f"tilewright build {FAMILY}:small shapes.csv --arch all",
    f"tilewright build {PROFILE} --arch gfx942 --dry-run",
    "TILEWRIGHT_ARCHS='gfx942;gfx950' tilewright build space.json",
)
def build(
    inputs: Kernels,
    spaces: SpaceOptions,
    building: BuildOptions,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Build at most the first N kernels for each --arch."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only say how many kernels there are, and which."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Build kernels into the store, without a GPU.

    Inputs are spaces (all legal kernels), tables (the kernels of their rows), problems (the kernels
    chosen for them on the known GPUs of each --arch), and kernel names. A profile is a list of the
    calls that a framework makes: an install of it builds these kernels and no others.

    Combinations that a rule drops are counted; they are a failure only if no kernel is left. Exits
    with 1 if a kernel cannot be built.
    """
    from tilewright.cli.planned import Planning
    from tilewright.cli.selection import tables_of

    wanted = spaces.targets()
    how = Planning(table=tables_of(inputs))
    selections = [spaces.select(inputs, arch, wanted, how) for arch in names(wanted)]
    kept = building.kept.open()
    if dry_run:
        _show_counts(selections, kept, limit, as_json)
        return
    requests = [(c, s.arch) for s in selections for c in s.configs[:limit]]
    report = building.compile(requests, kept)
    if as_json:
        output.emit(_document(selections, kept, report))
    else:
        _show(selections, kept, report, limit)
    if report.failures:
        raise typer.Exit(FAILED)


def _show_counts(
    selections: list[Selection], kept: Store, limit: int | None, as_json: bool
) -> None:
    """What would be built."""
    from tilewright.cli.selection import summary
    from tilewright.compile import find

    documents = []
    for one in selections:
        configs = one.configs[:limit]
        with output.busy(f"looking {len(configs)} kernels up in {kept.path}"):
            cached = [c.name for c in configs if find(c, one.arch, kept)]
        names = [c.name for c in configs]
        documents.append({**summary(one), "cached": len(cached), "kernels": names})
    if as_json:
        output.emit({"store": str(kept.path), "archs": documents})
        return
    for document in documents:
        for name in document["kernels"]:
            output.say(name)
    columns = ("arch", "legal", "dropped", "cached")
    output.table(columns, [tuple(document[c] for c in columns) for document in documents])
    output.notes(note for one in selections for note in one.notes)


def compile_all(
    requests: list[tuple[Any, Any]],
    kept: Store,
    workers: int | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> BuildReport:
    """Build into the store, with progress on stderr."""
    from tilewright.compile import build, show_progress

    with show_progress() as progress:
        return build(requests, store=kept, workers=workers, timeout=timeout, progress=progress)


def show_failures(title: str, report: BuildReport) -> None:
    """Print the kernels that could not be built, if there are any."""
    if report.failures:
        output.line()
        output.table(
            (title, "arch", "kernel", "because"),
            [(r.status, r.arch.name, r.called, r.reason) for r in report.failures],
        )


def _document(selections: list[Selection], kept: Store, report: BuildReport) -> dict[str, Any]:
    from tilewright.cli.selection import summary

    return {
        "store": str(kept.path),
        "seconds": report.seconds,
        "counts": dict(Counter(result.status for result in report.results)),
        "archs": [summary(selection) for selection in selections],
        "results": [result_document(result) for result in report.results],
    }


def result_document(result: BuildResult) -> dict[str, Any]:
    """A result as plain data, for JSON."""
    from tilewright.ops.nouns import MAIN

    kernel, occupancy = result.kernel, result.occupancy
    return {
        "name": result.name,
        **({} if result.part == MAIN else {"part": result.part}),
        "arch": result.arch.name,
        "status": result.status,
        "reason": result.reason,
        "seconds": result.seconds,
        "resources": asdict(kernel.resources) if kernel else None,
        "shared": kernel.shared if kernel else None,
        "occupancy": asdict(occupancy) if occupancy else None,
    }


def _show(selections: list[Selection], kept: Store, report: BuildReport, limit: int | None) -> None:
    counts = Counter((result.arch.name, result.status) for result in report.results)
    statuses: tuple[Status, ...] = ("built", "cached", "rejected", "failed")
    if any(result.status == "not needed" for result in report.results):
        statuses = ("built", "cached", "not needed", "rejected", "failed")
    output.records(
        {
            "arch": s.arch.name,
            "legal": len(s.configs),
            "dropped": len(s.dropped),
            **{status: counts[s.arch.name, status] for status in statuses},
        }
        for s in selections
    )
    output.notes(note for one in selections for note in one.notes)
    show_failures("not usable", report)
    output.line()
    output.line(f"{report}, in {kept.path}")
    left = sum(max(0, len(s.configs) - limit) for s in selections) if limit else 0
    if left:
        output.line(f"{left} legal kernels were not built because of --limit {limit}")
