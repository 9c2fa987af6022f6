"""Attention in fp8 differentiates in 16 bits."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

FP8 = torch.float8_e4m3fn
BLOCK = 64


def operands(layout, dtype_q=FP8):
    """Q of 4 heads and 70 rows, K and V of 2 heads and 100, whose gradients are in 16 bits."""
    torch.manual_seed(0)
    found = []
    for rows, heads, dtype in ((70, 4, dtype_q), (100, 2, FP8), (100, 2, FP8)):
        x = torch.randn(2, *((rows, heads) if layout == "bshd" else (heads, rows)), 16).to(dtype)
        x.requires_grad_()
        if dtype is FP8:
            x.grad_dtype = torch.bfloat16
        found.append(x)
    return found


def scales(kind, name):
    heads, rows = (4, 70) if name == "q" else (2, 100)
    shape = {"tscale": (1,), "hscale": (2, 2), "bscale": (2, heads, -(-rows // BLOCK))}[kind]
    return torch.rand(shape) * 1.5 + 0.5


def like(x, by, kind, layout, n_heads, rows):
    """Q, K or V times its scales, in fp32."""
    if kind == "tscale":
        return x.float() * by
    if kind == "hscale":
        by = by.repeat_interleave(n_heads // 2, 1)[:, :, None, None]
    else:
        by = by.repeat_interleave(BLOCK, 2)[:, :, :rows, None]
    return x.float() * (by if layout == "bhsd" else by.transpose(1, 2))


def plainly(q, k, v, layout):
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    s = (q @ k.transpose(-1, -2) / 4).masked_fill(~torch.ones(70, 100).tril(30).bool(), -torch.inf)
    o = s.softmax(-1) @ v
    return o.transpose(1, 2) if layout == "bshd" else o


@pytest.mark.turns(96)
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("kind", ["", "tscale", "hscale", "bscale"])
def test_gradients_are_those_of_the_scaled_operands(kind, layout):
    given = operands(layout)
    by = {n: scales(kind, n) for n in "qkv"} if kind else {}
    said = {f"{n}_scale": x for n, x in by.items()}
    if kind == "bscale":
        said["scale_block"] = BLOCK
    o = tw.attention(*given, mask="causal", layout=layout, **said)
    assert o.dtype is torch.bfloat16
    do = torch.randn_like(o)
    o.backward(do)
    exact = [x.detach().float().requires_grad_() for x in given]
    sizes = ((4, 70), (2, 100), (2, 100))
    wide = [
        like(x, by[n], kind, layout, *size) if kind else x
        for n, x, size in zip("qkv", exact, sizes, strict=True)
    ]
    wanted = torch.autograd.grad(plainly(*wide, layout), exact, do.float())
    for x, one in zip(given, wanted, strict=True):
        assert x.grad.dtype is torch.bfloat16
        # O was computed with weights in fp8.
        torch.testing.assert_close(x.grad.float(), one, rtol=0.05, atol=0.05 * one.abs().max())


@pytest.mark.turns(24)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cache_in_fp8_under_queries_in_16_bits(dtype):
    given = operands("bshd", dtype)
    o = tw.attention(*given, mask="causal")
    do = torch.randn_like(o)
    o.backward(do)
    exact = [x.detach().float().requires_grad_() for x in given]
    wanted = torch.autograd.grad(plainly(*exact, "bshd"), exact, do.float())
    for x, one in zip(given, wanted, strict=True):
        torch.testing.assert_close(x.grad.float(), one, rtol=0.05, atol=0.05 * one.abs().max())
    assert given[0].grad.dtype is dtype


@pytest.mark.turns(24)
def test_without_a_word_of_the_caller_torch_rounds_to_fp8():
    q, k, v = (x.detach().requires_grad_() for x in operands("bshd"))
    tw.attention(q, k, v, dtype_o="fp16").sum().backward()
    assert q.grad.dtype is FP8 and torch.isfinite(v.grad.float()).all()


def test_what_has_no_gradients_in_fp8_is_refused_by_name():
    given = operands("bshd")
    with pytest.raises(BadArgument, match="an output in e4m3fn has no gradients"):
        tw.attention(*given, dtype_o="e4m3fn")
    with pytest.raises(BadArgument, match="an output with a scale has no gradients"):
        tw.attention(*given, o_scale=torch.ones(1))
    rows = [x.detach().flatten(0, 1).requires_grad_() for x in given]
    at = {"q_offsets": torch.tensor([0, 70, 140]), "kv_offsets": torch.tensor([0, 100, 200])}
    at = {name: x.int() for name, x in at.items()}
    by = {f"{n}_scale": scales("hscale", n) for n in "qkv"}
    with pytest.raises(BadArgument, match="packed rows with a scale for each sequence"):
        tw.attention(*rows, **at, **by, max_q=70, max_kv=100)
    learned = torch.ones(1, requires_grad=True)
    with pytest.raises(BadArgument, match="no gradient for q_scale"):
        tw.attention(*given, q_scale=learned, k_scale=torch.ones(1), v_scale=torch.ones(1))
