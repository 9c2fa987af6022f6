"""Cells of CSV files that no spreadsheet takes for a formula.

A spreadsheet runs a cell that begins with one of `= + - @`, a tab or a carriage return, even if it
is quoted. The formula may start a program, or send the contents of other cells somewhere.
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def guarded(cell: str) -> str:
    """`cell`, with an apostrophe in front if it could be a formula; the apostrophe makes it text.
    Numbers stay unchanged. `plain` reverses this."""
    return f"'{cell}" if _FORMULA.match(cell) and not _is_number(cell) else cell


def plain(cell: str) -> str:
    """The cell that `guarded` was given. Cells that `guarded` did not make stay unchanged."""
    return cell[1:] if cell.startswith("'") and guarded(cell[1:]) == cell else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isprintable()
