"""Norms of rows on a real GPU: gradients repeat, and means are exact."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("columns", [4096, 20000])
def test_gradients_repeat_bit_for_bit(name, columns):
    x = torch.randn(3, 700, columns, device="cuda", dtype=torch.bfloat16).requires_grad_()
    w = torch.randn(columns, device="cuda", dtype=torch.bfloat16).requires_grad_()
    dy = torch.randn_like(x)
    made = [torch.autograd.grad(getattr(tw, name)(x, w=w), (x, w), dy) for _ in range(3)]
    for again in made[1:]:
        assert all(map(torch.equal, made[0], again))


@pytest.mark.parametrize("columns", [4096, 20000])
def test_a_mean_far_from_zero_costs_no_digits(columns):
    x = torch.randn(64, columns, device="cuda") + 4096
    expected = torch.nn.functional.layer_norm(x.double(), (columns,))
    assert (tw.layer_norm(x).double() - expected).abs().max() < 2e-3


@pytest.mark.parametrize("quant", ["row", "block"])
def test_what_is_not_a_number_is_no_largest_value(quant):
    x = torch.randn(300, 4096, device="cuda", dtype=torch.bfloat16)
    x[7], x[8, 9] = 0.0, 0.0
    clean, scales = tw.quantise_rows(x, quant=quant, out_dtype="e4m3fn")
    x[8, 9] = float("nan")
    y, found = tw.quantise_rows(x, quant=quant, out_dtype="e4m3fn")
    assert torch.equal(found, scales) and (scales[7] == 1).all()
    assert y[8, 9].float().isnan() and torch.equal(y.float().nan_to_num(), clean.float())
