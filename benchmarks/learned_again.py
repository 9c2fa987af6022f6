"""Are the problems on which learned selection loses most lost, or does the record err?

    python benchmarks/learned_again.py draw                  # needs LightGBM, no GPU
    python benchmarks/learned_again.py build                 # all kernels of it, on some cores
    python benchmarks/learned_again.py measure --out DIR
    python benchmarks/learned_again.py judge DIR

`draw` holds problems out by kin, as `tilewright learn evaluate` does, and takes those of each class
that lose most: of these the kernel that is served, the estimate's first, and the `FASTEST` of the
record. Of other problems of 64 kernels and more, by chance, it takes 64 kernels each: there the
kernel that the record has as the fastest is judged as a model's choice is. `measure` times each
pair `TAKES` times, with operands of its own each time, of more samples than the record has.
`judge` writes what the kernels are worth now into learned_again_h200.json; it needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import learned_records
from learning_data import SETTINGS, Pair
from learning_many import covered
from learning_samples import ENOUGH, SAMPLES, chance

SAMPLE = SAMPLES / "again.json"
RECORD = Path(__file__).parent / "results" / "learned_again_h200.json"
FASTEST, TAKES, SAMPLED = 3, 2, 6
WORST, POOR = 8, 0.95
"""Of each class, and as many of its problems of 64 kernels and more; none that is better."""
WHOLE, BUILT = 7, 76
"""Problems of 64 kernels of a class, and the kernels of all of them."""
CLASSES = ("gemm_bf16", "gemm_e4m3fn")
"""Of which such problems are taken."""
SLOW = ("attention_backward_bf16",)
"""Verifying one kernel takes a quarter of a second."""


def held_out() -> Iterator[tuple[str, list[tuple[Any, Any, float]]]]:
    """The problems of each class: measured, judged, and the share of what is served."""
    from tilewright.learn import judge

    for lesson, sheets, beside in learned_records.sheets():
        if lesson in SLOW:
            continue
        found = judge.crossed(sheets, lesson, beside=beside)
        judged = zip(sheets, found.verdicts, found.guards, strict=True)
        yield lesson, [(sheet.block, v, v.chosen(guard)[0]) for sheet, v, guard in judged]


def draw(_args: argparse.Namespace) -> None:
    from tilewright.measure.designs import Design, Sample

    pairs: dict[Any, tuple[Any, ...]] = {}
    made: dict[Any, dict[str, Any]] = {}
    for lesson, judged in held_out():
        worst = sorted(judged, key=lambda one: one[2])
        for some in (worst, [one for one in worst if len(one[0].us) >= ENOUGH]):
            for block, verdict, share in some[:WORST]:
                if share < POOR:
                    fastest = sorted(block.us, key=block.us.__getitem__)[:FASTEST]
                    kernels = (verdict.learned, verdict.estimated, *fastest)
                    pairs[block.problem] = tuple(dict.fromkeys(kernels))
        if lesson in CLASSES:
            blocks = sorted((block for block, _, _ in judged), key=lambda b: chance(b.problem))
            ranked = {b.problem: sorted(b.us, key=b.us.__getitem__) for b in blocks}
            design = Design(ENOUGH, first=FASTEST)
            pairs |= covered(ranked, lambda _: "", design, BUILT, WHOLE)
        for block, verdict, share in judged:
            if block.problem in pairs:
                made[block.problem] = _made(lesson, block, verdict, share)
        print(lesson, len(pairs), sum(map(len, pairs.values())), flush=True)
    sample = Sample(tuple(pairs.items()), {"judged": [made[problem] for problem in pairs]})
    sample.save(SAMPLE)
    print(f"{len(pairs)} problems, {len(sample.configs)} kernels, {sample.count} pairs")


def _made(lesson: str, block: Any, verdict: Any, share: float) -> dict[str, Any]:
    """What the record says of a problem when it is drawn: kernels, and what they are worth."""
    served = verdict.learned if share == verdict.share[1] else verdict.estimated
    return {
        "class": lesson,
        "problem": str(block.problem),
        "fastest": verdict.best.name,
        "served": served.name,
        "estimate": verdict.estimated.name,
        "shares": [_percent(share), _percent(verdict.share[0])],
    }


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _sample(arch: str) -> Any:
    from tilewright.measure import designs

    return designs.load(SAMPLE).legal(arch)


def build(args: argparse.Namespace) -> None:
    from tilewright.compile import Store
    from tilewright.compile import build as built

    jobs = [(config, "sm_90") for config in _sample("sm_90").configs]
    failures = built(jobs, store=Store(), workers=args.workers).failures
    print(f"{len(jobs)} kernels, of which these failed: {[one.name for one in failures]}")


def measure(args: argparse.Namespace) -> None:
    from tilewright.compile import Store
    from tilewright.measure.groups import groups
    from tilewright.measure.results import Results
    from tilewright.measure.sweep import plan_some, sweep

    begun, store = time.monotonic(), Store()
    with Results(Path(args.out), write=True) as results:
        for take in range(TAKES):
            settings = replace(SETTINGS, min_samples=SAMPLED, max_samples=SAMPLED, take=take)
            (group,), start = groups(args.devices, store, settings, timeout=30)
            pairs: Sequence[Pair] = _sample(group.device.arch).pairs
            outcome = sweep(
                plan_some([(group, pairs)], settings, vendor=False), results, store, start
            )
            took = time.monotonic() - begun
            print(
                f"take {take}: {dict(outcome.statuses)}; {took:.0f} s since the start", flush=True
            )


def judge(args: argparse.Namespace) -> None:
    from tilewright.learn import judge as learned
    from tilewright.learn import matrix

    times: dict[Any, dict[str, list[float]]] = {}
    for cell in matrix.read([args.run]):
        if cell.us is not None:
            times.setdefault(cell.problem, {}).setdefault(cell.kernel, []).append(cell.us)
    sample = _sample("sm_90")
    worst: dict[str, list[dict[str, Any]]] = {}
    whole: dict[str, list[dict[str, Any]]] = {}
    for (problem, _), made in zip(sample.pairs, sample.made["judged"], strict=True):
        us = {name: math.exp(sum(map(math.log, t)) / len(t)) for name, t in times[problem].items()}
        of = whole if len(us) >= ENOUGH - 2 else worst
        of.setdefault(made["class"], []).append(_again(made, us, times[problem]))
    result = {"lose most": _sorted(worst), "of 64 kernels": _sorted(whole), "in short": {}}
    for name, of in (("lose most", worst), ("of 64 kernels", whole)):
        for lesson, some in of.items():
            found = {
                word: learned.figures_of([(one[word][1] / 100, 1) for one in some])
                for word in ("the record's fastest", "served", "the estimate's first")
            }
            short = {word: learned_records.shown(one) for word, one in found.items()}
            then = learned.figures_of([(one["served"][0] / 100, 1) for one in some])
            short |= {"problems": len(some), "served, in the record": learned_records.shown(then)}
            result["in short"].setdefault(name, {})[lesson] = short
            print(name, lesson, json.dumps(short, ensure_ascii=False), flush=True)
    RECORD.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def _sorted(of: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {lesson: sorted(some, key=lambda one: one["served"][0]) for lesson, some in of.items()}


def _again(
    made: Mapping[str, Any], us: Mapping[str, float], takes: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """What kernels are worth, in percent of the fastest one timed: in the record, and now; and by
    how much the two takes of a kernel differ, in percent, at the median."""
    least = min(us.values())
    then = made["shares"]
    apart = sorted(max(t) / min(t) - 1 for t in takes.values())
    return {
        "problem": made["problem"],
        "kernels": len(us),
        "served": [then[0], _percent(least / us[made["served"]])],
        "the estimate's first": [then[1], _percent(least / us[made["estimate"]])],
        "the record's fastest": [100.0, _percent(least / us[made["fastest"]])],
        "takes apart": _percent(apart[len(apart) // 2]),
        "fastest now": min(us, key=us.__getitem__),
        "kernels of these": [made["served"], made["estimate"], made["fastest"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw")
    building = commands.add_parser("build")
    building.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    one = commands.add_parser("measure")
    one.add_argument("--out", required=True)
    one.add_argument("--devices", default="all")
    commands.add_parser("judge").add_argument("run", type=Path)
    args = parser.parse_args()
    {"draw": draw, "build": build, "measure": measure, "judge": judge}[args.command](args)


if __name__ == "__main__":
    main()
