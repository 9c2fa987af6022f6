"""Batches: what a problem and a call of one mean, which kernels serve it, that they are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batch_cases import BATCH, batched, cases, nested, problem, summed, with_epilogues
from gemm_cases import config, problem_of

import selection
import tilewright as tw
from shared_builds import build_once
from simulate import worst_error
from tilewright import arrays, verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, UnsupportedProblem
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.support import supports
from tilewright.ops.nouns import MAIN, Descriptor, View

SM90 = arch("sm_90")


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    """With few compute units, so that a persistent workgroup walks from matrix to matrix."""
    return Dispatcher(device=replace(device("h200_sxm"), compute_units=5))


# --- results -------------------------------------------------------------------------------


def label(case) -> str:
    kernel, given = case
    strides = ",".join(map(str, given.batch_strides[:3]))
    return f"{kernel.pipeline}-{kernel.scheduler}-{given.layout}-{given.dtype_a}-{strides}"


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_kind_of_batch_is_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(4)
@pytest.mark.parametrize("case", with_epilogues("sm_90"), ids=label)
def test_epilogues_of_batches_are_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", nested("sm_90"), ids=label)
def test_nested_batches_are_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(6)
@pytest.mark.parametrize("case", summed("sm_90"), ids=label)
def test_sums_over_a_batch_are_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(4)
@pytest.mark.parametrize(
    "case", [case for case in summed("sm_90") if "gluon" in case[0].pipeline], ids=label
)
def test_sums_over_a_batch_are_right_in_the_simulation(case):
    kernel, given = case
    few = replace(device("h200_sxm"), compute_units=3)
    assert worst_error(kernel, given, few, seed=1) <= 1


def test_a_batch_is_summed_into_one_matrix(hopper):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 9, 20), np.float32), rng.standard_normal((3, 20, 11), np.float32)
    wanted = np.einsum("zmk,zkn->mn", a, b)
    assert np.allclose(hopper.run("gemm", a, b, batching="summed"), wanted, atol=1e-4)
    out = np.empty((9, 11), np.float32)
    assert hopper.run("gemm", a, b, out=out, batching="summed") is out
    assert np.allclose(out, wanted, atol=1e-4)
    shared = hopper.run("gemm", a[0], b, batching="summed")
    assert np.allclose(shared, a[0] @ b.sum(0), atol=1e-4)
    assert (hopper.run("gemm", a[:0], b[:0], batching="summed") == 0).all()


def test_a_sum_over_a_batch_counts_as_the_rest():
    p = GemmProblem(10, 20, 30, batch=4, batching="summed", epilogue="add")
    assert p.batch_strides == (300, 600, 0, 0) and p.matrices == (4, 4, 1, 1)
    assert p.flops == 4 * 2 * 10 * 20 * 30
    assert p.min_bytes == 2 * (4 * 10 * 30 + 4 * 30 * 20 + 2 * 10 * 20)
    assert str(p).endswith("sum of 4 aligned to 4")
    views = [View(o.shape, o.strides, o.dtype, 256, "cpu") for o in operands(p)]
    assert [v.shape for v in views] == [(4, 10, 30), (4, 30, 20), (10, 20), (10, 20)]
    assert problem_of(views[:-1], views[-1], FAMILY.options(p)) == p
    assert FAMILY.gradients(p, ["A"]).rule == "gradients_batching"


def test_a_sum_over_a_batch_has_the_steps_of_all_matrices():
    how = {"batching": "summed", "scheduler": "split_k", "reduction": "linear"}
    p = GemmProblem(128, 128, 65, batch=3, batching="summed", alignment=2)
    of_six, of_seven = (config(split_k=parts, alignment=1, **how) for parts in (6, 7))
    assert supports(of_six, p, SM90)
    assert "k = 65 is 6 steps of 64, too few" in supports(of_seven, p, SM90).reason
    far = replace(p, batch=2**25)
    assert supports(replace(of_six, index_bits=64), far, SM90).rule == "extent"
    few, more = (
        FAMILY.estimate(of_six, replace(p, batch=batch), device("h200_sxm")).total_us
        for batch in (32, 256)
    )
    assert more > 4 * few


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((4, 5), (5, 6)), "sums the products of a batch"),
        (((2, 4, 5), (3, 5, 6)), "A 2, B 3"),
        (((2, 4, 5), (2, 5, 6), (2, 4, 6)), "out 2"),
    ],
)
def test_sums_over_no_batch_are_refused(shapes, words):
    *inputs, out = (ones(*shape) for shape in (*shapes, *(((4, 6),) * (len(shapes) == 2))))
    with pytest.raises(BadArgument, match=words):
        tw.gemm(*inputs, out=out, batching="summed")


def test_every_matrix_gets_its_own(hopper):
    """Neighbours must not be mixed up, which random data of one distribution would show only by
    values: here matrix z of A is z times the identity."""
    a = np.stack([np.eye(48, dtype=np.float32) * z for z in range(7)])
    b = np.random.default_rng(0).standard_normal((7, 48, 40), np.float32)
    for kernel in (None, config(dtype_a="fp32", layout="rrr", pipeline="tma", batching="strided")):
        run = hopper.run if kernel is None else hopper.run_named
        out = run("gemm" if kernel is None else kernel.name, a, b)
        assert np.allclose(out, np.arange(7, dtype=np.float32)[:, None, None] * b)


def test_nothing_between_the_matrices_is_written(hopper):
    whole = np.full((3, 40, 90), 7.0, np.float32)
    a, b = (np.ones(shape, np.float32) for shape in ((3, 33, 20), (20, 45)))
    hopper.run("gemm", a, b, out=whole[:, 4:37, 8:53])
    inside = np.zeros(whole.shape, bool)
    inside[:, 4:37, 8:53] = True
    assert (whole[inside] == 20).all() and (whole[~inside] == 7).all()


def test_a_kernel_in_gluon_is_stood_in_for(hopper):
    fields = {"scheduler": "persistent", "batching": "strided"}
    kernel = config(pipeline="gluon_ws", **fields)
    assert FAMILY.interpreted(kernel) == config(pipeline="tma", **fields)
    result = verify.verify(hopper, GemmProblem(80, 96, 144, batch=3), kernel.name)
    assert result.ok, result


# --- nothing to do -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes",
    [((0, 4, 5), (0, 5, 6)), ((0, 4, 5), (5, 6)), ((2, 0, 5), (2, 5, 6)), ((4, 5), (5, 0))],
)
def test_outputs_without_elements_are_returned(hopper, shapes):
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    expected = a @ b
    assert hopper.run("gemm", a, b).shape == expected.shape
    out = np.empty_like(expected)
    assert hopper.run("gemm", a, b, out=out) is out


def test_a_sum_over_nothing_is_what_the_epilogue_makes_of_zeros(hopper):
    a, b = np.ones((2, 4, 0), np.float32), np.ones((2, 0, 6), np.float32)
    assert (hopper.run("gemm", a, b) == 0).all()
    bias = np.arange(6, dtype=np.float32)
    out = hopper.run("gemm", a[0], b[0], bias, epilogue="bias")
    assert np.array_equal(out, np.broadcast_to(bias, (4, 6)))


@pytest.mark.parametrize(
    "given",
    [
        GemmProblem(64, 64, 64, batch=0),
        GemmProblem(0, 64, 64),
        GemmProblem(64, 64, 0, batch=2),
        GemmProblem(64, 64, 64, batch=0, batching="strided", stride_b=0),
        GemmProblem(64, 64, 64, batch=0, batching="pointers"),
    ],
    ids=str,
)
def test_problems_without_work_are_planned_and_verified_like_others(hopper, given):
    assert hopper.select(given).config
    assert hopper.explain(given).chosen
    assert verify.verify(hopper, given).ok
    assert given.flops == 0


def test_only_basic_starts_from_nothing():
    none = GemmProblem(64, 64, 0)
    assert supports(config(alignment=1), none, SM90)
    kernel = config(pipeline="tma")
    assert supports(kernel, replace(none, lda=8, ldb=8, alignment=16), SM90).rule == "extent"
    sharing = config(scheduler="split_k", split_k=2, reduction="linear", alignment=1)
    assert supports(sharing, GemmProblem(0, 64, 256), SM90).reason == "there is no tile to share"


# --- problems ------------------------------------------------------------------------------


def test_a_batch_of_one_is_an_ordinary_problem_unless_said():
    assert GemmProblem(8, 8, 8).batching == "none"
    assert GemmProblem(8, 8, 8, batch=1, batching="strided").batching == "strided"
    assert GemmProblem(8, 8, 8, batch=2).batching == "strided"


def test_strides_default_to_packed_and_count_as_the_rest():
    p = GemmProblem(10, 20, 30, batch=4, lda=32)
    assert p.batch_strides == (10 * 32, 20 * 30, 10 * 20, 0)
    assert p.flops == 4 * 2 * 10 * 20 * 30
    assert p.min_bytes == 4 * 2 * (10 * 30 + 30 * 20 + 10 * 20)
    shared = GemmProblem(10, 20, 30, batch=4, stride_b=0)
    assert shared.min_bytes == 2 * (4 * 10 * 30 + 30 * 20 + 4 * 10 * 20)
    assert p.spans_bytes[0] == 2 * (3 * 320 + 9 * 32 + 30)


def test_a_batch_stride_can_lower_the_alignment():
    assert GemmProblem(64, 64, 64, batch=2).alignment == 16
    assert GemmProblem(64, 64, 64, batch=2, stride_a=64 * 64 + 1).alignment == 2
    with pytest.raises(BadArgument, match="batch strides are only multiples of 2"):
        GemmProblem(64, 64, 64, batch=2, stride_a=64 * 64 + 1, alignment=16)


def test_it_says_its_batch():
    assert str(GemmProblem(8, 8, 8, batch=3)) == "gemm 8×8×8 bf16 rcr batch 3"
    assert str(GemmProblem(8, 8, 8, batch=3, stride_a=0)).endswith("batch 3 strides 0,64,64")
    assert str(GemmProblem(8, 8, 8, batch=3, batching="pointers")).endswith("batch 3 by pointers")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": -1}, "batch = -1"),
        ({"batch": 2.0}, "an integer"),
        ({"batch": True}, "an integer"),
        ({"batch": 2, "batching": "none"}, "batching none"),
        ({"batching": "strides"}, "did you mean 'strided'"),
        ({"batching": 3}, "not one of"),
        ({"stride_a": 64}, "no strided matrices"),
        ({"batch": 2, "batching": "pointers", "stride_c": 64}, "no strided matrices"),
        ({"batch": 2, "stride_d": 64}, "no strided matrices"),
        ({"batch": 2, "stride_b": -2}, "outside 0"),
        ({"batch": 2, "stride_b": 2**40}, "outside 0"),
        ({"batch": 2, "stride_b": 64.0}, "an integer"),
        ({"batch": 2, "stride_a": 0, "stride_b": 0}, "every C would be the same"),
        ({"batch": 2, "stride_c": 0}, "overlap"),
        ({"batch": 2, "stride_c": 8 * 8 - 1}, "overlap"),
        ({"batch": 3, "stride_c": 8, "ldc": 23}, "overlap"),
        ({"batch": 2, "batching": "summed", "stride_c": 64}, "no strided matrices"),
        ({"batching": "summed", "stride_a": 0, "stride_b": 0}, "every product would be the same"),
    ],
)
def test_batches_that_cannot_be_meant_are_refused(fields, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(8, 8, 8, **fields)


def test_a_batch_of_one_shares_its_operands_with_nothing():
    one = GemmProblem(8, 8, 8, batch=1, batching="strided", stride_a=0, stride_b=0, stride_c=0)
    assert (one.batch, one.stride_a, one.stride_b) == (1, 0, 0)


def test_matrices_of_c_may_lie_within_each_others_rows():
    assert GemmProblem(8, 8, 8, batch=3, stride_c=8, ldc=24).stride_c == 8


def test_a_nested_batch_is_packed_unless_said_and_counts_as_the_rest():
    how = {"batch": 6, "batching": "nested", "batch_inner": 3}
    p = GemmProblem(10, 20, 30, lda=32, epilogue="add", **how)
    assert p.batch_strides == (10 * 32, 20 * 30, 200, 200)
    assert p.outer_strides == (3 * 10 * 32, 3 * 20 * 30, 600, 600)
    assert (p.flops, p.matrices) == (6 * 2 * 10 * 20 * 30, (6, 6, 6, 6))
    shared = GemmProblem(10, 20, 30, stride_a=0, outer_strides=(512, 0, 1024, 0), **how)
    assert shared.matrices == (2, 3, 6, 1)
    assert shared.spans_bytes[:2] == (2 * (512 + 9 * 30 + 30), 2 * (2 * 600 + 19 * 30 + 30))
    assert str(shared).endswith("batch 6 of 3 each strides 512+0,0+600,1024+200 aligned to 4")
    odd = GemmProblem(8, 8, 8, outer_strides=(192, 193, 192, 0), **how)
    assert odd.alignment == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batching": "strided", "batch_inner": 3}, "batch_inner = 3 .* of batching nested, not"),
        ({"batching": "strided", "outer_strides": (1, 1, 1, 0)}, "are of batching nested, not"),
        ({"batch_inner": 0}, "batch_inner = 0 does not divide the batch of 6"),
        ({"batch_inner": 4}, "batch_inner = 4 does not divide the batch of 6"),
        ({"batch_inner": 3.0}, "batch_inner = 3.0 does not divide"),
        ({"outer_strides": (192, 192, 192)}, "are not 4 numbers of elements"),
        ({"outer_strides": (192, -1, 192, 0)}, "are not 4 numbers of elements"),
        ({"outer_strides": (192, 192, 192, 192)}, "the epilogue has no matrix"),
        ({"outer_strides": (0, 0, 192, 0)}, "every C would be the same"),
        ({"outer_strides": (192, 192, 0, 0)}, "overlap: they are 0, 64 apart"),
        ({"outer_strides": (192, 192, 191, 0)}, "overlap"),
        ({"outer_strides": (192, 192, 64, 0), "stride_c": 127}, "overlap"),
    ],
)
def test_nested_batches_that_cannot_be_meant_are_refused(fields, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(8, 8, 8, **{"batch": 6, "batching": "nested", "batch_inner": 3, **fields})


@pytest.mark.parametrize("case", nested("sm_90"), ids=label)
def test_nested_operands_lie_as_the_problem_says_and_say_it_again(case):
    _, given = case
    views = [View(o.shape, o.strides, o.dtype, 256, "cpu") for o in operands(given)]
    assert problem_of(views[:-1], views[-1], FAMILY.options(given)) == given


def test_a_nested_batch_can_be_said_in_words():
    sizes = {"m": "8", "n": "8", "k": "8", "batch": "6", "batching": "nested", "batch_inner": "3"}
    stated = FAMILY.parse_problem({**sizes, "outer_strides": "256,192,192,0"}, SM90)
    assert stated.outer_strides == (256, 192, 192, 0)


@pytest.mark.parametrize("strides", ["packed", "apart", "shared A", "shared B", "beside"])
@pytest.mark.parametrize("layout", ["rcr", "ccc"])
def test_operands_lie_as_the_problem_says_and_say_it_again(strides, layout):
    given = problem(64, 32, 128, strides, {"layout": layout, "epilogue": "bias+add"})
    found = operands(given)
    assert [o.name for o in found] == ["A", "B", "bias", "add", "C"]
    assert found[-1].shape == found[3].shape == (BATCH, 64, 32) and found[2].shape == (32,)
    views = [View(o.shape, o.strides, o.dtype, 256, "cpu") for o in found]
    assert problem_of(views[:-1], views[-1], FAMILY.options(given)) == given


# --- calls ---------------------------------------------------------------------------------


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


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


# --- kernels -------------------------------------------------------------------------------


def test_a_batch_beyond_two_gibibytes_needs_64_bit_addresses():
    """Also where each matrix is small: the AMD compiler adds the batch's offset in 32 bits."""
    kernel, wide = (config(batching="strided", index_bits=bits) for bits in (32, 64))
    size = {"m": 1024, "n": 1024, "k": 1024}
    assert supports(kernel, GemmProblem(**size, batch=1023), SM90)
    large = GemmProblem(**size, batch=1024)
    assert supports(kernel, large, SM90).rule == "addressing"
    assert supports(wide, large, SM90)
    assert supports(config(pipeline="tma", batching="strided"), large, SM90)
    by_pointers = GemmProblem(**size, batch=1024, batching="pointers")
    assert supports(config(batching="pointers"), by_pointers, SM90)


