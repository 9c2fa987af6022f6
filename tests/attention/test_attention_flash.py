"""`tilewright.flash_attn`: FlashAttention's arguments become the problem that they mean."""

from __future__ import annotations

import inspect
import random

import pytest

torch = pytest.importorskip("torch")

from stated_problem import stated  # noqa: E402

import tilewright  # noqa: E402
from tilewright import flash_attn  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
    functions,
    kvcache,
)

B, HEADS, KV_HEADS, DIM = 2, 4, 2, 16
SHARED = (
    "dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes",
    "deterministic", "return_attn_probs",
)  # fmt: skip
VARLEN = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
FIRST = {
    "flash_attn_func": ("q", "k", "v", *SHARED),
    "flash_attn_kvpacked_func": ("q", "kv", *SHARED),
    "flash_attn_qkvpacked_func": ("qkv", *SHARED),
    "flash_attn_varlen_func": ("q", "k", "v", *VARLEN, *SHARED, "block_table"),
    "flash_attn_varlen_kvpacked_func": ("q", "kv", *VARLEN, *SHARED),
    "flash_attn_varlen_qkvpacked_func": ("qkv", "cu_seqlens", "max_seqlen", *SHARED),
    "flash_attn_with_kvcache": (
        "q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "cache_seqlens",
        "cache_batch_idx", "cache_leftpad", "block_table", "softmax_scale", "causal",
        "window_size", "softcap", "rotary_interleaved", "alibi_slopes", "num_splits",
        "return_softmax_lse",
    ),
}  # fmt: skip
"""FlashAttention 2's arguments, in its order."""
DEFAULTS = {
    "dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1),
    "softcap": 0.0, "alibi_slopes": None, "deterministic": False, "return_attn_probs": False,
    "block_table": None, "rotary_interleaved": True, "num_splits": 0, "return_softmax_lse": False,
    "cache_seqlens": None,
}  # fmt: skip


@pytest.fixture
def calls():
    with stated(functions, kvcache) as found:
        yield found


def batch(n_q=20, n_kv=30, dtype=torch.float32):
    q = torch.randn(B, n_q, HEADS, DIM).to(dtype)
    k, v = (torch.randn(B, n_kv, KV_HEADS, DIM).to(dtype) for _ in range(2))
    return q, k, v


