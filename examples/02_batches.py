"""Batches in a loop: one plan serves every call with operands of the same form.

The output is given with `out=`, so nothing is allocated in the loop, and the last batch has
fewer rows: another problem, hence another plan.
"""

from __future__ import annotations

import tilewright as tw
from common import place
from tilewright.verify import check, make_operands

dispatcher = tw.Dispatcher()
rows = [64, 64, 64, 17]
for number, m in enumerate(rows):
    problem = tw.GemmProblem(m, 96, 128, dtype_a="bf16")
    (a, b), out = make_operands(problem, seed=number, device=place())
    dispatcher.run("gemm", a, b, out=out)
    plan = dispatcher.select(problem)
    result = check(problem, plan.config, (a, b), out)
    print(f"batch {number}: {m:3} rows, tile {plan.config.tile_m}x{plan.config.tile_n}, {result}")
    assert result.ok
print(f"{len(rows)} batches are right")
