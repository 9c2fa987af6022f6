"""Gated activations and rotary embeddings at models' sizes on a real GPU: against float64, with
gradients against torch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402

pytestmark = pytest.mark.gpu

LLAMA = {"q_heads": 32, "k_heads": 8, "head_dim": 128, "length": 8192, "half": 64}
DEEPSEEK = {"q_heads": 128, "k_heads": 1, "head_dim": 64, "length": 8192, "half": 32}

PROBLEMS = [
    ("gated_activation", {"rows": 4096, "columns": 14336}),
    ("gated_activation", {"rows": 1, "columns": 28672, "gate": "gelu_tanh"}),
    ("gated_activation", {"rows": 1000, "columns": 2880, "interleaved": True}),
    ("gated_activation", {"rows": 777, "columns": 1411, "has_up": True, "gate": "gelu"}),
    ("gated_activation", {"rows": 2048, "columns": 768, "quant": "row", "out_dtype": "e4m3fn"}),
    ("gated_activation", {"rows": 512, "columns": 25600, "quant": "row", "out_dtype": "int8"}),
    ("gated_activation", {"rows": 4096, "columns": 2048, "quant": "block", "out_dtype": "e4m3fn"}),
    ("gated_activation_backward", {"rows": 4096, "columns": 14336}),
    ("gated_activation_backward", {"rows": 100, "columns": 2880, "interleaved": True}),
    ("gated_activation_backward", {"rows": 99, "columns": 18432, "has_up": True, "gate": "gelu"}),
    ("rotary", {"tokens": 4096, **LLAMA, "has_positions": True, "cos_dtype": "fp32"}),
    ("rotary", {"tokens": 4096, **LLAMA, "length": 1024, "inverse": True}),
    ("rotary", {"tokens": 333, **DEEPSEEK, "q_stride": 24576, "q_head_stride": 192,
                "form": "interleaved", "has_positions": True}),
    ("rotary", {"tokens": 100, "q_heads": 32, "k_heads": 32, "head_dim": 80, "length": 100,
                "half": 16}),
    ("rotary_in_place", {"tokens": 1, **LLAMA, "has_positions": True, "position_dtype": "int32"}),
    ("rotary_in_place", {"tokens": 4096, **LLAMA, "q_stride": 6144, "k_stride": 6144,
                         "has_positions": True}),
    ("rotary_paged", {"tokens": 1000, **LLAMA, "has_positions": True, "pages": 100,
                      "page_size": 16, "q_stride": 6144, "k_stride": 6144, "v_stride": 6144}),
    ("rotary_paged", {"tokens": 64, **LLAMA, "has_positions": True, "pages": 4, "page_size": 64,
                      "cache_dtype": "e4m3fn", "has_k_scale": True, "has_v_scale": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fields"), PROBLEMS)
def test_real_sizes_are_right(dispatcher, name, fields):
    problem = ops.family(name).problem_type(**fields)
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


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
