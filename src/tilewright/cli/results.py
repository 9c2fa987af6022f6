"""``results``: show the results of a sweep."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.options import Json, command
from tilewright.errors import BadArgument
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.measure.results import Results
    from tilewright.measure.summary import Best, Coverage, Setup

SLOWEST = 5
"""Number of slowest builds to show."""


app = typer.Typer()


@command(
    app,
    "Show a sweep's best kernels and failures.",
    "tilewright results DIR",
    "tilewright results DIR --export results.csv",
    "tilewright results DIR --query \\\n"
    "      'SELECT status, count(*) FROM measurement GROUP BY status'",
)
def results(
    folder: Annotated[Path, typer.Argument(help="A sweep's directory.", metavar="DIR")],
    query: Annotated[
        str | None,
        typer.Option("--query", help="Answer this SQL query instead (SQLite, read-only)."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option("--export", help="Write a table instead, to FILE.csv or FILE.parquet."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the best kernel for each problem with its ties, how measurements ended, the coverage,
    the rules that refused kernels, and the slowest builds.

    The column vs vendor is the time of the vendor's library over the best kernel's, if the sweep
    measured both. Devices, environments and ways of measuring are kept apart. The command may run
    while a sweep runs.
    """
    from tilewright.measure.results import Results

    if query is not None and export is not None:
        raise BadArgument("give --query or --export, not both")
    with Results(folder) as kept:
        if query is not None:
            _query(kept, query, as_json)
        elif export is not None:
            from tilewright.measure.export import export as write

            with output.busy(f"writing {export}"):
                count = write(kept, export)
            if as_json:
                output.emit({"path": str(export), "rows": count})
            else:
                output.line(f"{many(count, 'row')} written to {export}")
        else:
            _summary(kept, as_json)


def _query(kept: Results, sql: str, as_json: bool) -> None:
    with output.busy(f"reading {kept.folder}"):
        titles, rows = kept.query(sql)
    cells = [[f"{len(v)} bytes" if isinstance(v, bytes) else v for v in row] for row in rows]
    if as_json:
        output.emit({"columns": titles, "rows": cells})
    else:
        output.table(titles, [["" if v is None else v for v in row] for row in cells])


def _summary(kept: Results, as_json: bool) -> None:
    from tilewright.measure.summary import best, coverage, refusals, slowest_builds

    with output.busy(f"reading {kept.folder}"):
        found, covered, slow = best(kept), coverage(kept), slowest_builds(kept, SLOWEST)
        refused = refusals(kept)
    if as_json:
        output.emit(
            {
                "best": [_best(one) for one in found],
                "coverage": [_coverage(one) for one in covered],
                "unsupported_by": [asdict(one) for one in refused],
                "slowest_builds": [asdict(one) for one in slow],
            }
        )
        return
    if not covered:
        output.line(f"nothing was measured yet in {kept.folder}")
        return
    for number, one in enumerate(covered):
        if number:
            output.line()
        output.heading(_title(one.setup, covered))
        _show(one, [b for b in found if b.setup == one.setup])
    if refused:
        output.line()
        output.table(
            ("unsupported by", "pairs", "for example"),
            [(r.rule or "the call", r.count, r.reason) for r in refused],
        )
    if slow:
        output.line()
        output.table(
            ("slowest builds", "arch", "seconds", "kernel"),
            [(s.status, s.arch, round(s.seconds, 1), s.kernel) for s in slow],
        )


def _title(setup: Setup, covered: list[Coverage]) -> str:
    """The setup, with the fields in which it differs from the other setups measured."""
    telling = [
        f"{field} {getattr(setup, field)}"
        for field in ("fingerprint", "environment", "settings")
        if len({getattr(one.setup, field) for one in covered}) > 1
    ]
    return ", ".join([f"{setup.device} ({setup.arch})", *telling])


def _show(one: Coverage, found: list[Best]) -> None:
    output.line(
        f"{one.measured} of {many(one.kernels, 'kernel')} × {many(one.problems, 'problem')} "
        f"({one.share:.1%}): " + output.counts(one.statuses)
    )
    if one.vendor:
        output.line(f"the vendor's library: {output.counts(one.vendor)}")
    vendor = any(b.vendor_ratio is not None for b in found)
    output.records(_row(b, vendor) for b in found)
    for problem in one.without:
        output.line(f"no time for {problem}: no kernel measured serves it, or none was right")


def _row(b: Best, vendor: bool) -> dict[str, Any]:
    """A best kernel, for people. vendor: with its place beside the vendor's library."""
    ratio = "" if b.vendor_ratio is None else round(b.vendor_ratio, 3)
    return {
        "problem": str(b.problem),
        "µs": output.short(b.median_us),
        "± %": output.short(50 * (b.interval_us[1] - b.interval_us[0]) / b.median_us, 2),
        "TFLOP/s": output.operations(b.tflops),
        "GB/s": output.short(b.gb_per_s),
        **({"vs vendor": ratio} if vendor else {}),
        "ties": len(b.ties),
        "best kernel": b.kernel,
    }


def _best(one: Best) -> dict[str, Any]:
    return {**asdict(one), "problem": _problem(one.problem), "vendor_ratio": one.vendor_ratio}


def _coverage(one: Coverage) -> dict[str, Any]:
    return {
        **asdict(one),
        "without": [_problem(problem) for problem in one.without],
        "measured": one.measured,
        "share": one.share,
    }


def _problem(problem: Any) -> dict[str, Any]:
    return {"family": problem.family, **asdict(problem)}