def test_more_tiles_than_a_kernel_counts_are_refused():
    many = GemmProblem(1, 65, 1, batch=2**30)
    assert supports(config(alignment=1, batching="strided", index_bits=64), many, SM90).rule == (
        "extent"
    )


def test_a_shared_matrix_is_described_as_a_batch_of_one():
    """A tensor map's strides cannot be 0."""
    kernel = config(pipeline="tma", batching="strided")
    given = GemmProblem(64, 128, 256, batch=5, stride_b=0)
    (step,) = FAMILY.launch(kernel, given, device("h200_sxm")).steps
    a, b, c = (x for x in step.arguments if isinstance(x, Descriptor))
    assert (a.shape, a.strides, a.block) == ((5, 64, 256), (64 * 256, 256, 1), (1, 64, 64))
    assert (b.shape, b.strides) == ((1, 128, 256), (128 * 256, 256, 1))
    assert c.shape == (5, 64, 128) and step.grid == (5 * 2, 1, 1)


def test_more_matrices_take_longer_by_the_estimate():
    kernel, h200 = config(batching="strided"), device("h200_sxm")
    one, many = (GemmProblem(512, 512, 512, batch=b, batching="strided") for b in (1, 64))
    few, more = (FAMILY.estimate(kernel, p, h200).total_us for p in (one, many))
    assert more > 4 * few


