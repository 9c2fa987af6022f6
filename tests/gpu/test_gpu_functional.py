"""Torch's functions of ``tilewright.torch`` on a GPU: torch's results, at first and repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as tt  # noqa: E402

pytestmark = pytest.mark.gpu

F = torch.nn.functional
CALLS = 4
"""A call like an earlier one takes another way, with gradients and without."""


def randn(*shape: int) -> Any:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def far(found: Any, exact: Any) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def _gelu(x: Any, weight: Any, bias: Any) -> Any:
    return F.gelu(F.linear(x, weight, bias))


def _causal(attend: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: attend(*given, is_causal=True)


SDPA = tt.scaled_dot_product_attention, F.scaled_dot_product_attention
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm": (tt.mm, torch.mm, ((256, 128), (128, 192))),
    "linear": (
        lambda *given: tt.linear(*given, "gelu"),
        _gelu,
        ((4, 64, 128), (128, 128), (128,)),
    ),
    "addmm": (tt.addmm, torch.addmm, ((64,), (48, 96), (96, 64))),
    "attention": (_causal(SDPA[0]), _causal(SDPA[1]), ((2, 8, 128, 64),) * 3),
    "conv2d": (tt.conv2d, F.conv2d, ((2, 32, 16, 16), (64, 32, 3, 3), (64,))),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_torch_s_each_time(name):
    ours, theirs, shapes = CASES[name]
    given = [randn(*shape) / shape[-1] ** 0.25 for shape in shapes]
    exact = theirs(*(x.float() for x in given))
    incoming = randn(*exact.shape)
    leaves = [x.detach().requires_grad_() for x in given]
    floats = [x.detach().float().requires_grad_() for x in given]
    wanted = torch.autograd.grad(theirs(*floats), floats, incoming.float())
    for _ in range(CALLS):
        assert far(ours(*given), exact) < 2e-2
        found = torch.autograd.grad(ours(*leaves), leaves, incoming)
        assert all(far(one, other) < 3e-2 for one, other in zip(found, wanted, strict=True))


def test_queries_with_heads_inside_of_rows_are_repeated_as_they_lie():
    q, k, v = randn(3, 2, 100, 8, 64).transpose(2, 3)
    for _ in range(CALLS):
        found = tt.scaled_dot_product_attention(q, k, v)
        assert found.transpose(1, 2).is_contiguous()
        assert far(found, F.scaled_dot_product_attention(q, k, v)) < 2e-2


SCALED = {
    "one": ("TensorWise", (1, 1), "TensorWise", (1, 1)),
    "rows": ("RowWise", (128, 1), "RowWise", (1, 256)),
    "blocks": ("BlockWise1x128", (128, 8), "BlockWise1x128", (256, 8)),
    "squares of B": ("BlockWise1x128", (128, 8), "BlockWise128x128", (8, 2)),
    "squares of A": ("BlockWise128x128", (8, 1), "BlockWise1x128", (256, 8)),
}


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_products_are_torch_s(kind):
    """Scales have torch's shapes. Torch's kernels of blocks want scales that lie by columns."""
    if torch.cuda.get_device_capability() != (9, 0) or not hasattr(F, "scaled_mm"):
        pytest.skip("torch computes all of these on sm_90")
    recipe_a, shape_a, recipe_b, shape_b = SCALED[kind]
    a, b = (randn(rows, 1024).to(torch.float8_e4m3fn) for rows in (128, 256))
    scale_a, scale_b = (torch.rand(shape, device="cuda") + 0.5 for shape in (shape_a, shape_b))
    if "Block" in recipe_a:
        scale_a, scale_b = (x.t().contiguous().t() for x in (scale_a, scale_b))
    kinds = [getattr(F.ScalingType, one) for one in (recipe_a, recipe_b)]
    given = (a, b.t(), scale_a, kinds[0], scale_b, kinds[1])
    assert far(tt.scaled_mm(*given), F.scaled_mm(*given)) < 1e-2


def test_grouped_products_are_torch_s():
    a, b = randn(64, 128), randn(3, 128, 96).transpose(1, 2).contiguous().transpose(1, 2)
    offs = torch.tensor([20, 20, 64], dtype=torch.int32, device="cuda")
    found = tt.grouped_mm(a, b, offs=offs)
    assert far(found, torch.cat([a[:20].float() @ b[0].float(), a[20:].float() @ b[2].float()])) < (
        2e-2
    )
