"""Split-K whose parts a second kernel adds up (`GemmConfig.reduction` ``two_stage``).

The first kernel stores the parts of C one behind the other, in fp32 (int32 for int8 operands) and
without the epilogue: it is the kernel of a product with a C of that type (`config`, `problem`). The
second (`kernels/totals`, `kernels/many_totals`) adds the parts, each sum's in an order of its own,
and applies the epilogue. No workgroup waits for another, and all compute units add up, not only
those that have a tile. The price is a second kernel. With programmatic dependent launch it starts
while the first one ends.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem

TOTALS = "totals"
"""The part of a config that adds up parts."""

PARTIALS = "partials"
"""The temporary that has them."""

OUTER, INNER, THREADS = 4, 128, 128
"""What a workgroup of the second kernel makes, along C's outer and inner dimension, and its
threads: 16 bytes of a part for each."""

FEW_PARTS, WAYS, MANY_OUTER, MANY_INNER = 32, 16, 2, 16
"""Parts over which a workgroup reads WAYS of them at once, and so makes less
(`kernels/many_totals`)."""

WHOLE_ROW = 4
"""Elements of a part's row come in multiples of these: 16 bytes, as the copy engine needs them."""


def config(c: GemmConfig) -> GemmConfig:
    """The first kernel of a config in two stages, by what it stores; any other config itself."""
    if not c.two_stage:
        return c
    return replace(c, dtype_c=c.dtype_partials, epilogue="")


def problem(c: GemmConfig, p: GemmProblem) -> GemmProblem:
    """The product of which that kernel stores parts, each with the rows of `partials`; of any other
    config `p`."""
    return _stored(p, c.dtype_partials) if c.two_stage else p


@lru_cache(maxsize=64)  # one for all of a problem's configs, which are ranked together
def _stored(p: GemmProblem, dtype: str) -> GemmProblem:
    row = _whole_row(p.n if p.layout[2] == "r" else p.m)
    return replace(p, dtype_c=dtype, epilogue="", ldc=row, ldd=0)


def _whole_row(elements: int) -> int:
    return -(-elements // WHOLE_ROW) * WHOLE_ROW


def objection(c: GemmConfig) -> str | None:
    """Why a second kernel may not add up the parts of a config, whatever its pipeline."""
    if c.two_stage and c.batching not in ("none", "summed"):
        return f"parts of a sum lie as a batch's matrices do, so C has no batch {c.batching}"
    return None


def partials(c: GemmConfig, p: GemmProblem) -> tuple[int, int, int]:
    """The shape of all parts of C."""
    stored = problem(c, p)
    return c.split_k, stored.outer[2], stored.ldc


def part_bytes(p: GemmProblem) -> int:
    """Bytes of one part of a problem's C, as `partials` has it."""
    rows, columns = (p.m, p.n) if p.layout[2] == "r" else (p.n, p.m)
    return DTYPES[p.dtype_acc].bytes * rows * _whole_row(columns)


def many(c: GemmConfig) -> bool:
    """Whether a config has more than a few parts."""
    return c.split_k > FEW_PARTS


def block(c: GemmConfig) -> tuple[int, int]:
    """Rows and columns of the product that a workgroup of the second kernel adds up."""
    outer, inner = (MANY_OUTER, MANY_INNER) if many(c) else (OUTER, INNER)
    return (outer, inner) if c.layout[2] == "r" else (inner, outer)


def workgroups(c: GemmConfig, p: GemmProblem) -> int:
    """Workgroups of the second kernel."""
    rows, columns = block(c)
    return -(-p.m // rows) * -(-p.n // columns)
