"""``merge``: put the results of several sweeps in one directory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli import output
from tilewright.cli.options import Json, command
from tilewright.wording import many

app = typer.Typer()


@command(
    app,
    "Put the results of several sweeps in one directory.",
    "tilewright merge monday tuesday --out both --policy newest",
)
def merge(
    folders: Annotated[list[Path], typer.Argument(help="Sweep directories.", metavar="DIR…")],
    out: Annotated[Path, typer.Option("--out", help="Directory to make.", metavar="DIR")],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="Which of several different measurements to keep: newest, fastest, or fail.",
        ),
    ] = "fail",
    as_json: Json = False,
) -> None:
    """Put the results of several sweep directories in a new one.

    Two measurements are of the same thing if kernel, binary, problem, device, environment and
    settings agree. If such measurements differ, --policy says which is kept, and each conflict is
    listed.
    """
    from tilewright.measure.merge import merge as do

    with output.busy(f"merging {len(folders)} directories"):
        merged = do(folders, out, policy)  # type: ignore[arg-type]  # checked there
    if as_json:
        output.emit({"out": str(out), "policy": policy, **asdict(merged)})
        return
    output.line(f"{many(merged.measurements, 'result')} in {out}; {merged.repeated} there twice")
    if merged.conflicts:
        output.line(f"{len(merged.conflicts)} differed; kept the {policy}:")
        output.table(
            ("kept", "dropped", "kernel", "problem"),
            [(c.kept, c.dropped, c.kernel, c.problem) for c in merged.conflicts],
        )
