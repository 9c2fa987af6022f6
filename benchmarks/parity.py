"""Compute a grid of problems from the peers' tests, and judge each.

    python benchmarks/parity.py attention --most 3e5
    python benchmarks/parity.py attention --on cuda:0 --json attention_parity_h200.json
    python benchmarks/parity.py attention-backward --most 5e4
    python benchmarks/parity.py conv --on emulated:mi300x --most 1e6 --json conv_parity_gfx942.json
    python benchmarks/parity.py conv --build h200 --store parity_store
    python benchmarks/parity.py conv --on cuda:0 --store parity_store --pipeline gluon_ws

attention: by FlashAttention's rule and the project's tolerances (`parity_cases.py` in
`tests/attention`). attention-backward: its gradients
(`tests/attention_backward/backward_parity.py`). conv: against float64, in all directions
(`tests/conv/conv_parity_cases.py`; the sizes and their
    sources are in `peers_sizes.txt` there).

Each problem is computed by the kernel that the dispatcher chooses; with `--pipeline`, by the first
kernel of that pipeline in the default space, where one serves it. For a GPU, the kernels are built
before the first problem, on all cores; `--build` builds them for a named device and stops, which
needs no GPU. What the architecture lacks is refused, with the reason. An emulated AMD GPU executes
machine code, and a problem with findings is wrong too. On the CPU the interpreter takes seconds for
a million scores: `--most` leaves out problems with more scores times head dim over 64, or of
convolution with more operations, `--least` those with fewer, and `--part` takes every N-th. Exit
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
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "conv"))
import backward_parity
import conv_parity_cases
import parity_cases

from tilewright import ops
from tilewright.arch import arch, words
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError, UnsupportedProblem
from tilewright.ops.attention.features import FEATURES


class Attention:
    """The problems of a family, which are not too large or too small, what comes of one, how many
    have each feature, and of which features the grid has too few."""

    cases: Any = parity_cases

    def __init__(self, fp8: str) -> None:
        self.problems = list(self.cases.grid())

    def sized(self, p: Any, least: float, most: float) -> bool:
        toy = self.cases.toy
        return toy(p, most) and not (least > 0 and toy(p, least))

    def judged(self, dispatcher: Dispatcher, number: int, p: Any, name: str, on: str) -> Any:
        one = self.cases.computed(dispatcher, p, number, on)
        found = {"wrong": one.wrong, "kernel": one.kernel, "of_tolerance": _short(one.check.worst)}
        if one.parity is not None:
            found |= {n: _short(getattr(one.parity, n)) for n in ("error", "torch", "bound")}
        return found

    def covered(self, problems: Iterable[Any]) -> dict[str, Any]:
        found = Counter(self.cases.coverage(problems))
        features = {word: found.pop(word, 0) for word in FEATURES}
        return {"features": features, "others": dict(sorted(found.items()))}

    def lacking(self) -> list[str]:
        counts = self.covered(self.problems)["features"]
        return [word for word, count in counts.items() if count < parity_cases.EACH]


class AttentionBackward(Attention):
    cases = backward_parity

    def judged(self, dispatcher: Dispatcher, number: int, p: Any, name: str, on: str) -> Any:
        return {"wrong": self.cases.compute(dispatcher, p, number, on)}

    def lacking(self) -> list[str]:
        counts = self.covered(self.problems)["features"]
        return [word for word in super().lacking() if counts[word]]


class Conv:
    """As `Attention`. fp8: the 8-bit type of the architecture."""

    def __init__(self, fp8: str) -> None:
        self.problems = list(conv_parity_cases.grid(fp8))

    def sized(self, p: Any, least: float, most: float) -> bool:
        return least < p.flops <= most

    def judged(self, dispatcher: Dispatcher, number: int, p: Any, name: str, on: str) -> Any:
        kernel, check = conv_parity_cases.compute(dispatcher, p, number, on, name)
        wrong = "" if check.ok else str(check)
        return {"wrong": wrong, "kernel": kernel, "of_tolerance": _short(check.worst)}

    def covered(self, problems: Iterable[Any]) -> dict[str, Any]:
        return dict(sorted(conv_parity_cases.coverage(problems).items()))

    def lacking(self) -> list[str]:
        return []


GRIDS = {"attention": Attention, "attention-backward": AttentionBackward, "conv": Conv}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def kernel(dispatcher: Dispatcher, p: Any, pipeline: str) -> Any:
    """The kernel that computes `p`; None if the pipeline has none for it."""
    if not pipeline:
        return dispatcher.select(p).config
    family, this = ops.family(p.family), arch(dispatcher.device_for_planning().arch)
    own = (c for c in family.default_space(p, this).expand(this).configs if c.pipeline == pipeline)
    return next((c for c in own if family.supports(c, p, this)), None)


def chosen(dispatcher: Dispatcher, args: argparse.Namespace, grid: Any) -> list[Any]:
    """The problems to compute, by their numbers, and their kernels: None where choosing fails,
    which is told when the problem is computed."""
    first, step = map(int, args.part.split("/"))
    sized = [(n, p) for n, p in enumerate(grid.problems) if grid.sized(p, args.least, args.most)]
    found = []
    for number, p in sized[first::step]:
        try:
            config = kernel(dispatcher, p, args.pipeline)
        except TilewrightError:
            found.append((number, p, None))
            continue
        if config is not None:
            found.append((number, p, config))
    return found


def line(grid: Any, dispatcher: Dispatcher, number: int, p: Any, config: Any, on: str) -> Any:
    """What came of one problem."""
    found = {"number": number, "problem": str(p)}
    try:
        name = config.name if config else ""
        return found | grid.judged(dispatcher, number, p, name, on)
    except UnsupportedProblem as error:  # a dtype or a precision that the architecture lacks
        return found | {"wrong": "", "refused": str(error)}
    except TilewrightError as error:
        return found | {"wrong": f"{type(error).__name__}: {error}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid", choices=GRIDS)
    parser.add_argument(
        "--on", default="cpu", help="cpu (the interpreter), cuda:0, emulated:mi300x"
    )
    parser.add_argument("--build", metavar="DEVICE", help="build for a device, as h200, and stop")
    parser.add_argument("--store", type=Path, help="kernels' store, trusted; by default the user's")
    parser.add_argument("--most", type=float, default=1e15, help="leave out problems with more")
    parser.add_argument("--least", type=float, default=-1, help="leave out problems with no more")
    parser.add_argument("--part", default="0/1", help="every N-th problem from K, as K/N")
    parser.add_argument("--pipeline", default="", help="of conv: kernels of this alone")
    parser.add_argument("--json", type=Path, help="written after each problem")
    args = parser.parse_args()
    store = Store(args.store, trusted=True) if args.store else Store()
    played = args.on if words.emulated(args.on) else None
    dispatcher = Dispatcher(store=store, device=args.build or played)
    this = dispatcher.device_for_planning()
    grid = GRIDS[args.grid]("e4m3fn" if arch(this.arch).fp8 == "ocp" else "e4m3fnuz")
    asked = chosen(dispatcher, args, grid)
    if args.build or args.on != "cpu":
        configs = {config.name: config for _, _, config in asked if config is not None}
        print(build([(c, this.arch) for c in configs.values()], store=store), flush=True)
    if args.build:
        return 0
    covered = {
        "grid": grid.covered(grid.problems), "computed": grid.covered(p for _, p, _ in asked)
    }  # fmt: skip
    for word in grid.lacking():
        print(f"WRONG too few problems of the grid have {word}")
    began, found, right, refused = time.perf_counter(), [], 0, 0
    for number, p, config in asked:
        start = time.perf_counter()
        found.append(line(grid, dispatcher, number, p, config, args.on))
        wrong, why = found[-1]["wrong"], found[-1].get("refused")
        right, refused = right + (not wrong and why is None), refused + (why is not None)
        said = f"WRONG {p}: {wrong}" if wrong else f"refused: {why}" if why else "right"
        print(f"{number:4} {time.perf_counter() - start:6.1f} s  {said}", flush=True)
        if args.json:
            document: dict[str, Any] = {
                "environment": environment(), "problems_of_grid": len(grid.problems),
                "right": right, "computed": len(found), "refused": refused,
                "asked": len(asked), "seconds": round(time.perf_counter() - began, 1),
                "covered": covered, "problems": found,
            }  # fmt: skip
            args.json.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{right} of {len(found)} right, {refused} refused; {covered['computed']}")
    return int(bool(grid.lacking()) or right + refused < len(found))


if __name__ == "__main__":
    sys.exit(main())
