"""How often a comparison of a kernel with itself says faster or slower.

    python benchmarks/compare_self.py --json benchmarks/results/compare_self_h200.json

50 comparisons as `tilewright compare KERNEL KERNEL` makes them, half on a product that fills the
GPU and half on a small one, by calls that are bound separately; each verified first.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.arch.detect import live_device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.compare import compare
from tilewright.measure.contenders import contender, verified
from tilewright.ops.gemm import GemmProblem

PROBLEMS = (GemmProblem(4096, 4096, 4096), GemmProblem(64, 4096, 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device, store = live_device(0), Store()
    timer = timing.Events(timing.flusher(device.l2_bytes, "cuda:0"), "cuda:0")
    answers: list[dict[str, Any]] = []
    for problem in PROBLEMS:
        name = Dispatcher(device=device, store=store).select(problem).config.name
        for _ in range(options.times // len(PROBLEMS)):
            sides = [contender(name, problem, device, store) for _ in range(2)]
            first, second = verified(sides, problem, secrets.randbits(31), "cuda:0")
            found = compare(first, second, timer)
            answers.append(
                {"problem": str(problem), "answer": found.answer, "ratio": found.ratio,
                 "interval": found.interval, "medians_us": found.medians_us}
            )  # fmt: skip
    document = {
        "environment": environment(),
        "answers": Counter(one["answer"] for one in answers),
        "comparisons": answers,
    }
    print(json.dumps({**document, "comparisons": len(answers)}, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
