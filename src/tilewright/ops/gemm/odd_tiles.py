"""Tiles with an edge in steps of 8, for tuning.

At M of 65 to 2048 a GPU takes a few waves of tiles or less than one, so the time goes by how full
the last wave and the tiles are. A tile that just fits M or N is worth more there than one whose
columns are a power of two (`kernels/gluon_ws.py`, "Odd tiles"). The edge that is free is N, or M
where A and B are swapped.

`FIRST` are tiles that the estimate gained most by, picked greedily over 400 sizes of models with
such M, and two that cuBLAS runs (80x128 and 112x128). How they did when they were timed:
docs/notes/gemm-odd_tiles.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import pipelines, swap
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.orders import usual_order
from tilewright.ops.gemm.pipelines.common import ROW_BYTES
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.limits import MAX_STAGES

Tile = tuple[str, int, int, int, str, bool]
"""Pipeline, rows, columns, warps, store, and whether A and B are swapped."""

LEAST_M, MOST_M = 65, 2048
"""Rows of A for which spaces have these tiles."""

FIRST: tuple[Tile, ...] = (
    ("gluon_ws", 64, 48, 4, "direct", False),
    ("gluon_ws", 64, 72, 4, "direct", False),
    ("gluon_ws", 64, 80, 4, "direct", False),
    ("gluon_ws", 64, 96, 4, "direct", False),
    ("gluon_ws", 64, 136, 4, "direct", False),
    ("gluon_ws", 64, 144, 4, "direct", False),
    ("gluon_ws", 64, 160, 4, "direct", False),
    ("gluon_ws", 128, 208, 8, "split", False),
    ("gluon_ws", 128, 224, 8, "split", False),
    ("gluon_ws", 192, 160, 12, "split", False),
    ("gluon_ws", 192, 208, 12, "split", False),
    ("gluon_pingpong", 64, 96, 8, "direct", False),
    ("gluon_pingpong", 64, 144, 8, "split", False),
    ("gluon_pingpong", 128, 144, 8, "split", False),
    ("gluon_pingpong", 128, 160, 8, "split", False),
    ("gluon_ws", 32, 64, 4, "direct", True),
    ("gluon_ws", 40, 64, 4, "direct", True),
    ("gluon_ws", 72, 64, 4, "direct", True),
    ("gluon_ws", 80, 128, 8, "direct", True),
    ("gluon_ws", 112, 128, 8, "direct", True),
    ("gluon_ws", 136, 192, 12, "split", True),
    ("gluon_ws", 144, 192, 12, "split", True),
    ("gluon_ws", 176, 192, 12, "split", True),
    ("gluon_pingpong", 136, 128, 8, "split", True),
    ("gluon_pingpong", 144, 128, 8, "split", True),
    ("gluon_pingpong", 160, 128, 8, "split", True),
    ("gluon_pingpong", 192, 128, 8, "split", True),
)
"""What a default space should have, if their times are what the estimate says."""

_EDGES = (72, 80, 88, 96, 112, 136, 144, 160, 176, 208, 224)
_OTHERS = (
    ("gluon_ws", 64, 4),
    ("gluon_ws", 128, 8),
    ("gluon_ws", 192, 12),
    ("gluon_pingpong", 64, 8),
    ("gluon_pingpong", 128, 8),
)
MORE: tuple[Tile, ...] = tuple(
    (pipeline, *((edge, other) if swapped else (other, edge)), warps, store, swapped)
    for swapped in (False, True)
    for pipeline, other, warps in _OTHERS
    for edge in _EDGES
    for store in ("split" if edge > 128 else "direct",)
)
"""Every other edge that has two or three accumulators with these."""


def algorithms(problem: GemmProblem, arch: Arch, tiles: Iterable[Tile]) -> Iterator[dict[str, Any]]:
    """The algorithms of `tiles` for the pipelines of `arch`, with as many stages as fit. None with
    A and B swapped if `problem` does not allow that."""
    here = pipelines.on(arch)
    swappable = problem.batching == "none" and epilogues.fold(problem.epilogue) == 1
    for pipeline, tile_m, tile_n, warps, store, swapped in tiles:
        if pipeline not in here or (swapped and not swappable):
            continue
        algorithm = {
            "pipeline": pipeline,
            "tile_m": tile_m,
            "tile_n": tile_n,
            "tile_k": ROW_BYTES // DTYPES[problem.dtype_a].bytes,
            "num_warps": warps,
            "store": store,
            "swap_ab": swapped,
            "scheduler": "persistent",
            "split_k": 1,
            "reduction": "none",
            "group_m": usual_order(swapped, "none", -(-problem.m // tile_m)),
            "alignment": 16,
            "index_bits": 32,
        }
        stages = _deepest(problem, arch, algorithm)
        if stages >= LEAST_STAGES:
            yield {**algorithm, "num_stages": stages}


LEAST_STAGES = 3
"""A ring with fewer hides too little of a load."""


def _deepest(problem: GemmProblem, arch: Arch, algorithm: dict[str, Any]) -> int:
    """As many stages as fit into shared memory, up to the most there may be; under 1 if not even
    one fits."""
    first = swap.config(
        GemmConfig(
            layout=problem.layout,
            dtype_a=problem.dtype_a,
            dtype_b=problem.dtype_b,
            dtype_c=problem.dtype_c,
            dtype_acc=problem.dtype_acc,
            precision=problem.precision,
            epilogue=problem.epilogue,
            batching=problem.batching,
            num_stages=1,
            pad_m=True,
            pad_n=True,
            pad_k=True,
            mma=(0, 0, 0),
            **algorithm,
        )
    )
    one = shared_memory(first, arch)
    each = shared_memory(replace(first, num_stages=2), arch) - one
    return min(MAX_STAGES, 1 + (arch.shared_memory - one) // each)
