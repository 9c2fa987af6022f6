"""A serving loop with garbage in lengths, offsets, tables and indices, in the interpreter, which
refuses an access outside of an operand. On a GPU: `tests/gpu/test_gpu_lengths.py`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from lying_serving import CASES, Calls, attended, near  # noqa: E402
from tilewright.flash_attn import flash_attn_with_kvcache  # noqa: E402


@pytest.mark.grid(1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_garbage_on_the_device_leads_nowhere(case):
    calls = Calls("cpu", seed=7, dtype=torch.float32, dim=16, heads=2, kv_heads=1)
    case(calls)
    assert calls.count


def test_a_length_is_read_as_the_nearest_that_the_cache_has_room_for():
    """Against attention over the rows that are then there: new rows behind 16 are dropped, and a
    length below 0 is 0."""
    rows, new_rows = 16, 4
    c = Calls("cpu", dtype=torch.float32, dim=16, heads=2, kv_heads=1)
    k, v = (c.randn(4, rows, 1, 16) for _ in range(2))
    new_k, new_v = (c.randn(4, new_rows, 1, 16) for _ in range(2))
    q = c.randn(4, new_rows, 2, 16)
    before = k.clone(), v.clone()
    lengths = (14, -1, 17, 2**31 - 1)
    o = flash_attn_with_kvcache(q, k, v, new_k, new_v, cache_seqlens=c.ints(lengths), causal=True)
    c.ran()
    for b, used in enumerate((14, 0, 16, 16)):
        count = min(new_rows, rows - used)
        for was, cache, new in zip(before, (k, v), (new_k, new_v), strict=True):
            was[b, used : used + count] = new[b, :count]
            assert torch.equal(cache[b], was[b])
        keys = (x[b, : used + count] for x in before)
        near(o[b], attended(q[b], *keys, causal=True))
    pads = (-3, 2**31 - 1, 5, 0)
    o = flash_attn_with_kvcache(
        q, k, v, cache_seqlens=c.ints((9, 9, 99, 3)), cache_leftpad=c.ints(pads), causal=True
    )
    c.ran()
    for b, (first, end) in enumerate(((0, 9), (9, 9), (5, 16), (0, 3))):
        seen = attended(q[b], *(x[b, first:end] for x in before), causal=True)
        near(o[b], seen.nan_to_num())  # a row that sees no key gives 0
