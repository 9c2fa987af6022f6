"""States of attention, joined: rows of O over different keys, each with the logarithm of its sum of
exponentials."""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.scores import LOG2E


@triton.jit
def joined(m, total, sums, log, times, part, AXIS: tl.constexpr):
    """What earlier states gave, joined by others: (m, total, sums).

    m: of each row, the largest logarithm; -inf before the first state. total: the sum of
        exponentials over exp(m). sums: O times total, [..., columns].
    log, times, part: natural logarithms of the others, what their exponentials are multiplied by,
        and O; they have a dimension AXIS more. A state whose logarithm is -inf saw no key, and its
        O may be anything.

    Logarithms are subtracted before they are scaled: those near the largest fp32 overflow else.
    """
    part = tl.where(tl.expand_dims(log > float("-inf"), AXIS + 1), part, 0.0)
    most = tl.maximum(m, tl.max(log, AXIS))
    base = tl.where(most == float("-inf"), 0.0, most)
    again = tl.exp2((m - base) * LOG2E)
    weights = tl.exp2((log - tl.expand_dims(base, AXIS)) * LOG2E) * times
    total = total * again + tl.sum(weights, AXIS)
    sums = sums * tl.expand_dims(again, AXIS) + tl.sum(
        part * tl.expand_dims(weights, AXIS + 1), AXIS
    )
    return most, total, sums


@triton.jit
def logarithm(m, total):
    """The logarithm of a row's sum of exponentials; -inf where no key was seen."""
    return tl.where(total == 0.0, float("-inf"), m + tl.log2(total) / LOG2E)
