"""What the pipelines for few rows of A derive from a config: see kernels/small_m.py."""

from __future__ import annotations

from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.config import SMALL_M, GemmConfig

VECTOR_ROWS = 4
"""Most rows of A that the vector units take; more would keep them busier than memory."""

VECTOR_BYTES = 16
"""Bytes of K that a thread loads and multiplies at once there."""

MATRIX_COLUMNS = 16
"""Columns of B that a warp's matrix instruction takes in the place of rows of C."""

MAX_TILE_K = 4096
"""Largest step of K on the vector units, where it is spread over every thread of a workgroup."""


def vector(config: GemmConfig) -> int:
    """Elements of K a thread multiplies at once on the vector units; 0: on the matrix units."""
    if config.pipeline not in SMALL_M or config.tile_m > VECTOR_ROWS:
        return 0
    return VECTOR_BYTES // DTYPES[config.dtype_a].bytes


def k_parts(config: GemmConfig) -> int:
    """Parts of every step's K that the warps share out among themselves. With enough columns for
    each warp to have its own there is one: all then read the same part of A."""
    shared = config.pipeline in SMALL_M and not vector(config)
    return config.num_warps if shared and config.tile_n < MATRIX_COLUMNS * config.num_warps else 1
