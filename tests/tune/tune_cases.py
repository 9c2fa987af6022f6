"""Kernels and problems that the tests of sweeps share."""

from __future__ import annotations

from tilewright import GemmProblem, ops
from tilewright.arch import arch
from tilewright.space import KernelSpace

SM90 = arch("sm_90")
SPACE = KernelSpace(
    "gemm",
    {"tile_m": [16, 64], "tile_n": [32, 64], "tile_k": [64], "num_warps": [4], "alignment": [1]},
)
CONFIGS = SPACE.expand(SM90).configs
PROBLEMS = (GemmProblem(64, 64, 64), GemmProblem(16, 32, 64), GemmProblem(100, 77, 33))
ALIGNED = next(iter(KernelSpace("gemm", {"tile_m": [64], "tile_n": [64]}).expand(SM90).configs))
"""Serves only what is aligned to 16 bytes."""

FP16 = ops.family("gemm").parse_problem({"m": "64", "n": "64", "k": "64", "dtype": "fp16"}, SM90)
