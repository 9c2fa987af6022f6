"""What the pages of HSTU's attention have in common: operands, options, and which tiles they take.

The tiles are those of attention's portable kernels, which multiply the same shapes and hold more
beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.custom import In, Scratch, kernel
from tilewright.custom.declaration import Array
from tilewright.tolerance import (
    Tolerance,
    score_error,
    softmax_row_tolerance,
    softmax_tolerance,
)

MOST_HEAD_DIM = 256
MOST_ROWS = 2**30
MOST_STRIDE = 2**23
"""Elements between the rows of an operand: distances within a tile of 128 rows take 32 bits."""

DTYPES = ("bf16", "fp16", "fp32")

AXES: dict[str, tuple[Any, ...]] = {
    "HEAD_DIM": tuple(range(1, MOST_HEAD_DIM + 1)),
    "V_DIM": tuple(range(1, MOST_HEAD_DIM + 1)),
    "TILE": (128, 64, 32, 16),
    "STEP": (64, 32, 16),
    "ROLLED": (False, True),
    "num_warps": (4, 8),
    "num_stages": (2, 1),
}
"""HEAD_DIM, V_DIM: the problem's, for which kernels are compiled. TILE: rows of a workgroup. STEP:
rows that it multiplies them by at a time. ROLLED: see `products_of` of attention's backward
pass."""

OPTIONS: dict[str, bool | int] = {
    "causal": True,
    "contextual_seq_len": 0,
    "max_attn_len": 0,
    "min_full_attn_seq_len": 0,
}
SCALARS: dict[str, tuple[str, int | float | None]] = {
    "max_seq_len": ("i32", None),
    "alpha": ("fp32", None),
}
STRIDES = ("q_row", "q_head", "k_row", "k_head", "v_row", "v_head")


def offsets(problem: Any, rng: Any) -> Any:
    """Offsets of sequences of up to twice the mean length, and a few rows that no sequence has."""
    lengths = rng.uniform(0.0, 2.0, problem.bounds - 1) * problem.rows / max(1, problem.bounds - 1)
    ends = lengths.astype("int64").cumsum().clip(0, problem.rows)
    return [0, *ends.tolist()]


def targets(problem: Any, rng: Any) -> Any:
    """Numbers of targets, of which some are more than a sequence's rows."""
    return rng.integers(0, 21, problem.bounds - 1)


OPERANDS: dict[str, Array] = {
    "q": In("rows", "heads", "head_dim", strides=("q_row", "q_head", 1)),
    "k": In("rows", "heads", "head_dim", strides=("k_row", "k_head", 1)),
    "v": In("rows", "heads", "head_dim_v", strides=("v_row", "v_head", 1)),
    "offsets": In("bounds", dtype="int32", values=offsets),
}
NUM_TARGETS = In("bounds - 1", dtype="int32", optional=True, values=targets)


def batch(problem: Any) -> int:
    """Sequences."""
    return int(problem.bounds - 1)


