"""Whether the placement of its workgroups gives a kernel its two speeds.

    python benchmarks/placement.py --json benchmarks/results/placement_h200.json

2048³ in bf16 in 256 tiles, by the two kernels of benchmarks/repeatability.py, of which two
workgroups fit on a multiprocessor. Their epilogue is replaced by one that writes the number of the
multiprocessor. Samples are taken one by one, flushed; after every hundred the GPU rests or does
other work, drawn. For each way of being put, how many samples there were of it, and their deciles:
how many multiprocessors have one workgroup and two, and how far apart in the order of launch the
two are most often.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from environment import environment
from tilewright import verify
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import kernel_bind
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.epilogues import Operation, register

PLACE = "cuda:0"
SIZE, TILE = 2048, 128
GROUP = 8
STAGES = (3, 2)
EACH = 100
"""Samples between two changes of what the GPU does."""


@triton.jit
def placed(acc):
    here = tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r,r", [acc.to(tl.int32, bitcast=True)],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    return tl.where(acc == acc, here.to(tl.float32), acc)  # so that the product is needed


def samples(
    call: timing.Call, out: Any, flush: timing.Call, count: int
) -> list[tuple[float, tuple[int, int, int]]]:
    drawn, events = random.Random(0), timing.Events(flush, PLACE)
    a = torch.randn(4096, 4096, device=PLACE, dtype=torch.bfloat16)
    disturbances = (
        lambda: time.sleep(0.5),
        lambda: [a @ a for _ in range(200)],
        lambda: torch.empty(1 << drawn.randrange(20, 32), device=PLACE).zero_(),
        lambda: [flush() for _ in range(drawn.randrange(1, 50))],
    )
    found = []
    for number in range(count):
        if number % EACH == 0:
            drawn.choice(disturbances)()
            torch.cuda.synchronize()
        [us] = events.read([events.queue(call)])
        found.append((us, way(out[::TILE, ::TILE].int().tolist())))
    return found


def way(multiprocessors: list[list[int]]) -> tuple[int, int, int]:
    """Multiprocessors with one workgroup, with two, and the commonest distance of two on one."""
    on: dict[int, list[int]] = defaultdict(list)
    for row, of_row in enumerate(multiprocessors):
        for column, number in enumerate(of_row):
            # As the kernel's order of tiles has it, by groups of GROUP rows.
            on[number].append(row // GROUP * GROUP * len(of_row) + column * GROUP + row % GROUP)
    assert max(map(len, on.values())) <= 2
    apart = Counter(abs(pair[0] - pair[1]) for pair in on.values() if len(pair) == 2)
    alone = sum(len(some) == 1 for some in on.values())
    return alone, len(on) - alone, apart.most_common(1)[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # By the module's name: the compiler's process does not run the script.
    register(Operation("placed", f"{Path(__file__).stem}:placed", "where it was", lambda x: x))
    device, store = live_device(0), Store()
    problem = GemmProblem(SIZE, SIZE, SIZE, epilogue="placed")
    flush = timing.flusher(device.l2_bytes, PLACE)
    document: dict[str, Any] = {
        "environment": environment(), "problem": str(problem), "kernels": {},
    }  # fmt: skip
    for stages in STAGES:
        size = {"tile_m": TILE, "tile_n": TILE, "tile_k": 64, "num_warps": 4, "group_m": GROUP}
        config = FAMILY.make_config(
            {**FAMILY.axes(), **size, "num_stages": stages, "epilogue": "placed"},
            arch(device.arch),
        )
        build([(config, device.arch)], store=store).raise_if_failed()
        operands = verify.operands_of(problem, 0, PLACE)
        call = kernel_bind(Dispatcher(device=device, store=store), config.name, problem)(
            operands.inputs, operands.outputs
        )
        found = samples(call, operands.outputs["C"], flush, options.samples)
        by_place = defaultdict(list)
        for us, place in found:
            by_place[place].append(us)
        rows = [
            {"alone": alone, "in_twos": twos, "apart": apart, "samples": len(us),
             "deciles_us": statistics.quantiles(us, n=10) if len(us) > 1 else us}
            for (alone, twos, apart), us in sorted(by_place.items(), key=lambda item: -len(item[1]))
        ]  # fmt: skip
        hundreds = [
            statistics.median(us for us, _ in found[i : i + EACH])
            for i in range(0, len(found), EACH)
        ]
        document["kernels"][config.name] = {"by_place": rows, "medians_of_each_100": hundreds}
        print(config.name)
        for row in rows[:12]:
            words = [f"{key} {row[key]}" for key in ("samples", "alone", "in_twos", "apart")]
            print(*words, *(f"{us:.1f}" for us in row["deciles_us"]))
        print("medians of each 100:", *(f"{us:.1f}" for us in hundreds), flush=True)
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
