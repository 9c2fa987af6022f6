"""Attention: the causal mask, windows, and query heads that share a head of keys."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from common import softmax_attention

rng = np.random.default_rng(0)
q = rng.standard_normal((2, 50, 8, 32), np.float32)  # [batch, queries, heads, dim]
k = rng.standard_normal((2, 70, 2, 32), np.float32)  # four query heads for each of these
v = rng.standard_normal((2, 70, 2, 32), np.float32)

place = np.arange(50)[:, None] + 70 - 50  # the last query is in the place of the last key
key = np.arange(70)[None, :]
masks = {
    "every key": ({}, key >= 0),
    "no later key": ({"mask": "causal"}, key <= place),
    "the last 16": ({"mask": "causal", "window": (15, None)}, (key <= place) & (key > place - 16)),
    "8 on each side": ({"window": (8, 8)}, abs(key - place) <= 8),
    "the last 16, and the first 4": (
        {"mask": "causal", "window": (15, None), "first": 4},
        (key <= place) & ((key > place - 16) | (key < 4)),
    ),
}
for name, (words, seen) in masks.items():
    o = tw.attention(q, k, v, **words)
    error = abs(o - softmax_attention(q, k, v, seen)).max()
    print(f"{name:28} {seen.mean():4.0%} of all pairs, largest error {error:.0e}")
    assert error < 1e-3
