"""The energy of a floating-point operation: in our kernels, and in the vendor's library.

    pip install nvidia-ml-py
    python benchmarks/gemm_energy.py --json benchmarks/results/gemm_energy_h200.json

A GPU at its power limit computes as fast as its energy lets it: operations a second are watts over
joules an operation, whatever a kernel's instructions are. So each contender runs alone for some
seconds, and the board's energy counter and clock are read (NVML). Random operands, and zeros,
which switch fewer bits and leave the limit unreached: there instructions decide.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pynvml
import torch

from cublaslt import candidates
from environment import environment
from harness import bound, compare
from tilewright import ops
from tilewright.compile import Store, build

SECONDS = 1.5
ROUNDS = 1
SHAPES = ((8192, 8192, 8192), (2048, 28672, 4096))
KERNELS = {
    "bf16": (
        "gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s4_gluon_ws_persistent_g16_split_padmnk_al16",
        "gemm_rcr_bf16_bf16_bf16_fp32_128x192x64_w8_s4_gluon_pingpong_persistent_g16_split_padmnk_al16",
        "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s6_gluon_pingpong_persistent_g8_split_padmnk_al16",
    ),
    "e4m3fn": (
        "gemm_rcr_e4m3fn_e4m3fn_bf16_fp32_128x256x128_w8_s3_gluon_ws_persistent_g16_direct_padmnk_al16",
        "gemm_rcr_e4m3fn_e4m3fn_bf16_fp32_128x192x128_w8_s4_gluon_pingpong_persistent_g8_split_padmnk_al16",
        "gemm_rcr_e4m3fn_e4m3fn_bf16_fp32_128x128x128_w8_s6_gluon_pingpong_persistent_g8_split_padmnk_al16",
    ),
}


def vendors(dtype: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> dict[str, Callable]:
    """The vendor's call, and the fastest of its library's candidates."""
    if dtype == "e4m3fn":
        rows, columns = (
            torch.ones(len(a), 1, device="cuda"),
            torch.ones(1, b.shape[1], device="cuda"),
        )
        return {
            "torch._scaled_mm, row-wise": lambda: torch._scaled_mm(
                a, b, rows, columns, out_dtype=torch.bfloat16, use_fast_accum=True
            )
        }
    listed = candidates(a, b, out)
    times = compare(listed, rounds=5)
    best = min(listed, key=lambda name: times[name].median)
    return {"torch.mm": lambda: torch.mm(a, b, out=out), best: listed[best]}


def sustained(call: Callable[[], object], device: object) -> dict[str, float]:
    """Calls, joules and the median clock over some seconds of nothing else."""
    for seconds in (0.4, SECONDS):  # the first are for the clocks to settle
        torch.cuda.synchronize()
        before, start, calls, clocks = _joules(device), time.perf_counter(), 0, []
        while time.perf_counter() - start < seconds:
            for _ in range(20):
                call()
            clocks.append(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM))
            torch.cuda.synchronize()
            calls += 20
        took, joules = time.perf_counter() - start, _joules(device) - before
    return {
        "seconds_a_call": took / calls,
        "watts": joules / took,
        "joules_a_call": joules / calls,
        "mhz": statistics.median(clocks),
    }


def _joules(device: object) -> float:
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()

    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    store, family = Store(), ops.family("gemm")
    configs = {dtype: [family.parse_name(n) for n in names] for dtype, names in KERNELS.items()}
    report = build([(c, "sm_90") for each in configs.values() for c in each], store=store)
    report.raise_if_failed()
    rows = []
    for dtype, zeros, (m, n, k) in [
        (d, z, s) for d in KERNELS for z in (False, True) for s in SHAPES
    ]:
        element = torch.bfloat16 if dtype == "bf16" else torch.float8_e4m3fn
        fill = torch.zeros if zeros else torch.randn
        a = fill(m, k, device="cuda").to(element)
        b = fill(n, k, device="cuda").to(element).T
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        calls: dict[str, Callable] = {
            c.name: bound(store, c, a, b, out=out) for c in configs[dtype]
        }
        calls |= vendors(dtype, a, b, out)
        print(f"{m}x{n}x{k} {dtype}{' zeros' if zeros else ''}")
        for name, call in calls.items():
            taken = [sustained(call, device) for _ in range(ROUNDS)]
            mean = {key: statistics.mean(one[key] for one in taken) for key in taken[0]}
            flops = 2 * m * n * k
            row = {
                "m": m, "n": n, "k": k, "dtype": dtype, "zeros": zeros, "contender": name,
                "tflops": flops / mean["seconds_a_call"] / 1e12,
                "pj_per_flop": mean["joules_a_call"] / flops * 1e12,
                **mean,
            }  # fmt: skip
            rows.append(row)
            print(
                f"    {row['tflops']:5.0f} TFLOP/s  {row['watts']:4.0f} W  {row['mhz']:4.0f} MHz  "
                f"{row['pj_per_flop']:.3f} pJ a FLOP  {name}"
            )
    if options.json:
        document = {"environment": environment(), "seconds": SECONDS, "rows": rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
