"""vLLM's linear layers and mixtures of experts, against torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
import torch

pytestmark = pytest.mark.usefixtures("vllm")
FP8 = torch.float8_e4m3fn


@pytest.fixture
def replaced():
    """What vLLM makes in place of its own classes is as before."""
    from vllm.model_executor.custom_op import op_registry_oot

    op_registry_oot.clear()
    yield op_registry_oot
    op_registry_oot.clear()


def _filled(layer):
    with torch.no_grad():
        for name in ("weight", "bias"):
            values = getattr(layer, name, None)
            if values is not None:
                values.copy_(torch.randn(values.shape))
    return layer


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.usefixtures("replaced")
def test_a_linear_layer_in_bf16_is_ours(bias):
    from vllm.model_executor.layers.linear import ReplicatedLinear

    from tilewright_vllm.linear import TilewrightLinearMethod, register_linear

    register_linear()
    torch.manual_seed(0)
    layer = _filled(ReplicatedLinear(32, 48, bias=bias, params_dtype=torch.bfloat16))
    assert type(layer.quant_method) is TilewrightLinearMethod
    x = torch.randn(2, 3, 32).bfloat16()
    with torch.inference_mode():
        y, _ = layer(x)
    right = torch.nn.functional.linear(
        x.float(), layer.weight.float(), layer.bias.float() if bias else None
    )
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), right, rtol=0.01, atol=0.02)


def test_every_linear_layer_is_replaced_under_its_name(replaced):
    from vllm.model_executor.layers import linear

    from tilewright_vllm.linear import LAYERS, register_linear

    register_linear()
    assert len(replaced) == len(LAYERS)
    for name, ours in replaced.items():
        assert issubclass(ours, getattr(linear, name))


def test_a_linear_layer_in_fp16_is_left_to_vllm_with_the_reason(replaced, caplog):
    from vllm.model_executor.layers.linear import ReplicatedLinear, UnquantizedLinearMethod

    from tilewright_vllm.linear import register_linear

    register_linear()
    with caplog.at_level(logging.WARNING):
        layer = ReplicatedLinear(8, 8, params_dtype=torch.float16)
    assert type(layer.quant_method) is UnquantizedLinearMethod
    assert "only bf16 is supported" in caplog.text


def _config(by_token, by_channel, out=torch.bfloat16, group=None):
    from vllm.model_executor.kernels.linear import FP8ScaledMMLinearLayerConfig
    from vllm.model_executor.layers.quantization.utils.quant_utils import (
        GroupShape,
        QuantKey,
        ScaleDesc,
    )

    def key(shape, static):
        scale = ScaleDesc(torch.float32, static, GroupShape(*shape))
        return QuantKey(FP8, scale, symmetric=True)

    return FP8ScaledMMLinearLayerConfig(
        weight_quant_key=key(group or ((-1, 1) if by_channel else (-1, -1)), True),
        activation_quant_key=key((1, -1) if by_token else (-1, -1), False),
        weight_shape=(48, 32),
        input_dtype=torch.bfloat16,
        out_dtype=out,
    )


@pytest.mark.grid(1)
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("by_token", [False, True])
def test_a_linear_layer_in_fp8(by_token, by_channel):
    from tilewright_vllm.fp8 import TilewrightFP8LinearKernel

    torch.manual_seed(0)
    config = _config(by_token, by_channel)
    assert TilewrightFP8LinearKernel.can_implement(config) == (True, None)
    names = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
    kernel = TilewrightFP8LinearKernel(config, layer_param_names=names)
    layer = torch.nn.Module()
    layer.weight = torch.randn(48, 32).to(FP8).t()
    layer.weight_scale = torch.rand(48, 1) if by_channel else torch.rand(1)
    layer.input_scale = layer.input_scale_ub = None
    bias = torch.randn(48).bfloat16()
    x = torch.randn(5, 32).bfloat16()
    y = kernel.apply_weights(layer, x, bias)
    rows, scales = kernel.quant_fp8(x, None, None)
    right = (rows.float() @ layer.weight.float()) * scales * layer.weight_scale.reshape(1, -1)
    torch.testing.assert_close(y.float(), right + bias, rtol=0.01, atol=0.02)


def test_fp8_of_one_row_and_one_column():
    from tilewright_vllm.fp8 import scale_steps

    steps, (both,) = scale_steps(torch.tensor([2.0]), torch.tensor([3.0]), 1, 1)
    assert (steps, both.item()) == (["scale"], 6)


def test_scales_of_blocks_and_fp32_results_are_refused():
    from tilewright_vllm.fp8 import TilewrightFP8LinearKernel

    fits, reason = TilewrightFP8LinearKernel.can_implement(_config(True, False, group=(128, 128)))
    assert not fits
    assert "(128, 128)" in reason
    fits, reason = TilewrightFP8LinearKernel.can_implement(_config(True, True, torch.float32))
    assert not fits
    assert "float32" in reason
    fits, reason = TilewrightFP8LinearKernel.is_supported(80)
    assert not fits
    assert "fp8" in reason


def test_the_fp8_kernel_is_tried_first():
    from vllm.model_executor.kernels.linear import _POSSIBLE_FP8_KERNELS
    from vllm.platforms.interface import PlatformEnum

    from tilewright_vllm.fp8 import TilewrightFP8LinearKernel, register_fp8

    register_fp8()
    for platform in (PlatformEnum.CUDA, PlatformEnum.ROCM):
        assert _POSSIBLE_FP8_KERNELS[platform][0] is TilewrightFP8LinearKernel
        assert len(_POSSIBLE_FP8_KERNELS[platform]) == 2


@dataclass(frozen=True)
class Scaled:
    """An activation's configuration that is not the usual one."""

    alpha: float = 1.0


