"""What the examples share: where to run, and attention in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.arch import device


def place() -> str:
    """``"cuda:0"`` if torch can use a GPU (AMD's are called that too), else ``"cpu"``."""
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def target() -> tw.Device:
    """The live GPU, or an H200 to plan for where there is none."""
    try:
        return tw.live_device()
    except tw.errors.NoDriver:
        return device("h200_sxm")


def event_time_us(call: Any) -> float:
    """Device time of one call in microseconds, by events around it."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def softmax_attention(q: Any, k: Any, v: Any, seen: Any = True, added: Any = 0.0) -> Any:
    """softmax(q·kᵀ / √dim + added)·v in float64, of arrays [batch, rows, heads, dim].

    seen, added: whether a query sees a key, and what is added to its score, to be broadcast against
    [batch, heads, queries, keys].
    """
    q, k, v = (np.swapaxes(x, 1, 2).astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + added
    e = np.where(seen, np.exp(s - s.max(-1, keepdims=True)), 0.0)
    return np.swapaxes(e @ v / np.maximum(e.sum(-1, keepdims=True), 1e-300), 1, 2)