def offsets(*lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


@pytest.mark.parametrize("name", FIRST)
def test_arguments_stand_as_in_flash_attention(name):
    parameters = inspect.signature(getattr(flash_attn, name)).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert tuple(p.name for p in positional) == FIRST[name]
    for one in positional:
        if one.name in DEFAULTS:
            assert one.default == DEFAULTS[one.name]
    assert name in flash_attn.__all__


@pytest.mark.parametrize(
    ("causal", "window", "left", "right"),
    [
        (False, (-1, -1), None, None),
        (True, (-1, -1), None, 0),
        (False, (7, -1), 7, None),
        (False, (-1, 3), None, 3),
        (False, (7, 3), 7, 3),
        (True, (7, 3), 7, 0),
        (True, (7, -1), 7, 0),
        (True, (-1, 3), None, 0),
        (False, (0, 0), 0, 0),
        (False, (None, None), None, None),
    ],
)
def test_the_window(calls, causal, window, left, right):
    flash_attn_func(*batch(), causal=causal, window_size=window)
    p = calls.problem
    assert (p.left, p.right, p.corner) == (left, right, p.corner)
    assert p.mask.bottom_right or p.mask.kind == "none"


def test_a_batch(calls):
    q, k, v = batch()
    slopes = torch.rand(B, HEADS)
    flash_attn_func(q, k, v, 0.0, 0.25, softcap=5, alibi_slopes=slopes)
    p = calls.problem
    assert (p.batch, p.heads, p.kv_heads, p.q_len, p.kv_len) == (B, HEADS, KV_HEADS, 20, 30)
    assert (p.softcap, p.slopes_batched, p.features) == (5.0, True, "softcap+alibi")
    assert calls.said["scale"] == 0.25


@pytest.mark.parametrize("name", [name for name in FIRST if name != "flash_attn_with_kvcache"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_word_of_gradients_is_not_lost(calls, name, deterministic):
    q, k, v = batch(20, 20)
    packed = {"q": q, "k": k, "v": v, "kv": torch.stack([k, v], 2)}
    packed["qkv"] = torch.randn(B, 20, 3, HEADS, DIM)
    if "varlen" in name:
        packed = {name: x.flatten(0, 1) for name, x in packed.items()}
    at = dict.fromkeys(("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"), offsets(20, 20))
    known = packed | at | dict.fromkeys(("max_seqlen", "max_seqlen_q", "max_seqlen_k"), 20)
    given = {each: x for each, x in known.items() if each in FIRST[name]}
    getattr(flash_attn, name)(**given, deterministic=deterministic)
    assert calls.problem.deterministic is deterministic


@pytest.mark.parametrize("splits", [0, 1])
def test_one_split_is_a_kernel_for_every_batch(calls, splits):
    q, k, v = batch(20, 20)
    flash_attn_func(q, k, v, num_splits=splits)
    rows = (x.flatten(0, 1) for x in (q, k, v))
    flash_attn_varlen_func(*rows, offsets(20, 20), offsets(20, 20), 20, 20, num_splits=splits)
    flash_attn_with_kvcache(q, k, v, num_splits=splits)
    assert [p.batch_invariant for p in calls.problems] == [bool(splits)] * 3


def test_out_is_written_and_lse_returned():
    q, k, v = batch(5, 6)
    wanted, lse, _ = flash_attn_func(q, k, v, return_attn_probs=True)
    rows = [x.flatten(0, 1) for x in (q, k, v)]
    lengths = offsets(5, 5), offsets(6, 6), 5, 6
    for function, arguments, like, one in (
        (flash_attn_func, (q, k, v), wanted, lse),
        (flash_attn_varlen_func, (*rows, *lengths), wanted.flatten(0, 1), lse.transpose(0, 1)),
        (flash_attn_with_kvcache, (q, k, v), wanted, lse),
    ):
        out = torch.full_like(like, torch.nan)
        assert function(*arguments, out=out) is out
        torch.testing.assert_close(out, like)
        out.fill_(torch.nan)
        made, found = function(*arguments, out=out, return_softmax_lse=True)
        assert made is out
        torch.testing.assert_close((out, found), (like, one.reshape(found.shape)))
        made, found = function(*arguments, return_softmax_lse=True)
        torch.testing.assert_close((made, found), (like, one.reshape(found.shape)))


def test_arguments_of_vllms_fork(calls):
    """By keyword, as its calls are; a window is a list, and offsets of keys may be left out."""
    pages, table = torch.randn(2, 6, 4, KV_HEADS, DIM), torch.tensor([[0, 1], [2, 3]]).int()
    flash_attn_varlen_func(
        q=torch.randn(3, HEADS, DIM), k=pages[0], v=pages[1], out=None, cu_seqlens_q=offsets(1, 2),
        max_seqlen_q=2, seqused_k=offsets(5, 3)[1:], max_seqlen_k=8, softmax_scale=0.5, causal=True,
        alibi_slopes=None, window_size=[3, 0], block_table=table, softcap=0,
        scheduler_metadata=None, fa_version=3, q_descale=None, k_descale=None, v_descale=None,
        num_splits=0, s_aux=torch.randn(HEADS).bfloat16(), return_softmax_lse=False,
    )  # fmt: skip
    p = calls.problem
    assert (p.q_len, p.kv_len, p.left, p.right, p.batch) == (2, 8, 3, 0, 2)
    assert p.features == "sinks+packedq+usedkv+pagetable"
    assert calls.said["sinks"].dtype == torch.float32
    for wrong, said in (
        ({"fa_version": 5}, "fa_version = 5 is not 2, 3 or 4"),
        ({"scheduler_metadata": table}, "scheduler_metadata is not supported: kernels need none"),
        ({"cp_world_size": 2}, "merge_state"),
        ({"q_v": table}, "latent attention is"),
        ({"num_splits": 3}, "num_splits is not supported at 3: .* pass 0, or 1"),
        ({"return_attn_probs": True, "return_softmax_lse": True}, "pass one"),
        ({"s_aux": torch.zeros(HEADS), "learnable_sink": torch.zeros(HEADS)}, "two names"),
    ):
        with pytest.raises(BadArgument, match=said):
            flash_attn_func(*batch(), **wrong)


def test_what_says_nothing_is_left_out(calls):
    flash_attn_func(*batch(), softcap=-1.0, num_splits=0, pack_gqa=None, sm_margin=0, qv=None)
    assert calls.said == {} and calls.problem.features == ""


def test_values_of_another_size(calls):
    q, k, _ = batch()
    out = flash_attn_func(q, k, torch.randn(B, 30, KV_HEADS, 24))
    assert out.shape == (B, 20, HEADS, 24) and calls.problem.head_dim_v == 24


def test_packed_arrays_are_views(calls):
    qkv = torch.randn(B, 20, 3, HEADS, DIM)
    flash_attn_qkvpacked_func(qkv)
    flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:])
    one, other = calls.problems
    strides = (60 * HEADS * DIM, 3 * HEADS * DIM, DIM, 1)
    assert one == other and one.q_strides == one.k_strides == one.v_strides == strides
    flash_attn_varlen_qkvpacked_func(qkv.flatten(0, 1), offsets(9, 31), 31)
    flash_attn_varlen_kvpacked_func(
        qkv[:, :, 0].flatten(0, 1), qkv[:, :, 1:].flatten(0, 1), *[offsets(9, 31)] * 2, 31, 31
    )
    first, second = calls.problems[2:]
    assert first.total_q == 2 * 20 and first.k_strides == (0, 3 * HEADS * DIM, DIM, 1)
    assert (second.batch, second.q_len, second.kv_len) == (2, 31, 31)


def test_a_packed_array_of_another_shape_is_refused():
    with pytest.raises(BadArgument, match=r"qkv is \[2, 20, 4, 16\], but must have 5 dimensions"):
        flash_attn_qkvpacked_func(batch()[0])
    with pytest.raises(BadArgument, match="kv is"):
        flash_attn_varlen_kvpacked_func(*[torch.zeros(8, 3, HEADS, DIM)] * 2, *[None] * 4)


def test_rows_that_are_not_contiguous_are_copied(calls):
    q, k, v = batch()
    flash_attn_func(q.transpose(-1, -2).contiguous().transpose(-1, -2), k, v)
    flash_attn_func(q, k, v)
    assert calls.problems[0] == calls.problems[1]


def test_different_lengths(calls):
    q, k = torch.randn(40, HEADS, DIM), torch.randn(50, KV_HEADS, DIM)
    used = torch.tensor([5, 30], dtype=torch.int32)
    out, lse, none = flash_attn_varlen_func(
        q, k, k, offsets(9, 31), offsets(30, 20), 31, 30, causal=True, return_attn_probs=True,
        seqused_q=used, seqused_k=used,
    )  # fmt: skip
    p = calls.problem
    assert (p.batch, p.q_len, p.kv_len, p.total_q, p.total_kv) == (2, 31, 30, 40, 50)
    assert p.words == {"lse", "packedq", "packedkv", "usedq", "usedkv"}
    assert out.shape == q.shape and lse.shape == (HEADS, 40) and none is None


@pytest.mark.parametrize("name", ["block_table", "page_table"])
def test_pages_of_different_lengths(calls, name):
    q, pages = torch.randn(40, HEADS, DIM), torch.randn(12, 8, KV_HEADS, DIM)
    table = torch.randint(0, 12, (2, 5), dtype=torch.int32)
    flash_attn_varlen_func(
        q, pages, pages, offsets(9, 31), offsets(30, 20), 31, 30, **{name: table}
    )
    p = calls.problem
    assert (p.pages, p.page_size, p.page_entries, p.kv_len) == (12, 8, 5, 30)
    assert p.words == {"packedq", "usedkv", "pagetable"}
    assert calls.said["kv_used"].tolist() == [30, 20]


def test_dropout_is_rounded_and_follows_torchs_seed(calls):
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        flash_attn_func(*batch(), 0.17)
    seeds = [said["seed"] for said in calls.keywords]
    assert seeds[0] == seeds[1] != seeds[2]
    assert {p.dropout for p in calls.problems} == {44 / 256}
    assert calls.problems[0].features == "dropout"


@pytest.mark.parametrize("p", [-0.1, 1.0, 0.001])
def test_dropout_that_cannot_be(p):
    with pytest.raises(BadArgument, match=f"dropout_p = {p}"):
        flash_attn_func(*batch(), p)


def test_probabilities_are_negative_where_weights_were_dropped(calls):
    q, k, v = batch()
    *_, found = flash_attn_func(q, k, v, 0.5, return_attn_probs=True)
    assert "random" in calls.problem.words and found.shape == (B, HEADS, 20, 30)


def test_scales_of_fp8(calls):
    q, k, v = (x.to(torch.float8_e4m3fn) for x in batch())
    scale = torch.full((1, 1), 2.0).expand(B, KV_HEADS)
    flash_attn_func(q, k, v, k_descale=scale)
    p = calls.problem
    assert (p.dtype, p.dtype_o, p.features) == ("e4m3fn", "bf16", "hscale")
    assert calls.said["q_scale"].tolist() == [[1.0] * KV_HEADS] * B
    assert calls.said["k_scale"].tolist() == [[2.0] * KV_HEADS] * B
    flash_attn_func(batch(dtype=torch.bfloat16)[0], k, v, v_descale=scale)
    assert "q_scale" not in calls.keywords[1]
    with pytest.raises(BadArgument, match="q_descale scales an operand in fp8"):
        flash_attn_func(batch(dtype=torch.bfloat16)[0], k, v, q_descale=scale)
    with pytest.raises(BadArgument, match="k_descale scales an operand in fp8"):
        flash_attn_func(*batch(), k_descale=scale)


def test_a_sink_of_any_dtype(calls):
    flash_attn_func(*batch(), learnable_sink=torch.zeros(HEADS, dtype=torch.bfloat16))
    assert calls.problem.features == "sinks" and calls.said["sinks"].dtype == torch.float32


# --- a cache ------------------------------------------------------------------------------------


def cached(n_q=1, rows=64, batch=B):
    cache = torch.zeros(batch, rows, KV_HEADS, DIM)
    return torch.randn(B, n_q, HEADS, DIM), cache, cache.clone()


def test_a_cache_and_its_lengths(calls):
    q, k, v = cached()
    flash_attn_with_kvcache(q, k, v)
    flash_attn_with_kvcache(q, k, v, cache_seqlens=20)
    flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor([3, 4], dtype=torch.int32))
    assert [p.features for p in calls.problems] == ["", "usedkv", "usedkv"]
    assert calls.keywords[1]["kv_used"].tolist() == [20, 20]


