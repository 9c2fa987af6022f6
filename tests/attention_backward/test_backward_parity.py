"""The grid of gradients has every feature often enough, a part of it is right, and the rule refuses
what is wrong. All of it: `benchmarks/parity.py attention-backward`, and
`tests/gpu/test_gpu_attention_backward.py`."""

from __future__ import annotations

import numpy as np
import pytest
from backward_cases import FEATURES
from backward_parity import COUNT, compute, coverage, grid, parity, toy

from tilewright import arrays, verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.ops import family
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.problem import GRADIENTS

GRID = grid()
SMALL = [number for number, p in enumerate(GRID) if toy(p, 2e3)][:12]


def test_every_feature_is_in_many_problems():
    assert len(GRID) == COUNT
    found = coverage(GRID)
    for word in (
        *FEATURES, *GRADIENTS, "dlse", "accumulate", "mask none", "mask causal", "mask window",
        "top_left", "strided", "mha", "gqa", "mqa", "two head dims", "bf16", "fp16", "fp32",
        "q bhsd", "kv bhsd",
    ):  # fmt: skip
        assert found[word] >= 20, word
    assert {p.head_dim for p in GRID} >= {32, 40, 64, 80, 96, 128, 160, 192, 256}
    assert any((p.head_dim, p.head_dim_v) == (192, 128) for p in GRID)


def test_the_grid_is_the_same_every_time():
    assert grid() == GRID


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher()


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("number", SMALL)
def test_a_part_of_the_grid_is_right(dispatcher, number):
    wrong = compute(dispatcher, GRID[number], number, "cpu")
    assert not wrong, wrong


def test_the_rule_refuses_what_is_further_off_than_torch():
    p = AttentionBackwardProblem(1, 2, 64, 64, 32, right=0)
    operands = verify.operands_of(p, 0)
    wanted = verify.reference(p, operands.inputs)
    right = {n: x.astype(operands.outputs[n].dtype) for n, x in wanted.items()}
    good = parity(p, operands.inputs, right)
    assert {*good} == {"dq", "dk", "dv"}
    for name, one in good.items():
        assert one.ok and 0 < one.error < one.torch < one.bound
        wrong = {n: x.copy() for n, x in wanted.items()}
        wrong[name][0, 5, 1, 7] += one.bound + one.error
        found = parity(p, operands.inputs, wrong)
        assert [n for n, each in found.items() if not each.ok] == [name]


@pytest.mark.parametrize(
    ("said", "computed"),
    [
        ({"right": 0}, {"right": 1}),
        ({"right": 0}, {"right": 0, "corner": "top_left"}),
        ({"left": 12, "right": 12}, {"left": 12, "right": 11}),
        ({"softcap": 15.0}, {"softcap": 20.0}),
        ({"dropout": 0.25}, {}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_tolerances_refuse_another_problems_gradients(dtype, said, computed):
    sizes = {"batch": 2, "heads": 2, "q_len": 90, "kv_len": 120, "head_dim": 32, "dtype": dtype}
    asked, given = (AttentionBackwardProblem(**{**sizes, **each}) for each in (said, computed))
    inputs = verify.operands_of(asked, 1).inputs
    wanted, other = verify.reference(asked, inputs), verify.reference(given, inputs)
    allowed = family("attention_backward").tolerances(asked, None)
    for name, one in wanted.items():
        assert verify.compare(one.copy(), one, allowed[name]).ok
        assert not verify.compare(other[name], one, allowed[name]).ok, name


@pytest.mark.parametrize("seed", [10, 11])
def test_rounding_do_to_16_bits_is_within_the_biass_tolerance(seed):
    """With these seeds one key has most of a query's weight."""
    p = AttentionBackwardProblem(
        1, 1, 512, 512, 64, head_dim_v=24, right=0, dtype="fp16", dtype_o="fp32",
        bias_shape=(1, 1), others="sinks", grads="dbias",
    )  # fmt: skip
    inputs = verify.operands_of(p, seed).inputs
    rounded = {**inputs, "do": inputs["do"].astype(np.float16).astype(np.float32)}
    found, wanted = verify.reference(p, rounded)["dbias"], verify.reference(p, inputs)["dbias"]
    allowed = family("attention_backward").tolerances(p, object())["dbias"]
    assert verify.compare(found, wanted, allowed).ok
    assert not verify.compare(found * 1.05, wanted, allowed).ok


@pytest.mark.parametrize(("pipeline", "rounds"), [("gluon_ws", True), ("basic", False)])
def test_heavy_terms_may_cancel_where_they_are_rounded_to_16_bits(pipeline, rounds):
    """Two heavy terms of opposite signs: what is left of them is small, and their roundings are
    not. A kernel that adds them in fp32 has none."""
    p = AttentionBackwardProblem(2, 1, 256, 256, 64, bias_shape=(1, 1), grads="dq+dk+dv+dbias")
    own, this = family("attention_backward"), arch("sm_90")
    usable = (
        c for c in own.default_space(p, this).expand(this).configs if own.supports(c, p, this)
    )
    config = next(c for c in usable if c.pipeline == pipeline)
    allowed = own.tolerances(p, config)["dbias"]
    usual = np.random.default_rng(0).normal(0.0, 0.05, (256, 256))
    heavy, wanted = usual.copy(), usual.copy()
    wanted[7, 5], heavy[7, 5] = 6.0 - 5.0, 6.0 - 5.0 + 2.0**-7 + 2.0**-8
    assert verify.compare(heavy, wanted, allowed).ok == rounds
    for share in (0.95, 1.05):
        scaled = usual.copy()
        scaled[7, 5] = 4.0
        assert not verify.compare(scaled * share, scaled, allowed).ok


def test_each_problem_of_the_grid_has_a_kernel():
    own = family("attention_backward")
    for name in ("sm_90", "gfx942"):
        this = arch(name)
        for p in GRID[::7]:
            configs = own.default_space(p, this).expand(this).configs
            assert any(own.supports(c, p, this) for c in configs), str(p)


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("seed", range(8))
def test_a_heavy_row_may_be_off_by_the_rounding_of_its_weights(name, seed):
    """With sinks most weights are small, and a few keys have heavy ones. Rounded weights move their
    rows by far more than the rms of all rows allows; light rows are held by it."""
    rng = np.random.default_rng(seed)
    p = AttentionBackwardProblem(1, 2, 4096, 4096, 64, right=0, others="sinks", grads="dq+dk+dv")
    weights, beside = rng.uniform(0.3, 1.0, (2, 8)), rng.normal(size=(8, 64))
    wanted = rng.normal(0.0, 0.01, (1, 4096, 2, 64))
    wanted[0, 0] = weights @ beside
    found = wanted.copy()
    found[0, 0] = arrays.rounded(weights, "bf16") @ beside
    allowed = family("attention_backward").tolerances(p, object())[name]
    assert verify.compare(found, wanted, allowed).ok
    found[0, 3000] *= 1.5
    assert not verify.compare(found, wanted, allowed).ok
