"""The gradient of cross-entropy, from logits and the logarithm of each row's sum of exponentials.

Idea. Every element is made by itself: logits are read once and the gradient is written once. A
workgroup has ROWS rows, or a piece of BLOCK classes of one row. The sum of the classes' weights,
which smoothed losses of weighted classes need, is made by each workgroup anew.

Edges. Rows whose target is `ignore_index` are not read: they get 0. Rows whose target is no class
get NaN.

What limits it: memory. Times: docs/operations.md.
"""

import triton
import triton.language as tl

from tilewright.declared.rows.kernels.cross_entropy import slopes, targets, weights
from tilewright.declared.rows.kernels.softmax import scaled
from tilewright.ops.device.division import quotient


@triton.jit
def cross_entropy_backward(
    logits, target, lse, dloss, weight, dlogits, rows, classes, logits_stride, ignore_index,
    label_smoothing, lse_square_scale, factor, by_pieces, shift_pieces, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, has_weight: tl.constexpr,
):  # fmt: skip
    """ROWS rows of BLOCK classes."""
    above = quotient(tl.program_id(0), by_pieces, shift_pieces)
    row = above.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    piece = tl.program_id(0) - above * tl.cdiv(classes, BLOCK)
    column = piece * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    class_, times, own = targets(
        target, weight, row, there, classes, ignore_index, label_smoothing, has_weight
    )
    read = times != 0.0
    times *= factor * tl.load(dloss + row, there, 0.0)
    log_sum = tl.load(lse + row, there, 0.0)
    spread = label_smoothing / classes
    weight_sum = 1.0 * classes
    if has_weight:
        sums = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, tl.where(label_smoothing != 0.0, classes, 0), BLOCK):
            sums += weights(weight, start + tl.arange(0, BLOCK), classes, 1.0, has_weight)
        weight_sum = tl.sum(sums, 0)
    inside = there[:, None] & (column < classes)[None, :]
    values = scaled(
        logits + row[:, None] * logits_stride, column[None, :], inside & read[:, None], 1.0
    )
    made = slopes(
        tl.exp(values - log_sum[:, None]), column[None, :], class_[:, None], own[:, None],
        (own + spread * weight_sum + 2.0 * lse_square_scale * log_sum)[:, None],
        spread * weights(weight, column, classes, label_smoothing, has_weight)[None, :],
    )  # fmt: skip
    made = tl.where(read[:, None], made * times[:, None], 0.0)
    at = row[:, None] * classes + column[None, :]
    tl.store(dlogits + at, made.to(dlogits.dtype.element_ty), inside)
