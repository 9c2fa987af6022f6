"""48 kernels drawn from a large space, each on a problem and on data of its own seed.

    python examples/07_stress.py [SEED]

A failure prints the kernel, the problem and the seed that makes it happen again.
"""

from __future__ import annotations

import random
import sys

import tilewright as tw
from common import place, target
from tilewright import ops
from tilewright.compile import build
from tilewright.verify import verify

KERNELS = 48
seed = int(sys.argv[1]) if len(sys.argv) > 1 else 20260101
this = tw.arch.arch(target().arch)
axes = {"layout": ["*"], "pipeline": ["*"], "scheduler": ["*"], "alignment": [1, 16]}
axes |= {"dtype_a": ["bf16", "fp16", "fp32", "int8"], "num_warps": [4], "num_stages": [2, 3]}
axes |= {"tile_m": [32, 64], "tile_n": [32, 64], "tile_k": [32, 64]}
configs = tw.KernelSpace("gemm", axes).expand(this).configs
drawn = random.Random(seed).sample(configs, KERNELS)
dispatcher, right = tw.Dispatcher(device=target()), 0
if place() != "cpu":
    build([(config, this) for config in drawn], store=dispatcher.store).raise_if_failed()
for number, config in enumerate(drawn, seed):
    rng, served = random.Random(number), False
    while not served:
        m, n, k = (rng.choice((rng.randint(2, 150), 16 * rng.randint(1, 9))) for _ in "mnk")
        p = tw.GemmProblem(m, n, k, config.dtype_a, layout=config.layout)
        served = bool(ops.family("gemm").supports(config, p, this))
    result = verify(dispatcher, p, config.name, device=place(), seed=number)
    right += result.ok
    print("." if result.ok else f"\nseed {number}: {config.name} on {p} is {result}", end="")
print(f"\n{right} of {KERNELS} kernels drawn from {len(configs)} are right, seed {seed}")
sys.exit(right < KERNELS)
