"""Algorithms of the vendor's library, for tests."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops.gemm import GemmProblem
from tilewright.ops.gemm.library_config import VendorConfig
from tilewright.ops.library import Algorithm

PLAIN = Algorithm(66, 20, 36, 1, "none", 0, 5, 0, 2)
SPLIT = Algorithm(66, 20, 36, 4, "compute", 1, 0, 0, 3)


def vendors(
    problem: GemmProblem, algorithm: Algorithm = PLAIN, workspace: int = 0, **changes: object
) -> VendorConfig:
    """The config of an algorithm that serves `problem`."""
    p = problem
    made = VendorConfig(
        p.layout, p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_acc, p.precision, "cublaslt13",
        algorithm, workspace, p.alignment, p.epilogue, p.batching,
    )  # fmt: skip
    return replace(made, **changes)
