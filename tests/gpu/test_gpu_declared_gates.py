"""Gated activations and rotary embeddings on a real GPU: gradients against torch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu


def test_gradients_of_gates_are_torchs():
    x = torch.randn(512, 2 * 4096, device="cuda", requires_grad=True)
    dy = torch.randn(512, 4096, device="cuda")
    a, b = x.chunk(2, -1)
    (found,) = torch.autograd.grad(tw.gated_activation(x), x, dy)
    (wanted,) = torch.autograd.grad(F.silu(a) * b, x, dy)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_turn_and_its_inverse_and_gradients():
    q, k = (torch.randn(300, h, 128, device="cuda", requires_grad=True) for h in (32, 8))
    angle = torch.randn(300, 64, device="cuda")
    found = tw.rotary(q, k, angle.cos(), angle.sin())
    back = tw.rotary(*found, angle.cos(), angle.sin(), inverse=True)
    torch.testing.assert_close(back, (q, k), rtol=1e-4, atol=1e-4)
    made = torch.autograd.grad(back, (q, k), (q.detach(), k.detach()))
    torch.testing.assert_close(made, (q.detach(), k.detach()), rtol=1e-4, atol=1e-4)


def test_positions_that_are_no_rows_read_nothing():
    q = torch.randn(64, 32, 128, device="cuda", dtype=torch.bfloat16)
    cos, sin = torch.randn(2, 16, 64, device="cuda")
    positions = torch.arange(64, device="cuda") * 2**40 - 2**41
    found, _ = tw.rotary(q, q, cos, sin, positions=positions)
    there = (positions >= 0) & (positions < 16)
    assert torch.equal(torch.isnan(found).all(-1).all(-1), ~there) and int(there.sum()) == 1
