"""The layers of a Llama, with operations from here on the interpreter."""

from __future__ import annotations

import pytest
import torch

from cases import llama


@pytest.fixture(autouse=True)
def small(monkeypatch):
    sizes = {"WIDTH": 64, "INNER": 64, "HEADS": 4, "KV_HEADS": 2, "DIM": 16, "CACHED": 5}
    for name, size in sizes.items():
        monkeypatch.setattr(llama, name, size)


@pytest.mark.turns(128)
@pytest.mark.parametrize(("make", "fused"), [(llama.prefill, False), (llama.decode, True)])
def test_both_sides_agree(make, fused):
    steps = make(3, "cpu", 1, fused)
    ours, theirs = steps["ours"](), steps["vendor"]()
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)


def test_a_wrong_side_is_not_timed(monkeypatch):
    """A prefill whose attention looks ahead: of two layers, so that it reaches the last token."""
    whole = llama.sides
    monkeypatch.setattr(
        llama, "sides", lambda w, causal, fused=False: (whole(w, False)[1], whole(w, causal)[1])
    )
    with pytest.raises(ValueError, match="wrong"):
        llama.prefill(9, "cpu", 2, True)
