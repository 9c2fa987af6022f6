"""Whole models that one line takes here, in small, on a CPU."""

from __future__ import annotations

import pytest

from cases import one_line


def small(device: str):
    import torch

    model = one_line.unet((8, 16), heads=2, context=8)
    return model, (torch.randn(1, 4, 8, 8), torch.randn(1, 3, 8))


@pytest.mark.turns(128)
def test_a_u_net_is_taken_whole_and_right():
    steps = one_line.inference(small, compiled=False, device="cpu")
    assert set(steps) == {"ours", "vendor"}
    assert steps["ours"]().shape == (1, 4, 8, 8)


def test_a_wrong_model_is_refused(monkeypatch):
    import torch

    def broken(model):
        with torch.no_grad():
            model.made.weight.mul_(1.5)

    monkeypatch.setattr(one_line, "take", broken)
    with pytest.raises(ValueError, match="wrong"):
        one_line.inference(small, compiled=False, device="cpu")


def test_the_line_takes_every_layer_of_the_u_net():
    from tilewright.torch import port

    model, _ = small("cpu")
    assert port(model).kept == {}
