"""The estimate on AMD GPUs against what executed kernels are counted to do. No GPU is needed.

    python benchmarks/emulated_counts.py --json benchmarks/results/emulated_counts.json

Each kernel of a spread (pipelines, dtypes, tiles, layouts, schedulers) runs one problem on an
emulated GPU. Its counts stand beside the estimate's `work`; a ratio is the count over the
estimate. Counts are not times.

matrix: clocks of the matrix units. shared: clocks of shared memory, with bank conflicts.
read: bytes of A and B that enter compute units. memory: bytes touched, each once. resident:
workgroups that fit on a compute unit, by the compiled kernel's resources.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.arch import arch
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError
from tilewright.measure.counting import Counting, count
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.estimate import work

PLACES = {
    "gfx90a": "emulated:mi210",
    "gfx942": "emulated:mi300x",
    "gfx950": "emulated:mi355x",
    "gfx1100": "emulated:rx_7900_xtx",
    "gfx1201": "emulated:rx_9070_xt",
}
SMALL = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4, "num_stages": 2}
LARGE = {**SMALL, "tile_m": 128, "tile_n": 128}
CLOSE = 0.01


def wanted(name: str) -> Iterator[dict[str, Any]]:
    """Fields of the kernels to look at; those that are not legal on `name` are left out."""
    eight = {"dtype_a": "e4m3fnuz" if name == "gfx942" else "e4m3fn", "dtype_c": "bf16"}
    plain = {"dtype_a": "bf16", "dtype_c": "bf16"}
    for tile in (LARGE, SMALL):
        yield {**tile, **plain}
        yield {**tile, **eight}
        yield {**tile, **plain, "pipeline": "gluon_cdna"}
        yield {**tile, **eight, "pipeline": "gluon_cdna", "tile_k": 128}
        yield {**tile, **plain, "pipeline": "preshuffle", "layout": "rsr"}
    for m, n, warps in (
        (16, 16, 1), (16, 16, 4), (16, 64, 4), (64, 16, 4), (32, 32, 2), (32, 32, 4), (32, 64, 4),
        (64, 32, 4), (32, 128, 8), (64, 64, 1), (64, 64, 8), (64, 128, 4), (128, 64, 8),
        (128, 128, 8),
    ):  # fmt: skip
        yield {**SMALL, **plain, "tile_m": m, "tile_n": n, "num_warps": warps}
    for layout in ("rrr", "ccr", "crr"):
        yield {**SMALL, **plain, "layout": layout}
        yield {**SMALL, **eight, "layout": layout}
        yield {**SMALL, **plain, "layout": layout, "pipeline": "gluon_cdna"}
    for k in (16, 32, 128):
        yield {**SMALL, **plain, "tile_k": k}
        yield {**SMALL, **eight, "tile_k": k}
    yield {**SMALL, **eight, "tile_m": 16}
    yield {**SMALL, "dtype_a": "int8", "dtype_c": "int32"}
    yield {**SMALL, "dtype_a": "fp32", "dtype_c": "fp32", "tile_k": 32}
    yield {**SMALL, "dtype_a": "fp32", "dtype_c": "fp32", "tile_k": 32, "precision": "tf32"}
    yield {**SMALL, "dtype_a": "e5m2", "dtype_c": "bf16"}
    yield {**SMALL, **plain, "alignment": 1}
    yield {**SMALL, **plain, "scheduler": "persistent"}
    yield {**SMALL, **plain, "epilogue": "bias+gelu"}
    for reduction in ("linear", "atomic"):
        shared = {"scheduler": "split_k", "split_k": 4, "reduction": reduction}
        yield {**SMALL, **plain, **shared}
    for dtype in ("int4", "e2m1"):
        yield {**LARGE, **plain, "pipeline": "weights", "dtype_b": dtype}
    few = {**SMALL, **plain, "pipeline": "small_m", "group_m": 1}
    yield {**few, "tile_m": 16}
    yield {**few, "tile_m": 16, "tile_n": 32, "tile_k": 128}
    yield {**few, "tile_m": 1, "tile_n": 16, "tile_k": 256}


def configs(name: str) -> list[Any]:
    """The legal kernels of the spread."""
    this, found = arch(name), {}
    for fields in wanted(name):
        try:
            made = FAMILY.make_config({**FAMILY.axes(), **fields}, this)
        except TilewrightError:
            continue
        if FAMILY.judge(made, this):
            found[made.name] = made
    return list(found.values())


def problem_of(config: Any, size: int) -> GemmProblem:
    """A problem of whole tiles."""
    same = ("dtype_a", "dtype_b", "dtype_c", "layout", "precision", "epilogue")
    few = config.pipeline == "small_m"
    return GemmProblem(
        config.tile_m if few else size,
        size,
        size,
        **{field: getattr(config, field) for field in same},
    )


def row(config: Any, problem: GemmProblem, done: Counting, device: Any) -> dict[str, Any]:
    """One kernel's counts and how they compare."""
    (one,) = done.executed
    found, claimed = one.counted, work(config, problem, device)
    touched = found.read.distinct + found.written.distinct
    compared = {}
    if claimed is not None:
        compared = {
            "shared": found.shared.clocks / claimed.shared_clocks,
            "read": found.read.requested / claimed.read_bytes,
            "memory": touched / claimed.memory_bytes,
            "resident": one.workgroups_per_cu / claimed.resident,
        }
        if found.matrix_clocks:
            compared["matrix"] = found.matrix_clocks / claimed.matrix_clocks
    written = asdict(found)
    del written["mnemonics"]
    return {
        "kernel": config.name,
        "problem": [problem.m, problem.n, problem.k],
        "ok": done.check.within,
        "findings": len(done.check.findings),
        "compared": {term: round(value, 4) for term, value in compared.items()},
        "registers": one.registers,
        "workgroups": one.workgroups,
        **written,
    }


