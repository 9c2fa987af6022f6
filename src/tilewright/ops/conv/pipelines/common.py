"""What records of pipelines share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.limits import LEAST_8_BIT_K
from tilewright.ops.pool import Each


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


def steps_of_pixels(c: Any, p: ConvProblem) -> Each:
    """Steps of `tile_k` pixels of y."""
    return cdiv(p.n * math.prod(p.out_sizes), c.tile_k)


def on_vectors(c: ConvConfig, arch: Arch) -> bool:
    """Whether the compiler multiplies on the vector units."""
    name = "tf32" if c.precision == "tf32" else c.dtype
    return arch.dot == "vector" or arch.dtypes[name].via == "fma"


LAUNCH_US = DEVICE.LAUNCH_US + 2 * DEVICE.LATENCY_US
"""Microseconds of every kernel: its launch, the first load and the last store."""


def estimated(
    total_us: Each, terms: Mapping[str, Each], count: Each, what: str = "workgroups"
) -> Estimates:
    """The estimates of launches with so many workgroups, or tiles. terms: microseconds, by word,
    of each launch or of all alike."""
    import numpy as np

    alike = np.zeros(len(total_us))
    every = {word: us + alike for word, us in terms.items()}
    return Estimates.of(total_us, every, lambda at: (f"{count[at]:.0f} {what}",))


def least_of_8_bits(c: ConvConfig, arch: Arch) -> str | None:
    """Why a step is too short for matrix instructions, if so."""
    if DTYPES[c.dtype].bits == 8 and c.tile_k < LEAST_8_BIT_K:
        return f"tile_k = {c.tile_k} is under {LEAST_8_BIT_K}, the least for 8-bit operands"
    return None
