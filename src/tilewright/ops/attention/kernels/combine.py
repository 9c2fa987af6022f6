"""The results of splits, put together.

Each split gives, for each row, O of its own keys (normalised) and the logarithm of its sum of
exponentials. A split that saw nothing has -inf there, and its O may be anything. A sink joins here,
and only here. BIAS: a maximum may be so large that the logarithm of the sum has no place beside it;
splits then give the maximum, and, in [2, splits, rows], the sum.

A workgroup takes COLUMNS columns of one row: splits are made where rows are few, so that the time
is that of one load after another, and an SM reads no more than 64 bytes a cycle. SPLITS splits at a
time, it loads their logarithms and their O at once, and renormalises its sums by the largest
logarithm so far. So there are as many loads one after another as splits / SPLITS.

DEPENDENT: programmatic dependent launch. The workgroups may start while the splits' last ones run,
and wait for the end of all of them; what a launch costs is then hidden.

What limits it: it reads [splits, rows, head dim] numbers of fp32 once; with few rows, a launch and
a load. An older form was timed together with the kernel before it
(docs/notes/attention-estimate.md).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.ops.attention.kernels.joining import joined, logarithm
from tilewright.ops.attention.kernels.lengths import queries_of
from tilewright.ops.device.epilogue import rounded

SPLITS = tl.constexpr(64)
COLUMNS = tl.constexpr(128)


@triton.constexpr_function
def wide(size):
    """The least power of two that is no less."""
    return 1 << (size - 1).bit_length()


@triton.jit
def combine(
    partial_o, partial_lse, o, lse, sinks, q_offsets, q_used, o_scale, o_strides, batch, heads,
    q_len, total_q, rows, splits,
    HEAD_DIM_V: tl.constexpr, LSE: tl.constexpr, BIAS: tl.constexpr, SINKS: tl.constexpr,
    PACKEDQ: tl.constexpr, USEDQ: tl.constexpr, OSCALE: tl.constexpr, LARGEST_O: tl.constexpr,
    UNIT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = min(COLUMNS, wide(HEAD_DIM_V))
    i = tl.program_id(0) % q_len
    head = tl.program_id(0) // q_len % heads
    b = tl.program_id(0) // q_len // heads
    at = tl.arange(0, SPLITS)
    d = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    if DEPENDENT:
        gdc_wait()
    q_start, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    if i < n_q:
        row = (b.to(tl.int64) * heads + head) * q_len + i
        if PACKEDQ:
            row = head.to(tl.int64) * total_q + q_start + i
        each = at.to(tl.int64) * rows + row
        step = SPLITS * rows.to(tl.int64)
        m = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)
        if SINKS:
            m = tl.load(sinks + head)
            total = tl.where(m == float("-inf"), 0.0, 1.0)
        sums = tl.zeros((WIDTH,), tl.float32)
        for first in range(0, splits, SPLITS):
            here = each + first // SPLITS * step
            inside = first + at < splits
            log = tl.load(partial_lse + here, mask=inside, other=float("-inf"))
            times = 1.0
            if BIAS:
                behind = partial_lse + splits * rows.to(tl.int64)
                times = tl.load(behind + here, mask=inside, other=0.0)
            part = tl.load(
                partial_o + here[:, None] * HEAD_DIM_V + d[None, :],
                mask=inside[:, None] & (d < HEAD_DIM_V)[None, :],
                other=0.0,
            )
            m, total, sums = joined(m, total, sums, log, times, part, 0)
        sums = sums / tl.where(total == 0.0, 1.0, total)
        if OSCALE:
            sums = sums / tl.load(o_scale)
        if LSE:
            tl.store(lse + row, logarithm(m, total), mask=tl.program_id(1) == 0)
        far = d
        if not UNIT:
            far = d * o_strides[3]
        place = b.to(tl.int64) * o_strides[0] + (q_start + i).to(tl.int64) * o_strides[1]
        out = rounded(sums, o.dtype.element_ty, LARGEST_O)
        tl.store(o + place + head.to(tl.int64) * o_strides[2] + far, out, mask=d < HEAD_DIM_V)
    if DEPENDENT:
        gdc_launch_dependents()
