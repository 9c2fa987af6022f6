"""``table import``, and the part of ``table export`` that writes aiter's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion, output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import Json, command
from tilewright.cli.table_files import Out, Policy, contents, refuse_rewriting
from tilewright.errors import BadArgument
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.tables.table import Table


app = typer.Typer()


@command(
    app,
    "Make a table from aiter's tuning files.",
    "tilewright table import tuned.csv --device mi300x -o mine.twt",
    "tilewright table import a8w8_tuned_gemm.csv --device mi300x --reference \\\n"
    "      -o aiter.twt && tilewright table diff aiter.twt mine.twt",
    name="import",
)
def import_(
    paths: Annotated[
        list[Path], typer.Argument(help="aiter's tuned files (.csv).", metavar="FILE.csv…")
    ],
    out: Out,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="GPU to read lines of (see `devices`).",
            autocompletion=completion.gpus,
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option("--form", help="Which of aiter's files they are, if their names do not say."),
    ] = None,
    gfx: Annotated[
        str | None,
        typer.Option("--gfx", help="Architecture of files without the column gfx.", metavar="ARCH"),
    ] = None,
    reference: Annotated[
        bool,
        typer.Option(
            "--reference", help="Also keep lines of aiter's own kernels, to compare times."
        ),
    ] = False,
    policy: Policy = "fail",
    as_json: Json = False,
) -> None:
    """Write the rows that aiter's files have for one GPU to a new table. The files are only read.

    Lines of Tilewright's kernels become rows. Lines of aiter's own kernels are counted; with
    --reference they become rows too, for `table diff` only: no dispatcher uses them. To tune their
    problems, give the files to a sweep: --problems FILE.csv.
    """
    from tilewright import arch
    from tilewright.tables import aiter
    from tilewright.tables.file import save
    from tilewright.tables.merge import combine

    refuse_rewriting(out, paths)
    target = arch.device(device)
    entries = [e for path in paths for e in aiter.read_aiter(path, form=form, gfx=gfx)]
    here = [e for e in entries if e.target is not None and e.target.covers(target)]
    placed = aiter.rows(here, target, foreign=reference)
    merged = combine(placed, ", ".join(map(str, paths)), policy)  # type: ignore[arg-type]
    save(merged.table, out)
    document: dict[str, Any] = {
        "out": str(out),
        **contents(merged.table),
        "lines": len(entries),
        "of_other_devices": len(entries) - len(here),
        "of_aiters_kernels": 0 if reference else sum(e.us is not None and not e.ours for e in here),
        "without_a_time": sum(e.us is None for e in here),
        "repeated": merged.repeated,
        "duplicates": [str(duplicate) for duplicate in merged.duplicates],
    }
    if as_json:
        output.emit(document)
        return
    rows, lines = many(len(merged.table), "row"), many(len(entries), "line")
    output.line(f"{rows} of {target.name} in {out}, of {lines}")
    for count, what in (
        (document["of_other_devices"], "are of other GPUs"),
        (document["of_aiters_kernels"], "name aiter's own kernels (--reference keeps the times)"),
        (document["without_a_time"], "have no time"),
        (merged.repeated, "are repeated"),
    ):
        if count:
            output.line(f"{count} {what}")
    for said in document["duplicates"]:
        output.line(f"kept the fastest of {said}")


def export_csv(table: Table, out: Path, form: str | None, as_json: bool) -> None:
    """Write a table as one of aiter's files. Exits with 1 if the form cannot express a row."""
    from tilewright.files import write_whole
    from tilewright.tables.aiter import forms, write_aiter

    if form is None:
        raise BadArgument(f"which of aiter's files? say --form, one of {', '.join(forms())}")
    written = write_aiter(table, form)
    write_whole(out, written.text.encode())
    left = [{"problem": str(row.problem), "why": why} for row, why in written.left]
    if as_json:
        output.emit({"out": str(out), "form": form, "count": written.count, "left_out": left})
    else:
        output.line(f"{many(written.count, 'row')} written to {out}")
        if left:
            output.table(("left out", "because"), [(one["problem"], one["why"]) for one in left])
    if left:
        raise typer.Exit(FAILED)
