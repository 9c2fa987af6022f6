"""`tilewright.serving`: plans become arrays of lengths, and a call of `tilewright.attention`."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stated_problem import stated  # noqa: E402

from tilewright.errors import BadArgument  # noqa: E402
from tilewright.serving import (  # noqa: E402
    Capacity,
    LatentAttention,
    PagedAttention,
    RaggedAttention,
    append_paged_kv_cache,
    get_batch_indices_positions,
    planned,
)
from tilewright.serving.buffers import rounded_up  # noqa: E402
from tilewright.serving.latent import joined  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 8
SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE}


@pytest.fixture
def calls():
    with stated(planned) as found:
        yield found


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def cache(pages=12, dtype=torch.float32):
    return torch.zeros(pages, 2, PAGE, KV_HEADS, DIM).to(dtype)


THREE = {
    "paged_kv_indptr": ints(0, 2, 2, 5),
    "paged_kv_indices": ints(7, 3, 1, 0, 9),
    "paged_kv_last_page_len": ints(1, 0, 8),
}
"""Sequences of 9, 0 and 24 keys."""


def test_decode(calls):
    a = PagedAttention("cpu")
    a.plan(None, **THREE, **SHAPE, logits_soft_cap=30.0, sm_scale=0.5)
    o, lse = a.run(torch.zeros(3, HEADS, DIM), cache(), return_lse=True)
    p, said = calls.problem, calls.said
    assert (p.batch, p.q_len, p.pages, p.page_size, p.softcap) == (3, 1, 12, PAGE, 30.0)
    assert p.words == {"lse", "softcap", "usedkv", "pagelist"} and said["scale"] == 0.5
    assert said["kv_used"].tolist() == [9, 0, 24] and p.kv_len == 24
    assert said["page_list"].tolist() == [7, 3, 1, 0, 9] and said["page_starts"].tolist() == [
        0, 2, 2, 5,
    ]  # fmt: skip
    assert o.shape == (3, HEADS, DIM) and lse.shape == (3, HEADS)


def test_prefill(calls):
    a = PagedAttention("cpu")
    a.plan(ints(0, 3, 3, 13), **THREE, **SHAPE, causal=True, window_left=5)
    o, lse = a.run(torch.zeros(13, HEADS, DIM), cache().unbind(1), return_lse=True)
    p = calls.problem
    assert (p.left, p.right, p.total_q, p.q_len) == (5, 0, 13, 10)
    assert p.words == {"lse", "packedq", "usedkv", "pagelist"}
    assert p.k_strides == (2 * PAGE * KV_HEADS * DIM, KV_HEADS * DIM, DIM, 1)
    assert o.shape == (13, HEADS, DIM) and lse.shape == (13, HEADS)


def test_the_other_layout(calls):
    a = PagedAttention("cpu", "HND")
    a.plan(None, **THREE, **SHAPE)
    a.run(torch.zeros(3, HEADS, DIM), torch.zeros(12, 2, KV_HEADS, PAGE, DIM))
    assert (calls.problem.kv_layout, calls.problem.page_size) == ("bhsd", PAGE)
    with pytest.raises(BadArgument, match="neither NHD nor HND"):
        PagedAttention("cpu", "HDN")


def test_out_is_written(calls):
    a, out = PagedAttention("cpu"), torch.zeros(3, HEADS, DIM)
    a.plan(None, **THREE, **SHAPE)
    for with_lse in (False, True):
        a.run(torch.zeros(3, HEADS, DIM), cache(), out=out, return_lse=with_lse)
        assert calls.outputs[-1][0].data_ptr() == out.data_ptr()


def test_a_cache_in_fp8(calls):
    a = PagedAttention("cpu")
    a.plan(None, **THREE, **SHAPE)
    q = torch.zeros(3, HEADS, DIM, dtype=torch.bfloat16)
    for _ in range(2):
        a.run(q, cache(dtype=torch.float8_e4m3fn), v_scale=0.5)
    first, again = (said["v_scale"] for said in calls.keywords)
    assert calls.problems[0].words == {"usedkv", "pagelist", "tscale"}
    assert first.tolist() == [0.5] and first.data_ptr() == again.data_ptr()
    assert calls.keywords[0]["k_scale"].tolist() == [1.0]


def test_steps_of_decoding_state_few_problems(calls):
    a = PagedAttention("cpu")
    for used in range(100, 128):
        pages = -(-used // PAGE)
        last = used - (pages - 1) * PAGE
        a.plan(None, ints(0, pages), torch.arange(pages, dtype=torch.int32), ints(last), **SHAPE)
        a.run(torch.zeros(1, HEADS, DIM), cache(16))
    assert len(set(calls.problems)) <= 4
    assert [rounded_up(n) for n in (0, 1, 7, 8, 9, 100, 1025)] == [0, 1, 7, 8, 10, 112, 1280]


# --- captured graphs ----------------------------------------------------------------------------


def test_with_a_capacity_arrays_stay_and_plans_fill_them(calls):
    a = PagedAttention("cpu", capacity=Capacity(batch=4, max_kv=64, max_q=6, pages=20, rows=8))
    q = torch.zeros(8, HEADS, DIM)
    a.plan(ints(0, 3, 3, 8), **THREE, **SHAPE)
    a.run(q, cache())
    a.plan(ints(0, 5), ints(0, 1), ints(11), ints(2), **SHAPE)
    a.run(q, cache())
    (one, other), (before, after) = calls.problems, calls.keywords
    assert one == other and (one.batch, one.q_len, one.kv_len, one.total_q) == (4, 6, 64, 8)
    arrays = ("q_offsets", "page_list", "page_starts", "kv_used")
    assert all(before[name].data_ptr() == after[name].data_ptr() for name in arrays)
    assert [after[name].tolist() for name in arrays] == [
        [0, 5, 5, 5, 5], [11, 3, 1, 0, 9, *[0] * 15], [0, 1, 1, 1, 1], [2, 0, 0, 0],
    ]  # fmt: skip


def test_what_is_over_the_capacity_is_refused():
    def planned_with(**capacity):
        full = {"batch": 3, "max_kv": 24, "max_q": 10, "pages": 5, "rows": 13, **capacity}
        a = PagedAttention("cpu", capacity=Capacity(**full))
        a.plan(ints(0, 3, 3, 13), **THREE, **SHAPE)

    planned_with()
    for capacity, said in (
        ({"batch": 2}, "batch = 2 of the capacity is under the plan's 3"),
        ({"max_kv": 23}, "max_kv = 23 of the capacity is under the plan's 24"),
        ({"max_q": 9}, "max_q = 9"),
        ({"rows": 12}, "rows = 12 of the capacity is under the plan's 13"),
        ({"pages": 4}, "pages = 4 of the capacity is under the plan's 5"),
    ):
        with pytest.raises(BadArgument, match=said):
            planned_with(**capacity)


def test_a_captured_graph_would_not_see_another_mask():
    a = PagedAttention("cpu", capacity=Capacity(batch=3, max_kv=24, pages=5))
    a.plan(None, **THREE, **SHAPE)
    with pytest.raises(BadArgument, match="another window, softcap than the first"):
        a.plan(None, **THREE, **SHAPE, causal=True, logits_soft_cap=1.0)
    with pytest.raises(BadArgument, match="another qo_indptr"):
        a.plan(ints(0, 1, 2, 3), **THREE, **SHAPE)
    free = PagedAttention("cpu")
    for causal in (False, True):
        free.plan(None, **THREE, **SHAPE, causal=causal)


# --- other kinds --------------------------------------------------------------------------------


def test_ragged_keys(calls):
    a = RaggedAttention("cpu")
    a.plan(ints(0, 3, 13), ints(0, 9, 14), HEADS, KV_HEADS, DIM, head_dim_vo=24, causal=True)
    q, k = torch.zeros(13, HEADS, DIM), torch.zeros(14, KV_HEADS, DIM)
    o = a.run(q, k, torch.zeros(14, KV_HEADS, 24))
    p = calls.problem
    assert (p.batch, p.q_len, p.kv_len, p.total_q, p.total_kv) == (2, 10, 10, 13, 14)
    assert p.words == {"packedq", "packedkv"} and o.shape == (13, HEADS, 24)
    with pytest.raises(BadArgument, match="v has 13 rows, but the plan has 14"):
        a.run(q, k, torch.zeros(13, KV_HEADS, 24))


def test_latent(calls):
    a = LatentAttention("cpu")
    where = ints(0, 2, 3), ints(4, 2, 0), ints(9, 8)
    a.plan(None, *where, HEADS, 32, 8, PAGE, True, 0.1)
    pages, q = torch.zeros(5, PAGE, 40), torch.zeros(2, HEADS, 40)
    split = {"q_nope": q[..., :32], "q_pe": q[..., 32:]}
    o = a.run(**split, ckv_cache=pages[..., :32], kpe_cache=pages[..., 32:])
    p = calls.problem
    assert (p.head_dim, p.head_dim_v, p.kv_heads, p.page_size) == (40, 32, 1, PAGE)
    assert p.words == {"latent", "usedkv", "pagelist"} and o.shape == (2, HEADS, 32)
    apart = pages[..., 32:].clone()
    with pytest.raises(BadArgument, match=r"pass cache\[\.\.\., :32\] and cache\[\.\.\., 32:\]"):
        a.run(**split, ckv_cache=pages[..., :32], kpe_cache=apart)
    with pytest.raises(BadArgument, match="kv_len_arr is not"):
        a.plan(None, *where[:2], ints(17, 8), HEADS, 32, 8, PAGE, True, 0.1)


def test_parts_are_joined_only_if_they_are_neighbours():
    x = torch.arange(80.0).reshape(2, 40)
    assert torch.equal(joined(x[:, :32], x[:, 32:]), x)
    assert joined(x[:, :32], x[:, 33:]) is None
    assert joined(x[:, 32:], x[:, :32]) is None
    assert joined(x[:, :32].clone(), x[:, 32:]) is None
    assert joined(x[:, :4], x[:, 4:8].half()) is None


# --- what is refused ----------------------------------------------------------------------------


def test_what_does_not_fit_the_plan_is_refused():
    a = PagedAttention("cpu")
    q = torch.zeros(3, HEADS, DIM)
    with pytest.raises(BadArgument, match="nothing is planned"):
        a.run(q, cache())
    with pytest.raises(BadArgument, match="the page list has 4 entries, under the 5"):
        a.plan(None, **{**THREE, "paged_kv_indices": ints(7, 3, 1, 0)}, **SHAPE)
    with pytest.raises(BadArgument, match="nothing is planned"):
        a.run(q, cache())
    a.plan(None, **THREE, **SHAPE)
    for x, pages, said in (
        (q[:2], cache(), "q has 2 rows, but the plan has 3"),
        (q[:, :2], cache(), r"q is \[3, 2, 16\], but the plan has \[any, 4, 16\]"),
        (q, cache()[:, :1], "paged_kv_cache is"),
        (q, cache()[:, :, :, :1], r"keys is \[12, 8, 1, 16\], but the plan has \[any, 8, 2, 16\]"),
    ):
        with pytest.raises(BadArgument, match=said):
            a.run(x, pages)
    with pytest.raises(BadArgument, match="k_scale scales an operand in fp8"):
        a.run(q, cache(), k_scale=2.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"paged_kv_indptr": ints(0, 3, 2, 5)}, "that never decrease"),
        ({"paged_kv_indptr": ints(1, 2, 2, 5)}, "offsets from 0 on"),
        ({"paged_kv_indptr": ints(0, 2, 2, 6)}, "5 entries, under the 6"),
        ({"paged_kv_last_page_len": ints(1, 0, 9)}, "not from 1 to page_size = 8"),
        ({"paged_kv_last_page_len": ints(0, 0, 8)}, "not from 1 to page_size = 8"),
        ({"paged_kv_last_page_len": ints(1, 8)}, "has 2 entries beside 3 sequences"),
        ({"qo_indptr": ints(0, 3)}, "qo_indptr has 2 entries beside 3 sequences"),
    ],
)
def test_a_plan_that_cannot_be(change, said):
    with pytest.raises(BadArgument, match=said):
        PagedAttention("cpu").plan(**{"qo_indptr": None, **THREE, **SHAPE, **change})


# --- appending ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_new_rows_are_written_behind_those_of_the_cache(layout, dtype):
    pages = torch.zeros(12, 2, PAGE, KV_HEADS, DIM)
    pages = (pages if layout == "NHD" else pages.transpose(2, 3).contiguous()).to(dtype)
    new = torch.arange(3.0).reshape(3, 1, 1).expand(3, KV_HEADS, DIM) + 1
    # Sequence 0 has 9 rows and gets its last, sequence 2 has 24 and gets its last two.
    batch, at = get_batch_indices_positions(ints(0, 1, 1, 3), ints(9, 0, 24), 3)
    assert batch.tolist() == [0, 2, 2] and at.tolist() == [8, 22, 23]
    where = {"kv_indices": THREE["paged_kv_indices"], "kv_indptr": THREE["paged_kv_indptr"]}
    append_paged_kv_cache(new, -new, batch, at, pages, **where, kv_layout=layout)
    found = pages.float() if layout == "NHD" else pages.float().transpose(2, 3)
    for value, page, row in ((1, 3, 0), (2, 9, 6), (3, 9, 7)):
        assert (found[page, 0, row] == value).all() and (found[page, 1, row] == -value).all()
    assert found.count_nonzero() == 3 * 2 * KV_HEADS * DIM
    with pytest.raises(BadArgument, match=r"but must be \[3, 2, 16\]"):
        append_paged_kv_cache(new[:2], new[:2], batch, at, pages, **where, kv_layout=layout)


FAR = (-(2**31), -1, 2**31 - 1)


@pytest.mark.parametrize("seed", range(4))
def test_rows_without_a_place_are_not_written(seed):
    """Against a loop over rows: sequences, places and pages that there are not, and places behind
    a sequence's last page, which belong to the next one."""
    rng = random.Random(seed)
    sequences = [rng.choice((0, 0, 1, 2, 2, 2, 3, *FAR)) for _ in range(40)]
    places = [rng.choice((n % 24, (7 * n) % 40, *FAR[n % 2 :])) for n in range(40)]
    indices = [rng.choice((7, 12, *FAR)) if rng.random() < 0.3 else n for n in range(6)]
    indptr = [rng.choice((0, *FAR[:2])), 3, 3, rng.choice((6, 7, FAR[2]))]
    pages, new = torch.randn(12, 2, PAGE, KV_HEADS, DIM), torch.randn(40, KV_HEADS, DIM)
    wanted, written = pages.clone(), {}
    starts = [min(max(x, 0), 6) for x in indptr]
    for n, (b, place) in enumerate(zip(sequences, places, strict=True)):
        if 0 <= b < 3 and place >= 0 and starts[b] + place // PAGE < starts[b + 1]:
            page = indices[starts[b] + place // PAGE]
            if 0 <= page < 12:
                written.setdefault((page, place % PAGE), []).append(n)
    for (page, row), (n, *others) in written.items():
        for other in others:  # two rows of one place are anybody's
            new[other] = new[n]
        wanted[page, 0, row], wanted[page, 1, row] = new[n], -new[n]
    said = [ints(*x) for x in (sequences, places)]
    append_paged_kv_cache(new, -new, *said, pages, ints(*indices), ints(*indptr))
    assert written and torch.equal(pages, wanted)


def test_appending_without_any_place_changes_nothing():
    pages = torch.randn(12, 2, PAGE, KV_HEADS, DIM)
    before, new = pages.clone(), torch.randn(3, KV_HEADS, DIM)
    where = {"kv_indices": ints(-1, 12), "kv_indptr": ints(0, 2)}
    append_paged_kv_cache(new, new, ints(0, 0, 0), ints(0, 9, 99), pages, **where)
    where["kv_indices"] = ints()
    append_paged_kv_cache(new, new, ints(0, 0, 0), ints(0, 9, 99), pages, **where)
    assert torch.equal(pages, before)


def test_rows_behind_the_last_sequence_s_have_no_place():
    batch, at = get_batch_indices_positions(ints(0, 1, 3), ints(9, 24), 5)
    assert batch.tolist() == [0, 1, 1, 2, 2] and at.tolist() == [8, 22, 23, -1, -1]


# --- run ----------------------------------------------------------------------------------------


@pytest.fixture
def right():
    with stated(planned, run=True) as found:
        yield found


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_results_are_right(right, layout):
    pages = torch.randn(12, 2, PAGE, KV_HEADS, DIM)
    pages = pages if layout == "NHD" else pages.transpose(2, 3).contiguous()
    a = PagedAttention("cpu", layout)
    a.plan(None, **THREE, **SHAPE)
    a.run(torch.randn(3, HEADS, DIM), pages, return_lse=True)
    a.plan(ints(0, 3, 3, 13), **THREE, **SHAPE, causal=True, window_left=5)
    a.run(torch.randn(13, HEADS, DIM), pages, sinks=torch.rand(HEADS))


def test_a_second_plan_of_a_capacity_is_right(right):
    a = PagedAttention("cpu", capacity=Capacity(batch=4, max_kv=64, max_q=6, pages=20, rows=8))
    for starts, where in ((ints(0, 3, 3, 8), THREE), (ints(0, 5), {
        "paged_kv_indptr": ints(0, 1), "paged_kv_indices": ints(11),
        "paged_kv_last_page_len": ints(2),
    })):  # fmt: skip
        a.plan(starts, **where, **SHAPE, causal=True)
        o, lse = a.run(torch.randn(8, HEADS, DIM), torch.randn(12, 2, PAGE, KV_HEADS, DIM),
                       return_lse=True)  # fmt: skip
        assert o.shape == (8, HEADS, DIM) and lse.shape == (8, HEADS)


def test_results_of_other_kinds_are_right(right):
    ragged, latent = RaggedAttention("cpu"), LatentAttention("cpu")
    ragged.plan(ints(0, 3, 13), ints(0, 9, 14), HEADS, KV_HEADS, DIM, causal=True)
    ragged.run(torch.randn(13, HEADS, DIM), *torch.randn(2, 14, KV_HEADS, DIM), return_lse=True)
    latent.plan(None, ints(0, 2, 3), ints(4, 2, 0), ints(9, 8), HEADS, 32, 16, PAGE, True, 0.1)
    pages, q = torch.randn(5, PAGE, 48), torch.randn(2, HEADS, 48)
    o = latent.run(q[..., :32], q[..., 32:], pages[..., :32], pages[..., 32:])
    assert torch.equal(latent.run(q[..., :32].clone(), q[..., 32:], pages, None), o)
    assert torch.equal(latent.run(q, None, pages, None), o)


# --- masks of a plan's own ---------------------------------------------------------------------


def seen_by_hand(q, k, v, seen):
    """Attention of a sequence in float64: q [n_q, heads, dim], k, v [n_kv, heads of keys, dim]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q.double(), k) * q.shape[-1] ** -0.5
    weights = s.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", weights, v)


def trees(lengths, seed=0):
    """A mask for each sequence; its first query sees nothing."""
    rng = torch.Generator().manual_seed(seed)
    masks = [torch.rand(n_q, n_kv, generator=rng) < 0.5 for n_q, n_kv in lengths]
    for mask in masks:
        mask[0] = False
    return masks


def in_bits(masks):
    """Each sequence begins a byte, whose lowest bit comes first."""
    found = [np.packbits(mask.flatten().numpy(), bitorder="little") for mask in masks]
    return torch.from_numpy(np.concatenate(found))


@pytest.mark.parametrize("packed", [False, True])
def test_a_mask_of_a_plans_own(packed):
    lengths = (3, 7), (2, 5)
    masks = trees(lengths)
    given = {"packed_custom_mask": in_bits(masks)}
    if not packed:
        given = {"custom_mask": torch.cat([mask.flatten() for mask in masks])}
    q, k, v = torch.randn(5, 4, 16), *torch.randn(2, 12, 2, 16)
    starts = torch.tensor([0, 3, 5]), torch.tensor([0, 7, 12])
    ragged = RaggedAttention("cpu")
    ragged.plan(*starts, 4, 2, 16, **given)
    wanted = torch.cat([
        seen_by_hand(q[i : i + n_q], k[j : j + n_kv], v[j : j + n_kv], mask)
        for i, j, (n_q, n_kv), mask in zip((0, 3), (0, 7), lengths, masks, strict=True)
    ])  # fmt: skip
    o, lse = ragged.run(q, k, v, return_lse=True)
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=1e-5)
    assert lse[[0, 3]].isneginf().all()
    pages = torch.zeros(5, 2, 4, 2, 16)
    for page, rows in ((3, slice(0, 4)), (1, slice(4, 7)), (0, slice(7, 11)), (4, slice(11, 12))):
        for part, x in enumerate((k, v)):
            pages[page, part, : rows.stop - rows.start] = x[rows]
    paged = PagedAttention("cpu", capacity=Capacity(batch=3, max_kv=8, max_q=4, pages=6, rows=5))
    for _ in range(2):  # a plan fills the arrays of the one before
        paged.plan(
            starts[0], torch.tensor([0, 2, 4]), torch.tensor([3, 1, 0, 4]), torch.tensor([3, 1]),
            4, 2, 16, 4, **given,
        )  # fmt: skip
        torch.testing.assert_close(paged.run(q, pages).double(), wanted, rtol=0, atol=1e-5)
    with pytest.raises(BadArgument, match="another custom_mask than the first"):
        paged.plan(
            starts[0], torch.tensor([0, 2, 4]), torch.tensor([3, 1, 0, 4]), torch.tensor([3, 1]),
            4, 2, 16, 4,
        )  # fmt: skip
