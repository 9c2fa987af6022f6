"""Calls of a serving loop whose lengths, offsets, tables and indices on the device are garbage for
some of the sequences. The others' results are checked against float64, and all operands may lie
between guards, in which a write shows; a read shows as NaN.

    case(Calls("cuda", seed=1))  # for each of CASES; raises AssertionError

`benchmarks/lying_serving.py` runs all of them under compute-sanitizer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import torch

import tilewright
from tilewright.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from tilewright.serving import LatentAttention, PagedAttention, append_paged_kv_cache

GUARD = 1 << 14
"""Bytes before and behind an array: all ones, which is NaN in every type of floats."""

FAR = (-(2**31), -(10**6), -1, 10**6, 2**31 - 1)
"""Numbers that are no length, offset, page or entry here."""


@dataclass
class Calls:
    """What calls run with, and what they left.

    guarded: whether arrays lie between guards; else each is an allocation of its own size.
    """

    device: str
    seed: int = 0
    dtype: Any = torch.bfloat16
    dim: int = 128
    heads: int = 8
    kv_heads: int = 2
    guarded: bool = True
    count: int = 0
    _guards: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        torch.manual_seed(self.seed)

    def put(self, values: Any) -> Any:
        """A copy of `values` on the device."""
        if not self.guarded:
            return values.to(self.device, copy=True)
        size = values.numel() * values.element_size()
        room = torch.full((size + 2 * GUARD,), 255, dtype=torch.uint8, device=self.device)
        self._guards += [room[:GUARD], room[GUARD + size :]]
        made = room[GUARD : GUARD + size].view(values.dtype).view(values.shape)
        return made.copy_(values)

    def randn(self, *shape: int, dtype: Any = None) -> Any:
        return self.put(torch.randn(*shape).to(dtype or self.dtype))

    def ints(self, values: Any) -> Any:
        return self.put(torch.tensor(values, dtype=torch.int32))

    def far(self, *others: int) -> int:
        return self.rng.choice((*FAR, *others))

    def ran(self) -> None:
        """A call has run: nothing was written to the guards."""
        self.count += 1
        if self.device != "cpu":
            torch.cuda.synchronize()
        for guard in self._guards:
            assert bool((guard == 255).all()), "written outside of an array"


def attended(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    """O in float64 of one sequence: q [rows, heads, dim], k and v [keys, heads of keys, dim]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    if causal:
        far = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(far.triu(1 + len(k) - len(q)), -torch.inf)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def near(found: Any, wanted: Any) -> None:
    most = 2e-2 if found.dtype != torch.float32 else 1e-4
    torch.testing.assert_close(found.double(), wanted.double(), rtol=most, atol=most)


ROWS, PAGE, PAGES, BATCH, NEW = 96, 16, 12, 4, 3


def _lengths(c: Calls) -> list[int]:
    """Of two sequences of 40 and 17 rows, and of two that lie."""
    return [40, 17, c.far(ROWS, ROWS + 1), c.rng.choice((-1, 30, ROWS - 1))]


def kvcache(c: Calls) -> None:
    """A decode step over a cache, one that appends, and one with left padding."""
    q, lengths = c.randn(BATCH, 1, c.heads, c.dim), _lengths(c)
    caches = [c.randn(BATCH, ROWS, c.kv_heads, c.dim) for _ in range(2)]
    o = flash_attn_with_kvcache(q, *caches, cache_seqlens=c.ints(lengths))
    c.ran()
    for b in (0, 1):
        near(o[b], attended(q[b], *(x[b, : lengths[b]] for x in caches)))
    before = [x.clone() for x in caches]
    new = [c.randn(BATCH, NEW, c.kv_heads, c.dim) for _ in range(2)]
    q = c.randn(BATCH, NEW, c.heads, c.dim)
    o = flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=c.ints(lengths), causal=True)
    c.ran()
    for b in (0, 1):
        for was, cache, rows in zip(before, caches, new, strict=True):
            was[b, lengths[b] : lengths[b] + NEW] = rows[b]
            assert torch.equal(cache[b], was[b])
        keys = (x[b, : lengths[b] + NEW] for x in caches)
        near(o[b], attended(q[b], *keys, causal=True))
    pads = [5, 0, c.far(), c.far()]
    o = flash_attn_with_kvcache(
        q, *caches, cache_seqlens=c.ints(lengths), cache_leftpad=c.ints(pads), causal=True
    )
    c.ran()
    for b in (0, 1):
        near(o[b], attended(q[b], *(x[b, pads[b] : lengths[b]] for x in caches), causal=True))


