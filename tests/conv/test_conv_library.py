"""Algorithms of the vendor's library for convolutions that are products: their names, what they
serve, and where they are expected to be faster."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean

import pytest

import choice_gain
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.geometry import channels_first
from tilewright.ops.conv.library_record import LONG, lying
from tilewright.ops.conv.names import check
from tilewright.ops.conv.pipelines import by_gemm
from tilewright.ops.conv.product import product
from tilewright.ops.library import Algorithm, Found, library_of
from tilewright.ops.nouns import Pointer
from tilewright.select.constraints import Constraints
from tilewright.tables import file
from tilewright.verdict import Verdict

FAMILY, SM_90, H200 = ops.family("conv"), arch("sm_90"), device("h200_sxm")
PLAIN = Algorithm(66, 20, 36, 1, "none", 0, 5, 0, 2)
IN_PLACE = Algorithm(24, 15, 0, 33, "inplace", 0, 0, 0, 0)
P = ConvProblem(64, 216, 864, (56, 56), (1, 1))
ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src" / "tilewright" / "tables" / "shipped" / "sm_90" / "conv_bf16.twt"


def of(p: ConvProblem, algorithm: Algorithm = PLAIN):
    return FAMILY.library_config(p, "cublaslt13", Found(algorithm, 32 << 20))


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_it_serves_the_product(direction):
    p = replace(P, direction=direction)
    c = of(p)
    assert library_of(c) == "cublaslt13" and FAMILY.parse_name(c.name) == check(c) == c
    assert FAMILY.supports(c, p, SM_90) and FAMILY.judge(c, SM_90)
    assert FAMILY.supports(c, replace(p, c=p.c + 1), SM_90).rule == "vector_width"
    assert FAMILY.supports(c, replace(p, filter=(3, 3)), SM_90).rule == "product"
    assert FAMILY.sources(c, SM_90) == {}
    (step,) = FAMILY.launch(c, p, H200).steps
    first, second, result, *_ = (a.operand for a in step.arguments if isinstance(a, Pointer))
    a, b, made = {"forward": "xwy", "data": "ywx", "weights": "yxw"}[direction]
    assert (first, second, result) == (b, a, made)
    asked = FAMILY.library_query(p, SM_90, "cublaslt13")
    assert step.theirs == replace(asked, algorithm=PLAIN)


def test_the_record_says_nothing_of_layers_that_it_does_not_have():
    """Of channels outside of pixels, and of few channels."""
    narrow = replace(P, c=215, k=215)
    assert FAMILY.library_faster(narrow, H200)
    first = {f"{name}_strides": channels_first(narrow.shape_of(name)) for name in "xwy"}
    for other in (replace(narrow, **first), replace(P, c=7), replace(P, k=7)):
        assert not FAMILY.library_faster(other, H200)


def test_only_products_are_asked_for():
    refused = FAMILY.library_query(replace(P, filter=(3, 3)), SM_90, "cublaslt13")
    assert isinstance(refused, Verdict) and refused.rule == "product"
    assert FAMILY.library_query(P, arch("gfx942"), "cublaslt13").rule == "library"


def test_constraints_leave_it_out():
    assert not Constraints(only_ours=True).allows(of(P), P, H200)
    assert FAMILY.repeats(of(P))
    assert not FAMILY.repeats(of(replace(P, dtype_out="fp32"), IN_PLACE))


def test_it_ranks_behind_what_is_built_here():
    ours = FAMILY.default_space(P, SM_90).expand(SM_90).configs[:3]
    ranked = [c for c, _ in FAMILY.rank(P, [of(P), *ours], H200)]
    assert ranked[-1] == of(P) and {*ranked[:-1]} == {*ours}


@pytest.mark.parametrize(
    ("p", "lies", "faster"),
    [
        (P, "askew", True),
        (replace(P, c=218), "narrow", True),
        (replace(P, c=224), "even", True),
        (replace(P, c=224, direction="data"), "even", False),
        (replace(P, c=224, k=2048, direction="data"), "even", True),
        (replace(P, n=1, spatial=(8, 8), direction="weights"), "askew", False),
        (replace(P, direction="weights"), "askew", True),
    ],
)
def test_where_it_is_expected_to_be_faster(p, lies, faster):
    assert lying(product(p)) == lies
    found = FAMILY.library_faster(p, H200)
    assert bool(found) is faster and found.rule == ("cublaslt" if faster else "record")


@pytest.mark.parametrize(
    ("p", "gpu"),
    [(P, "mi300x"), (replace(P, dtype="fp32", dtype_out="fp32"), "h200"),
     (replace(P, epilogue="bias"), "h200"), (replace(P, c=432, groups=2), "h200"),
     (replace(P, filter=(3, 3)), "h200")],
)  # fmt: skip
def test_what_was_not_timed_beside_it_is_left_to_kernels(p, gpu):
    assert not FAMILY.library_faster(p, device(gpu))


@pytest.mark.turns(32)
def test_where_the_record_has_it_ahead_it_is_and_where_not_it_is_not():
    """In either half of the layers that were measured, drawn by chance: a class that held for what
    it was counted from alone would not do."""
    known = {str(r.problem): r.problem for r in file.load(SHIPPED)}
    lines = choice_gain.rows("conv_tuned_h200.json")
    random.Random(0).shuffle(lines)
    found: dict[tuple[bool, str, str, bool], list[list[float]]] = defaultdict(lambda: [[], []])
    for number, row in enumerate(lines):
        p = known[row["problem"]]
        of = product(p)
        if {"library_us", "untuned_us"} <= row.keys() and of.batching == "none":
            ahead = bool(by_gemm.library_faster(p, H200))
            halves = found[ahead, p.direction, lying(of), of.k >= LONG]
            halves[number % 2].append(row["library_us"] / row["untuned_us"])
    assert {key[1:3] for key in found} == {
        (direction, how)
        for direction in ("forward", "data", "weights")
        for how in ("narrow", "askew", "even")
    }
    for (ahead, *which), halves in found.items():
        for half in halves:
            if len(half) >= 8:
                assert (geometric_mean(half) < 0.97) == ahead, which
