"""Words that users of other libraries type: taken with their own meaning, or answered with what to
say instead."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.errors import BadArgument
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.elsewhere import INSTEAD

SIZES = [(5, 9), (9, 5)]


def arrays_of(n_q, n_kv, seed=0):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(1, n, 2, 16, generator=made) for n in (n_q, n_kv, n_kv)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_causal_is_flash_attentions_and_is_causal_torchs(sizes):
    q, k, v = arrays_of(*sizes)
    ours = tw.attention(q, k, v, is_causal=True)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True)
    torch.testing.assert_close(ours.transpose(1, 2), wanted, rtol=1e-5, atol=1e-5)

    ours = tw.attention(q, k, v, causal=True)
    for i in range(sizes[0]):  # the last query sees the last key
        seen = i + sizes[1] - sizes[0] + 1
        s = torch.einsum("hd,jhd->hj", q[0, i], k[0, : max(seen, 0)]) / 4
        wanted = torch.einsum("hj,jhd->hd", torch.softmax(s, -1), v[0, : max(seen, 0)])
        torch.testing.assert_close(ours[0, i], wanted, rtol=1e-5, atol=1e-5)
    same = tw.attention(q, k, v, causal=False, is_causal=False)
    torch.testing.assert_close(same, tw.attention(q, k, v))


def test_they_differentiate_as_the_mask_does():
    q, k, v = (x.requires_grad_() for x in arrays_of(5, 9))
    found = torch.autograd.grad(tw.attention(q, k, v, causal=True).square().sum(), (q, k, v))
    wanted = torch.autograd.grad(tw.attention(q, k, v, mask="causal").square().sum(), (q, k, v))
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"causal": 1}, "causal = 1 is not True or False"),
        ({"causal": True, "is_causal": True}, "say mask='causal'"),
        ({"is_causal": True, "corner": "bottom_right"}, "say mask='causal'"),
        ({"causal": True, "corner": "top_left"}, "say mask='causal'"),
    ],
    ids=str,
)
def test_masks_that_contradict_each_other_are_refused(said, why):
    with pytest.raises(BadArgument, match=why):
        tw.attention(*arrays_of(5, 9), **said)


@pytest.mark.parametrize("name", INSTEAD)
def test_a_word_of_another_library_is_answered(name):
    for value in (4, np.ones((5, 9), np.float32), lambda b, h, i, j: i >= j):
        with pytest.raises(BadArgument) as refusal:
            tw.attention(*(x.numpy() for x in arrays_of(5, 9)), **{name: value})
        assert INSTEAD[name] in str(refusal.value)


def test_what_is_said_instead_of_chunks_computes_them():
    """Three chunks of a prompt, and one new query in the fourth."""
    chunk, n = 4, 14
    q, k, v = arrays_of(n, n)
    place = torch.arange(n)
    seen = (place[:, None] >= place) & (place[:, None] // chunk == place // chunk)
    heads_first = (x.transpose(1, 2) for x in (q, k, v))
    wanted = torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=seen)
    ends = torch.tensor([0, 4, 8, 12, 14], dtype=torch.int32)
    ours = tw.attention(q[0], k[0], v[0], q_offsets=ends, kv_offsets=ends, max_q=chunk,
                        max_kv=chunk, mask="causal")  # fmt: skip
    torch.testing.assert_close(ours[None].transpose(1, 2), wanted, rtol=1e-5, atol=1e-5)

    used = torch.tensor([n], dtype=torch.int32)
    last = tw.attention(q[:, -1:], k, v, kv_used=used, left_pad=(used - 1) // chunk * chunk)
    torch.testing.assert_close(last[0, 0], ours[-1], rtol=1e-5, atol=1e-5)


def test_a_bound_beyond_every_place_is_none():
    sizes = {"batch": 1, "heads": 2, "q_len": 5, "kv_len": 9, "head_dim": 16}
    plain = AttentionProblem(**sizes)
    for far in (2**30, 2**31 - 1, 2**62):
        assert AttentionProblem(**sizes, left=far, right=far) == plain
        assert AttentionProblem(**sizes, left=far, right=0, first=3) == AttentionProblem(
            **sizes, right=0
        )
        assert AttentionProblem(**sizes, left=2, right=-far).right == -(2**30)
    q, k, v = arrays_of(5, 9)
    o = tw.attention(q, k, v, window=(2**31, 0))
    torch.testing.assert_close(o, tw.attention(q, k, v, mask="causal"))
    with pytest.raises(BadArgument, match="left"):
        AttentionProblem(**sizes, left=1.5)
