"""Arrays in their canonical form: the fewest dimensions that walk the same elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import checks
from tilewright.declared._views import strides
from tilewright.errors import BadArgument, shown

DIMENSIONS = 6
"""Dimensions of a canonical form."""


def canonical(
    shape: Sequence[int], *strides: Sequence[int], most: int = DIMENSIONS
) -> tuple[tuple[int, ...], ...]:
    """Sizes and strides of `most` dimensions that walk the elements of an array: those of one
    element are left out, neighbours are one where each of `strides` walks on from one into the
    next, and dimensions of one element come first. Raises `BadArgument` for more dimensions."""
    if 0 in shape:
        shape, strides = (0,), tuple((1,) for _ in strides)
    found: list[tuple[int, ...]] = []
    whole = 1
    for n, *apart in zip(shape, *strides, strict=True):
        whole *= n
        if n == 1:
            continue
        if found and all(s == t * n for s, t in zip(found[-1][1:], apart, strict=True)):
            n *= found.pop()[0]
        found.append((n, *apart))
    if len(found) > most:
        raise BadArgument(
            f"{len(found)} dimensions are left of shape {tuple(shape)} where neighbours are one; "
            f"kernels take {most}"
        )
    ones = [(1, *(whole for _ in strides))] * (most - len(found))
    return tuple(zip(*ones, *found, strict=True))


def order(x: Any, dims: Any) -> tuple[int, ...]:
    """`dims` of a permutation, counted from 0. Raises `BadArgument` for anything else."""
    rank = len(x.shape)
    found = checks.plain("dims", tuple(dims) if isinstance(dims, Sequence) else dims)
    if not isinstance(found, tuple) or any(type(d) is not int for d in found):
        raise BadArgument(f"dims = {shown(dims)} are not whole numbers")
    counted = tuple(d + rank if d < 0 else d for d in found)
    if sorted(counted) != [*range(rank)]:
        raise BadArgument(f"dims = {found} are no order of {rank} dimensions")
    return counted


def by_memory(x: Any) -> tuple[int, ...]:
    """The order of an array's dimensions from the farthest elements to the nearest."""
    apart = strides(x)
    return tuple(sorted(range(len(apart)), key=lambda d: -apart[d]))


def inverse(dims: Sequence[int]) -> tuple[int, ...]:
    """The order that undoes another."""
    return tuple(sorted(range(len(dims)), key=dims.__getitem__))
