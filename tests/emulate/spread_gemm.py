"""GEMM's axes of the spread, and the problems that a kernel is executed on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from spread import Axes, Values

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.epilogues import OPERATIONS, fold
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, lowbit, pipelines, shuffle
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    INDEX_BITS,
    REDUCTIONS,
    SCHEDULERS,
    SHARING,
    STORES,
)
from tilewright.ops.gemm.problem import LAYOUTS, SHUFFLED_LAYOUTS
from tilewright.ops.gemm.small_m import VECTOR_ROWS
from tilewright.ops.products import OUTPUTS, PRECISIONS, QUANTISED, outputs

TILES = (
    {"tile_m": 32, "tile_n": 32, "tile_k": 64, "num_warps": 4},
    {"tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4},
    {"tile_m": 16, "tile_n": 32, "tile_k": 128, "num_warps": 2, "group_m": 1},
    {"tile_m": 16, "tile_n": 32, "tile_k": 128, "num_warps": 8},
    {"tile_m": 16, "tile_n": 16, "tile_k": 32, "num_warps": 1},
    {"tile_m": 2, "tile_n": 4, "tile_k": 512, "num_warps": 1, "group_m": 1},  # vector units
)
"""What a case begins with, the first that is legal: small, so that the compiler takes a second."""
SCALES = (
    ("", ""),
    ("1x128", "128x128"),
    ("1x128", ""),
    ("", "64x1-bf16"),
    ("2x256-fp16", "64x4"),
    ("", "128x1-bf16"),
    ("", "32x1-fp16"),
    ("", "32x1-e8m0"),
    lowbit.MX_SCALES,
)
CHAINS = ("bias+gelu", "scale+bias+silu+add", "bias+swiglu+col_scale+add", "mul+clamp+gelu_tanh")
DEEP = (3, 4, 6)
"""Stages that the default spaces and the lists for tuning have beyond an architecture's own."""
BATCH, HEADS = 3, 2
PARTS, STEPS = 3, 5
"""Parts that split-K makes of K, and steps along K: neither divides the other."""


