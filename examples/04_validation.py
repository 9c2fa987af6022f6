"""Is the result right? Random operands, an output full of NaN, a float64 reference.

The tolerance comes from the dtypes and the length of the sum. `require` raises
`VerificationFailed` where a check did not pass.
"""

from __future__ import annotations

import tilewright as tw
from common import place
from tilewright.verify import check, make_operands, require, verify

dispatcher = tw.Dispatcher()
for dtype, size in (("fp32", (65, 33, 100)), ("bf16", (128, 96, 256)), ("e4m3fn", (48, 80, 64))):
    problem = tw.GemmProblem(*size, dtype_a=dtype)
    result = verify(dispatcher, problem, device=place(), seed=7)
    require(result, str(problem))
    print(f"{problem}: {result}")

# The check has teeth: a result that is wrong in one element does not pass.
problem = tw.GemmProblem(64, 64, 64, dtype_a="fp32")
(a, b), out = make_operands(problem, seed=1, device=place())
dispatcher.run("gemm", a, b, out=out)
out[3, 5] += 1.0
spoiled = check(problem, dispatcher.select(problem).config, (a, b), out)
print(f"after one element was spoiled: {spoiled}")
assert not spoiled.ok
