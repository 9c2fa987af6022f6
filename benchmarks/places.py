"""How places of operands, buffers and code in memory change the ratio of two kernels' times.

    python benchmarks/places.py --json benchmarks/results/places_h200.json

Pairs of kernels near the best of a problem, of which two tunings of one H200 did not choose the
same. A series is 120 rounds, flushed, with the ratio by rounds; between two series in one process
is made anew: `nothing`; `operands`, and their output, with gaps drawn between them; the `buffer`
that the flush reads; `code`: the kernels are loaded once more; `everything`. `process`: the first
series of processes of their own. `places`: series of rounds that go through four places
(`Settings.places`), everything anew. Ratios are by how much the second kernel takes longer, in %.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from environment import environment
from tilewright import ops, verify
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import kernel_bind
from tilewright.measure.measurement import Settings
from tilewright.measure.statistics import midmean, ratios
from tilewright.ops.gemm import GemmProblem
from tilewright.tune.tuner import FINAL

GPU = "cuda:0"
BEFORE, AFTER = "gemm_rcr_bf16_bf16_bf16_fp32_", "_direct_padmnk_al16"
PAIRS = {
    (16, 24576, 4096): ("16x64x128_w4_s4_tma_tile_g8", "16x256x128_w4_s3_tma_tile_g8"),
    (16, 36864, 7168): ("16x64x64_w4_s3_tma_tile_g8", "16x64x128_w4_s2_basic_tile_g8"),
    (288, 5120, 2176): ("128x128x64_w8_s4_basic_tile_g8", "128x128x64_w4_s4_tma_persistent_g8"),
    (48, 7168, 384): ("64x32x64_w4_s4_basic_tile_g8", "64x64x128_w4_s6_small_m_tma_tile_g1"),
    (1, 10240, 8192): ("1x8x256_w1_s1_small_m_tile_g1", "16x64x128_w4_s4_tma_tile_g8"),
}
ANEW = {
    "nothing": (), "operands": ("operands",), "buffer": ("buffer",), "code": ("code",),
    "everything": ("operands", "buffer", "code"),
}  # fmt: skip
ROUNDS = 120
SERIES, PROCESSES = 10, 5
GAP = 8 << 30
SETTINGS = Settings(
    warm_up_seconds=0.05, precision=1e-5, min_samples=ROUNDS, max_samples=ROUNDS,
    budget_seconds=5.0,
)  # fmt: skip


class Bench:
    """A pair of kernels on a problem, in so many places."""

    def __init__(self, problem: Any, pair: tuple[str, str], places: int = 1) -> None:
        self._problem, self._names = problem, [BEFORE + each + AFTER for each in pair]
        self._device, self._store = live_device(0), Store()
        family = ops.family("gemm")
        configs = [(family.parse_name(name), self._device.arch) for name in self._names]
        build(configs, store=self._store).raise_if_failed()
        self._drawn, self._count = random.Random(), places
        self._operands: list[Any] = []
        self._buffer: Any = None
        for part in ANEW["everything"]:
            self.renew(part)

    def renew(self, part: str) -> None:
        if part == "operands":
            self._operands.clear()
            torch.cuda.empty_cache()
            gaps = []
            for _ in range(self._count):
                size = self._drawn.randrange(GAP)
                gaps.append(torch.empty(size, dtype=torch.uint8, device=GPU))
                self._operands.append(verify.operands_of(self._problem, 1, GPU))
        elif part == "buffer":
            self._buffer = None
            torch.cuda.empty_cache()
            self._buffer = timing.flusher(self._device.l2_bytes, GPU)
        else:
            self._dispatchers = [
                Dispatcher(device=self._device, store=self._store, build_missing=False)
                for _ in range(self._count)
            ]

    def ratio(self) -> float:
        """A series."""
        calls = {
            name: [
                kernel_bind(dispatcher, name, self._problem)(made.inputs, made.outputs)
                for dispatcher, made in zip(self._dispatchers, self._operands, strict=True)
            ]
            for name in self._names
        }
        taken = timing.measure(calls, timing.Events(self._buffer, GPU), SETTINGS)
        first, second = (taken[name].samples_us for name in self._names)
        return 100 * math.log(midmean(ratios(second, first)))


def said(series: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.mean(series), "stdev": statistics.stdev(series), "series": series
    }  # fmt: skip


def first_ratio(size: tuple[int, int, int]) -> float:
    """The ratio that a process of its own measures."""
    words = [sys.executable, __file__, "--only", ",".join(map(str, size))]
    return float(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="one series of this problem: m,n,k")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.only:
        m, n, k = map(int, options.only.split(","))
        bench = Bench(GemmProblem(m, n, k), PAIRS[m, n, k])
        bench.ratio()  # from rest to steady clocks
        print(bench.ratio())
        return
    found: dict[str, Any] = {}
    for size, pair in PAIRS.items():
        problem = GemmProblem(*size)
        rows = found[str(problem)] = {"kernels": pair}
        for way, parts in ANEW.items():
            bench, series = Bench(problem, pair), []
            for _ in range(SERIES):
                for part in parts:
                    bench.renew(part)
                series.append(bench.ratio())
            rows[way] = said(series)
        rows["process"] = said([first_ratio(size) for _ in range(PROCESSES)])
        rows["places"] = said([
            Bench(problem, pair, FINAL.places).ratio() for _ in range(SERIES)
        ])  # fmt: skip
        print(problem)
        for way in (*ANEW, "process", "places"):
            print(f"  {way:10} {rows[way]['mean']:6.2f} ± {rows[way]['stdev']:.2f} %:",
                  *(f"{each:.2f}" for each in rows[way]["series"]), flush=True)  # fmt: skip
    if options.json:
        document = {"environment": environment(), "rounds": ROUNDS, "problems": found}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
