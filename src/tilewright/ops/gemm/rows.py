"""The same GEMM with more or fewer rows: the problems near a problem, and the problems that one
kernel for every M must serve.

A table's row for a larger M may answer for a smaller M, but never the other way round: the kernel
for a smaller M may have no room for the rows. M is rounded up to a step of the ladder: multiples of
16 up to 256, of 32 up to 1024, of 64 up to 4096, of 128 beyond. Up to 64 powers of two are steps
too. N and K stay.

Beyond 64 no row answers from farther away, because its tiles would fill their waves otherwise, and
the estimate chooses better (docs/notes/gemm-estimate.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tilewright import blocks
from tilewright.errors import BadArgument
from tilewright.ops.gemm import batch, scales
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.nearby import Invariance, Nearby
from tilewright.ops.powers import power_of_two
from tilewright.ops.problem import changed
from tilewright.ops.products import natural_alignment

LADDER = ((256, 16), (1024, 32), (4096, 64))
"""Steps of the ladder as (M up to which the step holds, step); beyond the last M, `LAST_STEP`."""
LAST_STEP = 128
MOST_POWER = 64
"""Up to this M, the next power of two is asked too."""

CHOSEN_FOR = 256
"""A kernel for every M is chosen for this M."""

SERVED = (1, 8193)
"""Further Ms that a kernel for every M must serve: one row, and more rows than any tile, in a
number that no tile divides."""


def padded(m: int) -> tuple[int, ...]:
    """The larger Ms with rows of a table that may answer for M = m, the nearest first."""
    step = next((step for limit, step in LADDER if m <= limit), LAST_STEP)
    sizes = {-(-m // step) * step}
    if m <= MOST_POWER:
        sizes.add(power_of_two(m))
    return tuple(sorted(size for size in sizes if size > m))


def nearby(m: int, made: Callable[[int], Any]) -> Iterator[Nearby]:
    """The problems near one with `m` rows.

    made: makes the problem with another M. It raises `BadArgument` if the strides have no room for
    so many rows; then no larger M is tried.
    """
    with suppress(BadArgument):
        for size in padded(m) if m else ():
            yield Nearby(made(size), f"padded to M = {size}")


def invariance(made: Callable[[int], Any]) -> Invariance:
    """The problems that one kernel for every M must serve.

    made: makes the problem with another M.

    Raises `BadArgument` if `made` does.
    """
    problems = tuple(made(m) for m in (CHOSEN_FOR, *SERVED))
    return Invariance("every M", f"M = {CHOSEN_FOR}", problems)


def with_rows(problem: GemmProblem, m: int) -> GemmProblem:
    """`problem` with `m` rows. Packed operands are packed again; other strides stay. The alignment
    is the most that the strides allow if the problem had that; otherwise the problem's own, or
    less. Raises `BadArgument` if strides have no room for the rows."""
    p = problem
    if p.layout[0] == p.layout[2] == "r" and p.batching == "none" and not p.scale_a:
        return changed(p, {"m": m})  # no stride depends on M
    inner = p.inner
    beside = {"lda": 0, "ldb": 1, "ldc": 2, "ldd": 2, "ldpa": 0, "ldpb": 1}
    anew: dict[str, Any] = {
        field: 0 for field, i in beside.items() if getattr(p, field) == max(1, inner[i])
    }
    tight = p._packed
    fields = ("stride_a", "stride_b", "stride_c", "stride_d")
    for field, stride, one in zip(fields, p.batch_strides, tight, strict=True):
        if stride and stride == one:
            anew[field] = batch.PACKED
    nested = tuple(
        p.batch_inner * stride or one for stride, one in zip(p.batch_strides, tight, strict=True)
    )
    if p.outer_strides == nested:
        anew["outer_strides"] = ()
    made = replace(p, m=m, **anew, strides_sa=_scale_strides(p, m), alignment=0)
    if p.alignment < min(made.alignment, natural_alignment(p.strides_bytes)):
        made = replace(made, alignment=p.alignment)
    return made


def _scale_strides(p: GemmProblem, m: int) -> tuple[int, ...]:
    """The strides of A's scales: packed by rows, packed by columns, or unchanged."""
    block = blocks.parse(p.scale_a)
    if block is None or p.strides_sa == scales.packed(p.scale_a, p.m, p.k):
        return ()
    if p.strides_sa == (1, block.shape(p.m, p.k)[0]):
        return 1, block.shape(m, p.k)[0]
    return p.strides_sa
