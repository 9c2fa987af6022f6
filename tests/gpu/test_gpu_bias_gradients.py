"""Gradients of biases on a GPU, which are sums of our reduction."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tt  # noqa: E402
from tilewright.default import default_dispatcher  # noqa: E402
from tilewright.ops.gemm.column_sums import column_sums  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("rows", "columns"), [(20000, 96), (4096, 4096), (33, 1000), (5000, 8)])
def test_of_a_linear_layer(rows, columns):
    x, w, arriving = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
        for shape in ((rows, 64), (columns, 64), (rows, columns))
    )
    bias = torch.randn(columns, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3):
        (made,) = torch.autograd.grad(tt.linear(x, w, bias), [bias], arriving)
    wanted = arriving.double().sum(0)
    assert (made.double() - wanted).norm() < 3e-3 * wanted.norm()


@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
def test_of_a_convolution(lies):
    x, w, arriving = (
        torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(memory_format=lies)
        for shape in ((16, 32, 28, 28), (64, 32, 3, 3), (16, 64, 28, 28))
    )
    bias = torch.randn(64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for _ in range(3):
        y = tt.conv2d(x, w, bias, padding=1)
        (made,) = torch.autograd.grad(y, [bias], arriving)
    wanted = arriving.double().sum((0, 2, 3))
    assert (made.double() - wanted).norm() < 3e-3 * wanted.norm()
    assert default_dispatcher().repeat(column_sums((0, 2, 3)), (arriving,)) is not None