def test_new_keys_join_the_cache(calls):
    q, k, v = cached(n_q=3)
    new, angles = torch.randn(B, 3, KV_HEADS, DIM), torch.zeros(64, 4)
    where = {"cache_seqlens": torch.tensor([3, 4], dtype=torch.int32)}
    for style, word in ((True, "rotaryi"), (False, "rotaryh")):
        out, lse = flash_attn_with_kvcache(
            q, k, v, new, new, angles, angles, **where, causal=True, rotary_interleaved=style,
            return_softmax_lse=True,
        )  # fmt: skip
        p = calls.problems[-1]
        assert p.words == {"lse", "usedkv", "append", word}
        assert (p.new_kv, p.rotary_dim, p.rotary_len) == (3, 8, 64)
        assert out.shape == q.shape and lse.shape == (B, HEADS, 3)


def test_a_sequence_of_the_cache_for_each_query(calls):
    q, k, v = cached(batch=7)
    which = torch.tensor([6, 2])
    flash_attn_with_kvcache(q, k, v, cache_seqlens=9, cache_batch_idx=which)
    p = calls.problem
    assert (p.pages, p.page_size, p.page_entries, p.kv_len) == (7, 64, 1, 64)
    assert calls.said["page_table"].tolist() == [[6], [2]]
    flash_attn_with_kvcache(q, k, v, cache_batch_idx=which)
    assert calls.keywords[1]["kv_used"].tolist() == [64, 64]


