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
`judge` writes what the kernels are worth now into learned_again_h200.json.
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
        print(lesson, len(pairs), sum(map(len, pairs.values())), flush=True)
    sample = Sample(tuple(pairs.items()), {})
    sample.save(SAMPLE)
    print(f"{len(pairs)} problems, {len(sample.configs)} kernels, {sample.count} pairs")


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
    from tilewright import ops
    from tilewright.learn import judge as learned
    from tilewright.learn import matrix

    times: dict[Any, dict[Any, list[float]]] = {}
    for cell in matrix.read([args.run]):
        if cell.us is not None:
            config = ops.family_of(cell.kernel).parse_name(cell.kernel)
            times.setdefault(cell.problem, {}).setdefault(config, []).append(math.log(cell.us))
    found: dict[str, Any] = {}
    for lesson, judged in held_out():
        again: list[dict[str, Any]] = []
        for block, verdict, share in judged:
            us = {
                config: math.exp(sum(logs) / len(logs))
                for config, logs in times.get(block.problem, {}).items()
            }
            if {verdict.best, verdict.learned, verdict.estimated} <= us.keys():
                again.append(_again(block, verdict, share, us))
        whole = [one for one in again if one["kernels"] >= ENOUGH - 2]
        oracle = [(one["the record's fastest, now"] / 100, 1) for one in whole]
        found[lesson] = {
            "lose most": sorted((one for one in again if one not in whole), key=_then),
            "of 64 kernels": whole,
            "the record's fastest of 64": learned.figures_of(oracle) if oracle else None,
        }
        print(lesson, json.dumps(found[lesson], ensure_ascii=False)[:2000], flush=True)
    RECORD.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def _then(one: Mapping[str, Any]) -> float:
    return float(one["served, in the record"])


def _again(block: Any, verdict: Any, share: float, us: Mapping[Any, float]) -> dict[str, Any]:
    """What kernels are worth in both runs, in percent of the fastest one timed in each."""
    served = verdict.learned if share == verdict.share[1] else verdict.estimated
    best = min(us, key=us.__getitem__)
    return {
        "problem": str(verdict.problem),
        "kernels": len(us),
        "served, in the record": round(100 * share, 2),
        "served, now": round(100 * us[best] / us[served], 2),
        "the estimate's first, in the record": round(100 * verdict.share[0], 2),
        "the estimate's first, now": round(100 * us[best] / us[verdict.estimated], 2),
        "the record's fastest, now": round(100 * us[best] / us[verdict.best], 2),
        "the fastest, now": best.name,
        "served": served.name,
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
