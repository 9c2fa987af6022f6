"""Batches of GEMMs as calls: what operands of three dimensions and arrays of pointers state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batch_cases import ones
from gemm_cases import config, problem_of

import tilewright as tw
from tilewright import arrays
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, UnsupportedProblem

SM90 = arch("sm_90")


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    """With few compute units, so that a persistent workgroup walks from matrix to matrix."""
    return Dispatcher(device=replace(device("h200_sxm"), compute_units=5))


# --- calls ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4, 5), (5, 6)),
        ((4, 5), (3, 5, 6)),
        ((1, 4, 5), (3, 5, 6)),
        ((3, 4, 5), (1, 5, 6)),
        ((1, 4, 5), (5, 6)),
        ((1, 4, 5), (1, 5, 6)),
    ],
)
def test_either_operand_broadcasts_as_in_matmul(a, b):
    out = tw.gemm(ones(*a), ones(*b))
    assert out.shape == np.matmul(ones(*a), ones(*b)).shape and (out == 5).all()


def test_a_broadcast_view_is_one_matrix():
    b = np.broadcast_to(ones(5, 6), (3, 5, 6))
    views = [arrays.view(x) for x in (ones(3, 4, 5), b)]
    assert problem_of(views, None, {}).stride_b == 0


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ((ones(3, 4, 5), ones(2, 5, 6)), "sizes differ: A 3, B 2"),
        ((ones(3, 4, 5), ones(3, 5, 6), ones(2, 4, 6)), "sizes differ"),
        ((ones(3, 4, 5), ones(3, 5, 6), ones(1, 4, 6)), "sizes differ"),
        ((ones(3, 4, 5), ones(3, 5, 6), ones(4, 6)), "out is one matrix"),
        ((ones(4, 5), ones(5, 6), ones(3, 4, 6)), "single matrices"),
        ((ones(2, 3, 4, 5), ones(2, 4, 5, 6)), "must be equal, or 1"),
        ((ones(3, 4, 5)[::-1], ones(3, 5, 6)), "run forwards"),
        ((ones(3, 4, 5), ones(3, 6, 6)), "A's columns must equal B's rows"),
        ((ones(3, 4, 5), ones(3, 5, 6), np.broadcast_to(ones(4, 6), (3, 4, 6))), "overlap"),
        ((tw.pointers([ones(4, 5)]), ones(1, 5, 6)), "A is pointers and B is not"),
        ((ones(1, 4, 5), ones(1, 5, 6), tw.pointers([ones(4, 6)])), "out is pointers and A is not"),
        ((tw.pointers([ones(4, 5)]), tw.pointers([ones(5, 6)] * 2)), "sizes differ"),
        ((tw.pointers([ones(4)]), tw.pointers([ones(4)])), "A has shape"),
    ],
)
def test_calls_that_do_not_fit_are_refused(made, words):
    inputs, out = made[:2], made[2] if len(made) > 2 else None
    with pytest.raises(BadArgument, match=words):
        problem_of([arrays.view(x) for x in inputs], None if out is None else arrays.view(out), {})


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ((ones(2, 4, 6),), "sizes differ: A 3, B 3, out 3, add 2"),
        ((tw.pointers([ones(4, 6)] * 3),), "arrays"),
        ((ones(3, 4, 6), ones(4, 6)), "one batch stride, not add 24, mul 0"),
    ],
)
def test_an_epilogues_matrices_are_batched_alike_or_shared(extra, words):
    epilogue = "+".join(("add", "mul")[: len(extra)])
    with pytest.raises(BadArgument, match=words):
        tw.gemm(ones(3, 4, 5), ones(3, 5, 6), *extra, epilogue=epilogue)


def test_a_matrix_of_the_epilogue_can_be_everyones():
    out = tw.gemm(ones(3, 4, 5), ones(3, 5, 6), ones(4, 6), epilogue="add")
    assert (out == 6).all()


# --- folding -------------------------------------------------------------------------------


def test_a_batch_over_one_b_that_lies_as_one_matrix_is_one_gemm_of_more_rows():
    a, b = ones(3, 4, 5), ones(5, 6)
    p = problem_of([arrays.view(x) for x in (a, b)], None, {})
    assert (p.m, p.n, p.k, p.batching, p.layout) == (12, 6, 5, "none", "rrr")
    assert tw.gemm(a, b).shape == (3, 4, 6)
    # So with one row each, at whatever distance, and with a matrix added.
    p = problem_of([arrays.view(x) for x in (ones(3, 9, 5)[:, :1], b)], None, {})
    assert (p.m, p.lda, p.batching) == (3, 45, "none")
    p = problem_of([arrays.view(x) for x in (a, b, ones(3, 4, 6))], None, {"epilogue": "add"})
    assert (p.m, p.ldd, p.batching) == (12, 6, "none")


def test_a_batch_over_one_a_is_one_gemm_of_more_columns_if_c_lies_so():
    a, b, c = ones(4, 5), ones(3, 6, 5), ones(4, 18)
    columns = np.lib.stride_tricks.as_strided(c, (3, 4, 6), (24, 72, 4))
    assert (np.hstack(columns) == c).all()
    p = problem_of([arrays.view(x) for x in (a, b.transpose(0, 2, 1))], arrays.view(columns), {})
    assert (p.m, p.n, p.layout, p.ldc, p.batching) == (4, 18, "rcr", 18, "none")
    columns[...] = 0
    assert (tw.gemm(a, b.transpose(0, 2, 1), out=columns) == 5).all()


@pytest.mark.parametrize(
    ("a", "extra", "epilogue"),
    [
        (ones(3, 7, 5)[:, :4], (), ""),  # room between the matrices of A
        (ones(3, 4, 5), (ones(4),), "row_scale"),  # a value for each row of a matrix
        (ones(3, 4, 5), (ones(4, 6),), "add"),  # a matrix for all
    ],
)
def test_other_batches_over_one_b_stay_batches(a, extra, epilogue):
    p = problem_of([arrays.view(x) for x in (a, ones(5, 6), *extra)], None, {"epilogue": epilogue})
    assert (p.m, p.batch, p.batching, p.stride_b) == (4, 3, "strided", 0)
    out = tw.gemm(a, ones(5, 6), *extra, epilogue=epilogue)
    assert out.shape == (3, 4, 6) and (out == 5 + (epilogue == "add")).all()


def test_a_batch_can_be_asked_for(hopper):
    views = [arrays.view(x) for x in (ones(3, 4, 5), ones(5, 6))]
    assert problem_of(views, None, {"batching": "strided"}).batching == "strided"
    assert problem_of(views, None, {}, batching="strided").batching == "strided"
    kernel = config(dtype_a="fp32", layout="rrr", batching="strided", alignment=1)
    assert (hopper.run_named(kernel.name, ones(3, 4, 5), ones(5, 6)) == 5).all()
    with pytest.raises(BadArgument, match="batching is strided, but the operands are none"):
        tw.gemm(ones(4, 5), ones(5, 6), batching="strided")


# --- pointers ------------------------------------------------------------------------------


def test_pointers_take_matrices_that_lie_anywhere():
    rng = np.random.default_rng(4)
    memory = rng.standard_normal((6, 40, 48), np.float32)
    a = [memory[5, :33], memory[0, :33], memory[2, 7:]]
    b = [rng.standard_normal((48, 20), np.float32) for _ in range(2)]
    c = [np.empty((33, 20), np.float32) for _ in range(3)]
    out = tw.pointers(c)
    assert tw.gemm(tw.pointers(a), tw.pointers([b[1], b[0], b[1]]), out=out) is out
    for x, y, z in zip(a, (b[1], b[0], b[1]), c, strict=True):
        assert np.allclose(z, x @ y, atol=1e-4)


def test_an_output_of_pointers_is_made_where_none_is_given():
    out = tw.gemm(tw.pointers([ones(4, 5), ones(4, 5) * 2]), tw.pointers([ones(5, 6)] * 2))
    assert isinstance(out, tw.Pointers) and isinstance(out.arrays[0], np.ndarray)
    assert [x[0, 0] for x in out.arrays] == [5, 10]


def test_pointers_say_the_alignment_of_what_they_point_to():
    memory = np.zeros(1024, np.float32)
    start = -memory.ctypes.data // 4 % 4  # elements up to a multiple of 16 bytes
    even, odd = (memory[start + i : start + i + 16].reshape(4, 4) for i in (0, 17))
    assert tw.pointers([even]).alignment == 16
    assert tw.pointers([even, odd]).alignment == 4
    views = [arrays.view(tw.pointers(x)) for x in ([even, odd], [even, even])]
    assert problem_of(views, None, {}).alignment == 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tw.pointers([]), "no arrays"),
        (lambda: tw.pointers([ones(4, 5), ones(5, 4)]), "array 1 is fp32"),
        (lambda: tw.pointers([ones(4, 4), ones(4, 4).T]), "one shape, strides and dtype"),
        (lambda: tw.pointers([ones(4, 4), ones(4, 4).astype("float16")]), "array 1 is fp16"),
        (lambda: tw.pointers([ones(4, 4)], (4, 4)), "leave them out"),
        (lambda: tw.pointers([3]), "array 0 is a int"),
        (lambda: tw.pointers(np.zeros(3, np.int64), (4, 4), "fp32"), "only on a GPU"),
    ],
)
def test_arrays_that_cannot_be_packed_are_refused(make, words):
    with pytest.raises(BadArgument, match=words):
        make()


def test_the_output_may_not_be_the_array_of_an_operands_pointers():
    a = tw.pointers([ones(4, 4)])
    with pytest.raises(BadArgument, match="shares memory"):
        tw.gemm(a, tw.pointers([ones(4, 4)]), out=a)


def test_pointers_need_a_kernel_for_pointers(hopper):
    a = tw.pointers([ones(64, 64)])
    with pytest.raises(UnsupportedProblem, match="batching is strided, the problem has pointers"):
        hopper.run_named(config(dtype_a="fp32", layout="rrr", batching="strided").name, a, a)
