"""Several kernels against each other: interleaved, medians, beside what the estimate expected.

On a machine without a GPU: what building each took, what the compiler used, and the estimates.
"""

from __future__ import annotations

import statistics

import tilewright as tw
from common import event_time_us, place, target
from tilewright.compile import build
from tilewright.verify import make_operands, require, verify

gpu, store = target(), tw.Store()
axes = {"tile_m": [64, 128], "tile_n": [128, 256], "num_stages": [2, 3], "pipeline": ["*"]}
configs = tw.KernelSpace("gemm", axes).expand(tw.arch.arch(gpu.arch)).configs[:6]
report = build([(config, gpu.arch) for config in configs], store=store)
registry = tw.Registry("contenders").register_all(report.kernels)
dispatcher = tw.Dispatcher(registry, gpu, store=store)
problem = tw.GemmProblem(2048, 2048, 2048)
samples: dict[str, list[float]] = {entry.name: [] for entry in registry}
if place() != "cpu":
    (a, b), out = make_operands(problem, seed=0, device=place())
    for name in samples:
        require(verify(dispatcher, problem, name, device=place()), name)  # right before fast
    one = {n: tw.Dispatcher(tw.Registry(n).register_all([n]), gpu, store=store) for n in samples}
    for turn in range(40):
        for name in sorted(samples, reverse=turn % 2 == 1):
            time = event_time_us(lambda d=one[name]: d.run("gemm", a, b, out=out))
            samples[name] += [time] if turn >= 10 else []  # the first turns warm up
built = {result.name: result for result in report.results}
print(f"{problem} on {gpu.name}: {report}")
for fate in dispatcher.explain(problem).fates:
    if (r := built.get(fate.name)) is None:  # of a table's row, and not registered
        continue
    took = f"median {statistics.median(t):7.1f} µs" if (t := samples[fate.name]) else "not timed"
    registers = f"{r.kernel.resources.registers} registers" if r.kernel else "no binary"
    print(f"{fate.fate:9} {fate.reason}, {took}, build {r.seconds:.2f} s, {registers}: {r.name}")
