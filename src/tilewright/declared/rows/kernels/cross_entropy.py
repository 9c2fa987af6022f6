"""Cross-entropy of rows of logits with the class that each should have, and its gradient.

Idea. With t the target of a row, w the classes' weights, s the label smoothing over the number of
classes, and z the factor of the z-loss (PaLM, arXiv:2204.02311):

    loss = (1 - smoothing) · w[t] · (lse - x[t]) + s · sum(w · (lse - x)) + z · lse²

A workgroup has ROWS rows. Where BLOCK elements hold a row, it is read once and stays in registers.
A longer row, as those of a vocabulary, is read once for maximum and sum together (`_online`). The
gradient is written by the same launch if it is wanted (as in Liger Kernel, arXiv:2410.10989): a
long row is then read a second time, its last piece first, which is the likeliest to be in L2 still.
Where long rows are fewer than SMs, SPLIT workgroups share each: one kernel leaves what each of them
found, another puts that together and makes the loss, and its share of the gradient.

Edges. Rows whose target is `ignore_index` are not read: their loss and gradient are 0. Rows whose
target is no class get NaN, and nothing is read at such a place.

What limits it: memory. In graphs, an H200 (2026-11-30) took 333.2 µs for 4,096 rows of 151,936 in
bf16, where compiled torch took 743.3, and with the gradient 65.0 for 1,446 rows of 13,280 in fp32,
where it took 79.1.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.declared.rows.kernels._online import (
    base,
    joined,
    piece,
    share,
    vector,
    whole,
)
from tilewright.declared.rows.kernels.softmax import scaled


@triton.jit
def targets(target, weight, row, there, classes, ignore_index, smoothing, has_weight: tl.constexpr):
    """Of rows: their class, -1 where there is none; what the loss is multiplied by, which is 0 for
    ignored rows and NaN for a target that is no class; what the target's own term is multiplied by.
    """
    stated = tl.where(there, tl.load(target + row, there, 0), ignore_index)  # which has 64 bits
    ignored = stated == ignore_index
    known = (stated >= 0) & (stated < classes) & (stated != ignore_index)
    times = tl.where(ignored, 0.0, tl.where(known, 1.0, float("nan")))
    own = tl.where(known, 1.0 - smoothing, 0.0)
    if has_weight:
        own *= tl.load(weight + stated, known, 0.0)
    return tl.where(known, stated, -1).to(tl.int32), times, own


@triton.jit
def weights(weight, column, classes, smoothing, has_weight: tl.constexpr):
    """What classes weigh in the smoothed part, which is not read where nothing is smoothed."""
    if has_weight:
        found = tl.load(weight + column, (column < classes) & (smoothing != 0.0), 0.0)
    else:
        found = tl.where(column < classes, 1.0, 0.0)
    return found


@triton.jit
def losses(below, lse, own, spread, weight_sum, weighted_sum, lse_square_scale):
    """The loss of rows. below: the lse less the target's logit."""
    smoothed = tl.where(spread != 0.0, spread * (weight_sum * lse - weighted_sum), 0.0)
    return own * below + smoothed + lse_square_scale * lse * lse


@triton.jit
def slopes(share, column, target, own, every, spread):
    """The gradient of a loss. share: softmax; every: what that is multiplied by."""
    return share * every - tl.where(column == target, own, 0.0) - spread


