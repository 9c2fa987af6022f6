"""What a GEMM problem knows about itself, and what it refuses to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import BadArgument
from tilewright.ops.gemm.problem import LAYOUTS, MAX_SIZE, GemmProblem
from tilewright.ops.products import OUTPUTS, natural_alignment


def test_defaults_follow_the_operands():
    p = GemmProblem(3, 5, 7)
    assert (p.dtype_a, p.dtype_b, p.dtype_c, p.dtype_acc) == ("bf16", "bf16", "bf16", "fp32")
    assert (p.layout, p.lda, p.ldb, p.ldc, p.precision) == ("rcr", 7, 7, 5, "ieee")
    p = GemmProblem(3, 5, 7, dtype_a="int8")
    assert (p.dtype_b, p.dtype_c, p.dtype_acc) == ("int8", "int32", "int32")
    assert GemmProblem(3, 5, 7, dtype_a="e4m3fn").dtype_c == "bf16"


def test_equal_problems_are_equal_however_they_were_stated():
    said = GemmProblem(16, 32, 64, dtype_b="bf16", dtype_c="bf16", lda=64, alignment=16)
    assert said == GemmProblem(16, 32, 64)
    assert hash(said) == hash(GemmProblem(16, 32, 64))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_leading_dimensions_are_the_innermost_extents(layout):
    p = GemmProblem(3, 5, 7, layout=layout)
    expected = (
        7 if layout[0] == "r" else 3,
        5 if layout[1] == "r" else 7,
        5 if layout[2] == "r" else 3,
    )
    assert (p.lda, p.ldb, p.ldc) == p.inner == expected
    assert [i * o for i, o in zip(p.inner, p.outer, strict=True)] == [21, 35, 15]


@pytest.mark.parametrize(
    "change",
    [
        {"m": -1},
        {"n": -1},
        {"k": 1.0},
        {"m": True},
        {"m": MAX_SIZE + 1},
        {"k": "64"},
        {"layout": "rc"},
        {"layout": "nt"},
        {"dtype_a": "fp8"},  # means two things
        {"dtype_a": "fp5"},
        {"dtype_a": "int32"},
        {"dtype_b": "fp16"},
        {"dtype_c": "fp16"},
        {"dtype_acc": "bf16"},
        {"dtype_acc": "fp16"},
        {"precision": "tf32"},  # bf16 has none
        {"precision": "exact"},
        {"lda": 63},
        {"ldb": -64},
        {"ldc": MAX_SIZE + 1},
        {"lda": 64.0},
        {"alignment": 3},
        {"alignment": 32},
        {"lda": 68, "alignment": 16},  # rows of 136 bytes
    ],
)
def test_what_cannot_be_meant_is_refused(change):
    with pytest.raises(BadArgument):
        GemmProblem(**{"m": 64, "n": 64, "k": 64, **change})


def test_the_largest_sizes_are_allowed():
    assert GemmProblem(MAX_SIZE, 1, 1).m == MAX_SIZE
    assert GemmProblem(1, 1, 1).flops == 2


def test_flops_and_bytes():
    p = GemmProblem(10, 20, 30, dtype_a="e5m2", dtype_c="fp32")
    assert p.flops == 2 * 10 * 20 * 30
    assert p.min_bytes == 10 * 30 + 30 * 20 + 10 * 20 * 4
    padded = GemmProblem(10, 20, 30, dtype_a="e5m2", dtype_c="fp32", lda=64)
    assert padded.min_bytes == p.min_bytes  # padding is never read


def test_spans_count_padding_between_rows_but_not_behind_the_last():
    p = GemmProblem(4, 8, 16, lda=32, ldb=16, ldc=8, dtype_c="fp32")
    assert p.spans_bytes == ((3 * 32 + 16) * 2, 8 * 16 * 2, 4 * 8 * 4)


@pytest.mark.parametrize(
    ("k", "dtype", "aligned"),
    [(64, "bf16", 16), (4, "bf16", 8), (2, "bf16", 4), (1, "bf16", 2), (1, "e5m2", 1)],
)
def test_alignment_is_the_rows_own(k, dtype, aligned):
    p = GemmProblem(64, 64, k, dtype_a=dtype, dtype_c="fp32")
    assert p.alignment == p.extent_alignment == aligned


def test_strided_rows_can_be_aligned_where_their_extent_is_not():
    p = GemmProblem(64, 64, 61, lda=64, ldb=64)
    assert (p.alignment, p.extent_alignment) == (16, 2)


def test_a_smaller_alignment_can_be_stated():
    assert GemmProblem(64, 64, 64, alignment=2).alignment == 2


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=5))
def test_natural_alignment_divides_everything_and_is_the_largest(sizes):
    found = natural_alignment(tuple(sizes))
    dividing = [a for a in (1, 2, 4, 8, 16) if all(size % a == 0 for size in sizes)]
    assert found == max(dividing)


@pytest.mark.parametrize("dtype_a", OUTPUTS)
def test_every_listed_output_is_accepted(dtype_a):
    for dtype_c in OUTPUTS[dtype_a]:
        assert GemmProblem(2, 2, 2, dtype_a=dtype_a, dtype_c=dtype_c).dtype_c == dtype_c
