"""Numbers on a real GPU: in tensors without dimensions, and for operands of one element."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
import tilewright as tw  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

pytestmark = pytest.mark.gpu

GPU = "cuda:0"


def matrices():
    generator = torch.Generator(GPU).manual_seed(3)
    return (torch.randn(64, 64, device=GPU, dtype=torch.float16, generator=generator)
            for _ in range(2))  # fmt: skip


def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call()
    graph.replay()
    return made


def test_a_scalar_may_be_in_a_tensor_on_the_gpu_but_not_in_a_captured_graph():
    q = torch.randn(1, 16, 2, 64, device=GPU, dtype=torch.float16)
    there = torch.tensor(0.25, device=GPU)
    wanted = tw.attention(q, q, q, scale=0.25)
    assert torch.equal(tw.attention(q, q, q, scale=there), wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = tw.attention(q, q, q, scale=0.25)
        with pytest.raises(BadArgument, match="while a graph is captured"):
            tw.attention(q, q, q, scale=there)
    graph.replay()
    assert torch.equal(made, wanted)


def test_a_number_for_an_operand_is_copied_once():
    a, b = matrices()
    tw.gemm(a, b, epilogue="scale", scale=0.5)
    torch.cuda.set_sync_debug_mode("error")
    try:
        made = tw.gemm(a, b, epilogue="scale", scale=0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    by_array = tw.gemm(a, b, epilogue="scale", scale=torch.full((1,), 0.5, device=GPU))
    assert torch.equal(made, by_array)


def test_a_number_is_seen_first_in_a_captured_graph():
    a, b = matrices()
    tw.gemm(a, b, epilogue="scale", scale=0.5)
    made = captured(lambda: tw.gemm(a, b, epilogue="scale", scale=0.375))
    wanted = tw.gemm(a, b, epilogue="scale", scale=torch.full((1,), 0.375, device=GPU))
    assert torch.equal(made, wanted)
