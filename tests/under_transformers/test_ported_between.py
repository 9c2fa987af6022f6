"""Models of transformers that `port` takes: norms and gates are ours, and results the same."""

from __future__ import annotations

from collections import Counter

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tilewright.torch import port, unport  # noqa: E402

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 100, "head_dim": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip

MODELS = {
    "Llama": {"rms_norm": 3, "gated_activation (silu)": 1},
    "Qwen3": {"rms_norm": 5, "gated_activation (silu)": 1},
    "Gemma": {"rms_norm with weight + 1": 3, "gated_activation (gelu_tanh)": 1},
    "Phi3": {"rms_norm": 3, "gated_activation (silu)": 1},
}


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_ported_norms_and_gates(name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for one in model.parameters():
        one.data.add_(0.1 * torch.randn_like(one))
    tokens = torch.tensor([[5, 6, 7, 8, 9]])

    def run():
        loss = model(tokens, labels=tokens).loss
        return [loss.detach(), *torch.autograd.grad(loss, [*model.parameters()])]

    wanted = run()
    report = port(model)
    found = Counter(one.by for one in report.layers if one.by != "linear")
    assert found == MODELS[name] and not report.kept
    for one, other in zip(run(), wanted, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm()
    unport(model)
    assert all(map(torch.equal, run(), wanted))


def perceptrons():
    gpt2, clip = (getattr(transformers.models, name) for name in ("gpt2", "clip"))
    config = transformers.GPT2Config(n_embd=16)
    yield gpt2.modeling_gpt2.GPT2MLP(24, config), "c_fc+gelu_tanh+c_proj"
    config = transformers.CLIPVisionConfig(
        hidden_size=16, intermediate_size=24, hidden_act="gelu", num_attention_heads=2
    )
    yield clip.modeling_clip.CLIPMLP(config), "fc1+gelu+fc2"


def test_perceptrons():
    for model, by in perceptrons():
        torch.manual_seed(0)
        model.eval()
        x = torch.randn(2, 3, 16, requires_grad=True)

        def run(model=model, x=x):
            made = model(x)
            return made, *torch.autograd.grad(made.square().sum(), [x, *model.parameters()])

        wanted = run()
        assert port(model).layers[0].by == f"one call of {by}"
        found = run()
        for one, other in zip(found, wanted, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm() and one.stride() == other.stride()
        with torch.no_grad():
            assert (model(x) - wanted[0]).norm() <= 1e-5 * wanted[0].norm()
        nodes = [node.name() for node, _ in found[0].grad_fn.next_functions if node]
        assert {name.rpartition("::")[2] for name in nodes} <= {"AccumulateGrad", "TBackward0"}
        unport(model)
        assert all(map(torch.equal, run(), wanted))


def test_linear_layers_of_gpt2_whose_weights_lie_turned(monkeypatch):
    torch.manual_seed(0)
    layer = transformers.pytorch_utils.Conv1D(12, 16)
    x = torch.randn(2, 3, 16, requires_grad=True)

    def run():
        made = layer(x)
        return made, *torch.autograd.grad(made.square().sum(), [x, *layer.parameters()])

    wanted = run()
    assert [one.by for one in port(layer).layers] == ["linear"]
    with monkeypatch.context() as without:
        without.setattr(type(layer), "forward", None)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
        for one, other in zip((*run(), compiled), (*wanted, wanted[0]), strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm()
    unport(layer)
    assert all(map(torch.equal, run(), wanted))
