"""Quantises matrices to few bits with one scale for every block, and back: torch tensors or NumPy
arrays.

    values, scales = quantise(x, "1x128")               # e4m3fn, a scale for 128 of each row
    x = dequantise(values, scales, "1x128")
    packed, scales = quantise(w.T, "128x1-bf16", "int4")  # w [n, k]: for gemm's B, in groups of 128
    packed, scales = quantise(w.T, "32x1-e8m0", "e2m1")   # the same in MX fp4

A block's scale is its largest finite magnitude over the largest value of the dtype, so that the
block uses the whole range. A block of zeros has scale 1, and int4 counts from -7 to 7. An e8m0
scale is a power of two: its exponent is the magnitude's exponent minus that of the largest value,
as section 6.3 of the OCP Microscaling Formats specification v1.0 states. A few magnitudes saturate
therefore. Values are rounded to nearest even. Values beyond the range, infinity included, become
the largest. NaN stays NaN and does not affect the rest of its block. Scales are rounded to their
dtype first, and values are made with the rounded scales. The result has `x`'s memory order: a
transposed view gives transposed values, whose memory is as compact.

int4 and e2m1 (fp4) values come as bytes, each with two neighbours of the contiguous dimension (see
`packing`). For `gemm` that dimension must be K.
"""

from __future__ import annotations

import math
from typing import Any

from tilewright import arrays, dtypes, packing
from tilewright.blocks import Block, parse
from tilewright.errors import BadArgument

DTYPES = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "int8")
PACKED = ("int4", "e2m1")
"""The target dtypes of 4 bits, whose values come as bytes. `DTYPES` has those of 8 bits."""

_INTEGERS = {"int8": 127.0, "int4": 7.0}
"""Largest magnitude used in each integer type."""

_WITHOUT_NAN = (*_INTEGERS, "e2m1")

_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Midpoints between neighbouring magnitudes of e2m1."""

_FP16_LARGEST = 65504.0


def quantise(x: Any, block: str, dtype: str = "e4m3fn") -> tuple[Any, Any]:
    """`x` [rows, columns] as (values in `dtype`, scales [⌈rows/r⌉, ⌈columns/c⌉]).

    x: a matrix of floats.
    block: ``"rxc"``, followed by the scales' dtype if that is not fp32 (``"1x128-bf16"``).
    dtype: one of `DTYPES` or `PACKED`.

    Raises `BadArgument` for another dtype, for an `x` that is not a float matrix, for NaN if the
    dtype has none (int8, int4, e2m1), and for 4-bit values that do not fill whole bytes.
    """
    blocks = _block(block)
    if dtype not in (*DTYPES, *PACKED):
        known = ", ".join((*DTYPES, *PACKED))
        raise BadArgument(f"cannot quantise to {dtype}; known: {known}")
    _check(x, "x")
    if _column_major(x):
        values, scales = _quantise(x.T, Block(blocks.columns, blocks.rows, blocks.dtype), dtype)
        return values.T, scales.T
    return _quantise(x, blocks, dtype)


def dequantise(values: Any, scales: Any, block: str, dtype: str = "fp32", packed: str = "") -> Any:
    """`values` [rows, columns] times their `scales`, as a `dtype` array of the same library.

    packed: the dtype of values that are bytes: ``"int4"`` or ``"e2m1"``.

    An e8m0 scale with code 255 is NaN. Raises `BadArgument` if `scales` do not have the shape for
    `block` on such a matrix.
    """
    blocks = _block(block)
    _check(values, "values", float_only=False)
    if packed:
        values = packing.decode(values, packed, 0 if _column_major(values) else 1)
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
    largest = _INTEGERS.get(dtype) or dtypes.dtype(dtype).largest
    wide = _wide(x)
    xp = packing.library(x)
    if dtype in _WITHOUT_NAN and bool(xp.isnan(wide).any()):
        raise BadArgument(f"x has NaN, which {dtype} cannot hold")
    magnitude = _largest_of(xp.where(xp.isfinite(wide), abs(wide), 0.0), block)
    scales = magnitude / largest
    if block.dtype == "e8m0":
        exponents = xp.frexp(magnitude)[1] - math.frexp(largest)[1]
        scales = xp.where(magnitude > 0, xp.exp2(1.0 * exponents.clip(-127, 127)), 0.0)
    if block.dtype == "fp16":
        scales = scales.clip(0.0, _FP16_LARGEST)
    scales = _cast(scales, block.dtype)
    known = _wide(scales)
    scales = _cast(xp.where(known > 0, known, 1.0), block.dtype)  # 1 for zeros and underflow
    ratio = wide / spread(_wide(scales), block, *x.shape)
    ratio = ratio.clip(-largest, largest)
    if dtype == "e2m1":
        return packing.pack(_e2m1_codes(ratio), 1), scales
    if dtype in _INTEGERS:
        ratio = xp.round(ratio)
    if dtype == "int4":
        return packing.pack(ratio % 16, 1), scales
    return _cast(ratio, dtype), scales


def _e2m1_codes(x: Any) -> Any:
    """Codes of the nearest e2m1 values. Halfway between two values, the even code wins."""
    size = abs(x)
    codes = 8.0 * packing.library(x).signbit(x)
    for number, middle in enumerate(_MIDDLES):
        codes = codes + (size >= middle if number % 2 else size > middle)
    return codes


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


def _wide(x: Any) -> Any:
    """`x` in fp32, or in fp64 if it has that already."""
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
    """Whether columns, not rows, are contiguous in memory."""
    row, column = x.stride() if arrays.is_torch(x) else x.strides
    return bool(row < column and x.shape[0] > 1)
