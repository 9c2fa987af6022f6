"""What kernels of several families are limited by: sizes, depths, the reach of 32 bits."""

from __future__ import annotations

LEAST_8_BIT_K = 32
"""Matrix instructions take 32 8-bit elements along K; with fewer the compiler stops or leaves the
matrix units."""

MAX_STAGES = 16
"""Most stages of a software pipeline."""

VECTOR_DOT_PRODUCTS = 1024
"""Most products of a thread in a step where a dot goes to the vector units and is written out: with
these the compiler took 370 to 520 registers (gfx1250), with twice as many all 1024. Half of them
where 8-bit floats are converted first: with all, 500 bytes spilled."""

INT32_SPAN = 2**31
"""Bytes an operand may span when the kernel counts in 32 bits."""
