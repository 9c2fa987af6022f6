"""The reference of the gradients, against finite differences of the forward pass's reference."""

from __future__ import annotations

import numpy as np
import pytest
from backward_cases import drawn
from backward_parity import exact

from tilewright import arrays, ops, verify
from tilewright.ops.attention.reference import reference as forward
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.operands import OF
from tilewright.ops.attention_backward.reference import reference

FAMILY = ops.family("attention_backward")
STEP = 1e-5


def made(problem, seed):
    """Inputs in float64, with O and LSE before they are rounded."""
    return exact(problem, verify.operands_of(problem, seed).inputs)


def gained(problem, inputs):
    """The reference's gradients, without what they are added to."""
    found = reference(problem, inputs)
    return {n: x - inputs[n] if problem.accumulate else x for n, x in found.items()}


def loss(problem, inputs, changed):
    """Σ O·dO + Σ LSE·dLSE, over the rows that there are."""
    found = forward(problem.forward, {**inputs, **changed})
    total = np.nansum(found["o"] * inputs["do"])
    if problem.dlse:
        some = np.isfinite(found["lse"])
        total += (found["lse"][some] * inputs["dlse"][some]).sum()
    return total


@pytest.mark.parametrize("seed", range(15))
def test_it_is_the_derivative_of_the_forward_pass(seed):
    problem = drawn(seed, most=24, dtypes=("fp32",))
    inputs, rng = made(problem, seed), np.random.default_rng(seed)
    found = gained(problem, inputs)
    assert {*found} == set(problem.grads.split("+"))
    for name, gradient in found.items():
        of = inputs[OF[name]]
        way = np.where(np.isnan(of), 0.0, rng.standard_normal(of.shape))
        ahead, behind = (
            loss(problem, inputs, {OF[name]: of + sign * STEP * way}) for sign in (1, -1)
        )
        along = (gradient * way).sum()
        size = np.abs(gradient * way).sum()
        assert (ahead - behind) / (2 * STEP) == pytest.approx(
            along, rel=1e-5, abs=1e-6 * size + 1e-7
        )


@pytest.mark.parametrize("seed", range(30, 40))
def test_in_torch_it_is_the_same(seed):
    torch = pytest.importorskip("torch")
    problem = drawn(seed, most=40)
    inputs = made(problem, seed)
    there = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in inputs.items()}
    for name, found in reference(problem, there).items():
        np.testing.assert_allclose(found.numpy(), reference(problem, inputs)[name], atol=1e-12)


@pytest.mark.parametrize("seed", range(40, 60))
def test_every_gradient_is_finite_and_rows_that_no_sequence_has_are_zero(seed):
    problem = drawn(seed)
    inputs = made(problem, seed)
    for name, found in gained(problem, inputs).items():
        assert np.isfinite(found).all()
        assert not found[np.isnan(inputs[OF[name]])].any()


@pytest.mark.parametrize("others", ["", "packedq+packedkv"])
def test_inputs_are_made_of_tensors_too_and_gradients_are_no_copy_of_queries(others):
    torch = pytest.importorskip("torch")
    totals = {"total_q": 50, "total_kv": 50} if others else {}
    p = AttentionBackwardProblem(2, 2, 30, 30, 64, right=0, others=others, dlse=True, **totals)
    made = FAMILY.make_inputs(p, arrays.Random(1, "cpu:0"))
    assert all(isinstance(made[name], torch.Tensor) for name in ("q", "o", "lse", "do", "dlse"))
    assert not torch.equal(made["q"], made["do"])
    wanted = forward(p.forward, {n: x if isinstance(x, int | float) else arrays.to_float64(x)
                                 for n, x in made.items()})  # fmt: skip
    assert torch.equal(made["lse"].isnan(), wanted["lse"].isnan())
    assert torch.equal(made["dlse"].isnan(), wanted["lse"].isnan())
    assert torch.allclose(made["o"].double(), wanted["o"], atol=0.01, equal_nan=True)
