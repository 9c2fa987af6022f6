"""The same GEMM with more or fewer rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright import blocks
from tilewright.ops.gemm import batch, scales
from tilewright.ops.gemm.problem import GemmProblem, natural_alignment


def with_rows(problem: GemmProblem, m: int) -> GemmProblem:
    """`problem` with `m` rows: operands that lay packed lie packed again, the strides of others
    stay. It is as aligned as its strides allow if the problem was, else as the problem was, or
    less. Raises `BadArgument` where strides have no room for the rows."""
    p = problem
    inner = p.inner
    beside = {"lda": 0, "ldb": 1, "ldc": 2, "ldd": 2, "ldpa": 0, "ldpb": 1}
    changed: dict[str, Any] = {
        field: 0 for field, i in beside.items() if getattr(p, field) == max(1, inner[i])
    }
    tight = p._packed
    fields = ("stride_a", "stride_b", "stride_c", "stride_d")
    for field, stride, one in zip(fields, p.batch_strides, tight, strict=True):
        if stride and stride == one:
            changed[field] = batch.PACKED
    nested = tuple(
        p.batch_inner * stride or one for stride, one in zip(p.batch_strides, tight, strict=True)
    )
    if p.outer_strides == nested:
        changed["outer_strides"] = ()
    made = replace(p, m=m, **changed, strides_sa=_scale_strides(p, m), alignment=0)
    if p.alignment < min(made.alignment, natural_alignment(p.strides_bytes)):
        made = replace(made, alignment=p.alignment)
    return made


def _scale_strides(p: GemmProblem, m: int) -> tuple[int, ...]:
    """Those of A's scales, which lie packed by rows, packed by columns, or as they do."""
    block = blocks.parse(p.scale_a)
    if block is None or p.strides_sa == scales.packed(p.scale_a, p.m, p.k):
        return ()
    if p.strides_sa == (1, block.shape(p.m, p.k)[0]):
        return 1, block.shape(m, p.k)[0]
    return p.strides_sa
