"""SGLang's linear layers, products in fp8 and mixtures of experts, with our hooks around them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.usefixtures("sglang")
FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def hooked(sglang):
    """Every part's hook is in its place."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    import tilewright_sglang

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_SGLANG", "linear,fp8,moe")
        tilewright_sglang.register()
    HookRegistry.apply_hooks()
    yield
    HookRegistry.reset()


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_in_bf16_is_ours(bias, caplog):
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    torch.manual_seed(0)
    layer = SimpleNamespace(weight=torch.randn(48, 32).bfloat16())
    x, b = torch.randn(2, 3, 32).bfloat16(), torch.randn(48).bfloat16() if bias else None
    y = UnquantizedLinearMethod().apply(layer, x, b)
    right = torch.nn.functional.linear(x.float(), layer.weight.float(), b.float() if bias else None)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), right, rtol=0.01, atol=0.02)
    assert not caplog.text


def test_a_linear_layer_in_fp16_is_left_to_sglang_with_the_reason(caplog):
    from tilewright_sglang.hooks import linear

    x = torch.ones(1, 4).half()
    layer = SimpleNamespace(weight=x)
    with caplog.at_level(logging.WARNING):
        assert linear(lambda *given: given[2], None, layer, x) is x
    assert "a linear layer: it is in torch.float16" in caplog.text


@pytest.mark.usefixtures("hooked")
@pytest.mark.parametrize("by_token", [False, True])
def test_a_product_in_fp8(by_token):
    from sglang.kernels.ops.gemm import fp8_scaled_mm

    torch.manual_seed(0)
    a, b = torch.randn(5, 32).to(FP8), torch.randn(48, 32).to(FP8).t()
    rows, columns = torch.rand(5 if by_token else 1, 1), torch.rand(48, 1)
    bias = torch.randn(48).bfloat16()
    y = fp8_scaled_mm(a, b, rows, columns, out_dtype=torch.bfloat16, bias=bias)
    right = (a.float() @ b.float()) * rows * columns.t() + bias
    torch.testing.assert_close(y.float(), right, rtol=0.01, atol=0.02)


def test_a_product_with_one_scale_for_all_weights_is_left_to_sglang(caplog):
    from tilewright_sglang.hooks import scaled_mm

    a, b = torch.zeros(2, 4).to(FP8), torch.zeros(4, 3).to(FP8)
    with caplog.at_level(logging.WARNING):
        left = scaled_mm(lambda *given: "left", a, b, torch.ones(2), torch.ones(1), torch.bfloat16)
    assert left == "left"
    assert "its scales are [2], [1]" in caplog.text


def _method(dtype=torch.bfloat16, **said):
    """A method and a layer of four experts."""
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
    from sglang.srt.layers.moe.utils import MoeRunnerBackend
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod

    torch.manual_seed(0)
    method = object.__new__(UnquantizedFusedMoEMethod)
    vars(method).update(
        with_bias=False,
        w13_swiglu_interleaved=False,
        moe_runner_config=MoeRunnerConfig(**said),
        runner=SimpleNamespace(runner_backend=MoeRunnerBackend.TRITON),
        _aiter_runner=None,
    )
    layer = SimpleNamespace(
        w13_weight=(torch.randn(4, 32, 32) / 4).to(dtype),
        w2_weight=(torch.randn(4, 32, 16) / 4).to(dtype),
    )
    return method, layer


def _dispatched(x, weights, ids):
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    routed = StandardTopKOutput(weights, ids, torch.empty(0))
    return StandardDispatchOutput(x, None, routed)


@pytest.mark.usefixtures("hooked")
@pytest.mark.grid(1)
@pytest.mark.parametrize("interleaved", [False, True])
def test_experts_are_a_weighted_sum(interleaved):
    method, layer = _method(routed_scaling_factor=2.5)
    x, weights = torch.randn(7, 32).bfloat16(), torch.rand(7, 2)
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(7)]).int()
    ids[3, 1] = ids[5, 0] = -1  # experts of another process
    right = torch.zeros(7, 32)
    for token in range(7):
        for choice in range(2):
            expert = int(ids[token, choice])
            if expert >= 0:
                gate, up = (layer.w13_weight[expert].float() @ x[token].float()).chunk(2)
                down = layer.w2_weight[expert].float() @ (torch.nn.functional.silu(gate) * up)
                right[token] += 2.5 * weights[token, choice] * down
    if interleaved:
        method.w13_swiglu_interleaved = True
        gate, up = layer.w13_weight.chunk(2, 1)
        layer.w13_weight = torch.stack((gate, up), 2).flatten(1, 2)
    out = type(method).apply(method, layer, _dispatched(x, weights, ids)).hidden_states
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), right, rtol=0.04, atol=0.08)


@pytest.mark.parametrize(
    ("said", "changed", "reason"),
    [
        ({"dtype": torch.float16}, {}, "it is in torch.float16"),
        ({"activation": "gelu"}, {}, "its activation is gelu"),
        ({"is_gated": False}, {}, "its activation is silu"),
        ({"gemm1_clamp_limit": 7.0}, {}, "clamped"),
        ({"apply_router_weight_on_input": True}, {}, "router's weights"),
        ({"no_combine": True}, {}, "not summed"),
        ({}, {"with_bias": True}, "biases"),
    ],
)
def test_other_experts_are_left_to_sglang_with_the_reason(said, changed, reason, caplog):
    from tilewright_sglang.hooks import experts

    method, layer = _method(**said)
    vars(method).update(changed)
    passed = _dispatched(torch.zeros(1, 32).bfloat16(), torch.ones(1, 1), torch.zeros(1, 1).int())
    with caplog.at_level(logging.WARNING):
        assert experts(lambda *given: "left", method, layer, passed) == "left"
    assert reason in caplog.text


def test_experts_of_another_runner_are_left_to_sglang():
    from sglang.srt.layers.moe.utils import MoeRunnerBackend

    from tilewright_sglang.hooks import refusal

    method, layer = _method()
    method.runner.runner_backend = MoeRunnerBackend.DEEP_GEMM
    passed = _dispatched(torch.zeros(1, 32).bfloat16(), torch.ones(1, 1), torch.zeros(1, 1).int())
    assert refusal(method, layer, passed) == "it has the runner deep_gemm"


def test_parts_are_named(monkeypatch):
    import tilewright_sglang

    monkeypatch.setenv("TILEWRIGHT_SGLANG", "linear, conv")
    with pytest.raises(ValueError, match="conv; the parts are attention"):
        tilewright_sglang.register()


def test_hooks_are_the_functions_that_releases_were_asked_for():
    from interfaces import HOOKED
    from tilewright_sglang.hooks import HOOKS

    made = {target: hook.__name__ for target, hook in HOOKS.values()}
    assert made == {q.replace(":", "."): name for q, name in HOOKED["sglang"].items()}
