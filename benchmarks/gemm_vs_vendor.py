"""The best kernel of a declared space against cuBLAS, in one interleaved run.

    python benchmarks/gemm_vs_vendor.py --set large --json benchmarks/results/gemm_large_h200.json

Each kernel of the space is built, checked against float64 on random data, and timed briefly;
the fastest few are then timed against each other and against the vendor's library, and the one
with the best median there is reported. Nothing that failed its check is timed. The vendor's time
is the better of `torch.mm` and of the fastest of cuBLASLt's first candidates (see `cublaslt`).

The sets ``last_wave…`` are for stream-K, whose best kernel is also set against the best of the
other schedulers. The last wave is what tiles leave over that fill every multiprocessor once, twice…
How full it is depends on the tile, so in ``last_wave`` it is said of all at once: for each tile of
the declared space of 128x128 or more, those that large products are computed with, it is under half
full and not empty. The set is every shape of one to four whole waves of the largest tiles (after
more, one wave hardly counts) with M and N multiples of 128 from 1024 on, M not the larger, and K of
4096, 8192 and 16384. In ``last_wave_128x256`` it is under half full for that tile, which says
nothing about others.

The set ``decode`` is bound by memory: it is timed with a clean L2 (see `harness`), and again after
writes; bytes moved (each operand once) are set against those of a large copy in the same run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from cublaslt import candidates
from environment import environment
from harness import bound, compare, warm_up
from tilewright import KernelSpace, ops, verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import GemmConfig, GemmProblem, pipelines, tuning

MULTIPROCESSORS = 132
TILES = ((128, 128), (128, 192), (192, 128), (192, 192), (128, 256), (256, 128))
"""Tiles of 128x128 or more that the space of the sets ``last_wave…`` has."""


def last_wave(m: int, n: int, tile: tuple[int, int]) -> tuple[int, float]:
    """Whole waves of a product's tiles, and how full the one after them is."""
    waves, left = divmod(-(-m // tile[0]) * -(-n // tile[1]), MULTIPROCESSORS)
    return waves, left / MULTIPROCESSORS


def under_half_full() -> list[tuple[int, int]]:
    """Every (M, N) of the set ``last_wave``."""
    sizes = range(1024, 8193, 128)
    return [
        (m, n)
        for m in sizes
        for n in sizes
        if m <= n
        if 1 <= last_wave(m, n, (128, 256))[0] <= 4
        if all(0 < last_wave(m, n, tile)[1] < 0.5 for tile in TILES)
    ]


SETS = {
    "large": (
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (2048, 28672, 4096),
        (8192, 4096, 14336),
        # sampled over the (N, K) of models' layers, one M each
        (32768, 4096, 8192),
        (16384, 7168, 8192),
        (2048, 26624, 16384),
        (60288, 4096, 2048),
        (5504, 6144, 5376),
        (2048, 11264, 7168),
        (8192, 17408, 4096),
    ),
    "odd": (
        (2048, 2112, 7168),
        (3840, 4096, 2048),
        (512, 768, 4096),
        (512, 512, 8192),
        (256, 256, 16384),
        (1024, 1024, 8192),
        (128, 4096, 14336),
    ),
    "last_wave": tuple((m, n, k) for k in (4096, 8192, 16384) for m, n in under_half_full()),
    "last_wave_128x256": (
        (2048, 2112, 7168),
        (2240, 2240, 8192),
        (2240, 2240, 16384),
        (2304, 2048, 16384),
        (1280, 1408, 16384),
        (2560, 2304, 8192),
        (3072, 3072, 8192),
        (4352, 4096, 4096),
    ),
    "decode": (
        (1, 4096, 4096),
        (1, 4096, 14336),
        (4, 7168, 2048),
        (8, 2112, 7168),
        (16, 28672, 4096),
        (32, 4096, 7168),
        (64, 2112, 7168),
        (64, 24576, 1536),
        # random.Random(0).sample of the (N, K) of models' layers, with M from 1 to 64 in turn
        (1, 8192, 8192),
        (2, 10240, 8192),
        (4, 512, 256),
        (8, 5120, 6400),
        (16, 31104, 7168),
        (32, 20480, 7168),
        (64, 9216, 4096),
        (1, 6144, 12288),
        (2, 17408, 4096),
        (4, 7168, 8192),
        (8, 4096, 3072),
        (16, 28672, 8192),
        (32, 2048, 6144),
        (64, 6144, 512),
        (1, 43392, 1792),
        (2, 1536, 128),
        (4, 6400, 5120),
        (8, 8704, 5120),
        (16, 2048, 1024),
        (32, 15360, 13824),
        (64, 5120, 8704),
        (1, 7168, 5120),
        (2, 37984, 2048),
        (4, 36864, 7168),
        (8, 14976, 7680),
        (16, 1024, 1024),
        (32, 2304, 6144),
        (64, 512, 2048),
    ),
}
"""Lists of (M, N, K): large products, odd waves with large K, last waves under half full, and
decoding."""

FINALISTS = 6
LARGE, DEEP, CLUSTERED, CLUSTERED_SWAPPED = (
    [(pipeline, m, n, k_bytes // 2, *rest) for pipeline, m, n, k_bytes, *rest in tiles]
    for tiles in (tuning.LARGE, tuning.DEEP, tuning.CLUSTERED, tuning.CLUSTERED_SWAPPED)
)
VECTOR_TILES, MATRIX_TILES = (
    [(n, k_bytes // 2, *rest) for n, k_bytes, *rest in tiles]
    for tiles in (tuning.VECTOR_TILES, tuning.MATRIX_TILES)
)
DEEP_SCHEDULES = [
    ("persistent", 1, "none"),
    ("stream_k", 1, "linear"),
    ("stream_k", 1, "atomic"),
    *(("split_k", parts, how) for parts in (2, 3, 4, 8, 16) for how in ("linear", "atomic")),
    *(("split_k", parts, "two_stage") for parts in (4, 8, 16, 32)),
]
LAST_WAVE_SCHEDULES = [s for s in DEEP_SCHEDULES if s[1] <= 4] + [("stream_k", 1, "tree")]
SHARED = [("stream_k", 1, "linear"), ("stream_k", 1, "tree")] + [
    ("split_k", parts, "linear") for parts in (2, 4, 8, 16)
]


def spaces(name: str, dtype: str) -> list[KernelSpace]:
    """The rcr kernels that can win on a set's shapes: a few hundred at most."""
    if name == "decode":
        return [few_rows(dtype)]
    algorithm = ("pipeline", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "store")
    schedule = ("scheduler", "split_k", "reduction")
    if name == "large":
        axes = {"dtype_a": [dtype], "scheduler": ["persistent"], "group_m": (2, 4, 8, 16)}
        return [KernelSpace("gemm", axes, linked={algorithm: LARGE})]
    clusters = [
        KernelSpace(
            "gemm",
            {"dtype_a": [dtype], "swap_ab": [swapped]},
            linked={algorithm: own, schedule: tuning.CLUSTERS},
        )
        for swapped, own in ((False, CLUSTERED), (True, CLUSTERED_SWAPPED))
    ]
    tiles, schedules = DEEP, DEEP_SCHEDULES
    if name != "odd":  # where the last wave matters, so does the rate of whole ones: no small tiles
        tiles = [t for t in DEEP if t[1] * t[2] >= 64 * 128 and t[3] == 64]
        schedules, clusters = LAST_WAVE_SCHEDULES, []
    usual = KernelSpace(
        "gemm", {"dtype_a": [dtype]}, linked={algorithm: tiles, schedule: schedules}
    )
    return [usual, *clusters]


def few_rows(dtype: str) -> KernelSpace:
    """The kernels that can win with few rows: some 20 for each M up to 4, some 40 beyond."""
    tiles = [("small_m", 1, rows, *t) for rows in (1, 2, 4) for t in VECTOR_TILES]
    tiles += [("small_m_tma", 1, rows, *t) for rows in (8, 16, 32, 64) for t in MATRIX_TILES]
    tiles += [
        (pipeline, 1 if pipeline == "small_m" else 8, m, n, k_bytes // 2, warps, stages)
        for pipeline, m, n, k_bytes, warps, stages, _ in tuning.FEW
    ]
    names = ("pipeline", "group_m", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages")
    return KernelSpace(
        "gemm",
        {"dtype_a": [dtype]},
        {"on the matrix units": lambda c: c.tile_m >= 8 or c.scheduler == "tile"},
        linked={
            names: tiles,
            ("scheduler", "split_k", "reduction"): [("tile", 1, "none"), SHARED[0], *SHARED[2:4]],
        },
    )


def worth_timing(config: GemmConfig, m: int) -> bool:
    """Leaves out kernels that were declared for more rows, or for fewer."""
    rows = 1 << (m - 1).bit_length()
    return not pipelines.of(config).few_rows or config.tile_m in (rows, max(8, rows))


def copy_bandwidth() -> float:
    """GB/s of a device-to-device copy of 1 GiB, bytes read and written."""
    a = torch.randn(1 << 28, device="cuda")
    b = torch.empty_like(a)
    warm_up(lambda: b.copy_(a))
    return 2 * a.nbytes / compare({"copy": lambda: b.copy_(a)}, 20)["copy"].median / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--set", choices=SETS, default="large", help="which list of shapes")
    parser.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16")
    parser.add_argument("--rounds", type=int, default=60, help="samples of each finalist")
    options = parser.parse_args()

    gpu = live_device(0)
    declared = spaces(options.set, options.dtype)
    configs = [c for space in declared for c in space.expand(arch(gpu.arch)).configs]
    store = Store()
    report = build([(c, gpu.arch) for c in configs], store=store)
    print(f"{len(configs)} kernels for {gpu.name}: {report}")
    usable = [r.config for r in report.results if r.ok]
    dispatcher = Dispatcher(store=store)
    element = getattr(torch, DTYPES[options.dtype].torch)

    decode = options.set == "decode"
    copy = copy_bandwidth()
    rows = []
    for m, n, k in SETS[options.set]:
        problem = GemmProblem(m, n, k, options.dtype)
        a = torch.randn(m, k, device="cuda", dtype=element)
        b = torch.randn(n, k, device="cuda", dtype=element).T
        reference = a.double() @ b.double()
        out = torch.empty(m, n, device="cuda", dtype=element)
        calls, wrong = {}, []
        for config in usable:
            supported = ops.family("gemm").supports(config, problem, arch(gpu.arch))
            if not supported or not worth_timing(config, m):
                continue
            out.fill_(float("nan"))
            dispatcher.run_named(config.name, a, b, out=out)
            tolerance = verify.tolerance(problem, config)
            if verify.compare(out, reference, tolerance).ok:
                calls[config.name] = bound(store, config, a, b, out=out)
            else:
                wrong.append(config.name)
        del reference
        vendor = {"cuBLAS": lambda a=a, b=b, out=out: torch.mm(a, b, out=out)}
        listed = candidates(a, b, out)
        warm_up(vendor["cuBLAS"])
        first = compare({**calls, **listed}, rounds=8, clean=decode)
        best = sorted(calls, key=lambda name: first[name].median)
        if options.set.startswith("last_wave"):  # the best of both kinds
            streams = [name for name in best if "_stream_k_" in name]
            others = [name for name in best if "_stream_k_" not in name]
            best = streams[: FINALISTS // 2] + others[: FINALISTS // 2]
        best = best[:FINALISTS]
        fastest = min(listed, key=lambda name: first[name].median)
        vendor[fastest] = listed[fastest]
        finalists = {**vendor, **{name: calls[name] for name in best}}
        final = compare(finalists, options.rounds, clean=decode)
        winner = min(best, key=lambda name: final[name].median)
        vendors_best = min(vendor, key=lambda name: final[name].median)
        ratio = final[vendors_best].median / final[winner].median
        tflops = problem.flops / final[winner].median / 1e6
        vendor_tflops = problem.flops / final[vendors_best].median / 1e6
        bandwidth = problem.min_bytes / final[winner].median / 1e3
        ratio_mm = final["cuBLAS"].median / final[winner].median
        print(
            f"{m}x{n}x{k}: {tflops:.0f} vs {vendor_tflops:.0f} TFLOP/s ({vendors_best}), "
            f"{ratio:.3f} ({ratio_mm:.3f} to torch.mm); {final[winner].median:.2f} µs, "
            f"{bandwidth:.0f} GB/s, {bandwidth / copy:.3f} of a copy  {winner}"
        )
        after_writes = compare(finalists, options.rounds // 2) if decode else {}
        stream_ratio = {}
        if options.set.startswith("last_wave"):
            medians = {name: final[name].median for name in best}
            best_stream = min(t for name, t in medians.items() if "_stream_k_" in name)
            best_other = min(t for name, t in medians.items() if "_stream_k_" not in name)
            stream_ratio = {"stream_k_over_others": best_other / best_stream}
            print(f"    stream-K over the best other: {best_other / best_stream:.3f}")
        rows.append(
            {
                "m": m,
                "n": n,
                "k": k,
                "kernel": winner,
                "vendor": vendors_best,
                "tflops": tflops,
                "vendor_tflops": vendor_tflops,
                "ratio": ratio,
                "ratio_to_mm": ratio_mm,
                "megabytes": problem.min_bytes / 1e6,
                "gb_per_s": bandwidth,
                "share_of_copy": bandwidth / copy,
                **stream_ratio,
                "kernels_timed": len(calls),
                "kernels_wrong": wrong,
                "finalists": {
                    name: {"median_us": t.median, "quartiles_us": t.quartiles}
                    for name, t in final.items()
                },
                "after_writes_us": {name: t.median for name, t in after_writes.items()},
            }
        )
    means = {f"geomean_{key}": mean(rows, key) for key in ("ratio", "ratio_to_mm", *stream_ratio)}
    print("; ".join(f"{key} {value:.3f}" for key, value in means.items()))
    if options.json:
        document = {
            "environment": environment(),
            "set": options.set,
            "dtype": options.dtype,
            "rounds": options.rounds,
            "rows": rows,
            **means,
            "copy_gb_per_s": copy,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def mean(rows: list[dict], key: str) -> float:
    """The geometric mean of a number that every row has."""
    return math.exp(sum(math.log(row[key]) for row in rows) / len(rows))


if __name__ == "__main__":
    main()
