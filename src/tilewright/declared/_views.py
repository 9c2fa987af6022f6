"""Arrays of torch, NumPy and JAX seen with other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.errors import BadArgument, shown


def shape_of(name: str, x: Any) -> tuple[int, ...]:
    """The shape of an array. Raises `BadArgument`, which begins with `name`, for anything else."""
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(x, "reshape"):
        raise BadArgument(f"{name} must be a tensor of torch or an array of NumPy, not {shown(x)}")
    return shape


def strides(x: Any) -> tuple[int, ...]:
    """Elements between neighbours along each axis. JAX's arrays do not say; they lie contiguous."""
    if hasattr(x, "stride"):
        return tuple(x.stride())
    if hasattr(x, "strides"):
        return tuple(step // x.itemsize for step in x.strides)
    return tuple(max(1, math.prod(x.shape[axis + 1 :])) for axis in range(len(x.shape)))


def permuted(x: Any, order: Sequence[int]) -> Any:
    """`x` with its axes in this order."""
    return x.permute(order) if hasattr(x, "permute") else x.transpose(order)


def packed(x: Any) -> bool:
    """Whether `x` lies contiguous."""
    wanted = 1
    for size, step in reversed([*zip(x.shape, strides(x), strict=True)]):
        if size != 1 and step != wanted:
            return False
        wanted *= size
    return True


def contiguous(x: Any) -> Any:
    """`x`, copied if it does not lie contiguous."""
    if packed(x):
        return x
    return x.contiguous() if hasattr(x, "contiguous") else x.copy()
