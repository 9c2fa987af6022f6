"""Build the kernels of attention's default space for every architecture, and print what spills.

    python benchmarks/attention_builds.py
    python benchmarks/attention_builds.py --arch gfx942 --dtype fp16 --dims 128x128 --others softcap
    python benchmarks/attention_builds.py --backward --dtype bf16 --mask causal

Each row is an architecture, a pipeline and head dims: kernels built, dropped by a rule (and by
which), and spilling; and the registers that a thread of each takes. With `--backward`, all kernels
of gradients. No GPU takes part. Exit status 1 if a kernel spills or is not built.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from environment import environment
from tilewright import ops
from tilewright.arch import arch, archs
from tilewright.compile import Store, build
from tilewright.errors import EmptySpace
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.nouns import MAIN

DIMS = ("64x64", "80x80", "96x96", "128x128", "160x160", "192x128", "256x256")
MASKS: dict[str, dict[str, int]] = {
    "none": {},
    "causal": {"right": 0},
    "window": {"left": 1024, "right": 0},
}
SAID: dict[str, tuple[str, Any]] = {
    "softcap": ("softcap", 30.0),
    "dropout": ("dropout", 0.25),
    "bias": ("bias_shape", (1, 1)),
}
"""Features that fields of a problem say."""


def configs(
    kind: type[AttentionProblem], name: str, dtype: str, dims: str, mask: str, others: str
) -> tuple[list[Any], Counter]:
    """The default space's kernels, and how many each rule dropped."""
    head_dim, head_dim_v = map(int, dims.split("x"))
    problem = kind(
        4, 32, 4096, 4096, head_dim, 8, head_dim_v, dtype=dtype,
        **{field: value for word, (field, value) in SAID.items() if word in others.split("+")},
        others="+".join(word for word in others.split("+") if word not in (*SAID, "")),
        **MASKS[mask],
    )  # fmt: skip
    try:
        found = ops.family(kind.family).default_space(problem, arch(name)).expand(arch(name))
    except EmptySpace:
        return [], Counter()
    return list(found.configs), Counter(one.verdict.rule for one in found.dropped)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backward", action="store_true", help="kernels of gradients")
    parser.add_argument(
        "--arch", action="append", choices=archs(), help="repeatable; by default all"
    )
    parser.add_argument("--dtype", action="append", help="by default bf16 and fp16")
    parser.add_argument("--dims", action="append", help="by default " + ", ".join(DIMS))
    parser.add_argument("--mask", action="append", choices=MASKS, help="by default all")
    parser.add_argument("--others", default="", help="further features, as softcap+alibi")
    parser.add_argument("--store", type=Path, help="kernels' store; by default the user's")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    store = Store(options.store) if options.store else Store()
    kind = AttentionBackwardProblem if options.backward else AttentionProblem
    rows, bad = [], 0
    print(f"{'arch':8} {'dtype':5} {'dims':8} {'mask':7} built dropped spilling  registers")
    for name in options.arch or archs():
        for dtype in options.dtype or ("bf16", "fp16"):
            for dims in options.dims or DIMS:
                for mask in options.mask or MASKS:
                    kernels, dropped = configs(kind, name, dtype, dims, mask, options.others)
                    requests = [(config, name) for config in kernels]
                    report = build(requests, store=store, workers=options.workers, timeout=600.0)
                    those = {
                        f"{r.name} {r.part}" if options.backward else r.name: r
                        for r in report.results
                        if options.backward or r.part == MAIN
                    }
                    built = [(n, r.kernel.resources) for n, r in those.items() if r.kernel]
                    spilling = {n: found.spill_bytes for n, found in built if found.spill_bytes}
                    failed = {n: r.reason for n, r in those.items() if r.kernel is None}
                    taken = sorted({found.registers for _, found in built})
                    rows.append(
                        {
                            "arch": name, "dtype": dtype, "dims": dims, "mask": mask,
                            "built": {n: found.registers for n, found in built},
                            "dropped": dict(dropped), "spilling": spilling, "failed": failed,
                        }
                    )  # fmt: skip
                    bad += len(spilling) + len(failed)
                    print(
                        f"{name:8} {dtype:5} {dims:8} {mask:7} {len(built):5} "
                        f"{dropped.total():7} {len(spilling):8}  {', '.join(map(str, taken))}",
                        flush=True,
                    )
                    for kernel, what in (spilling | failed).items():
                        print(f"    {kernel}: {what}", flush=True)
    if options.json:
        document = {"environment": environment(), "others": options.others, "rows": rows}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
