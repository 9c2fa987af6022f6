"""What is executed in emulation on each AMD architecture (see `spread`)."""

from __future__ import annotations

from functools import cache

import spread_attention
import spread_backward
import spread_conv
import spread_gemm
import spread_grouped
from spread import Case, Refusal, made

from tilewright.arch import arch, archs

ARCHS = tuple(name for name in archs() if arch(name).vendor == "amd")


@cache
def _made(name: str) -> tuple[list[Case], list[Refusal]]:
    this = arch(name)
    modules = (spread_gemm, spread_grouped, spread_attention, spread_backward, spread_conv)
    return made(this, [module.axes(this) for module in modules])


def cases(name: str) -> list[Case]:
    """The cases of an architecture: the first of every pipeline, the second of every one, ..."""
    return _made(name)[0]


def refusals(name: str) -> list[Refusal]:
    """The values that no kernel of an architecture has."""
    return _made(name)[1]
