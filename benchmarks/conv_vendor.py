"""Convolutions against cuDNN in benchmark mode, channels-last against channels-last, in one
interleaved run.

    python benchmarks/conv_vendor.py --json benchmarks/results/conv_h200.json
    python benchmarks/conv_vendor.py --set dense --direction forward --wide
    python benchmarks/conv_vendor.py --set layers --every 20 --shipped --dtype bf16 fp16
    python benchmarks/conv_vendor.py --set depthwise --only "filter 5x5" --wide
    python benchmarks/conv_vendor.py --build

For each problem of the sets and each direction, every kernel of the default space (`--wide`: of the
tuning's spaces too) and torch's call are checked against float64 at full size; what fails is
reported, and not timed. The kernels then race beside torch's call: single calls, with L2 flushed.
The fastest is timed again beside it, with L2 flushed and in graphs of several replayed calls. A
ratio is torch's median over the kernel's, so more than 1 is faster. `--shipped`: only the kernel
that the shipped tables name; layers are then summed up by kind too. `--build` builds the kernels
without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from attention_vendor import FINAL, GPU, RACE, REPLAYED, checked, summary
from conv_tuned import kinds
from environment import environment
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import Contender, kernel_bind
from tilewright.measure.problems import load_problems
from tilewright.ops.conv import ConvConfig, ConvProblem
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.library import library_of
from tilewright.select import Choice
from tilewright.select.shipped import Shipped

FAMILY = ops.family("conv")
ARCH = "sm_90"
KEPT = 8
"""Kernels of a problem that race: those with the least estimates."""


def _same(n: int, c: int, size: int, k: int, taps: int = 3, **more: Any) -> ConvProblem:
    """A square image, and padding that keeps its size."""
    pad = (taps // 2,) * 2
    return ConvProblem(n, c, k, (size, size), (taps, taps), pad=pad, **more)


def _dense() -> Iterator[ConvProblem]:
    for n, c, size, k in (
        (8, 640, 32, 640), (64, 256, 16, 256), (32, 256, 56, 256), (1, 128, 512, 128),
        (8, 320, 64, 320), (16, 512, 32, 512), (64, 64, 56, 64),
    ):  # fmt: skip
        yield _same(n, c, size, k)
    yield _same(32, 256, 56, 512, stride=(2, 2))
    yield _same(32, 256, 56, 64, taps=1)
    yield _same(32, 256, 56, 512, taps=1, stride=(2, 2))


def _grouped() -> Iterator[ConvProblem]:
    """Layers of ResNeXt and RegNet with groups of 8, 16, 4, 32 and, with a stride, 16 and 8."""
    yield _same(32, 256, 56, 256, groups=32)
    yield _same(32, 512, 28, 512, groups=32)
    yield _same(64, 128, 56, 128, groups=32)
    yield _same(64, 1024, 14, 1024, groups=32)
    yield _same(32, 512, 56, 512, groups=32, stride=(2, 2))
    yield _same(64, 256, 56, 256, groups=32, stride=(2, 2))


def _depthwise() -> Iterator[ConvProblem]:
    yield _same(32, 256, 28, 256, groups=256)
    yield _same(32, 96, 112, 96, groups=96, stride=(2, 2))
    yield _same(32, 240, 28, 240, taps=5, groups=240)
    yield _same(128, 96, 56, 96, taps=7, groups=96)
    yield _same(32, 512, 14, 512, taps=31, groups=512)
    yield ConvProblem(1, 8192, 8192, (8192,), (4,), 8192, pad=(3,), pad_after=(3,))


def _stems() -> Iterator[ConvProblem]:
    yield _same(32, 3, 224, 64, taps=7, stride=(2, 2))
    yield ConvProblem(32, 3, 96, (224, 224), (4, 4), stride=(4, 4))
    yield _same(32, 3, 224, 32, stride=(2, 2))
    yield _same(32, 3, 224, 64)


def _layers() -> Iterator[ConvProblem]:
    yield from load_problems(["conv:full"], arch(ARCH)).problems


SETS: dict[str, Callable[[], Iterator[ConvProblem]]] = {
    "dense": _dense,
    "grouped": _grouped,
    "depthwise": _depthwise,
    "stems": _stems,
    "layers": _layers,
}
USUAL = ("dense", "grouped", "depthwise", "stems")


def shipped(p: ConvProblem) -> list[ConvConfig]:
    """The kernel that the shipped tables name for the H200."""
    return [choice.config for choice in _chosen(p)][:1]


def _chosen(p: ConvProblem) -> Iterator[Choice]:
    """What the shipped tables name, best first."""
    here = device("h200_sxm")
    return (c for c in Shipped().recall(p, here) if isinstance(c, Choice))


def kernels(p: ConvProblem, wide: bool, most: int = KEPT) -> list[ConvConfig]:
    """The configs that can serve `p`, `most` at most."""
    this = arch(ARCH)
    spaces = FAMILY.tuning_spaces(p, this) if wide else [FAMILY.default_space(p, this)]
    found = {c.name: c for space in spaces for c in space.expand(this).configs}
    serving = [c for c in found.values() if FAMILY.supports(c, p, this)]
    return [c for c, _ in FAMILY.rank(p, serving, device("h200_sxm"))[:most]]


def measure(
    p: ConvProblem, configs: list[ConvConfig], dispatcher: Dispatcher, flush: timing.Call
) -> dict[str, Any]:
    """One problem's line of the result."""
    contenders = [Contender(c.name, c, kernel_bind(dispatcher, c.name, p)) for c in configs]
    of_torch = [Contender(name, None, bind) for name, bind in FAMILY.vendor(p).items()]
    calls, wrong = checked([*contenders, *of_torch], p)
    ours = [c.name for c in configs if c.name in calls]
    others = [one.label for one in of_torch if one.label in calls]
    line: dict[str, Any] = {
        "problem": str(p), "flops": p.flops, "bytes": p.min_bytes, "wrong": wrong,
    }  # fmt: skip
    if not ours:
        return line
    named = {name: [call] for name, call in calls.items()}
    first = timing.measure(named, timing.Events(flush, GPU), RACE, beside=others)
    brief = {name: statistics.median(series.samples_us) for name, series in first.items()}
    best = min(ours, key=brief.__getitem__)
    line |= {"kernel": best, "brief_us": {name: round(us, 2) for name, us in brief.items()}}
    for way, timer in (
        ("flushed", timing.Events(flush, GPU)),
        ("replayed", timing.Graphs(flush, GPU, REPLAYED)),
    ):
        series = timing.measure({name: named[name] for name in (best, *others)}, timer, FINAL)
        us = {name: statistics.median(taken.samples_us) for name, taken in series.items()}
        line[way] = {
            "us": {name: round(value, 2) for name, value in us.items()},
            "tflops": {name: round(p.flops / value / 1e6, 1) for name, value in us.items()},
            "ratio": {name: round(us[name] / us[best], 3) for name in others},
        }
    return line


