"""C from the parts of a split K that another kernel stored, where there are many (`two_stage`).

Idea. As `totals`, but a workgroup has a few sums, and its threads read WAYS parts of them at once;
so of 128 parts none is waited for behind another. The ways are added in an order that only their
number decides, so results repeat bit for bit.

What limits it: the launch, and one way to L2 and back for each WAYS · 8 parts.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.ops.device.epilogue import apply, rounded


@triton.jit
def gemm_many_totals(
    partials, c, m, n, ldp, ldc, splits, extra,
    WAYS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, C_ROW: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, DEPENDENT: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """The arguments are those of `totals.gemm_totals`."""
    across = tl.cdiv(n, COLUMNS)
    row = tl.program_id(0) // across * ROWS
    col = tl.program_id(0) % across * COLUMNS
    rows = row + tl.arange(0, ROWS)
    cols = col + tl.arange(0, COLUMNS)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    if C_ROW:
        place = rows.to(tl.int64)[:, None] * ldp + cols[None, :]
        size = m * ldp
    else:
        place = rows[:, None] + cols.to(tl.int64)[None, :] * ldp
        size = n * ldp
    way = tl.arange(0, WAYS)
    part = partials + way.to(tl.int64)[:, None, None] * size + place[None, :, :]
    if DEPENDENT:
        gdc_wait()
    total = tl.zeros((WAYS, ROWS, COLUMNS), partials.dtype.element_ty)
    for first in tl.range(0, splits, WAYS, loop_unroll_factor=8):
        there = (first + way < splits)[:, None, None] & inside[None, :, :]
        total += tl.load(part, mask=there, other=0)
        part += size.to(tl.int64) * WAYS
    total = tl.sum(total, 0)
    total = apply(total, extra, row, col, m, n, CHAIN, TAKES, C_ROW, True, True)
    made = rounded(total, c.dtype.element_ty, LARGEST)
    cols = col // FOLD + tl.arange(0, COLUMNS // FOLD)
    inside = (rows < m)[:, None] & (cols < n // FOLD)[None, :]
    if C_ROW:
        places = rows.to(tl.int64)[:, None] * ldc + cols[None, :]
    else:
        places = rows[:, None] + cols.to(tl.int64)[None, :] * ldc
    tl.store(c + places, made, mask=inside)
    if DEPENDENT:
        gdc_launch_dependents()
