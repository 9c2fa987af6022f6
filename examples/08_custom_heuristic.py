"""Your own choice: a function (problem, configs, device) -> configs, best first.

It sees only kernels that can serve the problem. One that returns nothing passes the question on
to the next selector of a `Chain`.
"""

from __future__ import annotations

from collections.abc import Sequence

import tilewright as tw
from common import place
from tilewright.verify import verify


def small_tiles_for_few_rows(
    problem: tw.GemmProblem, configs: Sequence[tw.GemmConfig], device: tw.Device
) -> list[tw.GemmConfig]:
    if problem.m > 32:
        return []  # no opinion
    return sorted(configs, key=lambda c: (c.tile_m, c.tile_n, c.name))


selector = tw.Chain((tw.ByFunction(small_tiles_for_few_rows), tw.Analytical()))
dispatcher = tw.Dispatcher(selector=selector)
for m in (8, 2048):
    plan = dispatcher.select(tw.GemmProblem(m, 4096, 4096))
    tile = f"{plan.config.tile_m}x{plan.config.tile_n}x{plan.config.tile_k}"
    print(f"{m:4} rows: tile {tile} by {plan.selector}, {plan.reason}")
result = verify(dispatcher, tw.GemmProblem(8, 64, 128), device=place(), seed=1)
print(f"the function's choice is {result}")
assert result.ok
