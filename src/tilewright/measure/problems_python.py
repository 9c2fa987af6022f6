"""Lists of problems in Python files, as CK Tile Engine's: read, never executed.

A row is a call of a class whose name ends in ``Problem``, with keywords that are literals. A file
that computes its problems, in a loop or from another list, is refused.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tilewright.errors import BadFile


def python_rows(text: str, path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, with their lines. Raises `BadFile`."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadFile(f"{path}: not Python: {error}") from error
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_problem(node)]
    for call in sorted(found, key=lambda call: (call.lineno, call.col_offset)):
        where = f"{path}: line {call.lineno}"
        row = {}
        for keyword in call.keywords:
            if keyword.arg is None or not isinstance(keyword.value, ast.Constant):
                raise BadFile(
                    f"{where}: {keyword.arg or '**'} is no literal, and this file is not executed; "
                    "write its problems to a CSV"
                )
            row[keyword.arg] = keyword.value.value
        if call.args:
            raise BadFile(f"{where}: a problem is stated by keywords")
        yield call.lineno, row


def _is_problem(call: ast.Call) -> bool:
    name = call.func
    return isinstance(name, ast.Name) and name.id.endswith("Problem")
