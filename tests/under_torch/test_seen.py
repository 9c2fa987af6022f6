"""What torch's own tools see of calls: the counter of operations, and the profiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch.profiler import profile  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch.flops  # noqa: E402

M, N, K = 4, 8, 16
PRODUCT = 2 * M * N * K


def counted(function, *given) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*given)
    return counter.get_total_flops()


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


def both(a, b):
    tw.gemm(a, b).sum().backward()


def test_the_operations_of_a_call_are_counted():
    a, b = torch.randn(M, K), torch.randn(K, N)
    assert counted(tw.gemm, a, b) == PRODUCT == counted(torch.mm, a, b)
    assert counted(torch.ops.tilewright.gemm, [a, b]) == PRODUCT
    out = [torch.empty(M, N)]
    assert counted(lambda: torch.ops.tilewright.gemm.out([a, b], out=out)) == PRODUCT
    q = torch.randn(1, 4, 2, 16)
    assert counted(tw.attention, q, q, q) == 4 * 4 * 4 * 2 * 16


@pytest.mark.turns(64)
def test_a_counter_that_is_imported_before_tilewright_torch_counts():
    script = (
        "import torch\n"
        "from torch.utils.flop_counter import FlopCounterMode\n"
        "import tilewright.torch\n"
        "with FlopCounterMode(display=False) as counter:\n"
        "    torch.ops.tilewright.gemm([torch.ones(4, 16), torch.ones(16, 8)])\n"
        "assert counter.get_total_flops() == 1024\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_backward_pass_is_counted():
    assert counted(both, leaf(M, K), leaf(K, N)) == 3 * PRODUCT


def test_a_backward_pass_in_one_node_is_counted():
    a, b, grad = torch.randn(M, K), torch.randn(K, N), torch.randn(M, N)
    node = torch.ops.tilewright.gradients
    assert counted(node, "gemm", [a, b], [], [grad], [0, 1]) == 2 * PRODUCT


def test_the_profiler_shows_the_call():
    a, b = torch.randn(M, K), torch.randn(K, N)
    tw.gemm(a, b)  # so that the next call could be repeated unseen
    with profile() as seen:
        tw.gemm(a, b)
    assert "tilewright::gemm" in [event.key for event in seen.key_averages()]