def test_pages_of_a_cache(calls):
    q, k, v = cached(rows=8, batch=12)
    table = torch.randint(0, 12, (B, 5), dtype=torch.int32)
    pad = torch.tensor([0, 2], dtype=torch.int32)
    flash_attn_with_kvcache(q, k, v, block_table=table, cache_leftpad=pad, cache_seqlens=33)
    assert calls.problem.words == {"usedkv", "leftpad", "pagetable"}
    assert calls.problem.kv_len == 40
    flash_attn_with_kvcache(q, k, v, page_table=table)
    assert calls.keywords[1]["kv_used"].tolist() == [40, 40]


def test_packed_queries_of_a_cache(calls):
    _, k, v = cached()
    flash_attn_with_kvcache(
        torch.randn(5, HEADS, DIM), k, v, cache_seqlens=9, cu_seqlens_q=offsets(2, 3),
        max_seqlen_q=3,
    )  # fmt: skip
    assert calls.problem.words == {"packedq", "usedkv"} and calls.problem.q_len == 3


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("attention_chunk", 128),
        ("num_splits", 4),
        ("pack_gqa", True),
        ("pack_gqa", False),
        ("qv", torch.zeros(1)),
        ("scheduler_metadata", torch.zeros(1)),
        ("sm_margin", 2),
        ("cu_seqlens_k_new", torch.zeros(1)),
        ("rotary_seqlens", torch.zeros(1)),
    ],
)
def test_what_is_not_supported_is_said(keyword, value):
    said = f"flash_attn_with_kvcache: {keyword} is not supported"
    with pytest.raises(BadArgument, match=said):
        flash_attn_with_kvcache(*cached(), **{keyword: value})


