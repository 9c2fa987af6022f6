"""Algorithms of the vendor's library, for tests."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops.gemm import GemmProblem
from tilewright.ops.gemm.library_config import CublasLtConfig, HipblasLtConfig
from tilewright.ops.library import Algorithm, Solution

PLAIN = Algorithm(66, 20, 36, 1, "none", 0, 5, 0, 2)
SOLUTION = Solution(66771, "0f9c2a41")
SPLIT = Algorithm(66, 20, 36, 4, "compute", 1, 0, 0, 3)


def vendors(
    problem: GemmProblem, algorithm: Algorithm = PLAIN, workspace: int = 0, **changes: object
) -> CublasLtConfig:
    """The config of an algorithm of cuBLASLt that serves `problem`."""
    p = problem
    made = CublasLtConfig(
        p.layout, p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_acc, p.precision, "cublaslt13",
        algorithm, workspace, p.alignment, p.epilogue, p.batching, p.scale_a, p.scale_b,
    )  # fmt: skip
    return replace(made, **changes)


def amds(
    problem: GemmProblem, algorithm: Solution = SOLUTION, workspace: int = 0, **changes: object
) -> HipblasLtConfig:
    """The config of an algorithm of hipBLASLt that serves `problem`."""
    p = problem
    made = HipblasLtConfig(
        p.layout, p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_acc, p.precision, "hipblaslt1",
        algorithm, workspace, p.alignment, p.epilogue, p.batching,
    )  # fmt: skip
    return replace(made, **changes)
