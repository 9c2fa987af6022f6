"""The launcher in Python, for machines without a C compiler: `launcher.c`, function by function.

The functions have the names, arguments and codes of the compiled module, which its first comment
states. A launch takes some microseconds more. Nothing is compiled, and no file is written.
"""

from tilewright.runtime.python_launcher.describing import call, describe
from tilewright.runtime.python_launcher.launching import (
    NEEDS_HANDLE,
    NEEDS_MAPS,
    NOT_KNOWN,
    OVERLAPS,
    UNSUITABLE,
    keep_workspace,
    last_used,
    launch,
    launches,
    prepare,
    write_map,
)
from tilewright.runtime.python_launcher.library_steps import (
    graph_step,
    matmul_step,
    solution_step,
)
from tilewright.runtime.python_launcher.passing_on import passing
from tilewright.runtime.python_launcher.repeating import recipe, repeat, signature, split

__all__ = [
    "NEEDS_HANDLE",
    "NEEDS_MAPS",
    "NOT_KNOWN",
    "OVERLAPS",
    "UNSUITABLE",
    "call",
    "describe",
    "graph_step",
    "keep_workspace",
    "last_used",
    "launch",
    "launches",
    "matmul_step",
    "passing",
    "prepare",
    "recipe",
    "repeat",
    "signature",
    "solution_step",
    "split",
    "write_map",
]
