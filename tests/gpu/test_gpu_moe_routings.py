"""Ten thousand routings of a layer in memory that holds NaN, and a thousand runs that are the same
bit for bit. Graphs take the next routing, poison what they will be given, and compare the result on
the GPU, so that the host reads one number at the end."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from layer_cases import LIMITS, in_fp8, operands  # noqa: E402
from many_routings import (  # noqa: E402
    NEVER,
    SIZES,
    TOKENS,
    WIDER,
    WIDER_TOKENS,
    chosen,
    drawn,
    of_every_expert,
    plans,
)

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu

RUNS = 2000
LIMIT = {"bf16": LIMITS[torch.bfloat16], "fp8": 2 * LIMITS[torch.float8_e4m3fn]}
"""Of errors beside the rms of one expert's results. In fp8 twice the others' limit: a routing may
choose the worst of these results alone, and not average it with others."""


@pytest.fixture(scope="module", autouse=True)
def built():
    """Kernels of all layers, at once."""
    tw.prepare([problem for plan in plans() for problem in plan.problems])


def layer(tokens, size, kind):
    """x, weights of experts as a call takes them, keywords, and the weights that they stand for."""
    x, w1, w2, weights, ids = operands(tokens, *size.values(), device="cuda")
    stored, held, said = ([w1, w2], [w1, w2], {}) if kind == "bf16" else in_fp8(w1, w2)
    return x, stored, weights, ids, said, held


def poison():
    """Fill memory that the next arrays are given with NaN: small pieces, and a large one."""
    small = [torch.full((1 << 16,), torch.nan, device="cuda") for _ in range(64)]
    large = torch.full((1 << 25,), torch.nan, device="cuda")
    del small, large


def captured(step):
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("tokens", TOKENS)
def test_many_routings_in_memory_of_nan(tokens, kind):
    """Weights of experts that nobody chooses are NaN too."""
    x, stored, weights, ids, said, held = layer(tokens, SIZES, kind)
    every = of_every_expert(x, *held)
    rms = every.square().mean().sqrt()
    for e in NEVER:
        every[e] = torch.nan
        for w in stored:
            w[e] = torch.full_like(w[e], torch.nan, dtype=torch.float32).to(w.dtype)
    bank = drawn(RUNS, tokens, SIZES["experts"], SIZES["k"], "cuda")
    at = torch.zeros(1, dtype=torch.long, device="cuda")
    worst = torch.zeros((), dtype=torch.float64, device="cuda")

    def step():
        ids.copy_(bank.index_select(0, at)[0])
        poison()
        y = tw.fused_moe(x, *stored, weights, ids, **said)
        error = (y.double() - chosen(every, weights, ids)).abs().max() / rms
        worst.copy_(torch.maximum(worst, error))  # NaN stays
        at.add_(1)

    graph = captured(step)
    at.zero_()
    worst.zero_()
    for _ in range(RUNS):
        graph.replay()
    torch.cuda.synchronize()
    assert at.item() == RUNS
    assert 0 < worst.item() < LIMIT[kind]


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("tokens", WIDER_TOKENS)
def test_a_thousand_runs_are_the_same_bit_for_bit(tokens, kind):
    """Beside other work, which changes what runs when."""
    x, stored, weights, ids, said, _ = layer(tokens, WIDER, kind)
    first = tw.fused_moe(x, *stored, weights, ids, **said)
    other = torch.zeros((), dtype=torch.long, device="cuda")

    def step():
        y = tw.fused_moe(x, *stored, weights, ids, **said)
        other.add_((y != first).sum())

    graph, beside = captured(step), torch.cuda.Stream()
    noise = torch.randn(1024, 1024, device="cuda")
    for run in range(1000):
        if run % 3:
            with torch.cuda.stream(beside):
                noise[: 64 * (run % 16 + 1)] @ noise
        graph.replay()
    torch.cuda.synchronize()
    assert torch.isfinite(first).all()
    assert other.item() == 0
