"""What the function, the problems and the configs of a declared operation say in their docstrings:
what the operation computes, and its arrays with their shapes and element types; what each field
means."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator

from tilewright.custom.declaration import Array, Declaration, flag
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


def problem(d: Declaration) -> str:
    """The docstring of the problem type."""
    return _fields(
        f"A problem of `tilewright.{d.name}`, which says what its arrays and options are.",
        (d.sizes, "sizes"),
        (d.strides, "strides in elements, those of contiguous arrays where they are left out"),
        *_signature(d),
        (d.numbers, "numbers that a call states"),
        (("alignment",), "bytes, at most 16, that all addresses are multiples of"),
    )


def config(d: Declaration) -> str:
    """The docstring of the config type."""
    return _fields(
        f"A kernel of `tilewright.{d.name}`.",
        *_signature(d),
        (("alignment",), "bytes that all addresses must be multiples of"),
        (d.axes, "axes of the space, which do not change the result"),
    )


Group = tuple[Iterable[str], str]
"""Fields that mean the same, and what."""


def _signature(d: Declaration) -> tuple[Group, ...]:
    """The fields that a problem and its kernels have alike."""
    return (
        (d.dtype_fields, "element types"),
        (map(flag, d.optional), "whether a call passes the array"),
        (d.options, "options"),
    )


def _fields(first: str, *groups: Group) -> str:
    lines = ((", ".join(names), meaning) for names, meaning in groups)
    return f"{first}\n\n" + "\n".join(f"{names}: {meaning}" for names, meaning in lines if names)
