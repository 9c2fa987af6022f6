"""What the last row and column of tiles cost: kernels and torch.mm, over tiles that M, or N, does
not fill.

    python benchmarks/gemm_last_rows.py --json benchmarks/results/gemm_last_rows_h200.json

bf16 rcr; all kernels of a product take turns, flushed, 60 rounds. Medians in microseconds, by
product and kernel; kernels are verified first.

The result's `outside` is of the same kernels before their last row and column of tiles began
further up (`kernels.schedule.begin_of`): each began at a multiple of its height and width.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from environment import environment
from tilewright import ops
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import Contender, kernel_bind, verified
from tilewright.measure.measurement import Settings
from tilewright.measure.vendor import vendor_bind
from tilewright.ops.gemm import GemmProblem

GPU = "cuda:0"
NAME = "gemm_rcr_bf16_bf16_bf16_fp32_{}_direct_padmnk_al16"
KERNELS = (
    "64x64x128_w4_s6_gluon_ws_persistent_g8",
    "64x128x64_w4_s8_gluon_ws_persistent_g8",
    "128x64x64_w4_s8_gluon_ws_persistent_g8",
    "128x128x64_w8_s5_gluon_pingpong_persistent_g8",
    "64x64x128_w4_s3_tma_tile_g8",
    "64x64x64_w4_s3_basic_tile_g8",
)
PRODUCTS = (
    ((4096, 3072), (16, 24, 32, 40, 48, 56, 64, 65, 80, 96, 112, 128, 192, 208, 320, 464)),
    ((11264, 7168), (40, 48, 64, 65, 80, 112, 128, 208)),
    *(((n, 7168), (64, 128, 256)) for n in (576, 2112, 2240, 2304, 2624, 2880, 3072)),
)
ROUNDS = 60
SETTINGS = Settings(
    warm_up_seconds=0.03, precision=1e-5, min_samples=ROUNDS, max_samples=ROUNDS, budget_seconds=5.0
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    family, device, store = ops.family("gemm"), live_device(0), Store()
    configs = {kernel: family.parse_name(NAME.format(kernel)) for kernel in KERNELS}
    build([(config, device.arch) for config in configs.values()], store=store).raise_if_failed()
    dispatcher = Dispatcher(device=device, store=store, build_missing=False)
    flush = timing.flusher(device.l2_bytes, GPU)
    found: dict[str, dict[str, float]] = {}
    for (n, k), heights in PRODUCTS:
        for m in heights:
            problem = GemmProblem(m, n, k)
            contenders = [
                Contender(kernel, config, kernel_bind(dispatcher, config.name, problem))
                for kernel, config in configs.items()
            ]
            name, bind = vendor_bind(problem)
            calls = verified([*contenders, Contender(name, None, bind)], problem, 1, GPU)
            named = {one: [call] for one, call in zip([*configs, name], calls, strict=True)}
            series = timing.measure(named, timing.Events(flush, GPU), SETTINGS)
            torch.cuda.synchronize()
            found[str(problem)] = {
                one: round(statistics.median(taken.samples_us), 2) for one, taken in series.items()
            }
            print(problem, found[str(problem)], flush=True)
    document: dict[str, Any] = {"environment": environment(), "rounds": ROUNDS, "us": found}
    if options.json:
        if options.json.is_file():  # of the kernels as they were
            document["outside"] = json.loads(options.json.read_text()).get("outside")
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
