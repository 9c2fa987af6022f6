"""What records of pipelines share."""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import ConvConfig, of_weights
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.nouns import Temporary


@lru_cache(maxsize=1024)  # of each problem for hundreds of kernels
def alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of both operands, and of the result."""
    read = (p.rows_alignment(name) for name in DIRECTIONS[p.direction][:2])
    return min(read), p.rows_alignment(p.output_name)


@lru_cache(maxsize=1024)
def pixel_alignments(p: ConvProblem) -> tuple[int, int]:
    """`alignments` where weights are read one by one."""
    if p.direction == "weights":
        return alignments(p)
    return p.rows_alignment(DIRECTIONS[p.direction][0]), p.rows_alignment(p.output_name)


@lru_cache(maxsize=1024)
def implicit_alignments(p: ConvProblem) -> tuple[int, int]:
    """`alignments` of pipeline ``implicit``, where weights may have an alignment of their own
    (`of_weights`), and where each group's channels are read and stored alone, also those of
    depthwise filters."""
    first, second, made = (
        math.gcd(p.rows_alignment(name), DTYPES[p.dtype_of(name)].bytes)
        if p.depthwise
        else p.rows_alignment(name)
        for name in DIRECTIONS[p.direction]
    )
    same = DTYPES[p.dtype].bytes == DTYPES[p.dtype_out].bytes
    if second > 1 and of_weights("implicit", p.direction, same, first, made) <= second:
        return first, made
    return min(first, second), made


def steps_of_pixels(c: ConvConfig, p: ConvProblem) -> int:
    """Steps of `tile_k` pixels of y."""
    return cdiv(p.n * math.prod(p.out_sizes), c.tile_k)


def nothing(_: ConvProblem) -> tuple[Temporary, ...]:
    """No temporaries."""
    return ()
