"""The parameters of an operation's function and its docstring, from what its family says."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature
from typing import Any

from tilewright import ops
from tilewright.ops.keywords import Keyword
from tilewright.ops.nouns import Number

ARRAY = "Array"
"""The annotation of an array: a torch tensor, a NumPy array, or an object with ``__dlpack__``."""


def signature(op: str) -> Signature:
    """The signature of ``tilewright.<op>``. A keyword of None counts as left out; a scalar without
    a default of its own is None too."""
    family = ops.family(op)
    return Signature([*_parameters(family)], return_annotation="Any")


def docstring(op: str) -> str:
    """The docstring of ``tilewright.<op>``."""
    first = ops.family(op).says or f"Run {op} on the operands."
    return (
        f"{first}\n\n"
        "The default dispatcher chooses the kernel, which is built on first use. `out` is written\n"
        "to; without it, outputs are made, and torch records the operation's gradients. The\n"
        "launch is queued on `stream`, or on torch's current stream. For what arrays may be and\n"
        "what is raised see `tilewright.Dispatcher.run`."
    )


def _parameters(family: Any) -> Iterator[Parameter]:
    others = None
    for name in family.arguments:
        if name.startswith("**"):
            others = Parameter(name[2:], Parameter.VAR_KEYWORD, annotation=f"{ARRAY} | None")
        elif name.startswith("*"):
            yield Parameter(name[1:], Parameter.VAR_POSITIONAL, annotation=ARRAY)
        elif name.endswith("="):
            kind = Parameter.POSITIONAL_ONLY
            yield Parameter(name[:-1], kind, default=None, annotation=f"{ARRAY} | None")
        else:
            yield Parameter(name, Parameter.POSITIONAL_ONLY, annotation=ARRAY)
    yield _keyword("out", f"{ARRAY} | tuple[{ARRAY}, ...] | None")
    yield _keyword("stream", "Any")
    keywords = family.keywords()
    for name, one in keywords.items():
        yield _keyword(name, _annotation(one), one.default)
    for name, number in family.scalars.items():
        yield _keyword(name, f"{_annotation_of(number)} | None")
    if others is None and not keywords:
        others = Parameter("options", Parameter.VAR_KEYWORD, annotation="Any")
    if others is not None:
        yield others


def _keyword(name: str, annotation: str, default: Any = None) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(one: Keyword) -> str:
    if one.kind == "operand":
        return f"{ARRAY} | float | None" if one.number else f"{ARRAY} | None"
    kind = "Any" if one.type == "dtype" else one.type
    return f"{kind} | None"


def _annotation_of(number: Number) -> str:
    return "float" if number.type.startswith("fp") else "bool" if number.type == "i1" else "int"