@triton.jit
def met(
    logits, weight, classes, smoothing, first, end, BLOCK: tl.constexpr, VECTOR: tl.constexpr,
    has_weight: tl.constexpr,
):  # fmt: skip
    """Of the pieces `first` to `end` of a row that begins at `logits`, for each lane: the largest,
    the sum of exponentials, of weights, and of weighted logits."""
    most = tl.full((BLOCK // 16,), -float("inf"), tl.float32)
    totals = tl.zeros((BLOCK // 16,), tl.float32)
    weight_sums = tl.zeros((BLOCK // 16,), tl.float32)
    weighted_sums = tl.zeros((BLOCK // 16,), tl.float32)
    for turn in range(first, end):
        column = piece(turn * BLOCK, BLOCK, VECTOR)
        inside = column < classes
        values = scaled(logits, column, inside, 1.0)
        most, totals = joined(most, totals, values)
        weighing = weights(weight, column, classes, smoothing, has_weight)
        terms = tl.where(inside, values, 0.0)
        if has_weight:
            terms *= weighing
            weight_sums += tl.sum(tl.sum(weighing, 2), 1)
        weighted_sums += tl.sum(tl.sum(terms, 2), 1)
    return most, totals, weight_sums, weighted_sums


@triton.jit
def gradients_of_pieces(
    logits, weight, dlogits, classes, smoothing, first, end, read, against, class_, own, every,
    spread, times, BLOCK: tl.constexpr, has_weight: tl.constexpr,
):  # fmt: skip
    """The gradient of the same, to a row that begins at `dlogits`. The last piece is the first."""
    for turn in range(first, end):
        column = (first + end - 1 - turn) * BLOCK + tl.arange(0, BLOCK)
        inside = column < classes
        values = scaled(logits, column, inside & read, 1.0)
        weighing = weights(weight, column, classes, smoothing, has_weight)
        made = slopes(tl.exp(values - against), column, class_, own, every, spread * weighing)
        made = tl.where(read, made * times, 0.0)
        tl.store(dlogits + column, made.to(dlogits.dtype.element_ty), inside)


@triton.jit
def cross_entropy_parts(
    logits, target, weight, parts, rows, classes, logits_stride, ignore_index, label_smoothing,
    BLOCK: tl.constexpr, SPLIT: tl.constexpr, alignment: tl.constexpr, has_weight: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """The largest logit of a share of a row, and its three sums, to parts [4, rows, SPLIT]."""
    if DEPENDENT:
        gdc_launch_dependents()
    row, part, first, end = share(classes, BLOCK, SPLIT)
    _, times, _ = targets(
        target, weight, row, row < rows, classes, ignore_index, label_smoothing, has_weight
    )
    VECTOR: tl.constexpr = vector(logits.dtype.element_ty, alignment)
    most, totals, weight_sums, weighted_sums = met(
        logits + row * logits_stride, weight, classes, label_smoothing, first,
        tl.where(times != 0.0, end, first), BLOCK, VECTOR, has_weight,
    )  # fmt: skip
    _, total = whole(most, totals)
    each = tl.cast(rows, tl.int64) * SPLIT
    at = parts + row * SPLIT + part
    tl.store(at, tl.max(most, 0))
    tl.store(at + each, total)
    tl.store(at + 2 * each, tl.sum(weight_sums, 0))
    tl.store(at + 3 * each, tl.sum(weighted_sums, 0))


@triton.jit
def cross_entropy_finish(
    logits, target, weight, loss, lse, dlogits, parts, rows, classes, logits_stride, ignore_index,
    label_smoothing, lse_square_scale, factor, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
    has_weight: tl.constexpr, with_lse: tl.constexpr, with_gradient: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A row's loss, by the first of its workgroups, and a share of its gradient, of what
    `cross_entropy_parts` left."""
    row, part, first, end = share(classes, BLOCK, SPLIT)
    class_, times, own = targets(
        target, weight, row, row < rows, classes, ignore_index, label_smoothing, has_weight
    )
    read = times != 0.0
    logits += row * logits_stride
    picked = tl.load(logits + class_, class_ >= 0, 0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
    each = tl.cast(rows, tl.int64) * SPLIT
    at = parts + row * SPLIT + tl.arange(0, SPLIT)
    against, total = whole(tl.load(at), tl.load(at + each))
    spread = label_smoothing / classes
    weight_sum = 1.0 * classes
    if has_weight:
        weight_sum = tl.sum(tl.load(at + 2 * each), 0)
    weighted_sum = tl.sum(tl.load(at + 3 * each), 0)
    total = tl.where(read, total, 1.0)
    log_sum = tl.log(total)
    found = losses(
        against - picked + log_sum, against + log_sum, own, spread, weight_sum, weighted_sum,
        lse_square_scale,
    )  # fmt: skip
    tl.store(loss + row, tl.where(read, found * times * factor, 0.0), part == 0)
    if with_lse:
        tl.store(lse + row, against + log_sum, part == 0)
    if with_gradient:
        every = (own + spread * weight_sum + 2.0 * lse_square_scale * (against + log_sum)) / total
        gradients_of_pieces(
            logits, weight, dlogits + row * classes, classes, label_smoothing, first, end, read,
            against, class_, own, every, spread, times * factor, BLOCK, has_weight,
        )  # fmt: skip


@triton.jit
def cross_entropy(
    logits, target, weight, loss, lse, dlogits, rows, classes, logits_stride, ignore_index,
    label_smoothing, lse_square_scale, factor, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    HELD: tl.constexpr, alignment: tl.constexpr, has_weight: tl.constexpr, with_lse: tl.constexpr,
    with_gradient: tl.constexpr,
):  # fmt: skip
    """ROWS rows."""
    spread = label_smoothing / classes
    if HELD:
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    else:
        row = tl.program_id(0).to(tl.int64)
    there = row < rows
    class_, times, own = targets(
        target, weight, row, there, classes, ignore_index, label_smoothing, has_weight
    )
    read = times != 0.0
    picked = tl.load(logits + row * logits_stride + class_, class_ >= 0, 0.0).to(tl.float32)
    weight_sum = 1.0 * classes
    if HELD:
        column = tl.arange(0, BLOCK)
        inside = (there & read)[:, None] & (column < classes)[None, :]
        values = scaled(logits + row[:, None] * logits_stride, column[None, :], inside, 1.0)
        against = base(tl.max(values, 1))
        powers = tl.exp(values - against[:, None])
        total = tl.sum(powers, 1)
        weighing = weights(weight, column, classes, label_smoothing, has_weight)
        if has_weight:
            weight_sum = tl.sum(weighing, 0)
        weighted_sum = tl.sum(tl.where(inside, values, 0.0) * weighing[None, :], 1)
    else:
        VECTOR: tl.constexpr = vector(logits.dtype.element_ty, alignment)
        most, totals, weight_sums, weighted_sums = met(
            logits + row * logits_stride, weight, classes, label_smoothing, 0,
            tl.where(read, tl.cdiv(classes, BLOCK), 0), BLOCK, VECTOR, has_weight,
        )  # fmt: skip
        against, total = whole(most, totals)
        weighted_sum = tl.sum(weighted_sums, 0)
        if has_weight:
            weight_sum = tl.sum(weight_sums, 0)
    total = tl.where(read, total, 1.0)
    log_sum = tl.log(total)
    found = losses(
        against - picked + log_sum, against + log_sum, own, spread, weight_sum, weighted_sum,
        lse_square_scale,
    )  # fmt: skip
    tl.store(loss + row, tl.where(read, found * times * factor, 0.0), there)
    if with_lse:
        tl.store(lse + row, against + log_sum, there)
    if with_gradient:
        times *= factor
        every = (own + spread * weight_sum + 2.0 * lse_square_scale * (against + log_sum)) / total
        if HELD:
            made = slopes(
                powers, column[None, :], class_[:, None], own[:, None], every[:, None],
                (spread * weighing)[None, :],
            )  # fmt: skip
            made = tl.where(read[:, None], made * times[:, None], 0.0)
            at = row[:, None] * classes + column[None, :]
            inside = there[:, None] & (column < classes)[None, :]
            tl.store(dlogits + at, made.to(dlogits.dtype.element_ty), inside)
        else:
            gradients_of_pieces(
                logits + row * logits_stride, weight, dlogits + row * classes, classes,
                label_smoothing, 0, tl.cdiv(classes, BLOCK), read, against, class_, own, every,
                spread, times, BLOCK, has_weight,
            )  # fmt: skip
