"""Longer rows: where the rows of an array are no whole 16 bytes, as of 54 channels or of images of
4,799 pixels, aligned copies cannot read them. A layout step copies the array into rows that are
filled up, or copies a result out of such rows (`turning`). Sizes stay as they are: what fills rows
up is neither read nor written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import ARRAYS
from tilewright.ops.conv.geometry import Sizes, channels_first, channels_last
from tilewright.ops.conv.problem import ConvProblem

ROW_BYTES = 16
"""Bytes that rows are filled up to multiples of."""

MOST_LENGTH = 2**30
"""Elements of a row, which are counted in 32 bits, up to a block past the last."""

BLOCK = 2048
"""Elements that a workgroup copies."""


@dataclass(frozen=True, slots=True)
class Rows:
    """An array without gaps as so many rows of `columns`; `length` of one that is filled up."""

    count: int
    columns: int
    length: int


def needed(p: ConvProblem) -> str:
    """The arrays whose rows are no whole 16 bytes, as `ConvConfig.turned` has them."""
    return "".join(
        name
        for name in ARRAYS
        if (found := rows(p, name)) is not None and found.count > 1 and found.length > found.columns
    )


def refusal(p: ConvProblem, name: str) -> str | None:
    """Why an array cannot be copied into longer rows, or None."""
    if (found := rows(p, name)) is None:
        return f"{name} has gaps, or neither channels nor pixels are its rows"
    if found.length > MOST_LENGTH:
        return f"rows of {found.length} elements, over {MOST_LENGTH}"
    return None


def rows(p: ConvProblem, name: str) -> Rows | None:
    """The rows of x, w or y: the channels of a pixel, or the pixels of a channel; None where they
    lie otherwise, or there are none."""
    outer, channels, *sizes = shape = p.shape_of(name)
    if 0 in shape:
        return None
    pixels, whole = math.prod(sizes), ROW_BYTES // DTYPES[p.dtype_of(name)].bytes
    if _lies(p, name, channels_last(outer, channels, sizes)):
        count, columns = outer * pixels, channels
    elif _lies(p, name, channels_first(shape)):
        count, columns = outer * channels, pixels
    else:
        return None
    return Rows(count, columns, -(-columns // whole) * whole)


def _lies(p: ConvProblem, name: str, strides: Sizes) -> bool:
    given = zip(p.shape_of(name), p.strides_of(name), strides, strict=True)
    return all(size == 1 or has == wanted for size, has, wanted in given)


def inside(p: ConvProblem, names: str) -> ConvProblem:
    """The problem whose arrays of these names have longer rows."""
    strides: dict[str, Any] = {f"{name}_strides": _strides(p, name) for name in names}
    return replace(p, **strides)


def _strides(p: ConvProblem, name: str) -> Sizes:
    found = rows(p, name)
    assert found is not None
    outer, channels, *sizes = p.shape_of(name)
    if _lies(p, name, channels_last(outer, channels, sizes)):
        step, _, *along = channels_last(outer, found.length, sizes)
        return step, 1, *along
    _, _, *along = channels_first((outer, channels, *sizes))
    return channels * found.length, found.length, *along
