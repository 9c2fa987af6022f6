"""How long a call takes.

On a GPU: device time of one product, by events, after a warm-up, as a median over samples. On a
machine without one there is no device time to measure; planning is measured instead.
"""

from __future__ import annotations

import statistics
import time

import tilewright as tw
from common import event_time_us, place, target
from tilewright.verify import make_operands

dispatcher = tw.Dispatcher(device=target())
if place() == "cpu":
    print(f"no GPU here: timing plans for {target().name}, not kernels")
    problems = [tw.GemmProblem(m, 4096, 4096) for m in range(1, 41)]
    for word in ("first", "cached"):
        times = []
        for problem in problems:
            start = time.perf_counter()
            dispatcher.select(problem)
            times.append((time.perf_counter() - start) * 1e6)
        print(f"{word} plan: median {statistics.median(times):.1f} µs over {len(times)} problems")
else:
    problem = tw.GemmProblem(4096, 4096, 4096)
    (a, b), out = make_operands(problem, seed=0, device=place())
    for _ in range(200):
        dispatcher.run("gemm", a, b, out=out)
    times = [event_time_us(lambda: dispatcher.run("gemm", a, b, out=out)) for _ in range(100)]
    median = statistics.median(times)
    print(f"{problem} on {target().name} by {dispatcher.select(problem).config.name}")
    tflops = problem.flops / median / 1e6
    print(f"median {median:.1f} µs over {len(times)} calls: {tflops:.0f} TFLOP/s")
