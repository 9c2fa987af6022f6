"""What problems of every family have in common."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from tilewright import (
    AttentionBackwardProblem,
    AttentionProblem,
    CausalConvProblem,
    ConvProblem,
    GemmProblem,
    GroupedGemmProblem,
    MergeStatesProblem,
    ops,
)
from tilewright.dtypes import COUNTERPART
from tilewright.errors import BadArgument
from tilewright.ops.counterpart import counterpart, other_type
from tilewright.ops.problem import Problem

SOME = (
    lambda m: GemmProblem(m, 512, 256),
    lambda m: GemmProblem(m, 512, 256, epilogue="bias+add", batch=3),
    lambda m: GroupedGemmProblem("contiguous", groups=8, m=m, n=512, k=256),
    lambda m: GroupedGemmProblem("list", sizes=((m, 64, 64), (7, 128, 64))),
    lambda m: AttentionProblem(2, 8, m, 512, 64, kv_heads=2, right=0, softcap=30.0),
    lambda m: AttentionBackwardProblem(2, 8, m, 512, 64, right=0, grads="dk+dv"),
    lambda m: AttentionProblem(
        m,
        8,
        m,
        130,
        64,
        total_q=3 * m,
        total_kv=300,
        others="packedq+packedkv",
        right=0,
        layout="bshd",
        bias_shape=(1, 8, 1),
    ),
    lambda m: ConvProblem(m, 64, 32, (28, 28), (3, 3), pad=(1, 1), direction="data"),
    lambda m: ConvProblem(m, 64, 32, (29, 30), (3, 3), stride=(2, 2), pad=(2, 0)),
    lambda m: CausalConvProblem(m, 64, 100, direction="backward", extras="bias+silu"),
    lambda m: MergeStatesProblem(m, 8, 64, states=3),
)


def test_every_family_has_such_problems():
    assert {make(8).family for make in SOME} == {*ops.with_a_folder()}
    for name in ops.families():
        assert issubclass(ops.family(name).problem_type, Problem)


@pytest.mark.parametrize("make", SOME)
def test_problems_are_equal_by_what_they_say(make):
    one, same, other = make(8), make(8), make(9)
    assert one == same and hash(one) == hash(same) and one is not same
    assert one != other and one != "gemm" and {one: 1}.get(same) == 1 and other not in {one}
    for again in (
        replace(one),
        copy.copy(one),
        copy.deepcopy(one),
        pickle.loads(pickle.dumps(one)),
    ):
        assert again == one and hash(again) == hash(one) and again is not one


@pytest.mark.parametrize("make", SOME)
def test_every_field_counts(make):
    one = make(8)
    assert one._values == tuple(getattr(one, field.name) for field in fields(one))


def test_problems_of_two_families_differ():
    assert SOME[0](8) != SOME[2](8)


def test_a_problem_stays_what_it_is():
    with pytest.raises(FrozenInstanceError):
        SOME[0](8).m = 9


def test_numbers_of_other_libraries_are_pythons_in_a_problem():
    sizes = (np.int64(64), np.uint8(32), np.array(16))
    problem = GemmProblem(*sizes)
    assert problem == GemmProblem(64, 32, 16) and repr(problem) == repr(GemmProblem(64, 32, 16))
    assert {type(n) for n in (problem.m, problem.n, problem.k)} == {int}
    conv = ConvProblem(2, 8, 8, [np.int64(5), 5], (3, np.int32(3)))
    assert conv == ConvProblem(2, 8, 8, (5, 5), (3, 3))
    attention = AttentionProblem(1, 2, 8, 8, 16, softcap=np.float32(30), left=np.int64(5))
    assert type(attention.softcap) is float and type(attention.left) is int
    for value in (True, "64", 64.0, None, np.bool_(True)):
        with pytest.raises(BadArgument, match="m must be an integer"):
            GemmProblem(value, 32, 16)


@pytest.mark.parametrize("make", SOME)
def test_a_counterpart_is_what_a_checked_problem_would_be(make):
    """So rows of the other type are found by problems that nobody checks again."""
    problem = make(8)
    dtype = other_type(problem)
    stated = {field.name: getattr(problem, field.name) for field in fields(problem)}
    other = {name: dtype for name, value in stated.items() if value in COUNTERPART}
    assert counterpart(problem) == replace(problem, **other) != problem
    assert counterpart(counterpart(problem)) == problem


@pytest.mark.parametrize("make", SOME)
def test_problems_near_one_are_what_checked_problems_would_be(make):
    family = ops.family(make(8).family)
    for size in (1, 8, 37):
        problem = make(size)
        near = [one.problem for one in family.nearby(problem)]
        for one in (family.tuning_key(problem), *near):
            assert replace(one) == one


def test_only_one_of_the_two_types_has_a_counterpart():
    assert other_type(GemmProblem(8, 8, 8, dtype_a="fp32")) == ""
    assert other_type(GemmProblem(8, 8, 8, dtype_a="e4m3fn", dtype_c="fp16")) == "bf16"
    assert other_type(GemmProblem(8, 8, 8, dtype_a="bf16", dtype_c="fp32")) == "fp16"
