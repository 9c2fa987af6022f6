"""Matrices in few bits with a scale for every block, and back: torch tensors or NumPy arrays.

    values, scales = quantise(x, "1x128")               # e4m3fn, a scale for 128 of each row
    x = dequantise(values, scales, "1x128")

A block's scale is its largest finite magnitude over the largest value of the dtype, so that the
block uses the whole range (a block of zeros has scale 1). Values are rounded to nearest even; what
is beyond the range, infinity too, becomes the largest; NaN stays NaN and does not touch the rest of
its block. Scales are rounded to their dtype first, and values are made with the rounded ones. The
result lies as `x` does: a transposed view gives transposed values, whose memory is as compact.
"""

from __future__ import annotations

from typing import Any

from tilewright import arrays, dtypes
from tilewright.blocks import Block, parse
from tilewright.errors import BadArgument

DTYPES = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "int8")
"""What can be quantised to."""

_FP16_LARGEST = 65504.0


def quantise(x: Any, block: str, dtype: str = "e4m3fn") -> tuple[Any, Any]:
    """`x` [rows, columns] as (values in `dtype`, scales [⌈rows/r⌉, ⌈columns/c⌉]), where `block` is
    ``"rxc"``, with the scales' dtype behind it if that is not fp32 (``"1x128-bf16"``).

    Raises `BadArgument` for a dtype that is none of `DTYPES`, for what is no float matrix, and for
    NaN where the dtype has none (int8).
    """
    blocks = _block(block)
    if dtype not in DTYPES:
        raise BadArgument(f"cannot quantise to {dtype}; known: {', '.join(DTYPES)}")
    _check(x, "x")
    if _column_major(x):
        values, scales = _quantise(x.T, Block(blocks.columns, blocks.rows, blocks.dtype), dtype)
        return values.T, scales.T
    return _quantise(x, blocks, dtype)


def dequantise(values: Any, scales: Any, block: str, dtype: str = "fp32") -> Any:
    """`values` [rows, columns] times their `scales`, as a `dtype` array of the same library.

    Raises `BadArgument` if the scales' shape is not that of `block` on such a matrix.
    """
    blocks = _block(block)
    _check(values, "values", float_only=False)
    wanted = blocks.shape(*values.shape)
    if tuple(scales.shape) != wanted:
        raise BadArgument(
            f"scales have shape {tuple(scales.shape)}; {block} blocks of a {values.shape[0]}×"
            f"{values.shape[1]} matrix have scales of shape {wanted}"
        )
    return _cast(_wide(values) * spread(_wide(scales), blocks, *values.shape), dtype)


def spread(scales: Any, block: Block, rows: int, columns: int) -> Any:
    """The scale of every element of a rows × columns matrix."""
    for axis, size, extent in ((0, block.rows, rows), (1, block.columns, columns)):
        size = min(size, extent)
        if arrays.is_torch(scales):
            scales = scales.repeat_interleave(size, axis)
        else:
            scales = scales.repeat(size, axis)
    return scales[:rows, :columns]


def _quantise(x: Any, block: Block, dtype: str) -> tuple[Any, Any]:
    largest = dtypes.dtype(dtype).largest or 127.0
    wide = _wide(x)
    xp = _library(x)
    if dtype == "int8" and bool(xp.isnan(wide).any()):
        raise BadArgument("x has NaN, which int8 cannot hold")
    magnitude = xp.where(xp.isfinite(wide), abs(wide), 0.0)
    scales = _largest_of(magnitude, block) / largest
    if block.dtype == "fp16":
        scales = scales.clip(0.0, _FP16_LARGEST)
    scales = _cast(scales, block.dtype)
    known = _wide(scales)
    scales = _cast(xp.where(known > 0, known, 1.0), block.dtype)  # of zeros, or underflowed
    ratio = wide / spread(_wide(scales), block, *x.shape)
    if dtype == "int8":
        ratio = xp.round(ratio)
    return _cast(ratio.clip(-largest, largest), dtype), scales


def _largest_of(magnitude: Any, block: Block) -> Any:
    """The largest value of each block."""
    rows, columns = magnitude.shape
    down, across = block.shape(rows, columns)
    r, c = min(block.rows, rows), min(block.columns, columns)
    below, right = down * r - rows, across * c - columns
    if arrays.is_torch(magnitude):
        import torch

        whole = torch.nn.functional.pad(magnitude, (0, right, 0, below))
        return whole.reshape(down, r, across, c).amax((1, 3))
    import numpy as np

    padded = np.pad(magnitude, ((0, below), (0, right)))
    return padded.reshape(down, r, across, c).max((1, 3))


def _library(x: Any) -> Any:
    if arrays.is_torch(x):
        import torch

        return torch
    import numpy

    return numpy


def _wide(x: Any) -> Any:
    """`x` in fp32, or fp64 if it is."""
    if arrays.is_torch(x):
        return x if str(x.dtype) == "torch.float64" else x.float()
    return x if x.dtype == "float64" else x.astype("float32")


def _cast(x: Any, dtype: str) -> Any:
    kind = dtypes.dtype(dtype)
    if arrays.is_torch(x):
        import torch

        return x.to(getattr(torch, kind.torch))
    return x.astype(dtypes.numpy_dtype(kind))


def _block(word: str) -> Block:
    block = parse(word)
    if block is None:
        raise BadArgument("a block of scales is missing; one looks like 1x128")
    return block


def _check(x: Any, name: str, float_only: bool = True) -> None:
    if not (arrays.is_torch(x) or arrays.is_numpy(x)):
        raise BadArgument(f"{name} is a {type(x).__name__}; pass a torch tensor or a NumPy array")
    if len(x.shape) != 2 or 0 in x.shape:
        raise BadArgument(f"{name} has shape {tuple(x.shape)}; pass a matrix [rows, columns]")
    if float_only and str(x.dtype) not in ("float64", "torch.float64"):
        kind = dtypes.of(x)
        if kind.kind != "float":
            raise BadArgument(f"{name} is {kind.name}; pass floats")


def _column_major(x: Any) -> bool:
    """Whether it is columns, not rows, that lie in one piece in memory."""
    row, column = x.stride() if arrays.is_torch(x) else x.strides
    return bool(row < column and x.shape[0] > 1)
