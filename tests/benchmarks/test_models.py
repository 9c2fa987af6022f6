"""Whole models as cases: what they are held to, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright
from cases import models

torch = pytest.importorskip("torch")


def tiny() -> torch.nn.Module:
    """A stand-in that needs no package: a stem, a block, one with groups and a depthwise one."""

    def block(taps: int, groups: int) -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(16, 16, taps, padding=taps // 2, groups=groups),
            torch.nn.GroupNorm(4, 16),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 16, 1),
        )

    stem = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
    ends = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10)]
    return torch.nn.Sequential(stem, block(3, 1), block(3, 4), block(7, 16), *ends)


def test_an_error_may_be_twice_torchs_and_a_part_of_the_norm_more():
    exact = {"w": torch.ones(100, dtype=torch.float64)}
    theirs = {"w": exact["w"] * 1.1}  # off by 1.0 in the norm, which is 10
    allowed = (models.TIMES * 1.0 + models.PART * 10.0) / 10.0
    for share, wrong in ((0.99, []), (1.01, ["w"])):
        ours = {"w": exact["w"] * (1 + share * allowed)}
        assert models.wrong(ours, theirs, exact) == wrong
    assert models.wrong({"w": exact["w"] * float("nan")}, theirs, exact) == ["w"]


def test_every_convolution_is_taken_from_here():
    model = tiny()
    assert models.swap(model) == 7
    padded = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"))
    with pytest.raises(ValueError, match="reflect"):
        models.swap(padded)


def test_tokens_can_be_learned_and_are_the_same_each_time():
    tokens = models.learnable(3, 400, 1000)
    assert tokens.shape == (1, 401)
    assert torch.equal(tokens, models.learnable(3, 400, 1000))
    follows = (tokens[0, :-1] * 5 + 3) % 1000
    kept = (tokens[0, 1:] == follows).double().mean().item()
    assert 0.8 < kept < 0.95


# --- the check of convolutions ------------------------------------------------------------------

Change = Callable[[torch.Tensor], object]


def unlike(**changes: Change) -> Callable[..., torch.Tensor]:
    """A convolution that sums in another order than torch's, and is wrong in depthwise layers: it
    computes with operands, or has results, that are changed in place."""

    def changed(what: str, groups: int, x: torch.Tensor) -> torch.Tensor:
        x = x.float().clone()
        if groups == 16 and what in changes:
            changes[what](x)
        return x

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return (x + torch.randn_like(x) * x.abs().mean() * 2**-19).bfloat16()

    class Conv(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, w: Any, b: Any, *how: Any) -> Any:
            ctx.save_for_backward(x, w, b)
            ctx.how = how
            x, w = changed("x", how[3], x), changed("w", how[3], w)
            y = torch.nn.functional.conv2d(x, w, None if b is None else b.float(), *how)
            return rounded(changed("y", how[3], y))

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            x, w, b = ctx.saved_tensors
            stride, padding, dilation, groups = ctx.how
            dx, dw, db = torch.ops.aten.convolution_backward(
                changed("dy", groups, dy), x.float(), changed("w of dx", groups, w),
                None if b is None else list(b.shape), stride, padding, dilation, False, [0, 0],
                groups, [True, True, b is not None],
            )  # fmt: skip
            dx = changed("dx", groups, dx)
            return rounded(dx), rounded(dw), None if b is None else rounded(db), *[None] * 4

    return Conv.apply


def none_of(*at: Any) -> Change:
    """Leaves out what lies at a place."""
    return lambda x: x.__setitem__(at, 0)


def compared(conv2d: Callable[..., Any], monkeypatch: Any, made: Any = tiny) -> Any:
    monkeypatch.setattr(tilewright, "conv2d", conv2d)
    return models.convolutions(made, 4, 12, "cpu")


def test_a_right_convolution_passes_for_one(monkeypatch):
    assert {*compared(unlike(), monkeypatch)} == {"ours", "vendor"}


def test_gradients_that_normalizations_cancel_are_no_fault(monkeypatch):
    """Biases before batches' norms have gradients of rounding errors alone: in a deep model one of
    a right side's is more than twice the other's."""

    def deep() -> torch.nn.Module:
        torch.manual_seed(0)
        layers: list[Any] = [torch.nn.Conv2d(3, 8, 3, padding=1)]
        for number in range(12):
            conv = torch.nn.Conv2d(8, 8, 1 + 2 * (number % 2), padding=number % 2)
            layers += [torch.nn.BatchNorm2d(8), conv, torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())

    assert compared(unlike(), monkeypatch, deep)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"x": none_of(3, 5, 4, 4)}, "output"),
        ({"w": none_of(slice(None), 0, 0, 0)}, "output"),
        ({"w": none_of(5)}, "output"),
        ({"y": none_of(3, 15, 5, 5)}, "output"),
        ({"w of dx": none_of(slice(None), 0, 6, 6)}, "gradient of input"),
        ({"dx": none_of(0, 0, 0, 0)}, "gradient of input"),
        ({"dy": none_of(slice(None), slice(None), 5, 5)}, "gradient of weight"),
        ({"dy": none_of(0, 3)}, "gradient of bias"),
    ],
)
def test_a_convolution_that_leaves_something_out_is_found_and_named(change, named, monkeypatch):
    """A pixel, a tap, a channel: in one layer of the model."""
    with pytest.raises(ValueError, match=f"wrong: .*3.0, {named}"):
        compared(unlike(**change), monkeypatch)


def test_so_is_a_gradient_that_does_not_arrive(monkeypatch):
    def cut(x: Any, *more: Any) -> Any:
        return unlike()(x.detach(), *more)

    with pytest.raises((ValueError, KeyError)):
        compared(cut, monkeypatch)


def test_two_models_of_timm_are_one_function():
    """Dropout would make each step another."""
    pytest.importorskip("timm")
    model = models.timm("ghostnet_100")
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(model(x), model(x))
