"""Loops that Triton 3.6 compiles wrongly: in Gluon, a loop that begins at a value which the loop
around it carries from round to round. The value then stays what it was before the first round."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from source_tree import sources

KERNELS = {name: text for name, text in sources().items() if "gluon_api" in text}


def _assigned(node: ast.AST) -> set[str]:
    """Names that are stored to anywhere under a node."""
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in names if isinstance(one.ctx, ast.Store)}


def _begins(loop: ast.For) -> str | None:
    """The name at which a loop's range begins, if it is a name."""
    call = loop.iter
    if isinstance(call, ast.Call) and len(call.args) > 1 and isinstance(call.args[0], ast.Name):
        return call.args[0].id
    return None


def carried_begins(text: str) -> Iterator[str]:
    """``function: name`` of each loop that begins at a value which a loop around it carries."""
    for function in (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef)):
        loops = [one for one in ast.walk(function) if isinstance(one, ast.For)]
        for outer in loops:
            before = {one.arg for one in function.args.args}
            for one in ast.walk(function):
                if isinstance(one, ast.Name) and one.lineno < outer.lineno:
                    before |= _assigned(one)
            carried = before & set().union(*map(_assigned, outer.body))
            for inner in loops:
                if inner is not outer and outer.lineno < inner.lineno <= (outer.end_lineno or 0):
                    name = _begins(inner)
                    if name in carried:
                        yield f"{function.name}: {name}"


def test_no_loop_begins_at_what_another_carries():
    assert len(KERNELS) > 10
    found = {name: list(carried_begins(text)) for name, text in KERNELS.items()}
    assert not {name: wrong for name, wrong in found.items() if wrong}


def test_such_a_loop_is_found():
    text = """
def kernel(n):
    waited = 0
    for row in range(n):
        for number in range(waited, row + 3):
            wait(number)
        waited = row + 3
"""
    assert list(carried_begins(text)) == ["kernel: waited"]
    apart = text.replace("range(waited, row + 3)", "range(row + 3 - waited)")
    assert not list(carried_begins(apart))