ARCHS = selection.architectures(("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90"))


def compiled(name: str) -> list:
    made = [
        config(name, batching=b, epilogue="bias+add", layout=layout, alignment=alignment)
        for b, layout, alignment in (("strided", "rcr", 16), ("pointers", "crr", 16))
    ]
    made.append(config(name, batching="strided", index_bits=64, scheduler="persistent"))
    made.append(config(name, batching="nested", epilogue="bias+add"))
    made += [
        config(
            name,
            batching="strided",
            pipeline=p,
            scheduler="persistent",
            layout=layout,
            num_warps=8 if p == "gluon_pingpong" else 4,
        )
        for p in batched(name)[1:]
        for layout in ("rcr", "crc")
    ]
    return made


@pytest.fixture(scope="module")
def report(store):
    return build_once([(k, name) for name in ARCHS for k in compiled(name)], store)


@pytest.mark.turns(32, of="compiled batches")
def test_all_compile_and_fit_without_spilling(report):
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        assert result.kernel.resources.spill_bytes == 0, result.config.name


@pytest.mark.turns(24, of="compiled batches")
def test_loads_stay_as_wide_as_without_a_batch(report, store):
    """A matrix's offset, or an address read from memory, must not cost the vector loads."""
    for result in report.results:
        if result.arch.vendor == "nvidia":
            text = inspect(result.kernel, store, "ptx")
            if result.config.pipeline == "basic":
                assert "cp.async.cg.shared.global" in text, result.config.name  # 16 bytes a thread
            else:
                assert "cp.async.bulk.tensor.3d.shared::cluster.global" in text
                assert "cp.async.bulk.tensor.3d.global.shared::cta" in text
                assert "cp.async.bulk.tensor.2d" not in text
        else:
            text = inspect(result.kernel, store, "amdgcn")
            buffers = result.config.batching != "pointers" and result.config.index_bits == 32
            word = "buffer_load_dwordx4" if buffers else "global_load_dwordx4"
            assert word in text, result.config.name


@pytest.mark.turns(24, of="compiled batches")
@pytest.mark.parametrize("name", selection.architectures(("gfx942", "gfx1201", "sm_90")))
def test_sums_over_a_batch_compile_and_load_as_wide(name, store):
    """Which matrix a step is of must cost neither registers in memory nor the vector loads."""
    made = [kernel for kernel, _ in summed(name)[:: 1 if arch(name).vendor == "amd" else 3]]
    report = build_once([(kernel, name) for kernel in made], store)
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        assert result.kernel.resources.spill_bytes == 0, result.config.name
        if result.part != MAIN:
            continue
        if arch(name).vendor == "amd":
            word = "buffer_load_dwordx4" if arch(name).cdna else "buffer_load_b128"
            assert word in inspect(result.kernel, store, "amdgcn"), result
        else:
            text = inspect(result.kernel, store, "ptx")
            basic = result.config.pipeline == "basic"
            wide = "cp.async.cg.shared.global" if basic else "cp.async.bulk.tensor.3d.shared"
            assert wide in text, result.config.name
