"""What the function of a declared operation says in its docstring: what the operation computes, and
its arrays with their shapes and element types, and the words that an option takes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from tilewright.custom.declaration import Array, Declaration
from tilewright.dtypes import DTYPES

LONGEST = 30
"""Characters of arithmetic on sizes that are shown."""


def says(d: Declaration) -> str:
    """The docstring of the reference, or else of the module that declares the operation, and a line
    for each array and each option with a choice; "" without a docstring."""
    module = sys.modules.get(d.module)
    text = inspect.getdoc(d.reference) or (inspect.getdoc(module) if module else "") or ""
    return f"{text}\n\n" + "\n".join(_arrays(d)) if text else ""


def _arrays(d: Declaration) -> Iterator[str]:
    for name, one in d.operands.items():
        notes = [_lies(one)]
        if one.role == "inout":
            notes.append("updated in place")
        elif one.role == "out":
            notes.append(f"returned with {one.when.removeprefix('has_')}".removesuffix(" with "))
        elif one.optional:
            notes.append("by keyword, may be left out")
        yield f"{name}: {', '.join(notes)}"
    for name, values in d.choices.items():
        yield f"{name}: {' or '.join(f'`{value!r}`' for value in values)}"


def _lies(one: Array) -> str:
    """Shape and element type; "…" for a size that is a long sum."""
    sizes = [size if len(size) <= LONGEST else "…" for size in map(str, one.shape)]
    if one.folds:
        sizes[0] = f"*{sizes[0]}"
    return f"`[{', '.join(sizes)}]` {'in' if one.dtype in DTYPES else 'of'} `{one.dtype}`"
