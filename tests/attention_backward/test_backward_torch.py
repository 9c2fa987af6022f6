"""`tilewright.attention` on tensors that require gradients, against torch's own autograd."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402

B, HEADS, KV_HEADS, DIM = 2, 4, 2, 16


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def qkv(n_q=20, n_kv=30):
    shapes = ((n_q, HEADS), (n_kv, KV_HEADS), (n_kv, KV_HEADS))
    return [torch.randn(B, *shape, DIM, requires_grad=True) for shape in shapes]


def plainly(q, k, v, *, bias=0.0, softcap=0.0, sinks=None):
    """Causal attention, one operation of torch after another. Returns O and LSE."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * DIM**-0.5
    s = (softcap * torch.tanh(s / softcap) if softcap else s) + bias
    seen = torch.ones(s.shape[-2:], dtype=torch.bool).tril(s.shape[-1] - s.shape[-2])
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:2], s.shape[2], 1)], -1)
    weights = s.softmax(-1)[..., : v.shape[-2]]
    return (weights @ v).transpose(1, 2), s.logsumexp(-1)


def close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_every_gradient_is_torch_s():
    bias = torch.randn(1, HEADS, 20, 30, requires_grad=True)
    sinks = torch.randn(HEADS, requires_grad=True)
    given = (*qkv(), bias, sinks)
    q, k, v = given[:3]
    o = tw.attention(q, k, v, mask="causal", bias=bias, sinks=sinks, softcap=3.0)
    by = torch.randn_like(o)
    wanted, _ = plainly(q, k, v, bias=bias, softcap=3.0, sinks=sinks)
    close([o], [wanted])
    close(torch.autograd.grad(o, given, by), torch.autograd.grad(wanted, given, by))


def test_slopes_learn():
    slopes = torch.rand(HEADS, requires_grad=True)
    q, k, v = qkv()
    o = tw.attention(q, k, v, mask="causal", slopes=slopes)
    far = (torch.arange(20)[:, None] + 10 - torch.arange(30)).abs()
    wanted, _ = plainly(q, k, v, bias=-slopes[:, None, None] * far)
    by = torch.randn_like(o)
    close(torch.autograd.grad(o, [slopes], by), torch.autograd.grad(wanted, [slopes], by))


@pytest.mark.turns(24)
def test_lse_has_a_gradient_and_may_be_asked_for():
    given = qkv()
    found = tw.attention(*given, mask="causal", lse=True)
    wanted = plainly(*given)
    by = [torch.randn_like(x) for x in wanted]
    close(torch.autograd.grad(found, given, by), torch.autograd.grad(wanted, given, by))
    # Either output alone, too.
    for place in (0, 1):
        one = tw.attention(*given, mask="causal", lse=True)[place]
        other = plainly(*given)[place]
        wants = given[:2]
        close(
            torch.autograd.grad(one, wants, by[place]), torch.autograd.grad(other, wants, by[place])
        )


@pytest.mark.turns(24)
def test_a_call_that_records_returns_what_it_was_asked_for():
    """The forward pass writes LSE, which the caller did not ask for."""
    q, k, v = qkv()
    assert isinstance(tw.attention(q, k, v), torch.Tensor)
    o, random = tw.attention(q, k, v, dropout=0.5, seed=1, random=True)
    assert random.dtype is torch.uint8 and not random.requires_grad and o.requires_grad
    o.sum().backward()
    assert q.grad.shape == q.shape


def given_and_wanted():
    """Operands of attention_backward, and dQ, dK and dV."""
    q, k, v = qkv()
    o, lse = tw.attention(q, k, v, mask="causal", lse=True)
    do = torch.randn_like(o)
    wanted = torch.autograd.grad(o, [q, k, v], do)
    return [x.detach() for x in (q, k, v, o, lse, do)], wanted


@pytest.mark.turns(24)
def test_gradients_are_written_to_given_tensors_or_added_to_them():
    given, wanted = given_and_wanted()
    found = tuple(torch.full_like(x, torch.nan) for x in wanted)
    assert tw.attention_backward(*given, mask="causal", out=found) is found
    close(found, wanted)
    assert tw.attention_backward(*given, *found, mask="causal") is None
    close(found, [2 * x for x in wanted])
    assert tw.attention_backward(*given, found[1], mask="causal", grads="dk") is None
    close(found, [2 * wanted[0], 3 * wanted[1], 2 * wanted[2]])


