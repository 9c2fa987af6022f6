"""Memory of one dispatcher that plans a stream of distinct shapes, each once, with no GPU.

    python benchmarks/many_shapes.py --json benchmarks/results/many_shapes.json

Served models have batches of any length, and every length is another problem. A dispatcher keeps
`tilewright.plan.KEPT` plans. What Python has allocated is recorded after every tenth of the stream.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import time
from pathlib import Path

from environment import environment
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.plan import KEPT
from tilewright.registry import Registry

KERNEL = "gemm_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s2_basic_tile_g8_direct_padmnk_al1"
COUNT = 1_000_000


def resident() -> int:
    """Bytes of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def stream(count: int, each: int = 10) -> list[dict[str, float]]:
    """Plan `count` distinct problems, and say what memory was held after each tenth."""
    registry = Registry("one").register_all([FAMILY.parse_name(KERNEL)])
    dispatcher = Dispatcher(registry, "h200_sxm", selector="first_fit")
    found = []
    begun = time.perf_counter()
    for number in range(count):
        dispatcher.select(GemmProblem(1 + number % 50_000, 256 + number // 50_000, 512))
        if (number + 1) % (count // each) == 0:
            gc.collect()
            found.append(
                {
                    "shapes": number + 1,
                    "resident_mib": round(resident() / 2**20, 1),
                    "plans": len(dispatcher._plans),
                    "seconds": round(time.perf_counter() - begun, 1),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=COUNT, help="how many shapes")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    found = stream(options.count)
    for row in found:
        print(
            f"{row['shapes']:>9,} shapes  {row['resident_mib']:7.1f} MiB  {row['plans']:>5} plans"
            f"  {row['seconds']:6.1f} s"
        )
    if options.json:
        record = {"environment": environment(), "kept": KEPT, "rows": found}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
