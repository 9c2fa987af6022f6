"""``table``: files of tuned choices."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import Json, command, examples
from tilewright.cli.table_files import Out, Policy, contents, refuse_rewriting
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch import Device
    from tilewright.tables.check import Checked, Estimate
    from tilewright.tables.diff import Change

app = typer.Typer(
    help="Tuned choices as files: show, check, diff, compare, merge, export, import, minimise.",
    short_help="Tuned choices as files: show, check, compare, merge.",
    no_args_is_help=True,
    epilog=examples("tilewright table show mine.twt", "tilewright table check *.twt"),
)

File = Annotated[Path, typer.Argument(help="Table file (.twt or .json).", metavar="FILE")]
Files = Annotated[list[Path], typer.Argument(help="Table files (.twt, .json).", metavar="FILE…")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="Number of rows to show.")]


@command(
    app,
    "Show a table's rows and digest.",
    "tilewright table show mine.twt",
    "tilewright table show mine.twt --json",
)
def show(path: File, limit: Limit = 20, as_json: Json = False) -> None:
    """Show a table's devices, its digest, and its rows.

    Tables with the same digest choose the same kernels.
    """
    from tilewright.tables.file import load
    from tilewright.tables.row import to_data

    table = load(path)
    if as_json:
        with output.busy(f"reading {len(table)} rows"):
            rows = [to_data(row) for row in table]
        output.emit({**contents(table), "rows": rows})
        return
    output.fields(
        {
            "rows": len(table),
            "devices": ", ".join(f"{d.name} ({d.arch})" for d in table.devices) or "none",
            "digest": table.digest,
        }
    )
    shown = [*islice(table, limit)]
    if shown:
        output.line()
        output.records(
            {
                "problem": str(row.problem),
                "device": row.device.name,
                "µs": output.short(row.median_us),
                "TFLOP/s": output.operations(row.tflops),
                "GB/s": output.short(row.gb_per_s),
                "ties": len(row.ties),
                "kernel": row.kernel,
            }
            for row in shown
        )
    if len(shown) < len(table):
        output.line(f"and {len(table) - len(shown)} more (--limit says how many to show)")


@command(
    app,
    "Check tables for errors.",
    "tilewright table check mine.twt",
    "tilewright table check mine.twt theirs.json --no-ratio",
)
def check(
    paths: Files,
    ratio: Annotated[
        bool, typer.Option("--ratio/--no-ratio", help="Compare with the estimated choice.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Look for damage, newer schemas, different rows of one problem (across all files), kernels
    that do not exist, and shapes that a row's kernel does not serve.

    Then compare each row's time with the estimate for the kernel that would be chosen without the
    row. Exits with 1 if anything is wrong. Files are only read.
    """
    from tilewright.tables.check import check as do

    with output.busy("checking tables"):
        checked = do(paths, _estimate() if ratio else None)
    if as_json:
        output.emit(_checked(checked))
    else:
        _show_checked(checked)
    if checked.findings:
        raise typer.Exit(FAILED)


def _estimate() -> Estimate:
    """A function that gives the choice without tables, from one planner for each device."""
    from tilewright import ops
    from tilewright.plan import Planner

    planner = cache(lambda device: Planner(device=device, selector="analytical"))

    def estimate(problem: Any, device: Device) -> tuple[str, float]:
        config = planner(device).select(problem).config
        return config.name, ops.family(problem.family).estimate(config, problem, device).total_us

    return estimate


def _show_checked(checked: Checked) -> None:
    counts = Counter(finding.kind for finding in checked.findings)
    output.line(f"{many(checked.rows, 'row')}: {output.counts(counts) or 'no problem found'}")
    if checked.findings:
        output.table(
            ("found", "where", "what"), [(f.kind, f.where, f.says) for f in checked.findings]
        )
    if checked.ratios:
        ratios = sorted(checked.ratios, key=lambda r: r.ratio)
        mean = math.exp(sum(math.log(r.ratio) for r in ratios) / len(ratios))
        output.line(
            f"measured over estimated time of the analytical choice: geometric mean {mean:.3g}"
        )
        ends = {r.where: r for r in (ratios[0], ratios[-1])}
        output.table(
            ("ratio", "where", "problem"),
            [(output.short(r.ratio, 3), r.where, str(r.row.problem)) for r in ends.values()],
        )