def _moe(dtype=torch.bfloat16, **parallel):
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig

    return FusedMoEConfig(
        num_experts=4,
        experts_per_token=2,
        hidden_dim=32,
        intermediate_size=16,
        num_local_experts=4,
        num_logical_experts=4,
        activation=MoEActivation.SILU,
        device="cpu",
        routing_method=None,
        moe_parallel_config=FusedMoEParallelConfig(**parallel),
        in_dtype=dtype,
    )


@pytest.mark.grid(1)
@pytest.mark.parametrize("placed", ["here", "two of four experts here"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("by_vllm", [False, True])
def test_experts_are_a_weighted_sum(placed, biased, by_vllm):
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig

    from tilewright_vllm.moe import TilewrightExperts, activation_of

    torch.manual_seed(0)
    tokens, k, hidden, inner = 7, 2, 32, 16
    local = torch.tensor([0, 1, 2, 3] if placed == "here" else [-1, 1, -1, 0])
    experts = int(local.max()) + 1
    w1 = torch.randn(experts, 2 * inner, hidden).bfloat16() / 4
    w2 = torch.randn(experts, hidden, inner).bfloat16() / 4
    biases = (torch.randn(experts, w.shape[1]).bfloat16() if biased else None for w in (w1, w2))
    quant = FusedMoEQuantConfig()
    quant.w1_bias, quant.w2_bias = biases
    ids = torch.stack([torch.randperm(4)[:k] for _ in range(tokens)]).int()
    weights = torch.rand(tokens, k)
    x = torch.randn(tokens, hidden).bfloat16()
    made = TilewrightExperts(_moe(), quant)
    if by_vllm:  # its activation has a factor, so it is computed by vLLM's function
        made.activation_config = Scaled(0.5)
    assert callable(activation_of(made, MoEActivation.SILU, 2 * inner)) == by_vllm
    shapes = made.workspace_shapes(
        tokens, 2 * inner, hidden, k, 4, experts, None, MoEActivation.SILU
    )
    first, second, out = (torch.full(s, float("nan")).bfloat16() for s in shapes)
    made.apply(
        out, x, w1, w2, weights, ids, MoEActivation.SILU, 4,
        None if placed == "here" else local.int(), None, None, first, second, None, False,
    )  # fmt: skip
    right = torch.zeros(tokens, hidden)
    for token in range(tokens):
        for choice in range(k):
            expert = int(local[ids[token, choice]])
            if expert < 0:
                continue
            gate, up = (
                w1[expert].float() @ x[token].float() + (quant.w1_bias[expert] if biased else 0)
            ).chunk(2)
            down = w2[expert].float() @ (torch.nn.functional.silu(gate) * up)
            down = down + (quant.w2_bias[expert] if biased else 0)
            right[token] += weights[token, choice] * down
    torch.testing.assert_close(out.float(), right, rtol=0.03, atol=0.05)


def test_vllm_makes_our_method_in_bf16(replaced, caplog):
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
        UnquantizedFusedMoEMethod,
    )

    from tilewright_vllm.moe import TilewrightExperts, TilewrightFusedMoEMethod, register_moe

    register_moe()
    assert list(replaced) == ["UnquantizedFusedMoEMethod"]
    method = UnquantizedFusedMoEMethod(_moe())
    assert type(method) is TilewrightFusedMoEMethod
    assert method.experts_cls is TilewrightExperts
    assert method.unquantized_backend is UnquantizedMoeBackend.TRITON
    for refused, reason in (
        (_moe(torch.float16), "torch.float16"),
        (_moe(use_batched_activation_format=True), "parallel config"),
    ):
        caplog.clear()
        method = UnquantizedFusedMoEMethod(refused)
        assert method.experts_cls is not TilewrightExperts
        assert reason in caplog.text


def test_parts_are_named(monkeypatch, replaced):
    import tilewright_vllm

    monkeypatch.setattr(tilewright_vllm, "_given", set())
    monkeypatch.setenv("TILEWRIGHT_VLLM", "linear, moe")
    tilewright_vllm.register()
    tilewright_vllm.register()  # each part once
    assert "QKVParallelLinear" in replaced
    assert "UnquantizedFusedMoEMethod" in replaced
    monkeypatch.setenv("TILEWRIGHT_VLLM", "conv")
    with pytest.raises(ValueError, match="conv; the parts are attention"):
        tilewright_vllm.register()