def by_kind(problems: list[ConvProblem], lines: list[dict[str, Any]]) -> dict[str, Any]:
    """`summary` of each kind of layer."""
    found: dict[str, list[dict[str, Any]]] = {}
    for p, line in zip(problems, lines, strict=True):
        for kind in kinds(p):
            found.setdefault(kind, []).append(line)
    return {kind: summary(each) for kind, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--set", nargs="+", choices=SETS, default=[*USUAL], dest="sets")
    parser.add_argument("--direction", nargs="+", choices=DIRECTIONS, default=[*DIRECTIONS])
    parser.add_argument("--dtype", nargs="+", choices=("bf16", "fp16"), default=["bf16"])
    parser.add_argument("--every", type=int, default=1, help="each how many problems of a set")
    parser.add_argument("--only", default="", help="problems whose words have this, of a set's")
    parser.add_argument("--wide", action="store_true", help="the tuning's spaces too")
    parser.add_argument("--shipped", action="store_true", help="the shipped row's kernel alone")
    parser.add_argument("--each", type=int, default=KEPT, help="kernels of a problem, by estimate")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--build", action="store_true", help="build, without a GPU")
    options = parser.parse_args()
    asked = {
        f"{name} {dtype} {direction}": [
            (p, shipped(p) if options.shipped else kernels(p, options.wide, options.each))
            for p in (
                replace(p, direction=direction, dtype=dtype, dtype_out="")
                for p in [*SETS[name]()][:: options.every]
            )
            if options.only in str(p)
        ]
        for name in options.sets
        for dtype in options.dtype
        for direction in options.direction
    }
    every = {c.name: c for each in asked.values() for _, configs in each for c in configs}
    store = Store()
    report = build([(c, ARCH) for c in every.values()], store=store)
    print(report)
    for result in report.results:
        if result.kernel is not None and result.kernel.resources.spill_bytes:
            print(f"spills {result.kernel.resources.spill_bytes} bytes: {result.name}")
    if options.build:
        return
    from tilewright.arch.detect import live_device

    here = live_device(0)
    assert here.arch == ARCH, f"these kernels are for {ARCH}; this GPU is {here.arch}"
    built = {r.config.name for r in report.results if r.ok}
    dispatcher = Dispatcher(device=here, store=store, build_missing=False)
    flush = timing.flusher(here.l2_bytes, GPU)
    document: dict[str, Any] = {
        "environment": environment(),
        "sets": {},
        "summary": {},
        "kinds": {},
    }
    for name, each in asked.items():
        lines: list[dict[str, Any]] = []
        document["sets"][name] = lines
        for p, configs in each:
            ready = [c for c in configs if c.name in built or library_of(c)]
            lines.append(measure(p, ready, dispatcher, flush))
            print(json.dumps({"set": name, **lines[-1]}), flush=True)
            if len(lines) % 20 and len(lines) < len(each):
                continue
            document["summary"][name] = summary(lines)
            if name.startswith("layers"):
                document["kinds"][name] = by_kind([p for p, _ in each[: len(lines)]], lines)
            if options.json:
                options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({name: document[name] for name in ("summary", "kinds")}, indent=1))


if __name__ == "__main__":
    main()
