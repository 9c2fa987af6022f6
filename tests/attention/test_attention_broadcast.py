"""Q, K and V that sequences or heads share, and of three dimensions, as torch's
scaled_dot_product_attention takes them; and their gradients."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from tilewright.errors import BadArgument


def made(*shape):
    seed = sum(n * 7**i for i, n in enumerate(shape))
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SHAPES = [  # of Q, K and V: [batch, heads, rows, dim], or without the batch
    ((3, 5, 16), (3, 9, 16), (3, 9, 16)),
    ((2, 5, 16), (4, 2, 9, 16), (4, 2, 9, 16)),
    ((4, 2, 5, 16), (2, 9, 16), (1, 2, 9, 16)),
    ((1, 2, 5, 16), (3, 2, 9, 16), (1, 2, 9, 16)),
    ((3, 1, 5, 16), (3, 2, 9, 16), (3, 1, 9, 16)),
    ((1, 2, 5, 16), (1, 2, 9, 16), (1, 2, 9, 32)),
]


@pytest.mark.grid(1)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_they_are_broadcast_as_in_torch(shapes):
    ours = [made(*shape).requires_grad_() for shape in shapes]
    plain = [x.detach().clone().requires_grad_() for x in ours]
    found = tw.attention(*ours, layout="bhsd", is_causal=True)
    wanted = torch.nn.functional.scaled_dot_product_attention(*plain, is_causal=True)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    do = made(*wanted.shape)
    found.backward(do)
    wanted.backward(do)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", SHAPES[:2], ids=str)
def test_outputs_may_be_given_and_lse_asked_for(shapes):
    q, k, v = (made(*shape) for shape in shapes)
    o, lse = tw.attention(q, k, v, layout="bhsd", lse=True)
    given = torch.full_like(o, float("nan")), torch.full_like(lse, float("nan"))
    tw.attention(q, k, v, layout="bhsd", lse=True, out=given)
    torch.testing.assert_close(given, (o, lse))
    s = torch.logsumexp(q @ k.transpose(-1, -2) / 4, -1)
    torch.testing.assert_close(lse, s.reshape(lse.shape), rtol=1e-5, atol=1e-5)


def test_by_rows_and_without_a_copy_in_numpy():
    q, k = made(3, 5, 2, 16), made(1, 9, 2, 16)
    found = tw.attention(q.numpy(), k.numpy(), k.numpy())
    wanted = tw.attention(q, k.repeat(3, 1, 1, 1), k.repeat(3, 1, 1, 1))
    torch.testing.assert_close(torch.from_numpy(found), wanted)


@pytest.mark.turns(8)
def test_a_graph_knows_the_shapes():
    q, k = made(2, 5, 16), made(4, 2, 9, 16)
    compiled = torch.compile(
        lambda q, k: tw.attention(q, k, k, layout="bhsd"), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(q, k), tw.attention(q, k, k, layout="bhsd"))


def test_what_does_not_fit_is_refused():
    q, k = made(2, 5, 2, 16), made(3, 9, 2, 16)
    with pytest.raises(BadArgument, match="must be"):
        tw.attention(q, k, k)
    with pytest.raises(BadArgument, match=r"q\[None\], of packed ones their offsets"):
        tw.attention(q[0], k[0], k[0])  # rows of sequences whose offsets were forgotten, perhaps
    with pytest.raises(BadArgument, match="must be"):  # one cache is not written for all
        tw.attention(q, k[:1].clone(), k[:1].clone(), new_k=q, new_v=q,
                     kv_used=torch.zeros(2, dtype=torch.int32))  # fmt: skip
    o, lse = tw.attention(q, k[:2], k[:2], lse=True)
    with pytest.raises(BadArgument, match="must be"):  # its gradient would be of all sequences
        tw.attention_backward(q, k[:1], k[:1], o, lse, o)
