"""Cells of CSV files that no spreadsheet takes for a formula.

A spreadsheet runs a cell that begins with one of `= + - @`, a tab or a carriage return, also where
it is quoted: it may start a program, or send what stands in other cells somewhere.
"""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r]")


def guarded(cell: str) -> str:
    """`cell` with an apostrophe before it, which makes it text, where it could be a formula.
    Numbers stay. `plain` gives the cell back."""
    return f"'{cell}" if _FORMULA.match(cell) and not _is_number(cell) else cell


def plain(cell: str) -> str:
    """The cell that `guarded` was given; one that it did not make stays as it is."""
    return cell[1:] if cell.startswith("'") and guarded(cell[1:]) == cell else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return cell.isprintable()
