"""A program in a replayed CUDA graph, with a driver that does nothing."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cases.llama import graph_of  # noqa: E402


def test_what_replays_keeps_the_tensors_that_its_graph_reads(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in {
        "Stream": lambda: stream, "current_stream": lambda: stream, "synchronize": lambda: None,
        "stream": lambda _: nullcontext(), "graph": lambda _: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, fake)
    cache = torch.zeros(1)
    owned = weakref.ref(cache)
    run = lambda cache=cache: cache + 1  # noqa: E731
    replay, out = graph_of(run)
    del cache, run
    replay()
    assert owned() is not None
    assert out == 1
