"""Mixtures of experts with ``experts_implementation="tilewright"`` are those of transformers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny  # noqa: E402
from tiny import IDS  # noqa: E402

import tilewright.transformers  # noqa: E402

tilewright.transformers.register()
MODELS = ("mixtral", "qwen3_moe", "deepseek", "gpt_oss")


def experts_of(model):
    (found, *_) = [x for x in model.modules() if hasattr(x, "is_transposed")]
    return found


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.grid(1)
def test_a_mixture_computes_what_the_eager_one_does(name):
    model = tiny.model(name, experts_implementation="tilewright")
    assert model.config._experts_implementation == "tilewright"
    with torch.no_grad():
        ours = model(IDS).logits
        model.set_experts_implementation("eager")
        torch.testing.assert_close(ours, model(IDS).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.turns(4)
def test_experts_without_tokens_and_tokens_of_no_expert():
    """As under expert parallelism, where an index beyond the experts is another device's."""
    model = tiny.model("mixtral", experts_implementation="tilewright")
    experts = experts_of(model)
    x, shares = torch.randn(5, 32), torch.rand(5, 2)
    chosen = torch.tensor([[3, 1], [1, 3], [4, 3], [4, 4], [3, 4]])
    experts._is_expert_parallel = True
    with torch.no_grad():
        ours = experts(x, chosen, shares)
        model.set_experts_implementation("eager")
        torch.testing.assert_close(ours, experts(x, chosen, shares), atol=1e-4, rtol=1e-4)
    assert ours[0].any()
    assert not ours[3].any()


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_gradients_are_those_of_the_eager_one(name):
    model = tiny.model(name, experts_implementation="tilewright").train()
    found = []
    for implementation in ("tilewright", "eager"):
        model.set_experts_implementation(implementation)
        model.zero_grad()
        model(IDS).logits.square().mean().backward()
        found.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    ours, theirs = found
    assert ours.keys() == theirs.keys() and any("down_proj" in name for name in ours)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, atol=1e-4, rtol=1e-3, msg=name)
