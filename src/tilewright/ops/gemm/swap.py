"""Kernels that compute Cᵀ = Bᵀ·Aᵀ (`GemmConfig.swap_ab`), from the same sources as C = A·B.

Matrix instructions of sm_90 take 64 rows and any multiple of 8 columns; tiles are nearly as free
(see `kernels/gluon_ws.py`). If A's rows become columns, tiles fit 80 or 288 of them better than
multiples of 64 do. B's columns, which become the rows, are mostly round numbers. TensorRT-LLM and
DeepGEMM call it swapAB.

A matrix and its transpose lie in memory alike; only the name of the layout differs. So no data
moves: config and problem are seen with their sides exchanged (`config`, `problem`), everything else
about the kernel follows from those, and the kernel's A and B are the caller's B and A.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.ops import epilogues
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.problem import changed

_OTHER = {"r": "c", "c": "r"}
_AXIS = str.maketrans("mn", "nm")


def objection(c: GemmConfig) -> str | None:
    """Why the sides of a config may not be exchanged, whatever its pipeline. `c` may be the config
    itself or the config with its sides exchanged already."""
    if c.dtype_a != c.dtype_b or c.scale_a or c.scale_b or c.layout[1] == "s":
        return "A and B of different dtypes, with scales of blocks, or shuffled, are not swapped"
    if c.batching != "none":
        return f"A and B are swapped in one product, not in a batch; batching is {c.batching}"
    if epilogues.fold(c.epilogue) != 1:
        return f"epilogue {c.epilogue} pairs columns, which are rows where A and B are swapped"
    return None


def config(c: GemmConfig) -> GemmConfig:
    """`c` as its kernel sees it, if it has A and B swapped: of the product Bᵀ·Aᵀ. Their dtype is
    one (`objection`)."""
    if not c.swap_ab:
        return c
    return replace(
        c,
        layout=_layout(c.layout),
        tile_m=c.tile_n,
        tile_n=c.tile_m,
        pad_m=c.pad_n,
        pad_n=c.pad_m,
    )


@lru_cache(maxsize=1024)
def problem(p: GemmProblem) -> GemmProblem:
    """The product Bᵀ·Aᵀ of the same matrices as they lie."""
    sides = {"m": p.n, "n": p.m, "lda": p.ldb, "ldb": p.lda}
    return changed(p, {"layout": _layout(p.layout), **sides})


def takes(said: str) -> str:
    """What an epilogue's operations take (see `ops/device/epilogue.py`), of the exchanged product:
    vectors over columns are vectors over rows."""
    return said.translate(_AXIS)


def _layout(layout: str) -> str:
    a, b, c = tuple(layout)
    return _OTHER[b] + _OTHER[a] + _OTHER[c]