def _checked(checked: Checked) -> dict[str, Any]:
    from tilewright.tables.row import said

    return {
        "rows": checked.rows,
        "findings": [asdict(finding) for finding in checked.findings],
        "ratios": [
            {
                "where": r.where,
                "problem": said(r.row.problem),
                "device": r.row.device.name,
                "kernel": r.row.kernel,
                "estimated": r.estimated,
                "ratio": r.ratio,
            }
            for r in checked.ratios
        ],
    }


@command(
    app, "Show the changes from one table to another.", "tilewright table diff before.twt after.twt"
)
def diff(
    before: Annotated[Path, typer.Argument(help="The first table.", metavar="BEFORE")],
    after: Annotated[Path, typer.Argument(help="The second.", metavar="AFTER")],
    as_json: Json = False,
) -> None:
    """Compare two tables problem by problem.

    Times count as different only if their confidence intervals do not overlap.
    """
    from tilewright.tables.diff import diff as do
    from tilewright.tables.file import load

    tables = load(before), load(after)
    with output.busy(f"comparing {before} and {after}"):
        changes = do(*tables)
    counts = Counter(change.outcome for change in changes)
    if as_json:
        output.emit({"counts": counts, "changes": [_change(one) for one in changes]})
        return
    output.line(output.counts(counts) or "both tables are empty")
    output.records(
        {
            "outcome": one.outcome,
            "speedup": "" if one.speedup is None else f"{one.speedup:.3f}",
            "between": " ".join(f"{end:.3f}" for end in one.speedup_interval or ()),
            "problem": str(one.problem),
            "device": one.device.name,
            "before": one.before.kernel if one.before else "",
            "after": one.after.kernel if one.after else "",
        }
        for one in changes
        if one.outcome != "same"
    )


def _change(change: Change) -> dict[str, Any]:
    from tilewright.tables.row import said, to_data

    return {
        "outcome": change.outcome,
        "speedup": change.speedup,
        "speedup_interval": change.speedup_interval,
        "problem": said(change.problem),
        "device": change.device.name,
        "before": to_data(change.before) if change.before else None,
        "after": to_data(change.after) if change.after else None,
    }


@command(
    app,
    "Put several tables in one.",
    "tilewright table merge shipped.twt mine.twt -o both.twt --policy fastest",
)
def merge(
    paths: Files,
    out: Out,
    policy: Policy = "fail",
    as_json: Json = False,
) -> None:
    """Write the rows of several tables to a new file. The inputs stay as they are.

    If tables differ on a problem and device, --policy decides. Such rows are listed; an error
    names those of the first problems.
    """
    from tilewright.tables.file import save
    from tilewright.tables.merge import merge as do

    refuse_rewriting(out, paths)
    with output.busy(f"merging {len(paths)} tables"):
        merged = do(paths, policy)  # type: ignore[arg-type]  # checked there
    save(merged.table, out)
    if as_json:
        duplicates = [
            [{"where": w, "kernel": r.kernel, "median_us": r.median_us} for w, r in one.rows]
            for one in merged.duplicates
        ]
        document = {"out": str(out), "policy": policy, **contents(merged.table)}
        output.emit({**document, "repeated": merged.repeated, "duplicates": duplicates})
        return
    rows = many(len(merged.table), "row")
    output.line(f"{rows} in {out}; {merged.repeated} stood in several tables")
    if merged.duplicates:
        output.line(f"different rows of {len(merged.duplicates)}; kept the fastest:")
        for duplicate in merged.duplicates:
            output.line(str(duplicate))


@command(
    app,
    "Write a table in the other form.",
    "tilewright table export mine.twt -o mine.json",
    "tilewright table export mine.json -o mine.twt",
    "tilewright table export mine.twt -o bf16_tuned_gemm.csv --form bf16",
)
def export(
    path: File,
    out: Out,
    form: Annotated[
        str | None, typer.Option("--form", help="For a .csv: which of aiter's files to write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a table to another file: as JSON with a row to a line, to read and to compare, or
    compact, to use. Both forms hold everything.

    A .csv is one of aiter's tuned files, as --form says; it has no intervals, ties or versions.
    Rows that the form cannot express are listed, and the command exits with 1.
    """
    from tilewright.cli.table_aiter import export_csv
    from tilewright.tables.file import load, save

    refuse_rewriting(out, [path])
    table = load(path)
    if out.suffix == ".csv":
        export_csv(table, out, form, as_json)
        return
    with output.busy(f"writing {out}"):
        save(table, out)
    if as_json:
        output.emit({"out": str(out), **contents(table)})
    else:
        output.line(f"{many(len(table), 'row')} written to {out}")