def measure(name: str, size: int, store: Store) -> dict[str, Any]:
    """Count the kernels of an architecture."""
    dispatcher = Dispatcher(device=PLACES[name], store=store)
    device = dispatcher.device_for_planning()
    kernels = configs(name)
    built = {
        result.config.name
        for result in build([(c, name) for c in kernels], store=store).results
        if result.kernel
    }
    rows, failed = [], []
    for config in kernels:
        problem = problem_of(config, size)
        if config.name not in built:
            failed.append({"kernel": config.name, "why": "it cannot be built"})
            continue
        try:
            rows.append(row(config, problem, count(problem, config, dispatcher, seed=1), device))
        except TilewrightError as error:
            failed.append({"kernel": config.name, "why": str(error)})
    terms: dict[str, list[float]] = {}
    for each in rows:
        for term, value in each["compared"].items():
            terms.setdefault(term, []).append(value)
    summary = {
        term: {
            "kernels": len(values),
            "within 1 %": sum(abs(value - 1) <= CLOSE for value in values),
            "least": min(values),
            "most": max(values),
        }
        for term, values in terms.items()
    }
    return {"arch": name, "device": device.name, "summary": summary, "rows": rows, "failed": failed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--size", type=int, default=256, help="rows, columns and K")
    parser.add_argument("--arch", nargs="*", choices=PLACES, default=[*PLACES])
    given = parser.parse_args()
    start, store = time.perf_counter(), Store()
    found = [measure(name, given.size, store) for name in given.arch]
    for one in found:
        print(one["arch"], f"{len(one['rows'])} kernels, {len(one['failed'])} failed")
        for term, of in one["summary"].items():
            print(f"    {term:10}", ", ".join(f"{word} {value}" for word, value in of.items()))
        for each in one["failed"]:
            print("    failed:", each["kernel"], each["why"][:200])
    print(f"{time.perf_counter() - start:.0f} s")
    if given.json:
        document = {"environment": environment(), "archs": found}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
