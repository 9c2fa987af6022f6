"""The same problem, and the same kernel, in the other of two element types that take the same time.

A kernel of bf16 and the kernel of fp16 with the same tile read as many bytes and multiply at the
same rate. So a tuned row of one type may answer for the other.
"""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import COUNTERPART
from tilewright.ops.problem import changed, stated


def other_type(problem: Any) -> str:
    """The type that the counterpart of `problem` has: bf16 in place of fp16, or fp16 in place of
    bf16; ``""`` if it has neither, or both."""
    had = COUNTERPART.keys() & stated(problem).values()
    return COUNTERPART[had.pop()] if len(had) == 1 else ""


def counterpart(problem: Any) -> Any:
    """`problem` in its `other_type`, which it has. Nobody checks that there are kernels for it."""
    values = stated(problem).items()
    return changed(problem, {name: COUNTERPART[v] for name, v in values if v in COUNTERPART})


def renamed(kernel: str) -> str:
    """The name of the same kernel in the other type. The inverse of itself. A name says its types
    as words of their own."""
    return "_".join(COUNTERPART.get(word, word) for word in kernel.split("_"))
