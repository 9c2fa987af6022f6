"""From arrays to problems and back."""

from __future__ import annotations

import pytest
from gemm_cases import problem_of

from tilewright.errors import BadArgument
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.problem import LAYOUTS, GemmProblem
from tilewright.ops.nouns import View


def view(shape, strides=None, dtype="bf16", address=256):
    if strides is None:
        strides = (shape[1], 1)
    return View(shape, strides, dtype, address, "cpu")


def columns(shape, dtype="bf16"):
    return view(shape, (1, shape[0]), dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_come_from_strides(layout):
    shapes = ((64, 32), (32, 16), (64, 16))
    made = [
        view(s) if order == "r" else columns(s) for s, order in zip(shapes, layout, strict=True)
    ]
    assert problem_of(made[:2], made[2], {}) == GemmProblem(64, 16, 32, layout=layout)


def test_without_an_output_c_is_packed_row_major_of_the_usual_dtype():
    p = problem_of([view((8, 16), dtype="int8"), columns((16, 24), "int8")], None, {})
    assert p == GemmProblem(8, 24, 16, dtype_a="int8", dtype_c="int32")
    assert (p.layout, p.ldc) == ("rcr", 24)


def test_the_output_chooses_its_dtype():
    made = [view((8, 16)), columns((16, 24)), view((8, 24), dtype="fp32")]
    assert problem_of(made[:2], made[2], {}).dtype_c == "fp32"


def test_leading_dimensions_come_from_strides():
    p = problem_of([view((8, 16), (40, 1)), view((16, 24), (1, 48))], view((8, 24), (32, 1)), {})
    assert (p.layout, p.lda, p.ldb, p.ldc) == ("rcr", 40, 48, 32)


@pytest.mark.parametrize(("address", "alignment"), [(256, 16), (8, 8), (4, 4), (2, 2)])
def test_alignment_is_the_worst_of_addresses_and_rows(address, alignment):
    a, b = view((8, 16)), columns((16, 24))
    assert problem_of([view((8, 16), address=address), b], None, {}).alignment == alignment
    out = view((8, 24), address=address)
    assert problem_of([a, b], out, {}).alignment == alignment


def test_a_single_column_is_what_the_usual_kernels_take():
    """A matrix with a dimension of 1 is row- and column-major at once."""
    p = problem_of([view((8, 16)), view((16, 1), (1, 1))], view((8, 1), (1, 1)), {})
    assert (p.layout, p.n, p.ldb, p.ldc) == ("rcr", 1, 16, 1)
    p = problem_of([view((8, 16)), view((16, 1), (1, 16))], view((8, 1), (1, 8)), {})
    assert p.layout == "rcr"


def test_a_strided_single_column_is_row_major():
    p = problem_of([view((8, 16)), view((16, 1), (5, 1))], None, {})
    assert (p.layout, p.ldb) == ("rrr", 5)


def test_a_single_row():
    p = problem_of([view((1, 16)), columns((16, 24))], view((1, 24)), {})
    assert (p.layout, p.m, p.lda, p.ldc) == ("rcr", 1, 16, 24)


def test_a_k_of_one():
    p = problem_of([view((8, 1), (1, 1)), view((1, 24), (24, 1))], None, {})
    assert (p.layout, p.k, p.lda, p.ldb) == ("rcr", 1, 1, 1)


def test_precision_is_an_option():
    made = [view((8, 16), dtype="fp32"), columns((16, 24), "fp32")]
    assert problem_of(made, None, {"precision": "tf32"}).precision == "tf32"


@pytest.mark.parametrize(
    "strides",
    [(32, 2), (0, 1), (8, 1), (1, 4), (0, 0), (-16, 1)],
    ids=["step", "broadcast", "overlap", "overlap columns", "one element", "reversed"],
)
def test_matrices_no_kernel_reads_are_refused(strides):
    with pytest.raises(BadArgument, match="contiguous"):
        problem_of([view((8, 16), strides), columns((16, 24))], None, {})


@pytest.mark.parametrize(
    ("inputs", "out", "words"),
    [
        ([], None, "was given 0"),
        ([view((8, 16))], None, r"gemm takes 2 operands \(A, B\) and was given 1"),
        ([view((8, 16)), columns((16, 24)), view((8, 24))], None, "was given 3; pass the output"),
        ([view((8, 16)), columns((16, 24)), view((8, 24))], view((8, 24)), "was given 3"),
        ([view((8, 16)), view((8, 16))], None, "A's columns"),
        ([view((8, 16)), columns((16, 24))], view((24, 8)), "out is 24×8"),
        (
            [View((2, 2, 8, 16), (256, 128, 16, 1), "bf16", 0, "cpu"), columns((17, 24))],
            None,
            r"A has shape \(2, 2, 8, 16\).* A's columns must equal B's rows",
        ),
        ([View((16,), (1,), "bf16", 0, "cpu"), columns((17, 24))], None, "A's columns must equal"),
        ([View((), (), "bf16", 0, "cpu"), columns((16, 24))], None, "A has 0 dimensions"),
        ([view((8, 16)), columns((16, 24), "fp16")], None, "B is fp16"),
        ([view((8, 16), dtype="int32"), columns((16, 24), "int32")], None, "no GEMM takes int32"),
        ([view((8, 16)), columns((16, 24))], view((8, 24), dtype="fp16"), "not fp16"),
    ],
)
def test_operands_that_do_not_fit_are_refused(inputs, out, words):
    with pytest.raises(BadArgument, match=words):
        problem_of(inputs, out, {})


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(BadArgument, match="did you mean 'precision'"):
        problem_of([view((8, 16)), columns((16, 24))], None, {"precison": "ieee"})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_lie_as_the_problem_says_and_say_it_again(layout):
    p = GemmProblem(64, 16, 32, layout=layout, lda=96, ldb=112, ldc=128)
    found = operands(p)
    assert [o.name for o in found] == ["A", "B", "C"]
    assert [o.shape for o in found] == [(64, 32), (32, 16), (64, 16)]
    assert [o.role == "out" for o in found] == [False, False, True]
    *inputs, out = [view(o.shape, o.strides, o.dtype) for o in found]
    assert problem_of(inputs, out, {}) == p
