"""Shuffled weights: B rearranged once into the order in which the matrix units read it.

A block is 16 columns of B by as many of its rows as make 64 bytes, 1 KiB in all. The 64 lanes of a
CDNA wave read a block with one 16-byte load each; it is one operand of the matrix instructions.
With V elements to 16 bytes, the element of row k and column n is at

    [n // 16, k // (4 V), (k // V % 4) * 16 + n % 16, k % V]

of a contiguous array [n / 16, k / (4 V), 64, V]. Blocks follow one another along K, so that every
tile of a kernel is a few contiguous runs on any GPU. Layouts have the letter ``s`` for such a B
(``rsr``). Its four dimensions distinguish it from a plain matrix. n must be a multiple of 16, and k
of 4 V (32 for 16-bit elements, 64 for 8-bit, 16 for fp32), because the shape could not tell padding
from data. Pad the weights before, if needed.
"""

from __future__ import annotations

from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument

COLUMNS = 16
"""Columns of B in a block."""

LANES = 64
VECTOR_BYTES = 16


def vector(dtype: str) -> int:
    """Elements in 16 bytes. These neighbours along K stay neighbours."""
    return VECTOR_BYTES // DTYPES[dtype].bytes


def rows(dtype: str) -> int:
    """Rows of B (along K) in a block."""
    return LANES // COLUMNS * vector(dtype)


def shape(n: int, k: int, dtype: str) -> tuple[int, int, int, int]:
    """Shape of a shuffled B of k × n."""
    return n // COLUMNS, k // rows(dtype), LANES, vector(dtype)


def check(n: int, k: int, dtype: str) -> None:
    """Raise `BadArgument` unless a k × n matrix is made of whole blocks."""
    for axis, size, block in (("n", n, COLUMNS), ("k", k, rows(dtype))):
        if size % block:
            raise BadArgument(
                f"{axis} = {size} is not a multiple of {block}: a shuffled {dtype} B is made of "
                f"blocks of {rows(dtype)}×{COLUMNS}; pad it before"
            )


def sizes(shape: tuple[int, ...], dtype: str) -> tuple[int, int]:
    """k and n of a shuffled B of this shape. Raises `BadArgument` if no shuffled B has this
    shape."""
    v = vector(dtype)
    if len(shape) != 4 or shape[2:] != (LANES, v):
        raise BadArgument(
            f"B has shape {shape}; a shuffled {dtype} B is [n/{COLUMNS}, k/{rows(dtype)}, "
            f"{LANES}, {v}], as tilewright.shuffle makes it"
        )
    return shape[1] * rows(dtype), shape[0] * COLUMNS


def shuffle(b: Any) -> Any:
    """B [k, n], of any strides, as a contiguous array [n / 16, k / (4 V), 64, V], with V elements
    to 16 bytes. ``tilewright.gemm(a, shuffled)`` and its `preshuffle` kernels read this form
    fastest.

    `b` is a torch tensor or a NumPy array; pass a Linear layer's weight W [out, in] as W.T. Raises
    `BadArgument` unless `b` has two dimensions and consists of whole blocks.
    """
    b = arrays.adopt(b, "B")
    seen = arrays.view(b)
    if len(seen.shape) != 2:
        hint = "; it is shuffled already" if len(seen.shape) == 4 else ""
        raise BadArgument(f"shuffle takes a matrix [k, n], not shape {seen.shape}{hint}")
    k, n = seen.shape
    check(n, k, seen.dtype)
    made = shape(n, k, seen.dtype)
    parts = b.reshape(made[1], LANES // COLUMNS, made[3], made[0], COLUMNS)
    return arrays.permuted(parts, (3, 0, 1, 4, 2)).reshape(made)


def unshuffle(b: Any) -> Any:
    """The exact inverse of `shuffle`: B [k, n], column-major, like a Linear layer's W.T.

    Raises `BadArgument` for a shape that `shuffle` does not make.
    """
    b = arrays.adopt(b, "B")
    seen = arrays.view(b)
    if len(seen.shape) == 2:
        raise BadArgument(f"B of shape {seen.shape} is a plain matrix; nothing to unshuffle")
    sizes(seen.shape, seen.dtype)
    return matrix(b)


def matrix(blocks: Any) -> Any:
    """The matrix [k, n] of a shuffled one; its elements may have been transformed meanwhile."""
    parts = blocks.reshape(*blocks.shape[:2], LANES // COLUMNS, COLUMNS, blocks.shape[3])
    ordered = arrays.permuted(parts, (0, 3, 1, 2, 4))
    return ordered.reshape(blocks.shape[0] * COLUMNS, -1).T
