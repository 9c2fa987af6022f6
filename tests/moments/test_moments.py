"""A family unlike GEMM goes the whole way: planned, interpreted, verified, called, captured.

It has two kernels, two outputs, temporaries, an optional operand, a scalar given at each call, and
descriptors of rank 4 and over a temporary.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from moments_family import FAMILY, MomentsConfig, MomentsProblem

import tilewright
from tilewright import arrays, capturing, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Descriptor, Given
from tilewright.registry import Registry

SMALL = MomentsProblem(2, 5, 11, 40, "fp16")


@pytest.fixture(scope="module")
def dispatcher() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def x_of(problem: MomentsProblem, seed: int = 0) -> np.ndarray:
    shape = (problem.n, problem.h, problem.w, problem.c)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


@pytest.mark.parametrize("fault", ["none", "y", "z"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_name_says_its_config(bias, fault):
    config = MomentsConfig("bf16", bias, 1, 64, 4, fault)
    assert FAMILY.parse_name(config.name) == config


def test_a_plan_has_two_steps_and_two_temporaries(dispatcher):
    launch = dispatcher.select(SMALL).launch
    assert [step.part for step in launch.steps] == ["partial", "combine"]
    assert [one.initial for one in launch.temporaries] == ["anything", "zero"]
    views = [a for step in launch.steps for a in step.arguments if isinstance(a, Descriptor)]
    assert [(view.operand, len(view.shape)) for view in views] == [("x", 4), ("sums", 3)]
    given = [a for step in launch.steps for a in step.arguments if isinstance(a, Given)]
    assert given == [Given("fp32", "scale")]


def test_every_candidate_is_explained(dispatcher):
    fates = dispatcher.explain(SMALL).fates
    assert fates[0].fate == "chosen" and len(fates) == 4
    refused = dispatcher.explain(replace(SMALL, c=41)).fates
    assert all(fate.fate == "refused" and fate.by == "alignment" for fate in refused)


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "problem",
    [
        SMALL,
        MomentsProblem(3, 8, 16, 64, "bf16", bias=True),
        MomentsProblem(1, 1, 1, 8, "fp16"),
        MomentsProblem(1, 3, 3, 4, "fp32"),
        MomentsProblem(2, 17, 9, 72, "bf16"),
    ],
    ids=str,
)
def test_both_outputs_are_right(dispatcher, problem):
    result = verify.verify(dispatcher, problem)
    assert result.ok, result


@pytest.mark.parametrize("output", ["y", "z"])
def test_a_fault_in_either_output_is_found_and_named(dispatcher, output):
    config = replace(dispatcher.select(SMALL).config, fault=output)
    result = verify.verify(dispatcher, SMALL, config.name)
    assert not result.ok and result.output == output
    assert f"in output {output}" in str(result)


def test_a_call_returns_both_outputs(dispatcher):
    x = x_of(SMALL)
    y, z = dispatcher.run("moments", x, scale=2.0)
    np.testing.assert_allclose(y, 2 * x.astype(np.float64).mean((1, 2)), rtol=2e-2, atol=2e-3)
    np.testing.assert_allclose(z, (x.astype(np.float64) ** 2).mean((1, 2, 3)), rtol=1e-3)
    assert y.dtype == np.float16 and z.dtype == np.float32
    again = tuple(np.empty_like(one) for one in (y, z))
    assert dispatcher.run("moments", x, scale=2.0, out=again) is again
    np.testing.assert_array_equal(again[0], y)


def test_an_optional_operand_goes_by_keyword(dispatcher):
    x, bias = x_of(SMALL), np.arange(40, dtype=np.float16)
    plain, _ = dispatcher.run("moments", x, scale=1.0, bias=None)
    added, _ = dispatcher.run("moments", x, scale=1.0, bias=bias)
    np.testing.assert_allclose(added - plain, np.tile(bias, (2, 1)), atol=0.05)


def test_a_scalar_is_no_part_of_a_plan(dispatcher):
    x = x_of(SMALL)
    for scale in (1.0, 3.0):
        y, _ = dispatcher.run("moments", x, scale=scale)
        np.testing.assert_allclose(y, scale * x.astype(float).mean((1, 2)), rtol=2e-2, atol=4e-3)
    with pytest.raises(BadArgument, match="moments needs scale=, a number, at each call"):
        dispatcher.run("moments", x)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda d, x: d.run("moments", x, x, scale=1.0), "takes x"),
        (lambda d, x: d.run("moments", x, scale=1.0, out=np.empty((2, 40), np.float16)), "y, z"),
        (lambda d, x: d.run("moments", x, scale=1.0, weight=x), "bias="),
        (
            lambda d, x: d.run("moments", x, scale=1.0, out=(x[:, 0, 0], np.empty(2, np.float32))),
            "shares memory",
        ),
    ],
)
def test_a_wrong_call_is_refused(dispatcher, call, says):
    with pytest.raises(BadArgument, match=says):
        call(dispatcher, x_of(SMALL))


def test_a_registry_keeps_it(tmp_path):
    names = [MomentsConfig(tile_h=h).name for h in (1, 2)]
    registry = Registry("moments").register_all(names)
    registry.save(tmp_path / "kernels.json")
    assert Registry.load(tmp_path / "kernels.json") == registry


def test_a_capture_keeps_its_problems(tmp_path, dispatcher):
    file = tmp_path / "shapes.jsonl"
    with tilewright.capture(file):
        for _ in range(3):
            dispatcher.run("moments", x_of(SMALL), scale=1.0)
    assert capturing.load(file) == {SMALL: 3}


def test_inputs_are_made_by_the_family():
    one = FAMILY.make_inputs(SMALL, arrays.Random(3))
    again = FAMILY.make_inputs(SMALL, arrays.Random(3))
    assert one["scale"] == again["scale"] and 0.5 <= one["scale"] <= 2.0
    assert np.array_equal(one["x"], again["x"])


def test_sources_are_two_kernels():
    for name in ("sm_90", "gfx942"):
        sources = FAMILY.sources(MomentsConfig(), arch(name))
        assert [s.function for s in sources.values()] == ["partial", "combine"]
    assert FAMILY.launch(MomentsConfig(), SMALL, device("mi300x")).workspace_bytes > 0
