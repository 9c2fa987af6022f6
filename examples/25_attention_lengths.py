"""Sequences of different lengths: packed, or padded with their lengths told apart."""

from __future__ import annotations

import itertools

import numpy as np

import tilewright as tw
from common import softmax_attention

rng = np.random.default_rng(0)
lengths = [17, 0, 60, 1]
rows = sum(lengths)
q, k, v = rng.standard_normal((3, rows, 4, 32), np.float32)  # one sequence behind the other
offsets = np.cumsum([0, *lengths]).astype(np.int32)

packed = tw.attention(
    q, k, v, q_offsets=offsets, kv_offsets=offsets, max_q=60, max_kv=60, mask="causal"
)
for begin, end in itertools.pairwise(offsets):
    one = [x[None, begin:end] for x in (q, k, v)]
    if end > begin:
        causal = np.tri(end - begin, dtype=bool)
        assert np.allclose(packed[begin:end], softmax_attention(*one, causal)[0], atol=1e-3)
print(f"{len(lengths)} sequences of {lengths} rows in one launch")

padded = np.zeros((3, 4, 60, 4, 32), np.float32)
for b, n in enumerate(lengths):
    padded[:, b, :n] = np.stack((q, k, v))[:, offsets[b] : offsets[b] + n]
used = np.array(lengths, np.int32)
o = tw.attention(*padded, q_used=used, kv_used=used, mask="causal")
for b, n in enumerate(lengths):
    assert np.allclose(o[b, :n], packed[offsets[b] : offsets[b] + n], atol=1e-5)
print(f"padded, {padded[0].size / q.size:.1f} times the memory, the same results")
