"""A GEMM pipeline of the tests, in one file: its kernel, and its record.

C = A·B with A and C row-major, B column-major, every edge masked.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewright.arch.model import Arch
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates


@triton.jit
def gemm_toy(
    a, b, c, m, n, k, lda, ldb, ldc,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    SIGN: tl.constexpr,
):  # fmt: skip
    """SIGN: 1."""
    tile_m, tile_n = tile_coordinates(
        tl.program_id(0), tl.cdiv(m, TILE_M), tl.cdiv(n, TILE_N), GROUP_M
    )
    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    columns = tile_n * TILE_N + tl.arange(0, TILE_N)
    along = tl.arange(0, TILE_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for k0 in range(0, k, TILE_K):
        in_k = along < k - k0
        a_mask = (rows < m)[:, None] & in_k[None, :]
        a_tile = tl.load(a + rows[:, None] * lda + (k0 + along)[None, :], mask=a_mask, other=0.0)
        b_mask = in_k[:, None] & (columns < n)[None, :]
        b_tile = tl.load(b + (k0 + along)[:, None] + columns[None, :] * ldb, mask=b_mask, other=0.0)
        acc = tl.dot(a_tile, b_tile, acc)
    within = (rows < m)[:, None] & (columns < n)[None, :]
    out = (acc * SIGN).to(c.dtype.element_ty)
    tl.store(c + rows[:, None] * ldc + columns[None, :], out, mask=within)


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.layout != "rcr" or c.dtype_acc != "fp32" or c.precision != "ieee":
        return f"pipeline toy has layout rcr and sums in fp32, not {c.layout} and {c.dtype_acc}"
    return None


FIELDS: dict[str, Any] = {
    "name": "toy",
    "kernel": "toy_pipeline:gemm_toy",
    "schedulers": ("tile",),
    "rules": {"combination": _objection},
    "traits": ("zero_k", "dot"),
    "shared_memory": common.pipelined_loads,
    "own": {"SIGN": lambda c, arch: 1},
    "rates": Rates(share=0.5),
    "grids": ("whole",),
    "worth_having": {"whole": common.worth_through_pointers},
}
TOY = Pipeline(**FIELDS)
