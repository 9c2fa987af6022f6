"""The same problem, and the same kernel, in the other of two element types that take the same time.

A kernel of bf16 and the kernel of fp16 with the same tile read as many bytes and multiply at the
same rate. So a tuned row of one type may answer for the other.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from tilewright.dtypes import COUNTERPART
from tilewright.errors import BadArgument


@lru_cache(maxsize=256)  # a plan asks several times
def counterpart(problem: Any) -> tuple[Any, str] | None:
    """`problem` with bf16 in place of fp16 or fp16 in place of bf16, and the type that it has now;
    None if it has neither, both, or cannot be stated so."""
    stated = {f.name: getattr(problem, f.name) for f in fields(problem)}
    had = {value for value in stated.values() if isinstance(value, str) and value in COUNTERPART}
    if len(had) != 1:
        return None
    other = COUNTERPART[had.pop()]
    changed = {name: other for name, value in stated.items() if value in COUNTERPART}
    try:
        return replace(problem, **changed), other
    except BadArgument:
        return None


def renamed(kernel: str) -> str:
    """The name of the same kernel in the other type. The inverse of itself. A name says its types
    as words of their own."""
    return "_".join(COUNTERPART.get(word, word) for word in kernel.split("_"))
