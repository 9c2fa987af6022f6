"""The results of splits, put together.

Each split gives, for each row, O of its own keys (normalised) and the logarithm of its sum of
exponentials. A split that saw nothing has -inf there, and its O is not read. A sink joins here, and
only here.

A workgroup takes one row: splits are made where rows are few, so that a workgroup for several
queries would have nearly none, and the time is that of one load after another. It looks at the
logarithms first, SPLITS at a time, and then adds up O of SPLITS splits at once, weighted by what
each one's sum is of all. So the loads of a step do not wait for each other, and there are as many
steps as splits / SPLITS.

What limits it: it reads [splits, rows, head dim] numbers of fp32 once; with one row, the time of
two loads, and of one more for each further SPLITS. It was timed only together with the kernel
before it: a launch in splits takes about 6 µs more (fitted to decoding on an H200).
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.scores import LOG2E
from tilewright.ops.device.epilogue import rounded

SPLITS = tl.constexpr(16)


@triton.constexpr_function
def wide(size):
    """The least power of two that is no less."""
    return 1 << (size - 1).bit_length()


@triton.jit
def combine(
    partial_o, partial_lse, o, lse, sinks, q_offsets, q_used, o_scale, o_strides, batch, heads,
    q_len, total_q, rows, splits,
    HEAD_DIM_V: tl.constexpr, LSE: tl.constexpr, SINKS: tl.constexpr, PACKEDQ: tl.constexpr,
    USEDQ: tl.constexpr, OSCALE: tl.constexpr, LARGEST_O: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) % q_len
    head = tl.program_id(0) // q_len % heads
    b = tl.program_id(0) // q_len // heads
    q_start = b * 0
    n_q = b * 0 + q_len
    if PACKEDQ:
        q_start = tl.load(q_offsets + b)
        n_q = tl.load(q_offsets + b + 1) - q_start
    if USEDQ:
        n_q = tl.load(q_used + b)
    if i < n_q:
        row = (b.to(tl.int64) * heads + head) * q_len + i
        if PACKEDQ:
            row = head.to(tl.int64) * total_q + q_start + i
        at = tl.arange(0, SPLITS)
        each = at.to(tl.int64) * rows + row
        step = SPLITS * rows.to(tl.int64)
        # Maxima and sums of each place in a step, put together at the end.
        m = tl.full((SPLITS,), float("-inf"), tl.float32)
        total = tl.zeros((SPLITS,), tl.float32)
        for first in range(0, splits, SPLITS):
            here = each + first // SPLITS * step
            log = tl.load(partial_lse + here, mask=first + at < splits, other=float("-inf")) * LOG2E
            most = tl.maximum(m, log)
            base = tl.where(most == float("-inf"), 0.0, most)
            total = total * tl.exp2(m - base) + tl.exp2(log - base)
            m = most
        most = tl.max(m, 0)
        if SINKS:
            sink = tl.load(sinks + head) * LOG2E
            most = tl.maximum(most, sink)
        base = tl.where(most == float("-inf"), 0.0, most)
        whole = tl.sum(total * tl.exp2(m - base), 0)
        if SINKS:
            whole += tl.exp2(sink - base)

        d = tl.arange(0, wide(HEAD_DIM_V))
        sums = tl.zeros((wide(HEAD_DIM_V),), tl.float32)
        for first in range(0, splits, SPLITS):
            here = each + first // SPLITS * step
            log = tl.load(partial_lse + here, mask=first + at < splits, other=float("-inf")) * LOG2E
            part = tl.load(
                partial_o + here[:, None] * HEAD_DIM_V + d[None, :],
                mask=(log > float("-inf"))[:, None] & (d < HEAD_DIM_V)[None, :],
                other=0.0,
            )
            sums += tl.sum(part * tl.exp2(log - base)[:, None], 0)
        sums = sums / tl.where(whole == 0.0, 1.0, whole)
        if OSCALE:
            sums = sums / tl.load(o_scale)
        if LSE:
            tl.store(
                lse + row, tl.where(whole == 0.0, float("-inf"), (base + tl.log2(whole)) / LOG2E)
            )
        far = d
        if not UNIT:
            far = d * o_strides[3]
        place = b.to(tl.int64) * o_strides[0] + (q_start + i).to(tl.int64) * o_strides[1]
        out = rounded(sums, o.dtype.element_ty, LARGEST_O)
        tl.store(o + place + head.to(tl.int64) * o_strides[2] + far, out, mask=d < HEAD_DIM_V)
