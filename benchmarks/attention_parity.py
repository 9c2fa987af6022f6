"""Compute a grid of problems from the peers' tests, and judge each by FlashAttention's rule and by
the project's tolerances.

    python benchmarks/attention_parity.py --most 3e5
    python benchmarks/attention_parity.py --on cuda:0 --json attention_parity.json
    python benchmarks/attention_parity.py --backward --most 5e4

The grid and the rule are in `tests/attention/parity_cases.py`, and with `--backward` those of
gradients in `tests/attention_backward/backward_parity.py`. On the CPU the interpreter takes
seconds for a million scores: `--most` leaves out problems with more (scores times head dim over
64). Exit status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from environment import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "attention"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "attention_backward"))
import backward_parity
import parity_cases

from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backward", action="store_true", help="of gradients")
    parser.add_argument("--on", default="cpu", help="cpu (the interpreter) or a GPU, as cuda:0")
    parser.add_argument("--most", type=float, default=1e12, help="leave out problems with more")
    parser.add_argument("--part", default="0/1", help="every N-th problem from K, as K/N")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    first, step = map(int, args.part.split("/"))
    cases: Any = backward_parity if args.backward else parity_cases
    dispatcher, found = Dispatcher(), []
    chosen = [(n, p) for n, p in enumerate(cases.grid()) if cases.toy(p, args.most)][first::step]
    for number, problem in chosen:
        began = time.perf_counter()
        try:
            wrong = cases.compute(dispatcher, problem, number, args.on)
        except TilewrightError as error:
            wrong = f"{problem}: {type(error).__name__}: {error}"
        seconds = time.perf_counter() - began
        found.append({"number": number, "problem": str(problem), "wrong": wrong})
        print(f"{number:4} {seconds:6.1f} s  {'WRONG ' + wrong if wrong else 'right'}", flush=True)
    failed = sum(bool(one["wrong"]) for one in found)
    covered = Counter(dict(sorted(cases.coverage(p for _, p in chosen).items())))
    print(f"{len(found) - failed} of {len(found)} right; {dict(covered)}")
    if args.json:
        document: dict[str, Any] = {
            "environment": environment(), "covered": covered, "problems": found,
        }  # fmt: skip
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
