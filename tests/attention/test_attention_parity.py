"""The grid has every feature often enough, a part of it is right, and the rule refuses what is
wrong. All of it: `benchmarks/parity.py attention`, and `tests/gpu/test_gpu_attention.py`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parity_cases import COUNT, EACH, compute, coverage, grid, parity, toy

from tilewright import verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.ops import family
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.features import FEATURES

GRID = grid()
SMALL = [number for number, p in enumerate(GRID) if toy(p, 3e3)][:20]


def test_every_feature_is_in_many_problems():
    assert len(GRID) == COUNT >= 300
    found = coverage(GRID)
    for word in (
        *FEATURES,
        "mask none",
        "mask causal",
        "mask window",
        "top_left",
        "strided",
        "mha",
    ):
        assert found[word] >= EACH, word
    for word in ("bf16", "fp16", "fp32", "e4m3fn", "kv e4m3fn", "q bhsd", "kv bhsd", "gqa"):
        assert found[word] >= EACH, word


def test_the_grid_is_the_same_every_time():
    assert grid() == GRID


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher()


@pytest.mark.turns(16)
@pytest.mark.parametrize("number", SMALL)
def test_a_part_of_the_grid_is_right(dispatcher, number):
    wrong = compute(dispatcher, GRID[number], number, "cpu")
    assert not wrong, wrong


def test_the_rule_refuses_what_is_twice_as_far_as_torch():
    p = AttentionProblem(1, 2, 64, 64, 32, right=0)
    operands = verify.operands_of(p, 0)
    wanted = verify.reference(p, operands.inputs)["o"]
    right = wanted.astype(operands.outputs["o"].dtype)
    good = parity(p, operands.inputs, right, wanted)
    assert good.ok and 0 < good.error < good.torch < good.bound < 0.1
    wrong = wanted.copy()
    wrong[0, 5, 1, 7] += 1.01 * good.bound
    assert not parity(p, operands.inputs, wrong, wanted).ok


@pytest.mark.parametrize(
    ("said", "computed"),
    [
        ({"right": 0}, {"right": 1}),
        ({"right": 0}, {"right": -1}),
        ({"left": 40, "right": 0}, {"left": 41, "right": 0}),
        ({"right": 0}, {"right": 0, "corner": "top_left"}),
        ({"softcap": 15.0}, {"softcap": 20.0}),
        ({"left": 12, "right": 12}, {"left": 12, "right": 11}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "e4m3fn"])
def test_the_tolerances_refuse_another_problems_result(dtype, said, computed):
    sizes = {"batch": 2, "heads": 2, "q_len": 90, "kv_len": 200, "head_dim": 32, "dtype": dtype}
    asked, given = (AttentionProblem(**{**sizes, **each}) for each in (said, computed))
    inputs = verify.operands_of(asked, 1).inputs
    out = verify.reference(given, inputs)["o"]
    wanted = verify.reference(asked, inputs)["o"]
    allowed = family("attention").tolerances(asked, None)["o"]
    assert verify.compare(wanted.copy(), wanted, allowed).ok
    assert not verify.compare(out, wanted, allowed).ok


def test_a_dropped_feature_is_noticed():
    """The result without a feature is outside the tolerance of the problem with it."""
    plain = AttentionProblem(1, 2, 40, 60, 32)
    words = {"bias_shape": (1, 2)}, {"others": "alibi"}, {"others": "sinks"}, {"dropout": 0.25}
    for fields in words:
        p = replace(plain, **fields)
        inputs = verify.operands_of(p, 1).inputs
        wanted = verify.reference(p, inputs)["o"]
        out = verify.reference(plain, inputs)["o"]
        assert not verify.compare(out, wanted, family("attention").tolerances(p, None)["o"]).ok


def test_each_problem_of_the_grid_has_a_kernel():
    for name in ("sm_90", "gfx942"):
        this = arch(name)
        for p in grid("e4m3fn" if this.fp8 == "ocp" else "e4m3fnuz")[::7]:
            configs = family("attention").default_space(p, this).expand(this).configs
            assert any(family("attention").supports(c, p, this) for c in configs), str(p)
