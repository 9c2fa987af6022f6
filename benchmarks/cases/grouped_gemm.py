"""Products of mixtures of experts. Loads are skewed, as routers skew them, and some experts have no
row."""

from __future__ import annotations

from typing import Any

import rivals
from cases import Case
from tilewright import verify
from tilewright.ops.grouped_gemm import GroupedGemmProblem

CONTIGUOUS = (
    (256, 8, 14336, 4096), (4096, 8, 14336, 4096), (16384, 8, 4096, 14336), (512, 32, 2816, 2048),
    (8192, 32, 4096, 7168), (256, 64, 2816, 2048), (4096, 64, 2816, 2048), (16384, 64, 2816, 2048),
    (1024, 128, 4096, 7168), (8192, 128, 7168, 2048), (256, 256, 4096, 7168),
    (4096, 256, 7168, 2048), (16384, 256, 4096, 7168), (16384, 256, 7168, 2048),
)  # fmt: skip
"""(rows of all experts, experts, n, k): layers of models, few rows to many."""
MASKED = ((64, 8, 14336, 4096), (64, 32, 2816, 2048), (256, 64, 2816, 2048), (256, 128, 7168, 2048))
"""(capacity, experts, n, k)."""


def every_row_used(problem: GroupedGemmProblem, seed: int, device: str) -> verify.Operands:
    """Operands whose last group takes the rows that would belong to none: torch's call writes all
    rows."""
    made: Any = verify.operands_of(problem, seed, device)
    made.inputs["offsets"][-1] = problem.m
    return made


CASES = (
    Case(
        "grouped-gemm-contiguous", "bf16, mixtures of 8 to 256 experts, rows sorted by expert",
        "`torch._grouped_mm`",
        lambda: [GroupedGemmProblem("contiguous", g, m, n, k) for m, g, n, k in CONTIGUOUS],
        vendor=(rivals.grouped_mm,), operands=every_row_used,
    ),
    Case(
        "grouped-gemm-masked", "bf16, experts with a fixed capacity, four layers",
        "the better of `torch.bmm` over the capacity and `torch._grouped_mm` on the used rows",
        lambda: [GroupedGemmProblem("masked", g, m, n, k) for m, g, n, k in MASKED],
        vendor=(rivals.grouped_mm,), exact=False,
    ),
)  # fmt: skip