def paged_kvcache(c: Calls) -> None:
    """The same over pages, of which the tables of two sequences are garbage."""
    entries, lengths = ROWS // PAGE, _lengths(c)
    caches = [c.randn(PAGES, PAGE, c.kv_heads, c.dim) for _ in range(2)]
    table = [[c.far(PAGES, 9, 10, 11) for _ in range(entries)] for _ in range(BATCH)]
    table[0][:3], table[1][:2] = (4, 0, 7), (2, 5)
    before = [x.clone() for x in caches]
    new = [c.randn(BATCH, NEW, c.kv_heads, c.dim) for _ in range(2)]
    q = c.randn(BATCH, NEW, c.heads, c.dim)
    o = flash_attn_with_kvcache(
        q, *caches, *new, cache_seqlens=c.ints(lengths), block_table=c.ints(table), causal=True
    )
    c.ran()
    for b, pages in ((0, [4, 0, 7]), (1, [2, 5])):
        keys = []
        for was, cache, rows in zip(before, caches, new, strict=True):
            own = was[pages].flatten(0, 1)
            own[lengths[b] : lengths[b] + NEW] = rows[b]
            assert torch.equal(cache[pages].flatten(0, 1), own)
            keys.append(own[: lengths[b] + NEW])
        near(o[b], attended(q[b], *keys, causal=True))
    unused = [1, 3, 6, 8]
    for was, cache in zip(before, caches, strict=True):
        assert torch.equal(cache[unused], was[unused])


def packed(c: Calls) -> None:
    """Packed sequences, forward and backward: two that are there, then offsets that are none. Those
    of the backward pass do not fall: zeros are written behind the last sequence."""
    total, starts = 64, [0, 23, 40, c.far(40, 64), c.rng.choice((40, 65, 10**6, 2**31 - 1)), -7]
    x = [c.randn(total, heads, c.dim) for heads in (c.heads, c.kv_heads, c.kv_heads)]
    if starts[3] < 0:  # the next one would begin with row 0, which is another's
        starts[4] = starts[3]
    falling = c.ints(starts)
    o = flash_attn_varlen_func(*x, falling, falling, 40, 40, causal=True)
    c.ran()
    for part in (slice(0, 23), slice(23, 40)):
        near(o[part], attended(*(one[part] for one in x), causal=True))
    q, k, v = (one.detach().requires_grad_() for one in x)
    most = (40, 64, 65, 10**6, 2**31 - 1)
    offsets = c.ints([c.rng.choice((0, -1, -(2**31))), 23, 40, *sorted(c.rng.choices(most, k=3))])
    o = flash_attn_varlen_func(q, k, v, offsets, offsets, 40, 40, causal=True)
    grads = torch.autograd.grad(o[:40].float().square().sum(), (q, k, v))
    c.ran()
    wide = [one.detach().double().requires_grad_() for one in x]
    parts = [slice(0, 23), slice(23, 40)]
    wanted = torch.cat([attended(*(one[part] for one in wide), causal=True) for part in parts])
    near(o[:40], wanted)
    for found, right in zip(grads, torch.autograd.grad(wanted.square().sum(), wide), strict=True):
        scale = right[:40].abs().max()
        near(found[:40] / scale, right[:40] / scale)


