"""Grouped GEMM's axes of the spread, and the problems that a kernel is executed on."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import spread_gemm
from spread import Axes, Values

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.epilogues import OPERATIONS, fold
from tilewright.ops.gemm.config import ALIGNMENTS, INDEX_BITS, STORES
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig, GroupedGemmProblem
from tilewright.ops.grouped_gemm.pipelines import on
from tilewright.ops.grouped_gemm.problem import WALKED, turned

GROUPS = 4
SCALES = tuple((a.replace("2x", "1x"), b) for a, b in spread_gemm.SCALES)
"""GEMM's, with blocks of A within a row."""


def axes(arch: Arch) -> Axes:
    """Grouped GEMM's axes on an architecture."""
    each: dict[str, Values] = {
        "signature": dict(spread_gemm.signatures(arch)),
        "form": {form: {"form": form} for form in WALKED},
        "scales": {f"{a or 'none'} {b or 'none'}": {"scale_a": a, "scale_b": b} for a, b in SCALES},
        "list layout": {word: {"form": "list", "layout": word} for word in LAYOUTS},
        "weights layout": {
            word: {"form": "weights", "layout": word} for word in LAYOUTS if word[2] == "r"
        },
        "columns layout": {
            word: {"form": "contiguous", "layout": word} for word in LAYOUTS if word[2] == "c"
        },
        **{
            axis: {str(value): {axis: value} for value in values}
            for axis, values in (
                ("layout", ("rcr", "rrr")),
                ("alignment", ALIGNMENTS),
                ("index_bits", INDEX_BITS),
                ("pad_n", (True, False)),
                ("pad_k", (True, False)),
                ("store", STORES),
                ("num_warps", sorted(arch.num_warps, key=lambda warps: abs(warps - 4))),
                (
                    "num_stages",
                    sorted({*arch.num_stages, *spread_gemm.DEEP}, key=lambda n: abs(n - 2)),
                ),
            )
        },
    }
    chains = (*OPERATIONS, "bias+silu", "row_scale+col_scale+add")
    once: dict[str, Values] = {"epilogue": {chain: {"epilogue": chain} for chain in chains}}
    problems = {
        "ragged": partial(_problem, ragged=True),
        "whole": _problem,
        "bounds": partial(_problem, ragged=True, bounds=True),
        "strides": partial(_problem, ragged=True, room=True),
    }
    starts = [
        {**tile, "scale_a": a, "scale_b": b}
        for (a, b), tile in itertools.product(SCALES, spread_gemm.TILES)
    ]
    return Axes(FAMILY, on(arch), "signature", each, once, starts, problems, {})


_TOLD = (
    "form", "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "layout", "precision", "epilogue",
    "scale_a", "scale_b",
)  # fmt: skip


def _problem(
    config: GroupedGemmConfig, ragged: bool = False, bounds: bool = False, room: bool = False
) -> GroupedGemmProblem:
    """Groups of more and of less than a tile, with one that is empty where a form has such.

    ragged: with last tiles as small as the config's alignment allows. bounds: the vector of ends
    begins with the first group's start. room: with space behind each row and each B.
    """
    c = config
    said: dict[str, Any] = {name: getattr(c, name) for name in _TOLD}
    types = [DTYPES[d] for d in (c.dtype_a, c.dtype_b, c.dtype_c)]
    unit = max(c.alignment * 8 // min(d.bits for d in types), *(d.packed for d in types))
    unit *= fold(c.epilogue)
    part = unit if ragged else 0
    n, k = c.tile_n + (part or c.tile_n), 2 * c.tile_k + part
    if c.form == "list":
        if bounds or room:
            raise BadArgument("the leading dimensions of a list are in its table")
        sizes = (
            (c.tile_m + unit, n, k), (0, n, k), (unit, c.tile_n, c.tile_k),
            (3 * unit, fold(c.epilogue) * c.tile_n, 0),
        )  # fmt: skip
        return GroupedGemmProblem(sizes=sizes, alignment=c.alignment, **said)
    m = c.tile_m + 5 if c.form == "masked" else GROUPS * c.tile_m // 2 + 5
    size = {"m": m, "n": n, "k": k}
    if c.form == "gathered":
        size |= {"rows_a": c.tile_m, "per_row": 2}
    elif c.form == "weights":
        size = {"m": c.tile_m + (part or c.tile_m), "n": n, "k": GROUPS * c.tile_k // 2 + unit}
    elif c.layout[2] == "c":
        said |= {"form": "columns", "layout": turned(c.layout)}
        size = {"m": n, "n": GROUPS * c.tile_m // 2 + unit, "k": k}
    tight = GroupedGemmProblem(groups=GROUPS, **size, bounds=bounds, **said)
    if not room:
        return tight
    lds: dict[str, Any] = {f"ld{x}": getattr(tight, f"ld{x}") + 16 * unit for x in "abc"}
    wide = GroupedGemmProblem(groups=GROUPS, **size, **said, **lds)
    stride = wide.packed_b + 16 * unit if wide.packed_b else 0
    return GroupedGemmProblem(groups=GROUPS, **size, stride_b=stride, **said, **lds)
