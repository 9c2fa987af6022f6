"""Whole models as cases: what they are held to, on the CPU."""

from __future__ import annotations

import pytest

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
