"""Models of transformers with attention and experts from here, on the interpreter."""

from __future__ import annotations

import pytest
import torch

from cases import hugging_face

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    import transformers as hf

    sizes = {
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100,
    }  # fmt: skip
    configs = {
        "llama": lambda: hf.LlamaConfig(**sizes, intermediate_size=64),
        "mixture": lambda: hf.Qwen3MoeConfig(
            **sizes, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2
        ),
    }
    monkeypatch.setattr(hugging_face, "SIZES", sizes)
    monkeypatch.setattr(hugging_face, "CACHED", 6)
    monkeypatch.setattr(hugging_face, "ROOM", 8)
    monkeypatch.setattr(hugging_face, "config", lambda name: configs[name]())


@pytest.mark.turns(128)
@pytest.mark.parametrize("name", ["llama", "mixture"])
@pytest.mark.parametrize("make", [hugging_face.prefill, hugging_face.decode])
def test_both_sides_agree_at_each_step(make, name):
    steps = make(name, 5, False, "cpu")
    for _ in range(2):  # a cache that kept the token would give another result
        ours, theirs = steps["ours"](), steps["vendor"]()
        torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)


@pytest.mark.turns(128)
def test_a_step_in_a_graph_is_the_same_each_time():
    steps = hugging_face.in_a_graph("llama", 3, "cpu")
    for step in steps.values():
        torch.testing.assert_close(step(), step(), rtol=0, atol=0)
    torch.testing.assert_close(steps["ours"](), steps["vendor"](), rtol=0.1, atol=0.1)
