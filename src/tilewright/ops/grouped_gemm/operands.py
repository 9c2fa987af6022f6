"""The arrays of a grouped problem: shapes, layouts in memory, and the groups' sizes that tests and
measurements draw."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.ops.gemm import lowbit
from tilewright.ops.gemm import operands as gemm
from tilewright.ops.grouped_gemm import scales
from tilewright.ops.grouped_gemm.problem import DEALT, SCALES, TURNED, GroupedGemmProblem
from tilewright.ops.grouped_gemm.table import arrange
from tilewright.ops.nouns import Operand

ROWS = "rows"
"""The map of form ``gathered``, which a call passes by keyword."""

SIZES = {"masked": "counts", "list": "table", **dict.fromkeys(DEALT, "offsets")}
"""The operand with the groups' sizes, by form."""

SPARE = 16
"""In random offsets, one row in this many belongs to no group."""


def operands(problem: GroupedGemmProblem) -> tuple[Operand, ...]:
    """A, B, the groups' sizes, scales, the epilogue's operands and C, with their layouts in
    memory."""
    p = problem
    if p.form == "list":
        return _list_operands(p)
    rows = p.c_shape[:-1]
    a_strides = (p.lda, 1) if p.layout[0] == "r" else (1, p.lda)
    b_strides = (p.ldb, 1) if p.layout[1] == "r" else (1, p.ldb)

    def by_rows(ld: int) -> tuple[int, ...]:
        return (p.m * ld, ld, 1)[-len(rows) - 1 :]

    sizes = (
        Operand("counts", (p.groups,), (1,), "int32", values=lambda seed: _counts(p, seed))
        if p.form == "masked"
        else Operand(
            "offsets",
            (p.groups + p.bounds,),
            (1,),
            "int32",
            values=lambda seed: _offsets(p, seed),
        )
    )
    extra = []
    for of_one, (shape, _) in zip(_extra_of_one(p), p.extra_shapes, strict=True):
        if len(of_one.shape) == 2:
            strides = by_rows(p.ldd)
        else:
            strides = (shape[1], 1) if len(shape) == 2 else (1,)
        extra.append(replace(of_one, shape=shape, strides=strides))
    stacked, apart = (p.groups,), (p.stride_b,)
    a = Operand("A", (p.m, p.k), a_strides, p.dtype_a)
    b = Operand("B", (p.k, p.n), b_strides, p.dtype_b)
    if p.form == TURNED:
        a = replace(a, shape=stacked + a.shape, strides=apart + a.strides)
    elif p.form != "weights":
        a = replace(a, shape=(*rows, p.k), strides=by_rows(p.lda))
        b = replace(b, shape=stacked + b.shape, strides=apart + b.strides)
    row_map: tuple[Operand, ...] = ()
    if p.form == "gathered":
        a = replace(a, shape=(p.rows_a, p.k))
        drawn = partial(_map, p)
        row_map = (Operand(ROWS, (p.m,), (1,), "int32", values=drawn, keyword=True),)
    return (
        lowbit.stored("A", a.shape, a.strides, p.dtype_a, -1),
        lowbit.stored("B", b.shape, b.strides, p.dtype_b, -2),
        sizes,
        *row_map,
        *(s.operand for s in scales.of(p)),
        *scales.zeros_of(p),
        *extra,
        Operand("C", p.c_shape, by_rows(p.ldc), p.dtype_c, "out"),
        *([block_scales(p.scales_shape)] if p.quant else ()),
    )


def block_scales(shape: tuple[Any, ...]) -> Operand:
    """The scales that a product makes of its result."""
    return Operand(SCALES, shape, scales.packed(shape), "fp32", "out")


def _list_operands(p: GroupedGemmProblem) -> tuple[Operand, ...]:
    table, (a, b, c) = arrange(p)
    return (
        Operand("A", (a,), (1,), p.dtype_a),
        Operand("B", (b,), (1,), p.dtype_b),
        Operand("table", (p.groups, 9), (9, 1), "int64", values=lambda seed: table),
        *_extra_of_one(p),
        Operand("C", (c,), (1,), p.dtype_c, "out"),
    )


def _extra_of_one(p: GroupedGemmProblem) -> tuple[Operand, ...]:
    """The epilogue's operands as for one GEMM of all rows, without a scale that is made."""
    found = gemm.operands(p.one)[2 + len(scales.of(p)) : -1]
    return found[:-1] if p.quant else found


def _skewed(groups: int, total: int, seed: int) -> list[int]:
    """Distribute `total` rows over groups: a few groups get most of them, some none."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(groups)]
    for place in range(1, groups, 4):
        weights[place] = 0.0
    rng.shuffle(weights)
    sizes = [0] * groups
    for group in rng.choices(range(groups), weights, k=total):
        sizes[group] += 1
    return sizes


def _offsets(p: GroupedGemmProblem, seed: int) -> list[int]:
    """Random offsets: skewed, with some empty groups, and a few rows in none."""
    spare = p.dealt // SPARE
    begin = spare // 2 if p.bounds else 0
    ends = [begin] if p.bounds else []
    at = begin
    for size in _skewed(p.groups, p.dealt - spare, seed):
        at += size
        ends.append(at)
    return ends


def _map(p: GroupedGemmProblem, seed: int) -> list[int]:
    """Random places of rows; one in `SPARE` means no row, on either side."""
    rng = random.Random(seed)
    last = p.rows_a * p.per_row
    drawn = (rng.randrange(-(last // SPARE), last + last // SPARE + 1) for _ in range(p.m))
    return list(drawn)


def _counts(p: GroupedGemmProblem, seed: int) -> list[int]:
    """Random counts: skewed, some empty, some full."""
    return [min(size, p.m) for size in _skewed(p.groups, p.rows // 2, seed)]
