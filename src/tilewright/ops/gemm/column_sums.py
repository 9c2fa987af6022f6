"""Sums over all dimensions but one, as the gradient of a bias is, in the words of `reduction`.

Torch's sum of 100,352 rows of 96 bf16 columns takes 55 µs on an H200, which reads 19 MB in 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from tilewright.ops.backward import Sum


@cache
def column_sums(over: tuple[int, ...]) -> Sum:
    """The sum over these dimensions."""
    return Sum(over, "reduction", (("sum", True),), partial(_read, over))


def _read(over: Sequence[int], x: Any) -> Any:
    """A tensor as `reduction` takes it: [1, far, kept, near, 1] or, where kept elements are
    neighbours, [1, 1, 1, near, kept]. None where its dimensions are not walked so, or several are
    kept."""
    summed = {dim % x.dim() for dim in over}
    kept = [dim for dim in range(x.dim()) if dim not in summed]
    if len(kept) != 1:
        return None
    outer: list[tuple[int, int]] = []  # sizes and strides, joined, of what is summed: outside
    inner: list[tuple[int, int]] = []  # and within what is kept
    size, step = x.shape[kept[0]], x.stride(kept[0])
    for dim in sorted(summed, key=x.stride, reverse=True):
        n, stride = x.shape[dim], x.stride(dim)
        if n == 1:
            continue
        part = inner if stride < step and size > 1 else outer
        if part and part[-1][1] == n * stride:
            part[-1] = (part[-1][0] * n, stride)
        else:
            part.append((n, stride))
    if len(outer) > 1 or len(inner) > 1:
        return None
    (far, far_step), (near, near_step) = (*outer, (1, 1))[0], (*inner, (1, 1))[0]
    if size == 1 or (step == 1 and near == 1):
        shape, strides = (1, 1, 1, far, size), (1, 1, 1, far_step, 1)
    elif near > 1 and near_step == 1:
        shape, strides = (1, far, size, near, 1), (1, far_step, step, 1, 1)
    else:
        return None
    return x.as_strided(shape, strides)
