"""The same problem with another M, as callers state it."""

from __future__ import annotations

from dataclasses import replace

import batch_cases
import gemm_cases
import lowbit_cases
import numpy as np
import pytest
import scale_cases

from tilewright import ops
from tilewright.arch import device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY
from tilewright.ops.gemm.problem import LAYOUTS, GemmProblem
from tilewright.ops.gemm.rows import padded, with_rows
from tilewright.ops.grouped_gemm import GroupedGemmProblem

SIGNATURES = [
    *({"layout": layout} for layout in LAYOUTS),
    {"batch": 3},
    {"batch": 3, "stride_b": 0, "layout": "ccr"},
    {"batch": 6, "batching": "nested", "batch_inner": 2},
    {"batch": 3, "batching": "pointers"},
    {"epilogue": "bias+add", "layout": "rcc"},
    {"pre_a": "add", "layout": "crr"},
    {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"},
    {"dtype_a": "int8"},
]


@pytest.mark.parametrize("fields", SIGNATURES, ids=str)
@pytest.mark.parametrize("m", [1, 33, 500])
def test_a_packed_problem_is_packed_again(fields, m):
    stated = GemmProblem(m, 256, 256, **fields)
    assert with_rows(stated, 64) == GemmProblem(64, 256, 256, **fields)
    assert with_rows(with_rows(stated, 64), m) == stated
    near = [one.problem for one in FAMILY.nearby(stated)]
    assert near == [GemmProblem(size, 256, 256, **fields) for size in padded(m)]


def test_a_problem_with_its_own_m_is_itself():
    modules = (gemm_cases, batch_cases, scale_cases, lowbit_cases)
    pairs = [pair for module in modules for pair in module.cases("sm_90")]
    pairs += [*gemm_cases.few_rows("sm_90"), *batch_cases.nested("sm_90")]
    for problem in {problem for _, problem in pairs} | {*gemm_cases.awkward()}:
        assert with_rows(problem, problem.m) == problem


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"scheduler": "tile"}, True),
        ({"scheduler": "persistent"}, True),
        ({"scheduler": "split_k", "split_k": 3, "reduction": "linear"}, True),
        ({"scheduler": "split_k", "split_k": 3, "reduction": "tree"}, True),
        ({"scheduler": "stream_k", "reduction": "linear"}, False),
    ],
    ids=str,
)
def test_rows_keep_their_bits_where_the_family_says_so(how, kept):
    """Summed in fp32 over a K that is cut in unequal parts: another cut gives other bits."""
    kernel = gemm_cases.config(dtype_a="fp16", dtype_c="fp32", tile_k=32, **how)
    assert bool(FAMILY.invariant(kernel)) == kept and FAMILY.repeats(kernel)
    few = Dispatcher(device=replace(device("h200_sxm"), compute_units=5))
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((200, 416), (64, 416)))
    results = [few.run_named(kernel.name, a[:m], b.T, out=_fp32(m)) for m in (3, 64, 200)]
    assert all((r[:3] == results[-1][:3]).all() for r in results[:-1]) == kept


def _fp32(m):
    return np.empty((m, 64), np.float32)


def test_strides_of_the_callers_own_stay():
    roomy = GemmProblem(50, 256, 256, lda=512, ldc=320, alignment=8)
    assert with_rows(roomy, 64) == replace(roomy, m=64)
    column_major = GemmProblem(50, 256, 256, layout="ccr", lda=56)
    assert with_rows(column_major, 56).lda == 56
    with pytest.raises(BadArgument, match="lda = 56 is outside 64"):
        with_rows(column_major, 64)


def test_scales_by_columns_stay_by_columns():
    fields = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
    by_columns = GemmProblem(50, 256, 256, **fields, strides_sa=(1, 50))
    assert with_rows(by_columns, 64).strides_sa == (1, 64)


def test_alignment_that_was_given_is_never_exceeded():
    stated = GemmProblem(50, 256, 256, alignment=2)
    assert with_rows(stated, 64).alignment == 2
    odd = GemmProblem(33, 256, 256, layout="ccr")  # 2: its columns are of 33 elements
    assert odd.alignment == 2 and with_rows(odd, 64).alignment == 16


def test_groups():
    family = ops.family("grouped_gemm")
    for form in ("contiguous", "masked"):
        stated = GroupedGemmProblem(form, groups=4, m=33, n=256, k=256)
        near = [(one.how, one.problem) for one in family.nearby(stated)]
        assert near == [
            (f"padded to M = {m}", GroupedGemmProblem(form, groups=4, m=m, n=256, k=256))
            for m in (48, 64)
        ]
        assert [p.m for p in family.invariance(stated).problems] == [256, 1, 8193]
    listed = GroupedGemmProblem("list", sizes=((1, 64, 64),))
    assert [*family.nearby(listed)] == []
    with pytest.raises(BadArgument, match="not one M"):
        family.invariance(listed)
