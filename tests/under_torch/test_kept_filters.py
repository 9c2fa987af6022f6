"""Filters of a model's convolutions, laid once as kernels read them."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch as twt  # noqa: E402
from tilewright import default  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

H200 = "h200_sxm"


def audio() -> torch.nn.Module:
    """A layer whose filter a channels-first call turns, one by 1×1, and a depthwise one."""
    layers = (
        torch.nn.Conv1d(512, 512, 3, padding=1),
        torch.nn.Conv1d(512, 256, 1),
        torch.nn.Conv1d(256, 256, 3, groups=256),
    )
    model = torch.nn.Sequential(*layers).bfloat16()
    twt.port(model)
    return model


def test_filters_that_calls_turn_are_laid_once_and_keep_their_values():
    model, x = audio(), torch.empty(1, 512, 1500, dtype=torch.bfloat16)
    before, weight = copy.deepcopy(model.state_dict()), model[0].weight
    assert twt.keep_filters(model, x, device=H200) == ["0.weight"]
    assert model[0].weight is weight
    assert weight.stride() == (1536, 1, 512)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert twt.keep_filters(model, x, device=H200) == []
    model.load_state_dict(before)
    assert weight.stride() == copy.deepcopy(model)[0].weight.stride() == (1536, 1, 512)


def test_channels_last_models_have_nothing_to_lay():
    model = torch.nn.Conv2d(64, 64, 3).bfloat16().to(memory_format=torch.channels_last)
    twt.port(model)
    x = torch.empty(2, 64, 32, 32, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    assert twt.keep_filters(model, x, device=H200) == []


def turned(problems) -> int:
    return sum(problem.w_strides != () for problem in problems)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: torch.nn.Conv1d(16, 24, 3, stride=2), (2, 16, 19)),
        (lambda: torch.nn.ConvTranspose2d(16, 8, 2, stride=2), (1, 16, 5, 4)),
        (lambda: torch.nn.Conv3d(8, 8, 2, groups=2), (1, 8, 3, 4, 4)),
    ],
    ids=["1-D", "transposed", "3-D groups"],
)
def test_a_laid_filter_computes_the_same_with_all_gradients(monkeypatch, layer, shape):
    monkeypatch.setattr(default, "expected_us", lambda problems, **_: turned(problems))
    torch.manual_seed(0)
    theirs = layer()
    ours, x = copy.deepcopy(theirs), torch.randn(shape)
    twt.port(ours)
    assert twt.keep_filters(ours, x, device=H200) == ["weight"]
    assert ours.weight.stride(1) == 1
    for model in (ours, theirs):
        model(x).square().sum().backward()
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_run_is_told_and_nothing_is_laid():
    class Asks(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = audio()

        def forward(self, x):
            y = self.layer(x)
            return y if y.sum().item() else x

    model = Asks()
    with pytest.raises(BadArgument, match="does not run on fake tensors, so no filter is laid"):
        twt.keep_filters(model, torch.empty(1, 512, 1500, dtype=torch.bfloat16), device=H200)
    assert model.layer[0].weight.is_contiguous()
    with pytest.raises(BadArgument, match=r"takes a torch.nn.Module"):
        twt.keep_filters(torch.relu)
