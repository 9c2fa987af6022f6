"""How the kernels for few rows of A divide a tile, from the config: see kernels/small_m.py.

`vector` and `k_parts` are about configs of these kernels only; `sizes` has them for all."""

from __future__ import annotations

from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import scales
from tilewright.ops.gemm.config import GemmConfig

VECTOR_ROWS = 4
"""Most rows of A that the vector units take; more would keep them busier than memory."""

VECTOR_BYTES = 16
"""Bytes of K that a thread loads and multiplies at once there."""

MATRIX_COLUMNS = 16
"""Columns of B that a warp's matrix instruction takes in the place of rows of C."""

MAX_TILE_K = 4096
"""Largest step of K on the vector units, where it is spread over every thread of a workgroup."""


def vector(config: GemmConfig) -> int:
    """Elements of K that a thread multiplies at once on the vector units; 0 on the matrix units."""
    return 0 if config.tile_m > VECTOR_ROWS else VECTOR_BYTES // DTYPES[config.dtype_a].bytes


def k_parts(config: GemmConfig) -> int:
    """Parts of every step's K whose products are summed apart; 1 on the vector units.

    With block scales a part is a block. Without, each warp has a part, or there is one part if
    there are enough columns for each warp to have its own: all warps then read the same part of A.
    """
    if scales.count(config) and not vector(config):
        return max(1, config.tile_k // scales.k_block(config))
    columns_short = config.tile_n < MATRIX_COLUMNS * config.num_warps
    return config.num_warps if columns_short and not vector(config) else 1