ORDER = Scratch(lambda problem, config: (2, batch(problem)), "int32")
ORDERED = kernel(
    "order",
    f"{__package__}.kernels._jagged:order_of_sequences",
    lambda problem, config: (-(-batch(problem) // 32),),
)
"""Finds the longest sequences: 32 of them for each workgroup, a constant of the kernel's."""


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: as many tiles as sequences can have together, of each head."""
    return ((problem.rows // config.TILE + batch(problem)) * problem.heads,)


def refused(problem: Any) -> str:
    """Why a problem's fields do not fit together."""
    p = problem
    if p.bounds < 2:
        return (
            f"offsets has {p.bounds} elements; it has one more than there are sequences, 2 at least"
        )
    if p.dtype not in DTYPES:
        return f"{p.dtype} operands; it multiplies {', '.join(DTYPES)}"
    for name in ("head_dim", "head_dim_v"):
        if not 1 <= getattr(p, name) <= MOST_HEAD_DIM:
            return f"{name} = {getattr(p, name)} is not in 1 … {MOST_HEAD_DIM}"
    if p.rows > MOST_ROWS:
        return f"{p.rows} rows, over {MOST_ROWS}"
    for name in ("q_row", "k_row", "v_row"):
        if getattr(p, name) > MOST_STRIDE:
            return f"{name} = {getattr(p, name)} elements between rows, over {MOST_STRIDE}"
    for name in ("contextual_seq_len", "max_attn_len", "min_full_attn_seq_len"):
        if getattr(p, name) < 0:
            return f"{name} = {getattr(p, name)} is negative"
    if p.min_full_attn_seq_len and not p.max_attn_len:
        return "min_full_attn_seq_len without max_attn_len, which alone it makes exceptions from"
    if not p.causal and (p.has_num_targets or p.contextual_seq_len or p.max_attn_len):
        return "num_targets, contextual_seq_len and max_attn_len need causal=True"
    return ""


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config is compiled for a problem's head dims."""
    for axis, size in (("HEAD_DIM", problem.head_dim), ("V_DIM", problem.head_dim_v)):
        if getattr(config, axis) != size:
            return f"is for {axis} = {getattr(config, axis)}, the problem has {size}"
    return True


def narrows(problem: Any) -> Mapping[str, Sequence[Any]]:
    """The head dims that `fits` takes."""
    return {"HEAD_DIM": (problem.head_dim,), "V_DIM": (problem.head_dim_v,)}


def rows_of(
    tiles: Iterable[tuple[int, int, int]], stages: Sequence[int], rolled: bool
) -> list[dict[str, Any]]:
    """Values of axes that go together, of tiles (rows, rows of a step, warps)."""
    return [
        {"TILE": tile, "STEP": step, "num_warps": warps, "num_stages": n, "ROLLED": rolled}
        for tile, step, warps in tiles
        for n in stages
    ]


READ_ROWS = 64
"""A guess: tiles of fewer rows take longer, as they read keys and values more often."""


def prefers(problem: Any, config: Any) -> tuple[float, int]:
    """The rows of a sequence of the mean length and those of half a tile behind its end, as often
    as they are read for; then the larger step. On an H200 124,518 rows of 512 sequences, 4 heads of
    128 elements, took 306 µs in tiles of 64 rows and 417 in tiles of 128, and their gradients 785
    and 992 (benchmarks/results/operations_ahead_h200.json)."""
    rows = problem.rows / max(1, batch(problem)) + config.TILE / 2
    return rows * max(1.0, READ_ROWS / config.TILE), -config.STEP


def tolerances(*outputs: str) -> Callable[[Any, Any], Mapping[str, Tolerance]]:
    """How far outputs may be off: as sums with the weights of a softmax, which are rounded to the
    operands' type before they are multiplied, too. Where products cancel to little, or the
    derivative of SiLU is near 0, errors of fp32 are no share of a row's own rms: they are judged
    beside all rows' too."""

    def found(problem: Any, config: Any) -> Mapping[str, Tolerance]:
        dtype, depth = problem.dtype, max(problem.head_dim, problem.head_dim_v)
        terms = max(1, problem.rows)
        one = softmax_row_tolerance(dtype, dtype, terms, score_error(dtype, depth))
        little = softmax_tolerance("fp32", "fp32", terms, score_error("fp32", depth))
        return dict.fromkeys(outputs, replace(one, scaled=little.scaled))

    return found


def pairs(problem: Any) -> int:
    """Pairs of a query and a key that are seen, of sequences of the mean length without targets."""
    mean = problem.rows / max(1, batch(problem))
    near = min(problem.max_attn_len or mean, mean)
    each = mean * near - near * near / 2 if problem.causal else mean * mean
    return int(each * batch(problem) * problem.heads)


def benchmark(**more: Any) -> tuple[dict[str, Any], ...]:
    """Sizes of generative-recommenders' benchmark (generative_recommenders/ops/benchmarks/
    hstu_attention_bench.py): 512 sequences, 4 heads of 128, at its sparsity of 0.95 as many rows as
    0.95 of sequences of 256, 1024 and 2048; up to 20 targets."""
    return tuple(
        {
            "rows": int(512 * 0.95 * longest),
            "heads": 4,
            "head_dim": 128,
            "head_dim_v": 128,
            "bounds": 513,
            "has_num_targets": True,
            **more,
        }
        for longest in (256, 1024, 2048)
    )
