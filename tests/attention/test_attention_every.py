"""What holds of every legal problem and every kind of kernel that serves it, on every architecture:
launches pass what kernels take, estimates are times, keys are their own keys."""

from __future__ import annotations

import math

import pytest
from attention_cases import drawn, ways
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.errors import BadArgument
from tilewright.ops.attention.stated import words_of
from tilewright.ops.nouns import Descriptor, Given, Pointer, Scalar

FAMILY = ops.family("attention")
SEEDS = st.integers(0, 10**9)
DEVICES = ("h200", "mi300x", "a100-sxm-80gb")
TYPES = {"i32": int, "i64": int, "fp32": float}


@pytest.mark.parametrize("name", DEVICES)
@given(seed=SEEDS)
@settings(max_examples=25)
def test_a_launch_passes_what_the_kernels_take(name, seed):
    on = device(name)
    this = arch(on.arch)
    p = drawn(seed, dtypes=("bf16", "fp16", "fp32"))
    for config in ways(p, this, interpreted=False):
        sources, launch = FAMILY.sources(config, this), FAMILY.launch(config, p, on)
        memory = {one.name for one in (*FAMILY.operands(p), *launch.temporaries)}
        assert [step.part for step in launch.steps] == [*sources], config.name
        for step in launch.steps:
            taken = sources[step.part].arguments
            assert len(taken) == len(step.arguments), f"{config.name} {step.part}"
            for (argument, kind), passed in zip(taken, step.arguments, strict=True):
                where = f"{config.name} {step.part} {argument}"
                match passed:
                    case Pointer():
                        assert kind.startswith("*") and passed.operand in memory, where
                    case Descriptor():
                        assert kind.startswith("tensordesc") and passed.operand in memory, where
                    case Scalar():
                        assert passed.type == kind and type(passed.value) is TYPES[kind], where
                        assert kind != "i32" or -(2**31) <= passed.value < 2**31, where
                    case Given():
                        assert passed.type == kind and passed.name in FAMILY.scalars, where


@pytest.mark.parametrize("name", DEVICES)
@given(seed=SEEDS)
@settings(max_examples=25)
def test_an_estimate_is_a_time_and_names_what_limits_it(name, seed):
    on = device(name)
    p = drawn(seed, dtypes=("bf16", "fp16", "fp32"))
    for config in ways(p, arch(on.arch), interpreted=False):
        found = FAMILY.estimate(config, p, on)
        assert 0.0 < found.total_us < math.inf, config.name
        assert found.limiter in dict(found.terms), config.name


@given(SEEDS)
def test_a_key_is_its_own_key_and_words_state_the_problem(seed):
    p = drawn(seed)
    key = FAMILY.tuning_key(p)
    assert FAMILY.tuning_key(key) == key
    assert FAMILY.parse_problem(words_of(p), arch("sm_90")) == p
    for near in FAMILY.nearby(p):
        assert near.how and near.problem.features == p.features


@given(SEEDS)
def test_batch_invariance_is_refused_with_a_reason_or_has_kernels(seed):
    p = drawn(seed, dtypes=("bf16", "fp16"))
    this = arch("sm_90")
    try:
        found = FAMILY.invariance(p)
    except BadArgument as error:
        assert str(error)
        return
    assert found.over
    configs = FAMILY.default_space(p, this).expand(this).configs
    assert any(FAMILY.invariant(c) and FAMILY.supports(c, p, this) for c in configs)
