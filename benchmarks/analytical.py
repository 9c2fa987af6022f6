"""How near to the best of a sweep the analytical choice comes, on problems it was not fitted to.

    python benchmarks/analytical.py DIR --folds 5 --json benchmarks/results/analytical_h200.json

DIR is a sweep directory of one device, in which every problem has been measured with (nearly)
every kernel. Of each problem, the kernels that were measured are ranked by the estimate; its share
is the best kernel's median over the first one's, and over that of the best of the first eight.

With --folds the constants of `arch/figures` that name this script are fitted again, from round
guesses, to all but one part of the problems, for each part in turn, and the shares are those of the
part left out. The fit is a coordinate search for the least mean of squared logarithms of estimate
over median, in which kernels count less the slower they are.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from environment import environment
from tilewright import ops
from tilewright.arch.figures import DEVICE, Figures
from tilewright.arch.model import Device
from tilewright.measure.results import Results
from tilewright.measure.vendor import is_vendor
from tilewright.ops.gemm import GemmConfig, GemmProblem, estimate, estimate_step
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.rates import GEMM

T = TypeVar("T")
TOP = 8
ROWS = (16, 64, 512, 2048)
"""Bounds of the ranges of M."""

START = {
    "LAUNCH_US": 4.0,
    "LATENCY_US": 0.7,
    "PORT_SHARE": 0.7,
    "STORE_SHARE": 0.5,
    "POWER_SHARE": 0.8,
    "WARP_CLOCKS": 8.0,
    "COPY_CLOCKS": 2.0,
    "SERIAL_PRODUCTS": 0.5,
    "basic": 0.8,
    "tma": 0.8,
}
"""What is fitted, by its name in `arch/figures` or by the pipeline whose share it is,
and the first guess."""

STEPS = (1.25, 1.1, 1.04)
"""Factors by which the search moves one constant at a time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A problem, and the median of each kernel in microseconds."""

    problem: GemmProblem
    us: dict[GemmConfig, float]


@dataclass(frozen=True, slots=True)
class Share:
    """What came of one problem. us: of the kernel chosen, and of the best."""

    problem: GemmProblem
    first: float
    top: float
    chosen: str
    chosen_us: float
    best: str
    best_us: float


METHOD = (
    "Constants are fitted to the other problems of the same sweep; the terms they belong to were "
    "chosen with all of it in view."
)
"""What the shares of --folds do and do not say."""


def read(folder: Path) -> tuple[Device, list[Any], list[Measured]]:
    """The device of a sweep, the ways of timing, and its GEMM problems."""
    found: dict[GemmProblem, dict[GemmConfig, float]] = defaultdict(dict)
    devices: dict[str, Device] = {}
    settings = set()
    family = ops.family("gemm")
    with Results(folder) as results:
        for m in results.measurements("status = 'ok'"):
            if m.problem.family == family.name and not is_vendor(m.kernel):
                devices[m.device.name] = m.device
                settings.add(m.settings)
                found[m.problem][family.parse_name(m.kernel)] = m.median_us
    if len(devices) != 1:
        raise SystemExit(f"{folder} has GEMM measurements of {len(devices)} devices, not of one")
    measured = [Measured(*pair) for pair in found.items()]
    return next(iter(devices.values())), [asdict(one) for one in settings], measured


def share(one: Measured, device: Device) -> Share:
    ranked = [config for config, _ in ops.family("gemm").rank(one.problem, one.us, device)]
    best = min(one.us, key=lambda config: one.us[config])
    of_top = min(one.us[config] for config in ranked[:TOP])
    chosen, least = ranked[0], one.us[best]
    return Share(one.problem, least / one.us[chosen], least / of_top, chosen.name,
                 one.us[chosen], best.name, least)  # fmt: skip


def set_rates(values: dict[str, float]) -> None:
    for name, value in values.items():
        if name in PIPELINES:
            record = PIPELINES[name]
            assert record.rates is not None
            PIPELINES[name] = replace(record, rates=replace(record.rates, share=value))
        else:
            setattr(_figures(name), name, value)
    DEVICE.BASIC = _share("basic")
    estimate_step.step_of.cache_clear()


def _figures(name: str) -> Figures:
    """Those that a figure is one of."""
    return GEMM if hasattr(GEMM, name) else DEVICE


def _share(pipeline: str) -> float:
    found = PIPELINES[pipeline].rates
    assert found is not None
    return found.share


def error(measured: list[Measured], device: Device) -> float:
    """Weighted mean of squared logarithms; a kernel with twice the best time counts for a third."""
    total = weights = 0.0
    for one in measured:
        best = min(one.us.values())
        found = estimate.estimates([*one.us], one.problem, device).total_us.tolist()
        for estimated, us in zip(found, one.us.values(), strict=True):
            weight = (best / us) ** 1.5
            off = math.log(estimated / us)
            total += weight * off * off
            weights += weight
    return total / weights


def fit(measured: list[Measured], device: Device) -> dict[str, float]:
    values = dict(START)
    set_rates(values)
    least = error(measured, device)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for name in values:
                for factor in (step, 1 / step):
                    tried = values | {name: values[name] * factor}
                    if name in PIPELINES and tried[name] > 1:
                        continue
                    set_rates(tried)
                    found = error(measured, device)
                    if found < least * (1 - 1e-4):
                        least, values, moved = found, tried, True
                        break
    set_rates(values)
    return values


def held_out(
    measured: list[Measured], device: Device, folds: int
) -> tuple[list[Share], list[dict[str, float]]]:
    """Shares of each problem by constants fitted without it, and the constants of each fold."""
    order = random.Random(0).sample(measured, len(measured))
    shares, fitted = [], []
    for fold in range(folds):
        left_out = order[fold::folds]
        fitted.append(fit([one for one in order if one not in left_out], device))
        shares += [share(one, device) for one in left_out]
        print(f"fold {fold + 1} of {folds}: {rounded(fitted[-1])}", flush=True)
    return shares, fitted


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def by_rows(items: Iterable[T], rows: Callable[[T], int]) -> dict[str, list[T]]:
    """Items by ranges of M, the lowest first."""
    ranges: dict[str, list[T]] = {}
    for item in sorted(items, key=rows):
        bound = next((b for b in ROWS if rows(item) <= b), None)
        ranges.setdefault(f"M to {bound}" if bound else f"M over {ROWS[-1]}", []).append(item)
    return ranges


def summary(shares: list[Share]) -> dict[str, Any]:
    def of(some: list[Share]) -> dict[str, Any]:
        return {
            "problems": len(some),
            "first_mean": statistics.mean(s.first for s in some),
            "first_worst": min(s.first for s in some),
            f"top_{TOP}_mean": statistics.mean(s.top for s in some),
            f"top_{TOP}_worst": min(s.top for s in some),
        }

    ranges = by_rows(shares, lambda s: s.problem.m)
    worst = sorted(shares, key=lambda s: s.first)[:8]
    return {
        "all": of(shares),
        "by_m": {word: of(some) for word, some in ranges.items()},
        "worst": [{**asdict(s), "problem": str(s.problem)} for s in worst],
    }


def show(title: str, found: dict[str, Any]) -> None:
    print(title)
    for word, row in {"all": found["all"], **found["by_m"]}.items():
        print(f"  {word:12} {row['problems']:4} problems: first {row['first_mean']:.4f}, worst "
              f"{row['first_worst']:.3f}; best of {TOP} {row[f'top_{TOP}_mean']:.4f}, worst "
              f"{row[f'top_{TOP}_worst']:.3f}")  # fmt: skip
    for row in found["worst"]:
        print(f"  {row['first']:.3f} {row['problem']}\n    chosen {row['chosen_us']:.1f} µs "
              f"{row['chosen']}\n    best   {row['best_us']:.1f} µs {row['best']}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="a sweep directory")
    parser.add_argument("--folds", type=int, default=0, help="fit again, and cross-validate")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()

    device, settings, measured = read(options.folder)
    kernels = {config for one in measured for config in one.us}
    document: dict[str, Any] = {
        "device": asdict(device),
        "problems": len(measured),
        "kernels": len(kernels),
        "dtypes": sorted({config.dtype_a for config in kernels}),
        "layouts": sorted({config.layout for config in kernels}),
        "pipelines": sorted({config.pipeline for config in kernels}),
        "settings": settings,
        "measurements": sum(len(one.us) for one in measured),
        "constants": {
            name: _share(name) if name in PIPELINES else getattr(_figures(name), name)
            for name in START
        },
        "by_constants": summary([share(one, device) for one in measured]),
    }
    show(
        "by the constants as they are, which may be fitted to this sweep:", document["by_constants"]
    )
    if options.folds:
        shares, fitted = held_out(measured, device, options.folds)
        document["method"] = METHOD
        document["folds"] = [rounded(values) for values in fitted]
        document["held_out"] = summary(shares)
        show("each problem by constants fitted without it:", document["held_out"])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"environment": environment(), **document}, indent=1)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
