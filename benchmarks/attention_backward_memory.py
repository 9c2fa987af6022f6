"""Scratch memory of attention's backward pass, beside torch's FlashAttention-2.

    python benchmarks/attention_backward_memory.py
    python benchmarks/attention_backward_memory.py --device mi300x
    python benchmarks/attention_backward_memory.py --on cuda:0 --json backward_memory_h200.json

Each row is a problem: the bytes that a launch of the chosen kernels takes besides operands and
gradients, by the plan's temporaries, which no GPU is needed for; and the bytes of O, to compare
with. With `--on`, both calls also run there, and what torch's allocator gave out at most during a
call is told, less the gradients that it returns; ours is then the allocator's figure too, beside
the plan's. Under `deterministic`, FlashAttention-2 gets torch's switch of that name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from environment import environment
from tilewright import ops
from tilewright.dispatch import Dispatcher
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.vendor import FLASH

TOKENS = 16384
HEADS = {64: 32, 128: 16, 256: 8}


def problems() -> Iterator[tuple[str, AttentionBackwardProblem]]:
    """The grid: dense, packed sequences of unequal lengths, and each of them deterministic."""
    for head_dim, heads in HEADS.items():
        for length in (1024, 4096, 16384):
            for right in (None, 0):
                dense = AttentionBackwardProblem(
                    TOKENS // length, heads, length, length, head_dim, right=right
                )
                packed = replace(
                    dense, batch=4 * dense.batch, total_q=TOKENS, total_kv=TOKENS,
                    others="packedq+packedkv",
                )  # fmt: skip
                for kind, p in (("dense", dense), ("varlen", packed)):
                    yield kind, p
                    yield f"{kind}, deterministic", replace(p, deterministic=True)


def planned(dispatcher: Dispatcher, p: AttentionBackwardProblem) -> dict[str, Any]:
    """The kernels chosen, and the bytes of their temporaries."""
    plan = dispatcher.select(p)
    return {
        "kernel": plan.config.name,
        "planned_bytes": plan.launch.workspace_bytes,
        "temporaries": {one.name: one.bytes for one in plan.launch.temporaries},
    }


def measured(p: AttentionBackwardProblem, device: str) -> dict[str, int]:
    """Most bytes that a call had of torch's allocator, less its gradients: ours, and torch's."""
    import torch

    import tilewright as tw
    from tilewright import calls, verify

    data = verify.operands_of(p, 0, device)
    said, keywords = calls.positional(p, data.inputs)
    found = {"ours": _scratch(lambda: tw.attention_backward(*said, **keywords))}
    bound = ops.family(p.family).vendor(p).get(FLASH)
    if bound is not None:
        try:
            torch.use_deterministic_algorithms(p.deterministic)
            found[FLASH] = _scratch(bound(data.inputs, data.outputs))
        finally:
            torch.use_deterministic_algorithms(False)
    return found


def _scratch(call: Callable[[], Any]) -> int:
    import torch

    call()  # what is made once
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = call()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated()
    outputs = made if isinstance(made, tuple | list) else (made,)
    return int(most - before - sum(x.untyped_storage().nbytes() for x in outputs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--device", default="h200_sxm", help="that kernels are chosen for")
    parser.add_argument("--on", help="a GPU to measure on, as cuda:0")
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    dispatcher = Dispatcher(device=None if args.on else args.device)
    rows = []
    print(f"{'problem':72} {'MB':>8} {'of O':>6}" + " allocated: ours, torch's" * bool(args.on))
    for kind, p in problems():
        row = {"kind": kind, "problem": str(p), **planned(dispatcher, p)}
        o = p.batch * p.q_len * p.heads * p.head_dim_v * 2
        if kind.startswith("varlen"):
            o = p.total_q * p.heads * p.head_dim_v * 2
        row["of_o"] = round(row["planned_bytes"] / o, 3)
        line = f"{row['problem'][19:91]:72} {row['planned_bytes'] / 1e6:8.1f} {row['of_o']:6.2f}"
        if args.on:
            row["allocated_bytes"] = measured(p, args.on)
            line += "".join(f" {size / 1e6:8.1f}" for size in row["allocated_bytes"].values())
        rows.append(row)
        print(line, flush=True)
    if args.json:
        document = {"environment": environment(), "rows": rows}
        args.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