@pytest.mark.turns(24)
def test_a_graph_knows_that_gradients_are_added_to():
    given, wanted = given_and_wanted()

    def twice(*operands):
        sums = [torch.zeros_like(x) for x in operands[:3]]
        for _ in range(2):
            tw.attention_backward(*operands, *sums, mask="causal")
        return sums

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    close(compiled(*given), [2 * x for x in wanted])


def test_dropout_is_the_same_in_both_passes():
    """O is linear in V: the weights with dropout are its Jacobian, forward and backward."""
    q, k, v = qkv()
    say = {"dropout": 0.5, "seed": 11, "offset": 3}
    o = tw.attention(q, k, v, **say)
    by = torch.randn_like(o)
    (dv,) = torch.autograd.grad(o, [v], by)
    torch.testing.assert_close((dv * v).sum(), (o * by).sum(), rtol=1e-4, atol=1e-4)


@pytest.mark.turns(32)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_is_whole(dynamic):
    def model(q, k, v):
        return tw.attention(q * 2, k, v, window=(9, 0), softcap=5.0).square()

    given = qkv()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n_q, n_kv in ((20, 30), (24, 40)):
        given = qkv(n_q, n_kv)
        found, wanted = compiled(*given), model(*given)
        by = torch.randn_like(wanted)
        close(torch.autograd.grad(found, given, by), torch.autograd.grad(wanted, given, by))


@pytest.mark.turns(24)
def test_checkpointing_repeats_it():
    from torch.utils.checkpoint import checkpoint

    def model(q, k, v):
        return tw.attention(q, k, v, mask="causal", dropout=0.25, seed=5)

    given = qkv()
    found, wanted = checkpoint(model, *given, use_reentrant=False), model(*given)
    by = torch.randn_like(wanted)
    found, wanted = (torch.autograd.grad(x, given, by) for x in (found, wanted))
    assert all(map(torch.equal, found, wanted))


def dropping(q, k, v):
    """The seed comes from torch's generator, which a checkpoint puts back."""
    return flash_attn_func(q, k, v, dropout_p=0.3, causal=True, deterministic=True)


@pytest.mark.turns(48)
def test_checkpointing_repeats_a_seed_that_torch_drew():
    from torch.utils.checkpoint import checkpoint

    given, found = qkv(), []
    for model in (dropping, lambda *x: checkpoint(dropping, *x, use_reentrant=False)):
        torch.manual_seed(3)
        o = model(*given)
        found.append((o, *torch.autograd.grad(o.square().sum(), given)))
    assert all(map(torch.equal, *found))


@pytest.mark.turns(24)
def test_compiled_a_seed_that_torch_drew_serves_both_passes():
    given, found = qkv(), []
    for model in (dropping, torch.compile(dropping, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(3)
        o = model(*given)
        found.append((o, *torch.autograd.grad(o.square().sum(), given)))
    assert all(map(torch.equal, *found))


@pytest.mark.turns(48)
def test_packed_rows_have_the_gradients_of_each_sequence_and_stay_one_graph():
    at = torch.tensor([0, 5, 5, 25], dtype=torch.int32)  # the second sequence is empty
    q, k, v = (torch.randn(25, heads, DIM, requires_grad=True) for heads in (4, 1, 1))

    def model(q, k, v):
        return flash_attn_varlen_func(q, k, v, at, at, 20, 20, causal=True)

    by = torch.randn(25, 4, DIM)
    found = torch.autograd.grad(model(q, k, v), [q, k, v], by)
    each = [
        flash_attn_func(*(x[None, a:b] for x in (q, k, v)), causal=True)[0]
        for a, b in ((0, 5), (5, 25))
    ]
    close(found, torch.autograd.grad(torch.cat(each), [q, k, v], by))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, found, torch.autograd.grad(compiled(q, k, v), [q, k, v], by)))


def test_a_gradient_of_a_sum_has_strides_of_zero():
    given = qkv()
    found = torch.autograd.grad(tw.attention(*given, mask="causal").sum(), given)
    close(found, torch.autograd.grad(plainly(*given)[0].sum(), given))


def test_what_cannot_be_differentiated_is_refused_by_name():
    q, k, v = qkv()
    pages = torch.zeros(B, 2, dtype=torch.int32)
    used = torch.ones(B, dtype=torch.int32)
    with pytest.raises(BadArgument, match=r"in pages have no gradients.*detach"):
        tw.attention(q, k.detach(), v.detach(), page_table=pages, kv_used=used)
