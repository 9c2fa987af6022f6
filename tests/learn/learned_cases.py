"""A made-up sweep: the estimate is right but for the pipeline, whose kernels are as much faster or
slower on every problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright import arch, ops
from tilewright.learn.matrix import Block
from tilewright.measure.measurement import Environment, Measurement, Settings
from tilewright.measure.results import Results
from tilewright.select.trees import LEAF, Trees

GEMM = ops.family("gemm")
H200 = arch.device("h200_sxm")
ARCH = arch.arch(H200.arch)
PROBLEMS = [
    GEMM.problem_type(m, n, k)
    for n, k in ((1024, 1024), (2048, 1024), (1024, 4096), (4096, 2048), (512, 8192), (3072, 3072))
    for m in (64, 256, 1024)
]
STUMP = Trees((LEAF,), (0.0,), (0,), (0,), (0,))
FACTORS = {"basic": 0.8, "tma": 1.1, "gluon_ws": 1.2, "small_m": 1.05}
VERSIONS = Environment((("tilewright", "0.1.0"), ("triton", "3.6.0")), "driver")
QUICK = Settings(timer="graph", cache="rotated", min_samples=3, max_samples=3)


def configs(problem: Any) -> list[Any]:
    """Every fourth kernel that serves it."""
    space = GEMM.default_space(problem, ARCH).expand(ARCH).configs
    return [c for c in space if GEMM.supports(c, problem, ARCH)][::4]


def us_of(config: Any, problem: Any) -> float:
    factor = FACTORS.get(config.pipeline, 1.0)
    return float(GEMM.estimate(config, problem, H200).total_us * factor)


def block(problem: Any) -> Block:
    us = {config: us_of(config, problem) for config in configs(problem)}
    return Block(problem, H200, VERSIONS, QUICK, us)


def measurements() -> Iterator[Measurement]:
    for problem in PROBLEMS:
        for config in configs(problem):
            us = us_of(config, problem)
            yield made(config.name, problem, (us * 0.99, us, us * 1.01))


def made(kernel: str, problem: Any, samples: tuple[float, ...], **more: Any) -> Measurement:
    said: dict[str, Any] = {
        "status": "ok" if samples else "crashed",
        "build": "b",
        "samples_us": samples,
        "interval_us": (samples[0], samples[-1]) if samples else (0.0, 0.0),
        "measured_at": "2026-01-01T00:00:00.000+00:00",
        "settings": QUICK,
    }
    said |= more
    settings = said.pop("settings")
    return Measurement(kernel, problem, H200, VERSIONS, settings, **said)


def sweep(folder: Path) -> Path:
    """The folder, with the made-up sweep in it."""
    with Results(folder, write=True) as results:
        results.add(measurements())
        results.add([made(configs(PROBLEMS[0])[0].name + "_i64", PROBLEMS[0], ())])
        results.add([made("vendor.torch.mm", PROBLEMS[0], (1.0, 1.0, 1.0))])
    return folder