def planned(c: Calls) -> None:
    """Plans of decoding and of prefill; only the indices of pages are not read on the host."""
    lengths, starts = (40, 17, 33), [0, 3, 5, 8]
    pages = [4, 0, 7, 2, 5, *(c.far(PAGES) for _ in range(3))]
    last = [n - (n - 1) // PAGE * PAGE for n in lengths]
    cache = c.randn(PAGES, 2, PAGE, c.kv_heads, c.dim)
    shape = {
        "num_qo_heads": c.heads,
        "num_kv_heads": c.kv_heads,
        "head_dim": c.dim,
        "page_size": PAGE,
    }
    for rows in ((1, 1, 1), (20, 3, 7)):
        firsts = torch.tensor([0, *rows]).cumsum(0).tolist()
        attention = PagedAttention(c.device)
        attention.plan(
            None if max(rows) == 1 else c.ints(firsts), *map(c.ints, (starts, pages, last)),
            **shape, causal=True,
        )  # fmt: skip
        q = c.randn(sum(rows), c.heads, c.dim)
        o = attention.run(q, cache)
        c.ran()
        for b in (0, 1):
            own = cache[pages[starts[b] : starts[b + 1]]]
            keys = (own[:, i].flatten(0, 1)[: lengths[b]] for i in (0, 1))
            rows_of = slice(firsts[b], firsts[b + 1])
            near(o[rows_of], attended(q[rows_of], *keys, causal=True))


def latent(c: Calls) -> None:
    """Latent decoding over pages of which some are none."""
    dims, page = ((512, 64), 64) if c.dim == 128 else ((32, 16), PAGE)
    rows = c.randn(6, page, sum(dims))
    starts, pages, lengths = [0, 2, 4], [3, 1, c.far(6), c.far()], [page + 5, 2 * page]
    attention = LatentAttention(c.device)
    attention.plan(
        None, *map(c.ints, (starts, pages, lengths)), c.heads, *dims, page, True, sum(dims) ** -0.5
    )
    q = c.randn(2, c.heads, sum(dims))
    first = dims[0]
    o = attention.run(q[..., :first], q[..., first:], rows[..., :first], rows[..., first:])
    c.ran()
    keys = rows[[3, 1]].flatten(0, 1)[: lengths[0], None]
    near(o[0], attended(q[:1], keys, keys)[0, :, :first])


def appended(c: Calls) -> None:
    """Rows appended to pages, most of which have no place."""
    cache = c.randn(PAGES, 2, PAGE, c.kv_heads, c.dim)
    sequences, places = [0, 1, 0, 1, *(c.far(2) for _ in range(8))], [12, 3, 47, 48, *range(8)]
    pages = [4, 0, 7, 2, 5, c.far(PAGES)]
    sequences += [0, 1, 1, 0]
    places += [c.far(), c.far(), 40, 48]  # the last: behind the last page of sequence 0
    new, before = c.randn(len(places), c.kv_heads, c.dim), cache.clone()
    append_paged_kv_cache(
        new, -new, c.ints(sequences), c.ints(places), cache, c.ints(pages), c.ints([0, 3, c.far(6)])
    )
    c.ran()
    for n, page, row in ((0, 4, 12), (1, 2, 3), (2, 7, 15)):
        before[page, 0, row], before[page, 1, row] = new[n], -new[n]
    assert torch.equal(cache[[0, 1, 3, 4, 6, 7]], before[[0, 1, 3, 4, 6, 7]])


def grouped(c: Calls) -> None:
    """Products of groups whose ends or counts are none."""
    groups, m, n, k = 4, 64, 64, 64
    b = c.randn(groups, k, n)
    ends = [20, 33, c.far(40), c.rng.choice((64, 65, 2**31 - 1))]
    if 0 <= ends[2] < 33 or ends[2] < 0:  # the next one would begin with row 0
        ends[3] = c.rng.choice((-1, -(2**31)))
    a = c.randn(m, k)
    out = tilewright.grouped_gemm(a, b, c.ints(ends))
    c.ran()
    near(out[:20], a[:20].double() @ b[0].double())
    near(out[20:33], a[20:33].double() @ b[1].double())
    a, counts = c.randn(groups, m, k), [c.far(m + 1), 7, c.far(), 64]
    out = tilewright.grouped_gemm(a, b, c.ints(counts))
    c.ran()
    for g in (1, 3):
        near(out[g, : counts[g]], a[g, : counts[g]].double() @ b[g].double())


def states(c: Calls) -> None:
    """Convolution states: indices that name none, lengths below 0."""
    entries, channels, taps = 5, 24, 4
    state = c.randn(entries, channels, taps - 1)
    x, w = c.randn(6, channels), c.randn(channels, taps)
    before, of = state.clone(), [3, *(c.far(entries) for _ in range(4)), 1]
    y = tilewright.causal_conv1d_update(x, state, w, conv_state_indices=c.ints(of))
    c.ran()
    for b in (0, 5):
        seen = torch.cat((before[of[b]], x[b, :, None]), -1)
        near(y[b], (seen.double() * w.double()).sum(-1))
        before[of[b]] = seen[:, 1:]
    assert torch.equal(state, before) and not y[1:5].any()
    lengths = [c.far() for _ in of]
    tilewright.causal_conv1d_update(
        x, state, w, cache_seqlens=c.ints(lengths), conv_state_indices=c.ints(of)
    )
    c.ran()
    others = [0, 2, 4]
    assert torch.equal(state[others], before[others])


CASES = (kvcache, paged_kvcache, packed, planned, latent, appended, grouped, states)
