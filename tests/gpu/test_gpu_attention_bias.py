"""Biases on a real GPU: of the largest numbers, of booleans, broadcast, in fp32 beside 16 bits, and
gradients under them, against torch's softmax in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
LEAST = torch.finfo(torch.bfloat16).min
BATCH, HEADS, QUERIES, KEYS = 2, 4, 256, 320


def made(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().to(GPU)


def plain(q, k, v, bias):
    """Scores are fp32's, where a large bias drowns the product."""
    s = torch.einsum("bihd,bjhd->bhij", q.float(), k.float()) * q.shape[-1] ** -0.5
    weights = torch.softmax((s + bias.float()).double(), -1)
    return torch.einsum("bhij,bjhd->bihd", weights, v.double())


def usual_and_least(dim, shape=(BATCH, HEADS, QUERIES, KEYS)):
    bias = made(*shape, seed=dim)
    bias[:, :, 1::3] = LEAST
    bias[:, :, 2::3] = -2.4e38
    bias[:, :, 5, ::4] = float("-inf")
    return bias


FORMS = {
    "least": usual_and_least,
    "least_of_some_heads": lambda dim: usual_and_least(dim, (1, HEADS, QUERIES, KEYS)),
    "padded": lambda dim: usual_and_least(dim, (BATCH, HEADS, QUERIES, KEYS + 8))[..., :KEYS],
    "of_keys": lambda dim: usual_and_least(dim, (BATCH, 1, QUERIES, KEYS))[:, :, :1],
    "fp32": lambda dim: usual_and_least(dim).float(),
}


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_a_bias_and_its_gradients(form, dim):
    given = [made(BATCH, n, HEADS, dim, seed=s) for n, s in ((QUERIES, 1), (KEYS, 2), (KEYS, 3))]
    do = made(BATCH, QUERIES, HEADS, dim, seed=4)
    ours = [x.clone().requires_grad_() for x in given] + [FORMS[form](dim).requires_grad_()]
    wide = [x.detach().double().requires_grad_() for x in ours]
    found = tw.attention(*ours[:3], bias=ours[3])
    wanted = plain(*wide)
    gradients = torch.autograd.grad(found, ours, do)
    right = torch.autograd.grad(wanted, wide, do.double())
    for one, other in zip((found, *gradients), (wanted, *right), strict=True):
        assert one.isfinite().all()
        off = (one.double() - other).norm() / other.norm()
        assert off < 2e-2, (form, dim, off)


@pytest.mark.parametrize("shape", [(QUERIES, KEYS), (BATCH, 1, 1, KEYS)], ids=str)
def test_a_bias_of_booleans(shape):
    given = [made(BATCH, n, HEADS, 64, seed=s) for n, s in ((QUERIES, 1), (KEYS, 2), (KEYS, 3))]
    seen = made(*shape, seed=5) > -0.5
    found = tw.attention(*given, bias=seen)
    heads_first = (x.transpose(1, 2) for x in given)
    wanted = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=seen)
    torch.testing.assert_close(found.transpose(1, 2), wanted, rtol=2e-2, atol=2e-2)
    again = tw.attention(*given, bias=seen)  # as it was launched before
    assert torch.equal(found, again)


def test_keys_that_sequences_share():
    q = made(BATCH, HEADS, QUERIES, 64, seed=1).requires_grad_()
    k, v = (made(HEADS, KEYS, 64, seed=s).requires_grad_() for s in (2, 3))
    found = tw.attention(q, k, v, layout="bhsd")
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k[None], v[None])
    do = made(*found.shape, seed=4)
    ours = torch.autograd.grad(found, (q, k, v), do)
    right = torch.autograd.grad(wanted, (q, k, v), do)
    for one, other in zip((found, *ours), (wanted, *right), strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)
