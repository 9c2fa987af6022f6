"""Rotary embeddings: as published code computes them, with gradients, of slices, in place and into
pages; positions and slots that there are not."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cache(length, half):
    """cos and sin as halves of one array, as vLLM's ``cos_sin_cache``."""
    angles = torch.arange(length)[:, None] * 10000.0 ** -(torch.arange(half) / half)
    return torch.cat((angles.cos(), angles.sin()), -1).chunk(2, -1)


def half_turned(x, cos, sin):
    """Of transformers' Llama: cos and sin hold each angle twice."""
    cos, sin = (torch.cat((one, one), -1)[..., None, :] for one in (cos, sin))
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def pair_turned(x, cos, sin):
    """As complex numbers, of Llama's first code: pairs are neighbours."""
    numbers = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(numbers * torch.complex(cos, sin)[..., None, :]).flatten(-2)


TURNED = {"half": half_turned, "interleaved": pair_turned}


def near(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", TURNED)
def test_it_is_the_published_ones_with_its_gradients(form):
    cos, sin = cache(9, 6)
    positions = torch.tensor([[3, 0, 8], [1, 1, 7]])
    q, k = (drawn(2, 3, heads, 12, seed=heads).requires_grad_() for heads in (5, 2))
    wanted = [TURNED[form](x, cos[positions], sin[positions]) for x in (q, k)]
    found = tw.rotary(q, k, cos, sin, positions=positions, form=form)
    near(found, tuple(wanted))
    d = [drawn(*x.shape, seed=7) for x in (q, k)]
    near(torch.autograd.grad(found, (q, k), d), torch.autograd.grad(wanted, (q, k), d))
    back = tw.rotary(*found, cos, sin, positions=positions.int(), form=form, inverse=True)
    near(back, (q, k))
    again = torch.autograd.grad(back, found, (q.detach(), k.detach()))
    near(again, tuple(one.detach() for one in found))


@pytest.mark.parametrize("form", TURNED)
def test_slices_of_one_array_turn_in_place_and_the_rest_stays(form):
    qkv = drawn(4, 3 * 10 + 2 * 10 + 7)
    before = qkv.clone()
    q, k = qkv[:, :30].view(4, 3, 10), qkv[:, 30:50].view(4, 2, 10)
    cos, sin = cache(4, 4)
    assert tw.rotary_in_place(q, k, cos, sin, form=form) is None
    for heads, at in ((3, 0), (2, 30)):
        x = before[:, at : at + 10 * heads].view(4, heads, 10)
        wanted = torch.cat((TURNED[form](x[..., :8], cos, sin), x[..., 8:]), -1)
        near(qkv[:, at : at + 10 * heads], wanted.flatten(1))
    assert torch.equal(qkv[:, 50:], before[:, 50:])


@pytest.mark.turns(8)
def test_torch_sees_what_turns_in_place():
    """Also where q, keys and values are written by one call, which torch.compile cuts apart."""
    cos, sin = cache(4, 4)
    slots = torch.tensor([0, 3, 1, -1])

    def step(qkv, pages):
        q, k, v = qkv.unflatten(1, (3, 2, 8)).unbind(1)
        tw.rotary_paged(q, k, v, cos, sin, pages[:, 0], pages[:, 1], slots)
        tw.rotary_in_place(k, v[:, :0], cos, sin)
        return qkv * 2, pages + 1

    given = drawn(4, 48), drawn(2, 2, 2, 2, 8)
    ours, wanted = ([one.clone() for one in given] for _ in "ab")
    made = torch.compile(step, fullgraph=True, backend="aot_eager")(*ours)
    near(made, step(*wanted))
    near(ours, wanted)


def test_without_positions_rows_are_taken_in_order_over_and_over():
    cos, sin = cache(3, 4)
    q, k = drawn(2, 3, 2, 8), drawn(2, 3, 0, 8)
    found, none = tw.rotary(q, k, cos, sin)
    near(found, half_turned(q, cos, sin))
    assert none.shape == k.shape
    near(tw.rotary(q[0, :2], k[0, :2], cos, sin)[0], half_turned(q[0, :2], cos[:2], sin[:2]))
    with pytest.raises(BadArgument, match="5 tokens without positions= take 3 rows"):
        tw.rotary(q.view(6, 2, 8)[:5], k.view(6, 0, 8)[:5], cos, sin)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions_that_are_no_rows_give_nan(dtype):
    cos, sin = cache(3, 4)
    q = drawn(5, 1, 10)
    positions = torch.tensor([0, 3, -1, 2, 2**31 - 1], dtype=dtype)
    found, _ = tw.rotary(q, q[:, :0], cos, sin, positions=positions)
    assert torch.isnan(found[[1, 2, 4], :, :8]).all()
    near(found[[1, 2, 4], :, 8:], q[[1, 2, 4], :, 8:])
    near(found[[0, 3], :, :8], half_turned(q[..., :8][[0, 3]], cos[[0, 2]], sin[[0, 2]]))


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("form", TURNED)
@pytest.mark.grid(1)
def test_keys_and_values_go_to_their_slots_alone(form, heads_first):
    cos, sin = cache(50, 4)
    shape = (3, 2, 4, 2, 8) if not heads_first else (3, 2, 2, 4, 8)
    pages = drawn(*shape)  # keys and values of a page side by side
    before = pages.clone()
    keys, values = (pages[:, i].transpose(1, 2) if heads_first else pages[:, i] for i in (0, 1))
    q, k, v = (drawn(6, heads, 8, seed=heads) for heads in (3, 2, 2))
    v = v + 1
    old = q.clone()
    slots, positions = torch.tensor([11, 0, -1, 5, 12, 4]), torch.tensor([40, 0, 7, 1, 2, 3])
    tw.rotary_paged(q, k, v, cos, sin, keys, values, slots, positions=positions, form=form)
    near(q, TURNED[form](old, cos[positions], sin[positions]))
    turned = TURNED[form](k, cos[positions], sin[positions])
    wanted = [before[:, i].transpose(1, 2) if heads_first else before[:, i] for i in (0, 1)]
    for token in (0, 1, 3, 5):  # slots -1 and 12 are none
        page, at = divmod(int(slots[token]), 4)
        wanted[0][page, at], wanted[1][page, at] = turned[token], v[token]
    near(keys, wanted[0])
    near(values, wanted[1])
    assert int((pages != drawn(*shape)).sum()) == 4 * 2 * 2 * 8


def test_caches_of_8_bits_are_scaled_and_saturate():
    cos, sin = cache(2, 2)
    q, k, v = drawn(2, 1, 4), drawn(2, 1, 4) * 300, drawn(2, 1, 4)
    keys, values = (torch.zeros(1, 2, 1, 4, dtype=torch.float8_e4m3fn) for _ in "kv")
    tw.rotary_paged(
        q, k, v, cos, sin, keys, values, torch.tensor([0, 1]), k_scale=0.25, v_scale=0.125
    )
    turned = (half_turned(k, cos, sin) / 0.25).clamp(-448, 448)
    assert (abs(turned) == 448).any()
    torch.testing.assert_close(keys[0].float(), turned, rtol=2**-4, atol=2**-9)
    torch.testing.assert_close(values[0].float(), v / 0.125, rtol=2**-4, atol=2**-9)


def test_what_does_not_fit_is_refused():
    cos, sin = cache(4, 6)
    q = drawn(4, 2, 10)
    with pytest.raises(BadArgument, match="cos has 6 columns, more than half of heads of 10"):
        tw.rotary(q, q, cos, sin)
    with pytest.raises(BadArgument, match="no form = 'neox'; there are 'half', 'interleaved'"):
        tw.rotary(q, q, cos[:, :5], sin[:, :5], form="neox")
    with pytest.raises(BadArgument, match="positions are int32 or int64, not fp32"):
        tw.rotary(q, q, cos[:, :5], sin[:, :5], positions=torch.zeros(4))
    with pytest.raises(BadArgument, match=r"k of rotary has shape \(3, 2, 10\)"):
        tw.rotary(q, q[:3], cos[:, :5], sin[:, :5])
    fields = {"tokens": 4, "q_heads": 2, "k_heads": 1, "head_dim": 16, "length": 4, "half": 8}
    paged = ops.family("rotary_paged").problem_type
    for more, why in (
        ({"cache_dtype": "fp32"}, "a cache is bf16, as k is, or has 8 bits, and not fp32"),
        ({"has_k_scale": True}, "are for caches of 8 bits, not bf16"),
    ):
        with pytest.raises(BadArgument, match=why):
            paged(**fields, pages=1, page_size=16, **more)


@pytest.mark.parametrize("half", [1, 16, 40, 64, 256])
@pytest.mark.parametrize("tokens", [1, 3, 4096])
@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (128, 1), (64, 8)])
@pytest.mark.grid(6)
def test_few_kernels_are_looked_at_whose_lanes_share_no_pair(tokens, heads, half):
    """Of a tile with fewer pairs than lanes, some lanes read what others write in place."""
    family = ops.family("rotary_in_place")
    fields = {"head_dim": 512, "length": 4096, "half": half, "has_positions": True}
    problem = family.problem_type(tokens=tokens, q_heads=heads[0], k_heads=heads[1], **fields)
    this = arch("sm_90")
    configs = family.default_space(problem, this).expand(this).configs
    assert len(configs) <= 60
    served = [c for c in configs if family.supports(c, problem, this)]
    assert served
    assert all(64 * c.num_warps <= c.TOKENS * c.HEADS * c.HALF for c in served)
