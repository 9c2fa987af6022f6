"""Biases as they come: of fewer dimensions, broadcast, sliced from a padded buffer, in fp32 beside
16 bits; and their gradients. Against torch in float64."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from tilewright.errors import BadArgument

BATCH, HEADS, QUERIES, KEYS = 2, 4, 6, 24


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def operands(dtype=torch.float32):
    rows = ((QUERIES, 1), (KEYS, 2), (KEYS, 3))
    return [made(BATCH, n, HEADS, 16, seed=seed).to(dtype) for n, seed in rows]


FORMS = {
    "of_keys": lambda: made(BATCH, 1, 1, KEYS),
    "of_keys_of_all": lambda: made(1, 1, 1, KEYS),
    "of_heads_and_keys": lambda: made(1, HEADS, 1, KEYS),
    "two_dimensions": lambda: made(QUERIES, KEYS),
    "one_row": lambda: made(1, KEYS),
    "three_dimensions": lambda: made(HEADS, QUERIES, KEYS),
    "padded_keys": lambda: made(BATCH, HEADS, QUERIES, KEYS + 7)[..., :KEYS],
    "padded_queries": lambda: made(BATCH, 1, QUERIES + 3, KEYS)[:, :, 1 : QUERIES + 1],
    "padded_at_the_front": lambda: made(1, 1, QUERIES, KEYS + 1)[..., 1:],
    "heads_last_but_one": lambda: made(BATCH, QUERIES, HEADS, KEYS).transpose(1, 2),
    "expanded_queries": lambda: made(BATCH, 1, 1, KEYS).expand(BATCH, 1, QUERIES, KEYS),
    "expanded_heads": lambda: made(1, 1, QUERIES, KEYS).expand(BATCH, HEADS, QUERIES, KEYS),
}


def wanted(q, k, v, bias):
    s = torch.einsum("bihd,bjhd->bhij", q, k) / 4 + bias
    return torch.einsum("bhij,bjhd->bihd", torch.softmax(s, -1), v)


@pytest.mark.grid(1)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_bias_and_their_gradients(form):
    bias, given = FORMS[form](), operands()
    base = bias._base if bias._base is not None else bias
    base.requires_grad_()
    bias = bias if bias is base else FORMS_OF[form](base)
    ours = tw.attention(*given, bias=bias)
    do = made(*ours.shape, seed=3)
    (found,) = torch.autograd.grad(ours, base, do)
    wide = bias.double()
    right = wanted(*(x.double() for x in given), wide)
    (gradient,) = torch.autograd.grad(right, base, do.double())
    torch.testing.assert_close(ours.double(), right, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)


FORMS_OF = {
    "padded_keys": lambda x: x[..., :KEYS],
    "padded_queries": lambda x: x[:, :, 1 : QUERIES + 1],
    "padded_at_the_front": lambda x: x[..., 1:],
    "heads_last_but_one": lambda x: x.transpose(1, 2),
    "expanded_queries": lambda x: x.expand(BATCH, 1, QUERIES, KEYS),
    "expanded_heads": lambda x: x.expand(BATCH, HEADS, QUERIES, KEYS),
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("form", ["of_keys", "two_dimensions", "padded_keys"])
def test_a_bias_in_fp32_beside_16_bits(form):
    q, k, v = operands(torch.bfloat16)
    bias = FORMS[form]().detach().requires_grad_()
    ours = tw.attention(q, k, v, bias=bias)
    do = made(*ours.shape, seed=3)
    (found,) = torch.autograd.grad(ours, bias, do.bfloat16())
    wide = bias.detach().double().requires_grad_()
    right = wanted(*(x.double() for x in (q, k, v)), wide)
    (gradient,) = torch.autograd.grad(right, wide, do.double())
    assert found.dtype is torch.float32
    torch.testing.assert_close(ours.double(), right, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(found.double(), gradient, rtol=5e-2, atol=5e-2)


MASKS = {
    "queries": lambda: made(QUERIES, KEYS) > -0.3,
    "of_keys": lambda: made(BATCH, 1, 1, KEYS) > -0.3,
    "all": lambda: made(BATCH, HEADS, QUERIES, KEYS) > -0.3,
    "padded": lambda: (made(BATCH, 1, QUERIES, KEYS + 1) > -0.3)[..., 1:],
}


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", MASKS)
def test_a_boolean_bias_says_which_keys_take_part(form, dtype):
    """As torch's attn_mask."""
    seen = MASKS[form]()
    ours = [x.requires_grad_() for x in operands(dtype)]
    plain = [x.detach().double().requires_grad_() for x in ours]
    found = tw.attention(*ours, bias=seen)
    right = wanted(*plain, torch.zeros(()).masked_fill(~seen, -torch.inf))
    do = made(*found.shape, seed=3).to(dtype)
    found.backward(do)
    right.backward(do.double())
    atol = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(found.double(), right, rtol=0, atol=atol)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=0, atol=3 * atol)


def test_a_query_that_a_boolean_bias_shows_nothing_gives_0():
    seen = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    seen[2] = False
    q, k, v = (x.requires_grad_() for x in operands())
    o = tw.attention(q, k, v, bias=seen)
    assert (o[:, 2] == 0).all() and (o[:, 3] != 0).any()
    o.sum().backward()
    assert (q.grad[:, 2] == 0).all() and k.grad.isfinite().all() and v.grad.isfinite().all()


@pytest.mark.parametrize(
    ("bias", "why"),
    [
        (made(KEYS), "1 dimensions"),
        (made(3, 1, QUERIES, KEYS), "1 or 2 sequences"),
        (made(1, 1, QUERIES, KEYS - 1), "must be"),
        (made(1, 1, 2, KEYS), "1 if it has one row"),
        (made(1, 1, KEYS, QUERIES).transpose(2, 3), "no neighbours"),
        (made(1, 1, QUERIES, 1).expand(1, 1, QUERIES, KEYS), "the softmax is the same"),
        (made(1, 1, QUERIES, KEYS).half(), "bias is fp16"),
    ],
    ids=range(7),
)
def test_what_is_no_bias_is_refused_with_the_reason(bias, why):
    with pytest.raises(BadArgument, match=why):
        tw.attention(*operands(), bias=bias)