@pytest.mark.parametrize("given", [(None, True), (0.125, True)])
def test_the_order_of_flash_attention_3_is_not_misread(given):
    """softmax_scale and causal, where dropout_p and softmax_scale stand."""
    with pytest.raises(BadArgument, match="pass those of FlashAttention 3 by keyword"):
        flash_attn_func(*batch(), *given)


def test_an_unknown_argument():
    with pytest.raises(TypeError, match=r"flash_attn_func\(\) got an unexpected keyword argument"):
        flash_attn_func(*batch(), casual=True)


def test_arguments_that_contradict_one_another():
    q, k, v = cached()
    table = torch.zeros(B, 5, dtype=torch.int32)
    new, angles = torch.zeros(B, 1, KV_HEADS, DIM), torch.zeros(64, 4)
    for words, said in (
        ({"block_table": table, "page_table": table}, "two names of one argument"),
        ({"block_table": table, "cache_batch_idx": table[:, 0]}, "both say where rows lie"),
        ({"k": new, "cache_seqlens": 3}, "k and v are appended together"),
        ({"k": new, "v": new}, "pass cache_seqlens"),
        ({"rotary_cos": angles, "rotary_sin": angles}, "pass k and v"),
        ({"k": new, "v": new, "cache_seqlens": 3, "rotary_cos": angles}, "pass both"),
        ({"window_size": 3}, "is not \\(left, right\\)"),
    ):
        with pytest.raises(BadArgument, match=said):
            flash_attn_with_kvcache(q, k, v, **words)
    with pytest.raises(BadArgument, match="k_cache must be contiguous in its last dimension"):
        flash_attn_with_kvcache(q, k.transpose(-1, -2), v)


def test_gradients_are_those_of_the_operation():
    given = [x.requires_grad_() for x in batch()]
    found = flash_attn_func(*given, causal=True).square().sum()
    wanted = tilewright.attention(*given, mask="causal").square().sum()
    found, wanted = (torch.autograd.grad(x, given) for x in (found, wanted))
    assert all(map(torch.equal, found, wanted))


def test_gradients_over_pages_are_refused():
    q, k, v = cached()
    table = torch.zeros(B, 5, dtype=torch.int32)
    with pytest.raises(BadArgument, match="in pages have no gradients"):
        flash_attn_with_kvcache(q.requires_grad_(), k, v, cache_seqlens=1, block_table=table)


# --- run ----------------------------------------------------------------------------------------


@pytest.fixture
def right():
    with stated(functions, kvcache, run=True) as found:
        yield found


def test_results_are_right(right):
    q, k, v = batch()
    flash_attn_func(q, k, v, softmax_scale=0.4, window_size=(7, 3), softcap=3.0)
    flash_attn_func(q, k, v, causal=True, alibi_slopes=torch.rand(HEADS), return_attn_probs=True)
    flash_attn_qkvpacked_func(torch.randn(B, 20, 3, HEADS, DIM), causal=True)


def test_results_of_different_lengths_are_right(right):
    q, k = torch.randn(40, HEADS, DIM), torch.randn(50, KV_HEADS, DIM)
    used = torch.tensor([5, 30], dtype=torch.int32)
    lengths = offsets(9, 31), offsets(30, 20), 31, 30
    flash_attn_varlen_func(q, k, k, *lengths, causal=True, seqused_q=used)
    pages, table = torch.randn(12, 8, KV_HEADS, DIM), torch.randperm(12).int()[:10].view(2, 5)
    flash_attn_varlen_func(q, pages, pages, *lengths, block_table=table, return_attn_probs=True)


def test_results_over_a_cache_are_right(right):
    q, k, v = cached(n_q=3, batch=5)
    k.normal_(), v.normal_()
    new, angles = torch.randn(B, 3, KV_HEADS, DIM), torch.rand(64, 4)
    where = {"cache_seqlens": torch.tensor([3, 40], dtype=torch.int32)}
    which = torch.tensor([4, 1], dtype=torch.int32)
    flash_attn_with_kvcache(q, k, v, **where, cache_batch_idx=which, return_softmax_lse=True)
    before = k.clone()
    flash_attn_with_kvcache(
        q, k, v, new, new, angles.cos(), angles.sin(), **where, cache_batch_idx=which, causal=True
    )
    changed = (k != before).flatten(2).any(-1).nonzero().tolist()
    assert changed == [[1, 40], [1, 41], [1, 42], [4, 3], [4, 4], [4, 5]]


