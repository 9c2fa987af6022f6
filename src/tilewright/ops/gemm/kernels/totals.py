"""C from the parts of a split K that another kernel stored (`two_stage`).

Idea. A workgroup adds up ROWS × COLUMNS sums over all parts, in order, so that results repeat bit
for bit; the epilogue and the rounding follow as in any kernel. Each thread has 16 bytes of a part's
row, and eight parts are on their way at once.

DEPENDENT: programmatic dependent launch. The workgroups may start while the last ones of the
product run, and wait for the end of all of them; what a launch costs is then hidden.

What limits it. L2 has the parts, since they were just written. With few sums it takes a launch and
`splits` / 8 loads, one after the other. On an H200 it is as fast as `linear` for the least sums and
slower for all others: docs/notes/gemm-totals.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.ops.device.epilogue import apply, rounded


@triton.jit
def gemm_totals(
    partials, c, m, n, ldp, ldc, splits, extra,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, C_ROW: tl.constexpr, TAKES: tl.constexpr,
    FOLD: tl.constexpr, LARGEST: tl.constexpr, DEPENDENT: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """partials: [splits, m, n] with rows (columns, if C is column-major) `ldp` apart. extra, TAKES,
    CHAIN: see `epilogue`; C has n / FOLD columns."""
    across = tl.cdiv(n, COLUMNS)
    row = tl.program_id(0) // across * ROWS
    col = tl.program_id(0) % across * COLUMNS
    rows = row + tl.arange(0, ROWS)
    cols = col + tl.arange(0, COLUMNS)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    if C_ROW:
        part = partials + rows.to(tl.int64)[:, None] * ldp + cols[None, :]
        size = m * ldp
    else:
        part = partials + rows[:, None] + cols.to(tl.int64)[None, :] * ldp
        size = n * ldp
    if DEPENDENT:
        gdc_wait()
    total = tl.zeros((ROWS, COLUMNS), partials.dtype.element_ty)
    for _ in tl.range(0, splits, loop_unroll_factor=8):
        total += tl.load(part, mask=inside, other=0)
        part += size
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
