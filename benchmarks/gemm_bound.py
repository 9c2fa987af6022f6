"""How far ahead of torch.mm a GEMM could be at most, over the recorded times of models' products.

    python benchmarks/gemm_bound.py

Needs no GPU. A kernel that lost nothing would take what the beginning and end of a kernel take at
least by single calls (`rates.FEW_LAUNCH_US`), and then the time to read A and B and write C at the
rate measured for an H200, or the time of the products at the rate that power sustains
(`rates.POWER_SHARE`), whichever is longer. These figures are fitted, so the bound is no proof.
Printed by ranges of M, for the bf16 products of shipped_h200.json, is torch.mm's time over
three others (geometric means): the bound's, that of the best kernel built here, and that of the
table's row, which may be an algorithm of the vendor's library.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean

from analytical import by_rows
from tilewright.arch import arch, device, peak_tflops
from tilewright.ops.gemm import GemmProblem, rates

READ_BYTES_A_US = 4.27e6
"""Bytes that an H200 reads in a microsecond."""
RECORD = Path(__file__).parent / "results" / "shipped_h200.json"


def main() -> None:
    gpu = device("h200_sxm")
    flops_a_us = peak_tflops(arch(gpu.arch), gpu, "bf16") * 1e6 * rates.POWER_SHARE
    rows = []
    for one in json.loads(RECORD.read_text())["problems"]:
        if one["table"] != "gemm_bf16":
            continue
        p = GemmProblem(*(one["problem"][axis] for axis in "mnk"))
        least = max(p.min_bytes / READ_BYTES_A_US, 2 * p.m * p.n * p.k / flops_a_us)
        of_row = one["vendor_us"] / one["us"]
        ours = one["vendor_us"] / one.get("ours_us", one["us"])
        rows.append((p.m, one["vendor_us"] / (rates.FEW_LAUNCH_US + least), ours, of_row))
    for words, some in {"all": rows, **by_rows(rows, lambda row: row[0])}.items():
        if some:
            bound, ours, table = (geometric_mean([row[i] for row in some]) for i in (1, 2, 3))
            print(f"{words:12} {len(some):5} products, bound {bound:.3f}, "
                  f"kernels built here {ours:.3f}, table {table:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
