"""Batches of GEMMs as problems: what their fields mean, and which cannot be meant."""

from __future__ import annotations

import pytest
from batch_cases import BATCH, label, nested, problem
from gemm_cases import problem_of

from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.operands import operands
from tilewright.ops.nouns import View


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
    stated = FAMILY.parse_problem({**sizes, "outer_strides": "256,192,192,0"}, arch("sm_90"))
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
