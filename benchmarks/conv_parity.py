"""Compute a grid of convolutions with the sizes of other libraries' tests, in all directions, and
judge each against float64.

    python benchmarks/conv_parity.py --most 1e6
    python benchmarks/conv_parity.py --on cuda:0 --json conv_parity_h200.json
    python benchmarks/conv_parity.py --on emulated:mi300x --most 1e6 --json conv_parity_gfx942.json
    python benchmarks/conv_parity.py --build h200 --store parity_store
    python benchmarks/conv_parity.py --on cuda:0 --store parity_store --pipeline gluon_ws

The grid is in `tests/conv/conv_parity_cases.py`, the sizes and their sources in
`tests/conv/peers_sizes.txt`. Each problem is computed by the kernel that the dispatcher chooses;
with `--pipeline`, by the first kernel of that pipeline in the default space, where one serves it.
For a GPU, the kernels are built before the first problem, side by side on all cores; `--build`
builds them for a named device and stops, which needs no GPU. Problems in a type or precision that
the architecture lacks are refused, with the reason. An emulated AMD GPU executes machine code, and
a problem with findings is wrong too. On the CPU, `--most` leaves out problems with more
floating-point operations, `--least` those with fewer, and `--part` takes every N-th. Exit status 1
if one is wrong.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "conv"))
import conv_parity_cases as cases

from tilewright import ops
from tilewright.arch import arch, words
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError, UnsupportedProblem
from tilewright.ops.conv import ConvConfig, ConvProblem
from tilewright.ops.conv.config import PIPELINES

FAMILY = ops.family("conv")


def kernel(dispatcher: Dispatcher, p: ConvProblem, pipeline: str) -> ConvConfig | None:
    """The kernel that computes `p`; None if the pipeline has none for it."""
    if not pipeline:
        found: ConvConfig = dispatcher.select(p).config
        return found
    this = arch(dispatcher.device_for_planning().arch)
    own = (c for c in FAMILY.default_space(p, this).expand(this).configs if c.pipeline == pipeline)
    return next((c for c in own if FAMILY.supports(c, p, this)), None)


def line(
    dispatcher: Dispatcher, number: int, p: ConvProblem, config: ConvConfig | None, on: str
) -> dict[str, Any]:
    """What came of one problem."""
    found: dict[str, Any] = {"number": number, "problem": str(p)}
    try:
        name, check = cases.compute(dispatcher, p, number, on, config.name if config else "")
    except UnsupportedProblem as error:  # a dtype or a precision that the architecture lacks
        return found | {"wrong": "", "refused": str(error)}
    except TilewrightError as error:
        return found | {"wrong": f"{type(error).__name__}: {error}"}
    wrong = "" if check.ok else str(check)
    return found | {"wrong": wrong, "kernel": name, "of_tolerance": float(f"{check.worst:.4g}")}


def is_right(one: dict[str, Any]) -> bool:
    """Whether a problem was computed, within tolerance."""
    return not one["wrong"] and "refused" not in one


def chosen(
    dispatcher: Dispatcher, args: argparse.Namespace, grid: list[ConvProblem]
) -> list[tuple[int, ConvProblem, ConvConfig | None]]:
    """The problems to compute, by their numbers, and their kernels: None where choosing fails,
    which is told when the problem is computed."""
    first, step = map(int, args.part.split("/"))
    found: list[tuple[int, ConvProblem, ConvConfig | None]] = []
    sized = [(n, p) for n, p in enumerate(grid) if args.least < p.flops <= args.most]
    for number, p in sized[first::step]:
        try:
            config = kernel(dispatcher, p, args.pipeline)
        except TilewrightError:
            found.append((number, p, None))
            continue
        if config is not None:
            found.append((number, p, config))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--on", default="cpu", help="cpu (the interpreter), cuda:0, emulated:mi300x"
    )
    parser.add_argument("--build", metavar="DEVICE", help="build for a device, as h200, and stop")
    parser.add_argument("--store", type=Path, help="kernels' store, trusted; by default the user's")
    parser.add_argument("--most", type=float, default=1e15, help="leave out problems with more")
    parser.add_argument("--least", type=float, default=-1, help="leave out problems with no more")
    parser.add_argument("--part", default="0/1", help="every N-th problem from K, as K/N")
    parser.add_argument("--pipeline", default="", choices=PIPELINES, help="kernels of this alone")
    parser.add_argument("--json", type=Path, help="written after each problem")
    args = parser.parse_args()
    store = Store(args.store, trusted=True) if args.store else Store()
    played = args.on if words.emulated(args.on) else None
    dispatcher = Dispatcher(store=store, device=args.build or played)
    this = dispatcher.device_for_planning()
    grid = cases.grid("e4m3fn" if arch(this.arch).fp8 == "ocp" else "e4m3fnuz")
    asked = chosen(dispatcher, args, grid)
    if args.build or args.on != "cpu":
        configs = {config.name: config for _, _, config in asked if config is not None}
        print(build([(c, this.arch) for c in configs.values()], store=store), flush=True)
    if args.build:
        return 0
    covered = {
        "grid": dict(sorted(cases.coverage(grid).items())),
        "computed": dict(sorted(cases.coverage(p for _, p, _ in asked).items())),
    }
    began, found = time.perf_counter(), []
    for number, p, config in asked:
        start = time.perf_counter()
        found.append(line(dispatcher, number, p, config, args.on))
        wrong = found[-1]["wrong"]
        right = f"refused: {found[-1]['refused']}" if "refused" in found[-1] else "right"
        said = f"WRONG {p}: {wrong}" if wrong else right
        print(f"{number:4} {time.perf_counter() - start:6.1f} s  {said}", flush=True)
        if args.json:
            document: dict[str, Any] = {
                "environment": environment(), "problems_of_grid": len(grid),
                "right": sum(map(is_right, found)), "computed": len(found),
                "refused": sum("refused" in one for one in found),
                "asked": len(asked), "seconds": round(time.perf_counter() - began, 1),
                "covered": covered, "problems": found,
            }  # fmt: skip
            args.json.write_text(json.dumps(document, indent=1) + "\n")
    refused = sum("refused" in one for one in found)
    right = sum(map(is_right, found))
    pipelines = Counter(
        FAMILY.parse_name(one["kernel"]).pipeline for one in found if "kernel" in one
    )
    print(f"{right} of {len(found)} right, {refused} refused; by {dict(pipelines)}")
    print(covered["computed"])
    return int(right + refused < len(found))


if __name__ == "__main__":
    sys.exit(main())
