"""Parts that the commands about table files share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.tables.table import Table

Out = Annotated[
    Path, typer.Option("--output", "-o", help="File to write (.twt or .json).", metavar="FILE")
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="Which of several different rows of one problem to keep: fail, or fastest.",
    ),
]


def refuse_rewriting(out: Path, sources: Sequence[Path]) -> None:
    """Raise `BadArgument` if `out` is one of `sources`."""
    for source in sources:
        if out.resolve() == source.resolve():
            raise BadArgument(f"{out} is one of the tables that are read; write another file")


def contents(table: Table) -> dict[str, Any]:
    """The fields that every JSON document about a table has."""
    return {
        "count": len(table),
        "digest": table.digest,
        "devices": [asdict(device) for device in table.devices],
    }
