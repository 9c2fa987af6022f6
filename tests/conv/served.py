"""Which configs of a pipeline serve a problem: asked by many tests, and found once."""

from __future__ import annotations

from functools import cache

from tilewright import ops
from tilewright.arch import arch
from tilewright.ops.conv import ConvConfig, ConvProblem

FAMILY = ops.family("conv")


@cache
def served(
    p: ConvProblem, *pipelines: str, tuned: bool = True, name: str = "sm_90"
) -> tuple[ConvConfig, ...]:
    """The configs of `pipelines` that serve `p`, of the spaces of a tuning or of the default one,
    in their order."""
    this = arch(name)
    spaces = FAMILY.tuning_spaces(p, this) if tuned else [FAMILY.default_space(p, this)]
    every = (c for space in spaces for c in space.expand(this).configs)
    found = [*dict.fromkeys(c for c in every if c.pipeline in pipelines)]
    return tuple(found[place] for place in FAMILY.serving(p, found, this)) if found else ()
