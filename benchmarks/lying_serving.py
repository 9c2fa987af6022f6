"""Run calls of a serving loop whose lengths, offsets, tables and indices are garbage for some of
the sequences, and check the others' results.

    python benchmarks/lying_serving.py --rounds 1
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 \\
        python benchmarks/lying_serving.py --rounds 4

The first line builds the kernels. Under compute-sanitizer each array is an allocation of its own,
so that an access outside of one shows; torch's caching allocator would hide it. The cases are in
`tests/attention/lying_serving.py`, and seeds are new in every run. It prints the number of calls;
exit status 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "attention"))
from lying_serving import CASES, Calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=4, help="seeds of each case")
    parser.add_argument("--seed", type=int, default=None, help="of the first round")
    parser.add_argument("--on", default="cuda")
    parser.add_argument("--guarded", action="store_true", help="arrays lie between guards")
    args = parser.parse_args()
    first = secrets.randbits(30) if args.seed is None else args.seed
    began, count, wrong = time.perf_counter(), 0, 0
    for seed in range(first, first + args.rounds):
        for case in CASES:
            calls = Calls(args.on, seed, guarded=args.guarded)
            try:
                case(calls)
            except Exception:
                wrong += 1
                print(f"{case.__name__} with seed {seed}:", flush=True)
                traceback.print_exc()
            count += calls.count
    took = time.perf_counter() - began
    print(f"{count} calls, {wrong} cases wrong, seeds from {first} on, {took:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
