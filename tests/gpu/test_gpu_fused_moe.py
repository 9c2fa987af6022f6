"""Mixtures of experts as one layer on a real GPU: sizes of models, random routings in memory that
holds NaN, graphs that are replayed with other routings, and calls that repeat bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402
from layer_cases import (  # noqa: E402
    LIMITS,
    by_block,
    by_row,
    by_tensor,
    in_fp8,
    in_int4,
    operands,
    reference,
    worst,
)

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.compile import build  # noqa: E402
from tilewright.ops.grouped_gemm import GroupedGemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu

GPT_OSS = {"interleaved": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}
LAYERS = {
    "Qwen3-30B-A3B": ((2048, 768, 128, 8), {}),
    "Mixtral-8x7B, a quarter": ((4096, 3584, 8, 2), {}),
    "gpt-oss, half": ((2880, 1440, 32, 4), GPT_OSS),
    "DeepSeek-V3, 32 experts": ((7168, 512, 32, 8), {"routed_scaling_factor": 2.5}),
    "GeGLU": ((1024, 520, 16, 6), {"activation": "gelu_tanh"}),
    "interleaved": ((1024, 512, 16, 4), {"interleaved": True}),
}


def poison(elements: int = 1 << 26) -> None:
    """Fill memory that the next calls are given with NaN."""
    torch.full((elements,), torch.nan, device="cuda", dtype=torch.bfloat16)


@pytest.mark.parametrize("tokens", [1, 17, 400])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_models_are_right(name, tokens):
    (hidden, inner, experts, k), said = LAYERS[name]
    given = operands(tokens, hidden, inner, experts, k, device="cuda")
    poison()
    y = tw.fused_moe(*given, **said)
    assert worst(y, reference(*given, **said)) < LIMITS[torch.bfloat16]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_types_and_all_that_is_optional(dtype):
    given = operands(300, 512, 256, 12, 3, dtype=dtype, device="cuda")
    _, up, down, _, _ = operands(1, 512, 320, 1, 1, dtype=dtype, device="cuda", seed=4)
    said = {
        "b1": torch.randn(12, 512, device="cuda").to(dtype),
        "b2": torch.randn(12, 512, device="cuda").to(dtype),
        "shared": (up[0], down[0]),
        "expert_map": torch.tensor([3, -1, *range(12), -1], device="cuda", dtype=torch.int32),
    }
    torch.backends.cuda.matmul.allow_tf32 = False
    y = tw.fused_moe(*given, **said)
    assert worst(y, reference(*given, **said)) < max(LIMITS[dtype], 1e-3)


@pytest.mark.parametrize("tokens", [5, 600])
@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_weights_with_scales(kind, tokens):
    x, w1, w2, weights, ids = operands(tokens, 1024, 512, 16, 4, device="cuda")
    stored, held, said = (in_fp8 if kind == "fp8" else in_int4)(w1, w2)
    limit = LIMITS[torch.float8_e4m3fn if kind == "fp8" else torch.bfloat16]
    y = tw.fused_moe(x, *stored, weights, ids, **said)
    assert worst(y, reference(x, *held, weights, ids)) < limit


@pytest.mark.parametrize("tokens", [5, 600])
@pytest.mark.parametrize("made", [by_row, by_tensor])
@pytest.mark.parametrize("first", [False, True])
def test_scales_by_row_and_by_expert_and_weights_that_come_first(made, first, tokens):
    x, w1, w2, weights, ids = operands(tokens, 1024, 512, 16, 4, device="cuda")
    eight, held, said = made(w1, w2)
    poison()
    for _ in range(3):
        y = tw.fused_moe(x, *eight, weights, ids, **said, scale_a="row", weights_first=first)
        wanted = reference(x, *held, weights, ids, weights_first=first)
        off = (y.double() - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()
        assert off < 0.06  # tokens and activations have 3 bits of mantissa: 0.03 each
    y = tw.fused_moe(x, w1, w2, weights, ids, weights_first=first)
    wanted = reference(x, w1, w2, weights, ids, weights_first=first)
    assert worst(y, wanted) < LIMITS[torch.bfloat16]


@pytest.mark.parametrize("tokens", [5, 600])
@pytest.mark.parametrize("made", [by_row, by_tensor, by_block])
def test_weights_in_8_bits_beside_tokens_in_16(made, tokens):
    x, w1, w2, weights, ids = operands(tokens, 1024, 512, 16, 4, device="cuda")
    eight, held, said = made(w1, w2)
    poison()
    wanted = reference(x, *held, weights, ids)
    for _ in range(3):
        y = tw.fused_moe(x, *eight, weights, ids, **said)
        assert worst(y, wanted) < LIMITS[torch.bfloat16]


def test_random_routings_in_memory_of_nan():
    """Some experts have no token, some tokens no expert; ids from beyond both ends; and weights of
    experts that nobody chose are NaN."""
    x, w1, w2, weights, _ = operands(97, 256, 128, 24, 4, device="cuda")
    draw = torch.Generator("cuda").manual_seed(0)
    for turn in range(300):
        tokens = 1 + turn * 7 % 97
        ids = torch.randint(-2, 27, (tokens, 4), device="cuda", generator=draw, dtype=torch.int32)
        if turn % 5 == 0:
            ids = torch.where(ids < 3, ids, 2)
        if turn % 7 == 0:
            ids[:] = turn % 24
        unused = torch.ones(24, dtype=torch.bool, device="cuda")
        unused[ids[(ids >= 0) & (ids < 24)].long()] = False
        kept = w1[unused].clone(), w2[unused].clone()
        w1[unused], w2[unused] = torch.nan, torch.nan
        poison(1 << 22)
        y = tw.fused_moe(x[:tokens], w1, w2, weights[:tokens], ids)
        w1[unused], w2[unused] = kept
        wanted = reference(x[:tokens], w1, w2, weights[:tokens], ids)
        assert torch.isfinite(y).all(), turn
        limit = LIMITS[torch.bfloat16] * wanted.square().mean().sqrt()
        assert (y.double() - wanted).abs().max() <= limit, turn


@pytest.mark.parametrize("tokens", [4, 700])
@pytest.mark.parametrize("said", [{}, GPT_OSS])
def test_a_graph_is_replayed_with_other_routings(tokens, said):
    x, w1, w2, weights, ids = operands(tokens, 512, 256, 16, 4, device="cuda")
    for _ in range(2):  # the second is one native call, as that in the graph
        tw.fused_moe(x, w1, w2, weights, ids, **said)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = tw.fused_moe(x, w1, w2, weights, ids, **said)
    for turn in range(6):
        ids.copy_(torch.randint(-3, 16, ids.shape, device="cuda"))
        if turn == 4:
            ids.fill_(-1)
        if turn == 5:
            ids.fill_(9)
        x.normal_()
        graph.replay()
        wanted = reference(x, w1, w2, weights, ids, **said)
        assert torch.isfinite(y).all()
        limit = LIMITS[torch.bfloat16] * wanted.square().mean().sqrt()
        assert (y.double() - wanted).abs().max() <= limit, turn


@pytest.mark.parametrize("tokens", [8, 3000])
def test_calls_repeat_bit_for_bit(tokens):
    given = operands(tokens, 1024, 512, 32, 8, device="cuda")
    first = tw.fused_moe(*given)
    for _ in range(20):
        assert torch.equal(tw.fused_moe(*given), first)


@pytest.mark.parametrize("tokens", [9, 500])
def test_a_router_chooses_first(tokens):
    """Of nine tokens in the launch that sorts them."""
    x, w1, w2, _, _ = operands(tokens, 512, 256, 64, 8, device="cuda")
    logits = torch.randn(tokens, 64, device="cuda")
    said = {"k": 8, "scoring": "sigmoid", "renormalize": True, "n_group": 8, "topk_group": 4}
    weights, ids = tw.topk_routing(logits, **said)
    for _ in range(3):
        y = tw.routed_moe(x, logits, w1, w2, **said)
        assert worst(y, reference(x, w1, w2, weights, ids)) < LIMITS[torch.bfloat16]
        assert torch.equal(y, tw.fused_moe(x, w1, w2, weights, ids))


def test_every_kernel_that_gathers_is_right(dispatcher):
    this = arch(ARCH)
    sizes = {"groups": 20, "m": 777, "n": 272, "k": 520, "rows_a": 260, "per_row": 3}
    problem = GroupedGemmProblem("gathered", **sizes, epilogue="swiglu", gates_apart=True)
    family = ops.family("grouped_gemm")
    kernels = family.default_space(problem, this).expand(this).configs
    served = [c for c in kernels if family.supports(c, problem, this)]
    assert served
    build([(config, ARCH) for config in served], store=dispatcher.store)
    for config in served:
        result = verify.verify(dispatcher, problem, config.name, device="cuda:0")
        assert result.ok, f"{config.name}: {result}"
