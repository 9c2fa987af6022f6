"""Host time of one dispatched call, against torch.mm(out=) and a plain Triton JIT launch.

    python benchmarks/launch_overhead.py --json benchmarks/results/launch_overhead_h200.json

A 16×16×16 bf16 product: the GPU is never the one waited for. Contenders take turns in batches;
the median over batches of the mean host time of a call is reported. `with a workspace`: dispatched,
by a kernel that splits K, which is 512.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

from environment import environment
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import FAMILY
from tilewright.registry import Registry

SPLIT = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x128_w4_s2_basic_split_k2_linear_g8_direct_padmnk_al16"


@triton.jit
def product(a, b, c, m, n, k, lda, ldb, ldc, TILE: tl.constexpr):
    """A one-tile product with a GEMM's arguments, as a user would launch it."""
    i = tl.arange(0, TILE)
    inside = (i < m)[:, None] & (i < n)[None, :]
    x = tl.load(a + i[:, None] * lda + i[None, :], mask=(i < k)[None, :], other=0.0)
    y = tl.load(b + i[None, :] * ldb + i[:, None], mask=(i < k)[:, None], other=0.0)
    tl.store(c + i[:, None] * ldc + i[None, :], tl.dot(x, y).to(c.dtype.element_ty), mask=inside)


CALLS_A_BATCH = 200
BATCHES = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()

    a = torch.randn(16, 16, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(16, 16, device="cuda", dtype=torch.bfloat16).T
    out = torch.empty(16, 16, device="cuda", dtype=torch.bfloat16)
    dispatcher = Dispatcher()
    run = dispatcher.run
    dispatched = lambda: run("gemm", a, b, out=out)  # noqa: E731
    torch_mm = lambda: torch.mm(a, b, out=out)  # noqa: E731

    registry = Registry("split").register_all([FAMILY.parse_name(SPLIT)])
    shared = Dispatcher(registry).run
    long_a = torch.randn(16, 512, device="cuda", dtype=torch.bfloat16)
    long_b = torch.randn(16, 512, device="cuda", dtype=torch.bfloat16).T
    with_workspace = lambda: shared("gemm", long_a, long_b, out=out)  # noqa: E731

    def triton_jit() -> None:
        product[(1,)](a, b, out, 16, 16, 16, 16, 16, 16, TILE=16, num_warps=4)

    contenders = {
        "dispatched": dispatched,
        "with a workspace": with_workspace,
        "torch.mm(out=)": torch_mm,
        "triton JIT": triton_jit,
    }
    for name, call in contenders.items():
        x, y = (long_a, long_b) if call is with_workspace else (a, b)
        expected = x.float() @ y.float()
        out.fill_(float("nan"))
        call()
        torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=0.1, msg=name)

    times: dict[str, list[float]] = {name: [] for name in contenders}
    for batch in range(BATCHES):
        order = list(contenders.items())
        for name, call in order if batch % 2 else reversed(order):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS_A_BATCH):
                call()
            times[name].append((time.perf_counter() - start) / CALLS_A_BATCH * 1e6)
    medians = {name: statistics.median(samples[5:]) for name, samples in times.items()}
    for name, microseconds in medians.items():
        ratio = microseconds / medians["torch.mm(out=)"]
        print(f"{name:<16} {microseconds:6.2f} µs  {ratio:.2f} of torch.mm(out=)")
    if options.json:
        document = {"environment": environment(), "host_us": medians, "triton": triton.__version__}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
