"""FlashAttention's functions and plans for serving on a real GPU: checked, captured in graphs that
are replayed with other lengths, and compiled."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from stated_problem import stated  # noqa: E402

from tilewright.flash_attn import (  # noqa: E402
    apply_rotary_emb,
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    functions,
    kvcache,
    pad_input,
    unpad_input,
)
from tilewright.serving import (  # noqa: E402
    Capacity,
    LatentAttention,
    PagedAttention,
    RaggedAttention,
    merge_state,
    merge_state_in_place,
    merge_states,
    planned,
)

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
HEADS, KV_HEADS, DIM, PAGE, PAGES = 16, 4, 128, 16, 64
SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE}


@pytest.fixture
def right():
    with stated(functions, kvcache, planned, run=True) as found:
        yield found


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def pages_of(*lengths, seed=0):
    """Pages of sequences of so many rows, none shared: `plan`'s three arguments."""
    counts = [-(-n // PAGE) for n in lengths]
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(seed))[: sum(counts)]
    starts = torch.tensor([0, *counts]).cumsum(0)
    last = [n - max(0, count - 1) * PAGE for n, count in zip(lengths, counts, strict=True)]
    return ints(*starts.tolist()), ints(*order.tolist()), ints(*last)


def test_functions_are_right(right):
    q, k, v = randn(2, 200, HEADS, DIM), *randn(2, 2, 300, KV_HEADS, DIM)
    flash_attn_func(q, k, v, causal=True)
    flash_attn_func(q, k, v, window_size=(64, 0), softcap=20.0, return_attn_probs=True)
    flash_attn_func(q, k, v, alibi_slopes=torch.rand(HEADS, device=DEVICE))
    offsets = ints(0, 150, 150, 400)
    flash_attn_varlen_func(
        q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), offsets, offsets, 250, 250, causal=True
    )