def axes(arch: Arch) -> Axes:
    """GEMM's axes on an architecture."""
    each: dict[str, Values] = {
        "signature": dict(signatures(arch)),
        "schedule": dict(_schedules()),
        "tile": {
            "64x64x64": {"tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4},
            "128x128x64": {"tile_m": 128, "tile_n": 128, "tile_k": 64, "num_warps": 8},
        },
        "layout": {word: {"layout": word} for word in (*LAYOUTS, *SHUFFLED_LAYOUTS)},
        "scales": {f"{a or 'none'} {b or 'none'}": {"scale_a": a, "scale_b": b} for a, b in SCALES},
        **{
            axis: {str(value): {axis: value} for value in values}
            for axis, values in (
                ("batching", BATCHINGS),
                ("alignment", ALIGNMENTS),
                ("index_bits", INDEX_BITS),
                ("pad_m", (True, False)),
                ("pad_n", (True, False)),
                ("pad_k", (True, False)),
                ("store", STORES),
                ("mma", FAMILY.wildcard("mma", arch)),
                ("num_warps", sorted(arch.num_warps, key=lambda warps: abs(warps - 4))),
                ("num_stages", sorted({*arch.num_stages, *DEEP}, key=lambda n: abs(n - 2))),
            )
        },
    }
    once: dict[str, Values] = {
        "epilogue": {chain: {"epilogue": chain} for chain in (*OPERATIONS, *CHAINS)},
        "quantised": {
            dtype: {"epilogue": "row_scale+col_scale", "dtype_c": dtype} for dtype in QUANTISED
        },
        "output": {
            f"int8→{out}": {"dtype_a": "int8", "dtype_c": out, "epilogue": "scale"}
            for out in outputs("int8", "scale")
        },
        **{
            axis: {name: {axis: name} for name, does in OPERATIONS.items() if not does.halves}
            for axis in ("pre_a", "pre_b")
        },
        "tile_m": {
            str(size): {"tile_m": size}
            for size in sorted({1, 2, 4, VECTOR_ROWS, *FAMILY.wildcard("tile_m", arch)})
        },
        **{
            axis: {str(size): {axis: size} for size in FAMILY.wildcard(axis, arch)}
            for axis in ("tile_n", "tile_k")
        },
        "swap_ab": {str(value): {"swap_ab": value} for value in (False, True)},
    }  # fmt: skip
    starts = [
        {**tile, "num_stages": stages, "layout": layout, "scale_a": a, "scale_b": b}
        for (a, b), tile, layout, stages in itertools.product(SCALES, TILES, ("rcr", "rsr"), (2,))
    ]
    problems = {
        "ragged": partial(_problem, ragged=True),
        "whole": _problem,
        "strides": partial(_problem, ragged=True, room=True),
        "few rows": partial(_problem, rows=3),
        "one row": partial(_problem, rows=1),
        "empty K": partial(_problem, k=0),
        **{f"matrices {how}": partial(_batch, how=how) for how in STRIDES},
    }
    needs = {f"matrices {how}": {"batching": "strided"} for how in STRIDES}
    return Axes(FAMILY, pipelines.on(arch), "signature", each, once, starts, problems, needs)


def signatures(arch: Arch) -> Iterator[tuple[str, dict[str, str]]]:
    """Every combination of operand types and output, with the fields that say it. Types that the
    compiler emulates, slowly, come last: small kernels are left for them."""

    def emulated(dtype: str) -> bool:
        return arch.dtypes[dtype].support != "native"

    for dtype in sorted(OUTPUTS, key=emulated):
        partners = (dtype, *lowbit.PARTNERS.get(dtype, ()))
        for other, out in itertools.product(partners, OUTPUTS[dtype]):
            fields = {"dtype_a": dtype, "dtype_b": other, "dtype_c": out, "precision": "ieee"}
            yield "→".join(dict.fromkeys((dtype, other, out))), fields
    for precision in PRECISIONS[1:]:
        types = dict.fromkeys(("dtype_a", "dtype_b", "dtype_c"), "fp32")
        yield precision, {**types, "precision": precision}


def _schedules() -> Iterator[tuple[str, dict[str, Any]]]:
    for scheduler in SCHEDULERS:
        for reduction in REDUCTIONS[1:] if scheduler in SHARING else REDUCTIONS[:1]:
            parts = PARTS if scheduler == "split_k" else 1
            word = f"{scheduler} {reduction}" if scheduler in SHARING else scheduler
            yield word, {"scheduler": scheduler, "reduction": reduction, "split_k": parts}


_TOLD = (
    "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "layout", "precision", "epilogue", "batching",
    "scale_a", "scale_b", "pre_a", "pre_b",
)  # fmt: skip


def _problem(
    config: GemmConfig,
    ragged: bool = False,
    room: bool = False,
    rows: int = 0,
    k: int | None = None,
    **more: Any,
) -> GemmProblem:
    """Two tiles along M and N and several along K; of few rows one tile along M.

    ragged: with a last tile as small as the config's alignment allows. room: with space behind each
    row. rows: of A instead. k: instead.
    """
    c = config
    said = {name: getattr(c, name) for name in _TOLD}
    if c.batching != "none":
        said |= {"batch": BATCH}
    if c.batching == "nested":
        said |= {"batch": BATCH * HEADS, "batch_inner": HEADS}
    said |= more
    unit = _unit(c)
    part = unit if ragged else 0
    along_n, along_k = (shuffle.COLUMNS, shuffle.rows(c.dtype_a)) if c.layout[1] == "s" else (1, 1)
    few = pipelines.of(c).has("few_rows")
    m = rows or (c.tile_m if few else c.tile_m + (part or c.tile_m))
    if ragged and few:
        m = max(1, c.tile_m - 1) if unit == 1 or c.layout[0] == c.layout[2] == "r" else c.tile_m
    n = c.tile_n + _up(part, along_n) if part else 2 * c.tile_n
    depth = STEPS * c.tile_k + _up(part, max(along_k, 2)) if k is None else k
    tight = GemmProblem(m, n, depth, **said)
    if not room:
        return tight
    behind = max(16, unit)
    lds = {
        f"ld{x}": _up(inner, behind) + behind for x, inner in zip("abc", tight.inner, strict=True)
    }
    if c.layout[1] == "s":
        del lds["ldb"]
    return GemmProblem(m, n, depth, **said, **lds)


def _unit(c: GemmConfig) -> int:
    """Elements that every extent is a multiple of: of the config's alignment, in each operand."""
    sizes = [DTYPES[d].bits for d in (c.dtype_a, c.dtype_b, c.dtype_c)]
    unit = max(1, -(-8 * c.alignment // min(sizes)))
    return max(unit, fold(c.epilogue) * (unit if c.alignment > 1 else 1))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


STRIDES: dict[str, Callable[[GemmProblem], dict[str, int]]] = {
    "apart": lambda p: {
        f"stride_{x}": stride + 64 for x, stride in zip("abc", p.batch_strides, strict=False)
    },
    "with one A": lambda p: {"stride_a": 0},
    "with one B": lambda p: {"stride_b": 0},
    "beside each other": lambda p: {
        f"{word}{x}": size
        for x, inner in zip("abc", p.inner, strict=True)
        for word, size in (("stride_", inner), ("ld", BATCH * inner))
    },
}
"""How the matrices of a strided batch lie: fields of a problem, from the one without gaps."""


def _batch(config: GemmConfig, how: str) -> GemmProblem:
    if config.batching != "strided":
        raise BadArgument(f"batching {config.batching} has no batch strides")
    return _problem(config, **STRIDES[how](_problem(config)))
