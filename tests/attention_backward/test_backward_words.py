"""Names of kernels, problems in words, operands of a call, rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from backward_cases import drawn
from hypothesis import given
from hypothesis import strategies as st

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.operands import contiguous
from tilewright.ops.attention.stated import words_of
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.problem import GRADIENTS
from tilewright.ops.nouns import Call, View
from tilewright.verdict import no

FAMILY = ops.family("attention_backward")
H200 = device("h200_sxm")
ARCHS = ("sm_80", "sm_90", "sm_120", "gfx90a", "gfx942", "gfx1100")
NAME = "attention_backward_bf16_bf16_d128x128_causal_64x32_w8_s1_basic_al16_g-dq-dk-dv"


def configs(seed, target="sm_90"):
    this = arch(target)
    return FAMILY.default_space(drawn(seed), this).expand(this).configs


@given(st.integers(0, 10**6), st.sampled_from(ARCHS))
def test_a_name_is_parsed_to_its_config(seed, target):
    for config in configs(seed, target):
        assert FAMILY.parse_name(config.name) == config
        assert ops.family_of(config.name) is FAMILY


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("64x32", "64"), "one looks like"),
        (("dq-dk-dv", "dk-dq"), "in order"),
        (("dq-dk-dv", "dq-do"), "no gradient"),
        (("basic", "fast"), "is not one of basic"),
        (("_g-", "_dlse_g-"), "one looks like"),
        (("_g-", "_sorted_g-"), "one looks like"),
    ],
)
def test_another_text_is_no_name(change, why):
    with pytest.raises(UnknownName, match=why):
        FAMILY.parse_name(NAME.replace(*change))


@given(st.integers(0, 10**6))
def test_every_problem_has_kernels_on_every_architecture(seed):
    problem = drawn(seed)
    for target in ARCHS:
        this = arch(target)
        found = FAMILY.default_space(problem, this).expand(this).configs
        assert any(FAMILY.supports(config, problem, this) for config in found)


@given(st.integers(0, 10**6))
def test_a_problem_is_what_its_call_states(seed):
    problem = drawn(seed)
    views = {
        one.name: View(one.shape, one.strides, one.dtype, 256, "cpu")
        for one in FAMILY.operands(problem)
    }
    keyword = {one.name for one in FAMILY.operands(problem) if one.keyword}
    positional = ["q", "k", "v", "o", "lse", "do"]
    targets, out = problem.grads.split("+"), None
    if problem.accumulate:
        positional += targets
    else:
        out = tuple(views[name] for name in targets)
    call = Call(
        tuple(views[name] for name in positional),
        {name: views[name] for name in views if name in keyword},
        out,
        FAMILY.options(problem),
    )
    again = FAMILY.problem_of(call)
    assert FAMILY.written(len(positional), keyword) == tuple(range(6, len(positional)))
    # Strides of an array without elements, or of contiguous ones, say nothing.
    strides = (f"{name}_strides" for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv"))
    plain = dict.fromkeys(strides, ())
    for name in ("dq", "dk", "dv"):
        if name in targets and 0 not in views[name].shape and not contiguous(views[name]):
            assert again.strides_of(name) == problem.strides_of(name)
    assert replace(again, **plain, alignment=1) == replace(problem, **plain, alignment=1)
    assert [one.name for one in FAMILY.outputs(call)] == ([] if out is None else targets)


@given(st.integers(0, 10**6))
def test_a_problem_is_what_its_words_say(seed):
    problem = drawn(seed)
    words = words_of(problem) | {"grads": problem.grads, "dlse": str(problem.dlse).lower()}
    words["accumulate"] = str(problem.accumulate).lower()
    plain = replace(problem, **dict.fromkeys(("dq_strides", "dk_strides", "dv_strides"), ()))
    found = FAMILY.parse_problem(words, arch("sm_90"))
    assert replace(found, alignment=1) == replace(plain, alignment=1)


def test_arrays_that_do_not_fit_are_refused():
    problem = AttentionBackwardProblem(2, 4, 8, 8, 16)
    views = [
        View(one.shape, one.strides, one.dtype, 256, "cpu")
        for one in FAMILY.operands(problem)
        if one.read
    ]
    for place, change, why in (
        (4, {"dtype": "bf16"}, "lse is bf16"),
        (4, {"strides": (1, 2, 8)}, "lse is not contiguous"),
        (5, {"dtype": "fp32"}, "do is fp32"),
        (5, {"strides": (512, 64, 16, 2)}, "do has rows"),
        (3, {"shape": (2, 9, 4, 16)}, "o is"),
    ):
        wrong = [replace(x, **change) if i == place else x for i, x in enumerate(views)]
        with pytest.raises(BadArgument, match=why):
            FAMILY.problem_of(Call(tuple(wrong)))
    with pytest.raises(BadArgument, match="no option 'lse'"):
        FAMILY.problem_of(Call(tuple(views), options={"lse": True}))
    out = View((2, 8, 4, 16), (512, 64, 16, 1), "bf16", 256, "cpu")
    with pytest.raises(BadArgument, match=r"3 gradients \(dq, dk, dv\) .* given 1$"):
        FAMILY.problem_of(Call(tuple(views), outputs=(out,)))
    with pytest.raises(BadArgument, match=r"given 2$"):
        FAMILY.problem_of(Call((*views, out, out)))
    with pytest.raises(BadArgument, match=r"given both$"):
        FAMILY.problem_of(Call((*views, out, out, out), outputs=(out, out, out)))
    with pytest.raises(BadArgument, match="dq has rows that are not contiguous"):
        FAMILY.problem_of(Call((*views, replace(out, strides=(512, 1, 128, 8)), out, out)))
    with pytest.raises(BadArgument, match="dk_strides says nothing"):
        replace(problem, grads="dq", dk_strides=(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("tile_rows", 48, "tile"),
        ("step_rows", 8, "tile"),
        ("num_warps", 64, "warps"),
        ("tile_rows", 512, "registers"),
        ("num_stages", 40, "shared_memory"),
        ("grads", "dbias", "gradients"),
        ("dtype_o", "fp16", "dtype"),
    ],
)
def test_a_rule_refuses(field, value, rule):
    config = FAMILY.parse_name(NAME)
    assert FAMILY.judge(config, arch("sm_90"))
    assert FAMILY.judge(replace(config, **{field: value}), arch("sm_90")).rule == rule


def test_a_config_serves_its_own_signature_alone():
    problem, this = AttentionBackwardProblem(1, 1, 8, 8, 128, right=0), arch("sm_90")
    config = FAMILY.parse_name(NAME)
    assert FAMILY.supports(config, problem, this)
    for change in ({"right": None}, {"dlse": True}, {"grads": "dq"}, {"head_dim": 64},
                   {"others": "sinks"}, {"dtype_o": "fp32"}):  # fmt: skip
        assert FAMILY.supports(config, replace(problem, **change), this).rule == "signature"
    near = replace(problem, alignment=8)
    assert FAMILY.supports(config, near, this).rule == "vector_width"


def test_a_kernel_that_does_not_repeat_serves_no_problem_that_must(monkeypatch):
    problem, this = AttentionBackwardProblem(1, 1, 8, 8, 128, right=0), arch("sm_90")
    config, repeated = FAMILY.parse_name(NAME), replace(problem, deterministic=True)
    assert FAMILY.supports(config, repeated, this)
    monkeypatch.setattr(type(FAMILY), "repeats", lambda self, c: no("deterministic", "adds"))
    assert FAMILY.supports(config, problem, this)
    assert FAMILY.supports(config, repeated, this).rule == "deterministic"


def test_gradients_are_as_deterministic_as_the_call_says():
    family = ops.family("attention")
    for said in ({}, {"deterministic": True}):
        p = AttentionProblem(1, 1, 8, 8, 16, **said)
        asked = family.gradients(p, ("q", "k")).computations[-1]
        assert asked.op == "attention_backward"
        assert asked.options == {"grads": "dq+dk", **said}


def test_work_counts_what_is_asked_for():
    p = AttentionBackwardProblem(1, 1, 8, 16, 32, head_dim_v=64)
    assert p.flops == 2 * 8 * 16 * (3 * 32 + 2 * 64)
    assert replace(p, grads="dv").flops == 2 * 8 * 16 * (32 + 64)
    assert replace(p, grads="dq").flops == 2 * 8 * 16 * (32 + 64 + 32)
    assert set(GRADIENTS) >= p.computed


def test_what_is_added_to_is_read_too():
    p = AttentionBackwardProblem(1, 1, 8, 16, 32)
    assert replace(p, accumulate=True).min_bytes - p.min_bytes == 2 * (8 + 16 + 16) * 32


def test_estimates_of_packed_sequences_are_of_the_rows_there_are():
    """A longer bound on the lengths, of as many rows in all, changes no estimate."""
    one = AttentionBackwardProblem(
        16, 16, 1024, 1024, 128, total_q=16384, total_kv=16384, others="packedq+packedkv"
    )
    loose = replace(one, q_len=8192, kv_len=8192)
    able = FAMILY.default_space(one, arch("sm_90")).expand(arch("sm_90")).configs
    for c in able:
        assert FAMILY.estimate(c, one, H200) == FAMILY.estimate(c, loose, H200)
    assert {c.pipeline for c in able} == {"basic", "gluon_ws"}