@pytest.mark.parametrize("style", [True, False])
def test_a_step_that_appends_is_right(right, style):
    caches = randn(2, 5, 300, KV_HEADS, DIM)
    new = randn(2, 2, 3, KV_HEADS, DIM)
    cos, sin = randn(2, 512, DIM // 2)
    flash_attn_with_kvcache(
        randn(2, 3, HEADS, DIM), *caches, *new, cos, sin, cache_seqlens=ints(200, 7),
        cache_batch_idx=ints(4, 1), causal=True, rotary_interleaved=style,
    )  # fmt: skip


def test_plans_are_right(right):
    paged, cache = PagedAttention(DEVICE), randn(PAGES, 2, PAGE, KV_HEADS, DIM)
    where = pages_of(300, 0, 77)
    paged.plan(None, *where, **SHAPE)
    paged.run(randn(3, HEADS, DIM), cache, return_lse=True)
    paged.plan(ints(0, 33, 33, 110), *where, **SHAPE, causal=True)
    paged.run(randn(110, HEADS, DIM), cache)
    ragged, starts = RaggedAttention(DEVICE), ints(0, 33, 110)
    ragged.plan(starts, starts, HEADS, KV_HEADS, DIM, causal=True)
    ragged.run(randn(110, HEADS, DIM), *randn(2, 110, KV_HEADS, DIM))
    latent, rows = LatentAttention(DEVICE), randn(PAGES, PAGE, 576)
    q, lengths = randn(3, HEADS, 576), ints(300, 0, 77)
    latent.plan(None, *where[:2], lengths, HEADS, 512, 64, PAGE, True, 576**-0.5)
    latent.run(q[..., :512], q[..., 512:], rows[..., :512], rows[..., 512:])


def test_a_captured_run_is_replayed_with_other_lengths():
    capacity = Capacity(batch=4, max_kv=512, max_q=64, pages=PAGES, rows=128)
    fixed, free = PagedAttention(DEVICE, capacity=capacity), PagedAttention(DEVICE)
    q, cache = randn(128, HEADS, DIM), randn(PAGES, 2, PAGE, KV_HEADS, DIM)
    out = torch.zeros_like(q)
    batches = [((40, 1, 64), (300, 9, 64)), ((1,), (512,)), ((20, 0, 7, 64), (20, 16, 400, 100))]

    def plan(attention, number):
        rows, keys = batches[number]
        starts = torch.tensor([0, *rows]).cumsum(0)
        attention.plan(ints(*starts.tolist()), *pages_of(*keys, seed=number), **SHAPE, causal=True)
        return int(starts[-1])

    plan(fixed, 0)
    fixed.run(q, cache, out=out)  # builds
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fixed.run(q, cache, out=out)
    for number in (1, 2, 0):
        rows = plan(fixed, number)
        q.copy_(randn(*q.shape))
        out.fill_(float("nan"))
        graph.replay()
        plan(free, number)
        torch.testing.assert_close(out[:rows], free.run(q, cache)[:rows], rtol=2e-2, atol=2e-2)
        assert out[rows:].isnan().all()


def test_a_decode_loop_is_one_graph_that_is_replayed():
    """Each replay appends a row and moves the lengths, which only the device knows."""
    batch, steps = 3, 5
    caches, used = randn(2, PAGES, PAGE, KV_HEADS, DIM), ints(100, 3, 47)
    table = torch.randperm(PAGES, device=DEVICE)[: batch * 8].view(batch, 8).int()
    q, new = randn(batch, 1, HEADS, DIM), randn(2, batch, 1, KV_HEADS, DIM)
    plain, plain_used = caches.clone(), used.clone()

    def step(caches, used):
        out = flash_attn_with_kvcache(
            q, *caches, *new, cache_seqlens=used, block_table=table, causal=True
        )
        used += 1
        return out

    step(caches.clone(), used.clone())  # builds
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(caches, used)
    for _ in range(steps):
        q.copy_(randn(*q.shape))
        new.copy_(randn(*new.shape))
        graph.replay()
        right = step(plain, plain_used)
        torch.testing.assert_close(out, right, rtol=2e-2, atol=2e-2)
        assert torch.equal(caches, plain) and torch.equal(used, plain_used)


@pytest.mark.parametrize("apart", [True, False], ids=["two tensors", "views of one"])
def test_a_step_that_appends_is_compiled(apart):
    def step(q, k_cache, v_cache, new, used):
        return flash_attn_with_kvcache(q * 2, k_cache, v_cache, new, new, cache_seqlens=used) + 1

    torch._dynamo.reset()
    caches, used = [*randn(2, 3, 200, KV_HEADS, DIM)], ints(100, 3, 47)
    plain, compiled = [x.clone() for x in caches], torch.compile(step, fullgraph=True)
    caches = [x.clone() for x in caches] if apart else caches
    for _ in range(2):
        q, new = randn(3, 1, HEADS, DIM), randn(3, 1, KV_HEADS, DIM)
        got, right = compiled(q, *caches, new, used), step(q, *plain, new, used)
        torch.testing.assert_close(got, right, rtol=2e-2, atol=2e-2)
        assert all(map(torch.equal, caches, plain))
        used = used + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_states_are_merged(dtype):
    v = randn(300, 5, HEADS, DIM, dtype=dtype)
    s = 3 * torch.randn(300, HEADS, 5, device=DEVICE).transpose(1, 2)
    s[torch.rand(s.shape, device=DEVICE) < 0.3] = -torch.inf
    s[0] = -torch.inf
    v[s.isinf()] = torch.nan
    log = s.double().logsumexp(1)
    weights = torch.exp(s.double() - torch.where(log.isinf(), 0, log)[:, None])[..., None]
    wanted = (torch.where(weights > 0, v.double(), 0) * weights).sum(1)
    eps = 4 * torch.finfo(dtype).eps
    o, lse = merge_states(v, s)
    torch.testing.assert_close(o.double(), wanted, rtol=eps, atol=eps)
    torch.testing.assert_close(lse.double(), log, rtol=1e-5, atol=1e-5)
    (va, vb), (sa, sb) = v.unbind(1)[:2], s.unbind(1)[:2]
    o, lse = merge_state(va, sa, vb, sb)
    stacked = merge_states(v[:, :2], s[:, :2])
    torch.testing.assert_close((o, lse), stacked, rtol=eps, atol=eps)
    graph, mask = torch.cuda.CUDAGraph(), torch.rand(300, device=DEVICE) < 0.5
    kept_v, kept_s = va.clone(), sa.clone()
    merge_state_in_place(va.clone(), sa.clone(), vb, sb, mask)
    with torch.cuda.graph(graph):
        merge_state_in_place(kept_v, kept_s, vb, sb, mask)
    graph.replay()
    merged = torch.where(mask[:, None, None], o, va), torch.where(mask[:, None], lse, sa)
    torch.testing.assert_close((kept_v, kept_s), merged, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("splits", [0, 1])
def test_calls_that_write_out_are_repeated(splits):
    q, k, v = randn(2, 1, HEADS, DIM), *randn(2, 2, 300, KV_HEADS, DIM)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    lengths = ints(0, 1, 2), ints(0, 300, 600), 1, 300
    for function, given in (
        (flash_attn_func, (q, k, v)),
        (flash_attn_varlen_func, (*rows, *lengths)),
        (flash_attn_with_kvcache, (q, k, v)),
    ):
        wanted = function(*given)
        for _ in range(3):
            out = torch.full_like(wanted, torch.nan)
            assert function(*given, out=out, num_splits=splits, window_size=[-1, -1]) is out
            torch.testing.assert_close(out, wanted, rtol=2e-2, atol=2e-3)
            out.fill_(torch.nan)
            made, lse = function(*given, out=out, num_splits=splits, return_softmax_lse=True)
            assert made is out and lse.isfinite().all()
            torch.testing.assert_close(out, wanted, rtol=2e-2, atol=2e-3)


def test_one_split_gives_the_same_bits_for_every_batch():
    q, k, v = randn(64, 1, HEADS, DIM), *randn(2, 64, 4000, KV_HEADS, DIM)
    whole = flash_attn_func(q, k, v, num_splits=1)
    for one in (0, 63):
        alone = flash_attn_func(*(x[one : one + 1] for x in (q, k, v)), num_splits=1)
        assert torch.equal(alone, whole[one : one + 1])


def test_a_scale_of_fp8_may_be_a_number():
    q, k, v = randn(2, 1, HEADS, DIM), *randn(2, 2, 128, KV_HEADS, DIM)
    k8, v8 = (x.to(torch.float8_e4m3fn) for x in (k, v))
    full = torch.full((2, KV_HEADS), 0.25, device=DEVICE)
    wanted = flash_attn_with_kvcache(q, k8, v8, k_descale=full, v_descale=2 * full)
    number = torch.tensor(0.25, device=DEVICE)
    for k_scale, v_scale in ((0.25, 0.5), (number, 0.5), (0.25, 2 * full)):
        made = flash_attn_with_kvcache(q, k8, v8, k_descale=k_scale, v_descale=v_scale)
        torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-3)


def test_rotary_and_padding():
    mask = torch.arange(9, device=DEVICE) < ints(9, 4)[:, None]
    rows, indices, offsets, longest, _ = unpad_input(randn(2, 9, HEADS, DIM), mask)
    angles = torch.arange(12, device=DEVICE)[:, None] / 100 ** torch.linspace(0, 1, DIM // 2).cuda()
    given = angles.cos(), angles.sin()
    packed = apply_rotary_emb(
        rows, *given, cu_seqlens=offsets, max_seqlen=longest, seqlen_offsets=ints(3, 0)
    )
    dense = apply_rotary_emb(pad_input(rows, indices, 2, 9), *given, seqlen_offsets=ints(3, 0))
    assert torch.equal(pad_input(packed, indices, 2, 9), dense * mask[..., None, None])


def test_a_mask_of_a_plans_own():
    lengths = (5, 40), (3, 17)
    seen = torch.rand(5 * 40 + 3 * 17, device=DEVICE) < 0.7
    q, k, v = randn(8, HEADS, DIM), *randn(2, 57, KV_HEADS, DIM)
    attention = RaggedAttention(DEVICE)
    attention.plan(ints(0, 5, 8), ints(0, 40, 57), HEADS, KV_HEADS, DIM, custom_mask=seen)
    for _ in range(2):
        o = attention.run(q, k, v)
        first = {"q": 0, "kv": 0, "mask": 0}
        for n_q, n_kv in lengths:
            i, j, at = first.values()
            mask = seen[at : at + n_q * n_kv].view(1, n_q, n_kv)
            each = (q[i : i + n_q], k[j : j + n_kv], v[j : j + n_kv])
            wanted = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(0, 1)[None].float() for x in each), attn_mask=mask, enable_gqa=True
            )
            found = o[i : i + n_q].float()
            torch.testing.assert_close(found, wanted[0].transpose(0, 1), rtol=2e-2, atol=2e-2)
            first = {"q": i + n_q, "kv": j + n_kv, "mask": at + n_q * n_kv}
