"""Configs and problems around those that other tests run: what the rules say of them is recorded.

Each case is one that a test runs, with one field changed, or two. The record, `verdicts.json`, has
by architecture and rule how many cases the rule decides, and a digest of which and with what words.
`RECORD_VERDICTS=yes python -m pytest tests/gemm/test_verdicts.py` writes it anew, after a rule was
changed on purpose.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import batch_cases
import epilogue_cases
import gemm_cases
import grouped_cases
import lowbit_cases
import operand_cases
import scale_cases

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import TilewrightError
from tilewright.ops.gemm import GemmProblem, sizes
from tilewright.verdict import Verdict

RECORD = Path(__file__).with_name("verdicts.json")
CHANGES = 4000
"""How many changes of configs are tried for an architecture, and of problems."""

EDGES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 512)
CONFIG_FIELDS: dict[str, tuple[Any, ...]] = {
    "tile_m": (1, 2, 4, *EDGES),
    "tile_n": EDGES,
    "tile_k": (8, 16, 32, 64, 128, 256, 512, 1024),
    "num_warps": (1, 2, 3, 4, 8, 12, 16, 32),
    "num_stages": (1, 2, 3, 4, 6, 8, 9, 12, 100),
    "pipeline": (
        "basic", "tma", "tma_ws", "gluon_ws", "gluon_pingpong", "gluon_cdna", "small_m",
        "small_m_tma", "gluon_scaled", "weights", "mx", "preshuffle", "gluon_weights",
    ),
    "scheduler": ("tile", "persistent"),
    "split_k": (2, 4, 64),
    "reduction": ("atomic", "linear", "tree", "two_stage", "cluster"),
    "store": ("direct", "split"),
    "epilogue": ("", "bias", "bias+gelu", "bias+swiglu", "row_scale+col_scale"),
    "alignment": (1, 2, 4, 8, 16),
    "index_bits": (32, 64),
    "swap_ab": (False, True),
    "dependent_launch": ("none", "wait", "ahead"),
    "group_m": (1, 4, 8),
    "pad_m": (False, True),
    "pad_n": (False, True),
    "pad_k": (False, True),
    "layout": ("rcr", "rrr", "ccr", "crr", "rcc", "rsr"),
    "batching": ("none", "strided", "pointers", "nested"),
    "pre_a": ("", "add"),
    "pre_b": ("", "mul"),
    "scale_a": ("", "1x128"),
    "scale_b": ("", "128x128", "1x32-e8m0"),
    "dtype_c": ("bf16", "fp16", "fp32", "int8"),
}  # fmt: skip
SIZES = (1, 7, 8, 16, 63, 64, 72, 128, 129, 1000, 4096, 65536, 2**20, 2**31 - 1)
PROBLEM_FIELDS: dict[str, tuple[Any, ...]] = {
    "m": SIZES,
    "n": SIZES,
    "k": (*SIZES, 0),
    "alignment": (1, 2, 4, 8, 16),
    "layout": ("rcr", "rrr", "ccr", "crr", "rcc"),
    "precision": ("ieee", "tf32"),
    "epilogue": ("", "bias", "bias+swiglu"),
    "batch": (1, 2, 3, 70000),
    "groups": (1, 2, 100, 70000),
    "constant_b": (False, True),
}


def bases(arch_name: str) -> list[tuple[Any, Any]]:
    """What other tests run on an architecture, or would."""
    found = [
        *gemm_cases.cases(arch_name), *gemm_cases.few_rows(arch_name),
        *gemm_cases.sharing(arch_name), *batch_cases.cases(arch_name),
        *batch_cases.nested(arch_name), *epilogue_cases.cases(arch_name),
        *lowbit_cases.cases(arch_name), *operand_cases.combined(arch_name),
        *operand_cases.shuffled(arch_name), *scale_cases.cases(arch_name),
        *scale_cases.few(arch_name), *grouped_cases.cases(arch_name),
        *grouped_cases.epilogues(arch_name),
    ]  # fmt: skip
    if arch(arch_name).cdna is not None:
        found += cdna(arch_name)
    if arch_name == "sm_90":
        found += [*gemm_cases.odd_tiles(), *gemm_cases.by_turns(), *gemm_cases.swapped()]
        # Several times: a promise about B decides of these alone.
        found += [*scale_cases.gluon(), *4 * gemm_cases.dependent()]
    return found


def cdna(arch_name: str) -> list[tuple[Any, Any]]:
    """Kernels in Gluon for CDNA, on products of few steps."""
    return [
        (
            gemm_cases.config(
                arch_name, pipeline="gluon_cdna", dtype_a=dtype, scheduler=scheduler, layout=layout,
                tile_m=edge, tile_n=edge, tile_k=64, num_warps=edge // 32, num_stages=2,
            ),
            GemmProblem(512, 512, 64 * steps, dtype_a=dtype, layout=layout),
        )
        for dtype in ("bf16", "fp16", "int8")
        for scheduler in ("tile", "persistent")
        for layout in ("rcr", "crr")
        for edge in (128, 256)
        for steps in (1, 2, 3)
    ]  # fmt: skip


def changed(rng: random.Random, one: Any, fields: dict[str, tuple[Any, ...]]) -> Any:
    """With a field or two changed; None if it cannot be said then."""
    names = [name for name in fields if hasattr(one, name)]
    changes = {name: rng.choice(fields[name]) for name in rng.sample(names, rng.choice((1, 2)))}
    if "split_k" in changes:
        changes["scheduler"] = "split_k"
        changes.setdefault("reduction", "linear")
    elif "reduction" in changes:
        changes["scheduler"] = "stream_k"
    elif "scheduler" in changes:
        changes |= {"split_k": 1, "reduction": "none"}
    known = {name: value for name, value in changes.items() if hasattr(one, name)}
    try:
        return replace(one, **known)
    except TilewrightError:
        return None


def verdicts(arch_name: str) -> dict[str, list[str]]:
    """By rule, ``ok`` for none, what is said of each case that it decides."""
    rng, this = random.Random(arch_name), arch(arch_name)
    found: dict[str, list[str]] = defaultdict(list)

    def add(verdict: Verdict, *case: object) -> None:
        rule = "ok" if verdict else verdict.rule
        found[rule].append(" ".join(map(str, (*case, verdict))))

    shapes = [shape for unit in this.mma for shape in unit.shapes]
    fields = CONFIG_FIELDS | {"mma": ((0, 0, 0), *dict.fromkeys(shapes))}
    pairs = bases(arch_name)
    for _ in range(CHANGES):
        kernel, problem = rng.choice(pairs)
        family = ops.family(kernel.family)
        other = changed(rng, kernel, fields)
        if other is not None:
            verdict = family.judge(other, this)
            room = sizes.shared_memory(other, this) if verdict and family.name == "gemm" else 0
            add(verdict, other.name, room)
        asked = changed(rng, problem, PROBLEM_FIELDS)
        if asked is not None:
            add(family.supports(kernel, asked, this), kernel.name, asked, asked.alignment)
    return found


def record(arch_name: str) -> dict[str, str]:
    """By rule the count and the digest."""
    return {
        rule: f"{len(said)} {hashlib.sha256(chr(10).join(said).encode()).hexdigest()[:12]}"
        for rule, said in sorted(verdicts(arch_name).items())
    }
