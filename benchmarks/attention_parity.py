"""Compute a grid of problems from the peers' tests, and judge each by FlashAttention's rule and by
the project's tolerances.

    python benchmarks/attention_parity.py --most 3e5
    python benchmarks/attention_parity.py --on cuda:0 --json attention_parity_h200.json
    python benchmarks/attention_parity.py --build h200 --store parity_store
    python benchmarks/attention_parity.py --on cuda:0 --store parity_store
    python benchmarks/attention_parity.py --backward --most 5e4

The grid and the rule are in `tests/attention/parity_cases.py`, and with `--backward` those of
gradients in `tests/attention_backward/backward_parity.py`. For a GPU, the kernels are built
before the first problem, side by side on all cores; `--build` builds them for a named device and
stops, which needs no GPU. On the CPU the interpreter takes seconds for a million scores: `--most`
leaves out problems with more (scores times head dim over 64), `--least` those with fewer. Exit
status 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from environment import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "attention"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "attention_backward"))
import backward_parity
import parity_cases
from parity_cases import EACH

from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.features import FEATURES

Problems = list[tuple[int, AttentionProblem]]


def build_all(dispatcher: Dispatcher, problems: Problems, store: Store) -> None:
    """Have the kernels that `dispatcher` chooses for the problems in `store`."""
    began, configs = time.perf_counter(), {}
    for _, p in problems:
        try:
            config = dispatcher.select(p).config
        except TilewrightError:  # told where it is computed
            continue
        configs[config.name] = config
    target = dispatcher.device_for_planning().arch
    report = build([(c, target) for c in configs.values()], store=store)
    print(f"{report} ({time.perf_counter() - began:.1f} s, choosing them included)", flush=True)


def line(dispatcher: Dispatcher, number: int, p: Any, on: str, backward: bool) -> dict[str, Any]:
    """What came of one problem."""
    found: dict[str, Any] = {"number": number, "problem": str(p)}
    try:
        if backward:
            return found | {"wrong": backward_parity.compute(dispatcher, p, number, on)}
        one = parity_cases.computed(dispatcher, p, number, on)
    except TilewrightError as error:
        return found | {"wrong": f"{type(error).__name__}: {error}"}
    found |= {
        "wrong": one.wrong,
        "kernel": one.kernel,
        "of_tolerance": float(f"{one.check.worst:.4g}"),
    }
    if one.parity is not None:
        for name in ("error", "torch", "bound"):
            found[name] = float(f"{getattr(one.parity, name):.4g}")
    return found


def counted(problems: Iterable[Any], cases: Any) -> dict[str, Any]:
    """How many problems have each feature, and each mask, dtype and layout."""
    found = Counter(cases.coverage(problems))
    features = {word: found.pop(word, 0) for word in FEATURES}
    return {"features": features, "others": dict(sorted(found.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backward", action="store_true", help="of gradients")
    parser.add_argument("--on", default="cpu", help="cpu (the interpreter) or a GPU, as cuda:0")
    parser.add_argument("--build", metavar="DEVICE", help="build for a device, as h200, and stop")
    parser.add_argument("--store", type=Path, help="kernels' store, trusted; by default the user's")
    parser.add_argument("--most", type=float, default=1e12, help="leave out problems with more")
    parser.add_argument("--least", type=float, default=0, help="leave out problems with no more")
    parser.add_argument("--part", default="0/1", help="every N-th problem from K, as K/N")
    parser.add_argument("--json", type=Path, help="written after each problem")
    args = parser.parse_args()
    first, step = map(int, args.part.split("/"))
    cases: Any = backward_parity if args.backward else parity_cases
    every = list(enumerate(cases.grid()))
    chosen = [
        (n, p)
        for n, p in every
        if cases.toy(p, args.most) and not (args.least and cases.toy(p, args.least))
    ][first::step]
    store = Store(args.store, trusted=True) if args.store else Store()
    dispatcher = Dispatcher(store=store, device=args.build)
    if args.build or args.on != "cpu":
        build_all(dispatcher, chosen, store)
    if args.build:
        return 0
    covered = {
        "grid": counted((p for _, p in every), cases),
        "computed": counted((p for _, p in chosen), cases),
    }
    counts = covered["grid"]["features"]
    rare = [word for word in counts if counts[word] < EACH and (counts[word] or not args.backward)]
    began, found = time.perf_counter(), []
    for word in rare:
        print(f"WRONG fewer than {EACH} problems of the grid have {word}")
    for number, problem in chosen:
        start = time.perf_counter()
        found.append(line(dispatcher, number, problem, args.on, args.backward))
        wrong = found[-1]["wrong"]
        seconds = time.perf_counter() - start
        print(f"{number:4} {seconds:6.1f} s  {'WRONG ' + wrong if wrong else 'right'}", flush=True)
        if args.json:
            document: dict[str, Any] = {
                "environment": environment(), "problems_of_grid": len(every),
                "right": sum(not one["wrong"] for one in found), "computed": len(found),
                "asked": len(chosen), "seconds": round(time.perf_counter() - began, 1),
                "covered": covered, "problems": found,
            }  # fmt: skip
            args.json.write_text(json.dumps(document, indent=1) + "\n")
    right = sum(not one["wrong"] for one in found)
    print(f"{right} of {len(found)} right; {covered['computed']}")
    return int(bool(rare) or right < len(found))


if __name__ == "__main__":
    sys.exit(main())