@pytest.mark.turns(24)
@pytest.mark.parametrize("packed", [False, True])
def test_probabilities_give_the_output(packed):
    """Dropped weights removed and the others enlarged, they are what O is made with."""
    torch.manual_seed(0)
    lengths = [(9, 14), (31, 20)]
    words = {"causal": True, "softcap": 4.0, "alibi_slopes": torch.rand(B, HEADS)}
    if packed:
        q, k = torch.randn(40, HEADS, DIM), torch.randn(34, KV_HEADS, DIM)
        spans = offsets(9, 31), offsets(14, 20)
        out, lse, weights = flash_attn_varlen_func(
            q, k, k, *spans, 31, 20, 0.25, return_attn_probs=True, **words
        )
        parts = [(out[:9], k[:14]), (out[9:], k[14:])]
    else:
        q, k, _ = batch(31, 20)
        out, lse, weights = flash_attn_func(q, k, k, 0.25, return_attn_probs=True, **words)
        lengths, parts = [(31, 20)] * B, list(zip(out, k, strict=True))
    assert weights.shape == (B, HEADS, 31, 20) and (weights < 0).any() and (weights > 0).any()
    for b, (o, keys) in enumerate(parts):
        n_q, n_kv = lengths[b]
        kept = weights[b, :, :n_q, :n_kv].clamp(min=0) / 0.75
        values = keys.repeat_interleave(HEADS // KV_HEADS, 1)
        assert torch.allclose(torch.einsum("hij,jhd->ihd", kept, values), o, atol=1e-4)
        total = weights[b].abs().sum(-1)[:, :n_q]
        seen = lse[b] > -torch.inf if not packed else total > 0
        assert torch.allclose(total, seen.float(), atol=1e-4)


@pytest.mark.grid(2)
@pytest.mark.parametrize("seed", range(6))
def test_any_arguments_over_a_cache_are_right(right, seed):
    """Drawn: what joins the cache, where it lies, its dtype, lengths, mask, scores."""
    rng, batch_ = random.Random(seed), 3
    torch.manual_seed(seed)
    pick, heads, kv_heads = rng.choice, *rng.choice([(4, 2), (3, 1), (2, 2)])
    dtype = pick([torch.float32, torch.bfloat16])
    n_q, n_new, rows = pick([1, 3]), pick([0, 1, 4]), 48
    where = pick(["rows", "index", "table"])
    page = pick([1, 4, 16]) if where == "table" else rows
    cache = torch.randn(2, (150 * 16 // page) if where == "table" else 5, page, kv_heads, DIM)
    words = {
        "cache_seqlens": torch.tensor([rng.randrange(rows - 4) for _ in range(batch_)]).int(),
        "causal": pick([False, True]),
        "window_size": pick([(-1, -1), (5, 2), (9, -1)]),
        "softcap": pick([0.0, 4.0]),
        "alibi_slopes": pick([None, torch.rand(heads)]),
        "learnable_sink": pick([None, torch.rand(heads)]),
        "softmax_scale": pick([None, 0.4]),
        "return_softmax_lse": pick([False, True]),
    }
    if where == "table":
        entries = -(-rows // page)
        words["block_table"] = torch.randperm(len(cache[0]))[: batch_ * entries].int().view(3, -1)
    if where == "index":
        words["cache_batch_idx"] = torch.randperm(5)[:batch_].int()
    cache = cache[:, :batch_] if where == "rows" else cache
    if n_new:
        words |= dict(
            zip("kv", torch.randn(2, batch_, n_new, kv_heads, DIM).to(dtype), strict=True)
        )
        if pick([False, True]):
            angles = torch.rand(rows, 4)
            words |= {"rotary_cos": angles.cos().to(dtype), "rotary_sin": angles.sin().to(dtype)}
            words["rotary_interleaved"] = pick([False, True])
    cache = cache.to(dtype)
    if dtype == torch.bfloat16 and pick([False, True]):
        cache = cache.to(torch.float8_e4m3fn)
        words["k_descale"] = words["v_descale"] = torch.rand(batch_, kv_heads) + 0.5
    q = torch.randn(batch_, n_q, heads, DIM).to(dtype)
    flash_attn_with_kvcache(q, *cache, **words)
    assert len(right.problems) == 1
