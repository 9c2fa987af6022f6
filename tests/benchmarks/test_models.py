"""Whole models as cases: what they are held to, on the CPU."""

from __future__ import annotations

import pytest

from cases import models

torch = pytest.importorskip("torch")


def test_an_error_may_be_twice_torchs_and_a_part_of_the_norm_more():
    exact = {"w": torch.ones(100, dtype=torch.float64)}
    theirs = {"w": exact["w"] * 1.1}  # off by 1.0 in the norm, which is 10
    allowed = (models.TIMES * 1.0 + models.PART * 10.0) / 10.0
    for share, wrong in ((0.99, []), (1.01, ["w"])):
        ours = {"w": exact["w"] * (1 + share * allowed)}
        assert models.wrong(ours, theirs, exact) == wrong
    assert models.wrong({"w": exact["w"] * float("nan")}, theirs, exact) == ["w"]


def test_every_convolution_is_taken_from_here():
    model = models.tiny()
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
