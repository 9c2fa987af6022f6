"""Build a few kernels of each kind in the default spaces, and write what became of each.

`benchmarks/versions.py` runs this under every Triton:

    python benchmarks/version_kernels.py --each 2 --json kernels.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environment import environment
from tilewright import GemmProblem, GroupedGemmProblem, ops
from tilewright.arch import arch
from tilewright.arch.model import Arch
from tilewright.compile import Store, build

ARCHS = ("sm_90", "gfx942")


def problems(this: Arch) -> Iterator[Any]:
    """One problem for each default space that differs: dtypes, few rows, scales, low bits, shuffled
    weights, batches, groups."""
    fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
    square = (4096, 4096, 4096)
    weights: dict[str, str] = {"dtype_b": "int4", "scale_b": "128x1-bf16"}
    blocks: dict[str, str] = {"dtype_a": fp8, "scale_a": "1x128", "scale_b": "128x128"}
    yield GemmProblem(*square)
    yield GemmProblem(16, 4096, 4096)
    yield GemmProblem(512, 512, 16384)
    yield GemmProblem(*square, dtype_a="fp16", epilogue="bias+gelu")
    yield GemmProblem(*square, dtype_a="fp32")
    yield GemmProblem(*square, dtype_a=fp8)
    yield GemmProblem(*square, dtype_a="int8")
    yield GemmProblem(*square, **blocks)
    yield GemmProblem(16, 4096, 4096, **weights)
    yield GemmProblem(512, 4096, 4096, **weights)
    yield GemmProblem(*square, layout="rsr")
    yield GemmProblem(512, 512, 512, batch=16)
    yield GroupedGemmProblem("contiguous", groups=16, m=1024, n=4096, k=4096)


def cases(name: str, each: int) -> dict[str, tuple[Any, Any]]:
    """Configs for the architecture `name`, each with a problem it serves, by name: of each
    problem's default space, `each` of every pipeline and scheduler, spread over the space."""
    this = arch(name)
    found: dict[str, tuple[Any, Any]] = {}
    for problem in problems(this):
        family = ops.family(problem.family)
        space = [
            config
            for config in family.default_space(problem, this).expand(this).configs
            if family.supports(config, problem, this)
        ]
        kinds: dict[tuple[str, str], list[Any]] = {}
        for config in space:
            kinds.setdefault((config.pipeline, getattr(config, "scheduler", "")), []).append(config)
        for alike in kinds.values():
            for part in range(each):  # the middle of each of so many parts
                config = alike[(2 * part + 1) * len(alike) // (2 * each)]
                found.setdefault(config.name, (config, problem))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=2, help="kernels of each kind")
    parser.add_argument("--workers", type=int, default=2, help="compiling processes")
    parser.add_argument("--json", type=Path, required=True, help="where to write the results")
    options = parser.parse_args()
    requests = [(c, name) for name in ARCHS for c, _ in cases(name, options.each).values()]
    with tempfile.TemporaryDirectory() as folder:
        report = build(requests, store=Store(folder), workers=options.workers, timeout=300)
    results = [
        {
            "arch": r.arch.name,
            "name": r.name,
            "status": r.status,
            "reason": r.reason,
            "resources": asdict(r.kernel.resources) if r.kernel else {},
            "shared": r.kernel.shared if r.kernel else 0,
        }
        for r in report.results
    ]
    document = {
        "environment": environment(),
        "seconds": round(report.seconds, 1),
        "kernels": results,
    }
    options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
