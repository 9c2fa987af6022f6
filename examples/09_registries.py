"""Several registries in one process: each dispatcher chooses from its own.

A kernel of higher priority is considered first, whatever the estimates say.
"""

from __future__ import annotations

import tilewright as tw
from common import target
from tilewright.registry import registries, registry

this = tw.arch.arch(target().arch)
small = tw.KernelSpace("gemm", {"tile_m": [16, 32], "tile_n": [64], "num_warps": [4]})
large = tw.KernelSpace("gemm", {"tile_m": [128], "tile_n": [128, 256], "num_stages": [2]})
registry("decode").register_all(small.expand(this).configs)
registry("prefill").register_all(large.expand(this).configs)
print(f"registries of this process: {', '.join(registries())}")

problem = tw.GemmProblem(64, 4096, 4096)
for name in registries():
    config = tw.Dispatcher(registry(name), device=target()).select(problem).config
    print(f"{name:>8} chooses {config.name}")

decode = registry("decode")
dispatcher = tw.Dispatcher(decode, device=target())
before = dispatcher.select(problem).config.name
other = next(entry.name for entry in decode if entry.name != before)
decode.set_priority(other, 10)
assert dispatcher.select(problem).config.name == other
print(f"with a higher priority it is {other}")
