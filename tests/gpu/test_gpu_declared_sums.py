"""Reductions and pooling, on a real GPU: calls against torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dim", [None, 0, 1, (0, 2, 3)])
def test_a_reduction_is_torchs_and_repeats(dim):
    x = torch.randn(64, 128, 28, 28, device="cuda")
    for view in (x, x.contiguous(memory_format=torch.channels_last)):
        total, most = tw.reduce(view, "sum+max", dim)
        axes = tuple(range(4)) if dim is None else dim
        torch.testing.assert_close(total, x.double().sum(axes).float(), rtol=1e-5, atol=1e-2)
        assert torch.equal(most, x.amax(axes))
        again, _ = tw.reduce(view, "sum+max", dim)
        assert torch.equal(again, total)


@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
def test_pooling_and_its_gradient_are_torchs_and_repeat(lies):
    x = torch.randn(16, 64, 112, 112, device="cuda", dtype=torch.bfloat16).to(memory_format=lies)
    made = []
    for f in (tw.max_pool2d, tw.max_pool2d, torch.nn.functional.max_pool2d):
        one = x.clone().requires_grad_()
        y = f(one, 3, stride=2, padding=1)
        torch.manual_seed(0)
        y.backward(torch.randn(y.shape, device="cuda").to(y.dtype))
        made.append((y, one.grad))
    assert all(map(torch.equal, made[0], made[1]))
    assert torch.equal(made[0][0], made[2][0])
    torch.testing.assert_close(made[0][1], made[2][1], rtol=2e-2, atol=2e-2)
