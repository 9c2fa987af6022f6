"""Tiles of the default space for 65 to 2048 rows of A, and for few columns of B, which won in the
shipped tables.

At such M a GPU takes few waves of tiles, so the tile that fits the problem matters more than how
fast the tile is. The estimate orders the kernels of a default space well there, but the space
without these tiles often had no kernel that was proven to be the best. The tiles are, of those that
won, the ones with which the estimate's first kernel is a proven one most often
(`benchmarks/untuned.py`). The record is of 16-bit operands in layout rcr. int8 does not have them,
because the estimate chose worse with them. e4m3fn has its own (`FP8_TILES`).

Clusters won in the shipped tables for few tiles and a large K. Where B has few columns, 33 to 64
rows have clusters too (`FEW`).

The counts, and what did not work: docs/notes/gemm-middle_tiles.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import clusters, pipelines, scales
from tilewright.ops.gemm.odd_tiles import LEAST_M, MOST_M
from tilewright.ops.gemm.orders import usual_order
from tilewright.ops.gemm.problem import GemmProblem

_WHOLE = ("persistent", 1, "none")
_CLUSTER = {parts: ("split_k", parts, "cluster") for parts in clusters.SIZES}

TILES = (
    ("gluon_ws", 64, 256, 128, 4, 5, "split", False, _WHOLE),
    ("gluon_ws", 128, 128, 128, 4, 6, "direct", False, _WHOLE),
    ("gluon_ws", 128, 160, 128, 8, 5, "split", False, _WHOLE),
    ("gluon_ws", 128, 256, 128, 8, 4, "split", False, _WHOLE),
    ("gluon_pingpong", 64, 192, 128, 8, 6, "split", False, _WHOLE),
    ("gluon_ws", 32, 64, 256, 4, 8, "direct", True, _WHOLE),
    ("gluon_ws", 32, 64, 256, 4, 8, "direct", True, ("split_k", 4, "linear")),
    ("gluon_ws", 32, 64, 256, 4, 8, "direct", True, ("split_k", 8, "linear")),
    ("gluon_ws", 64, 64, 128, 4, 13, "direct", False, _WHOLE),
    ("gluon_ws", 64, 64, 128, 4, 13, "direct", True, _CLUSTER[2]),
    ("gluon_ws", 64, 64, 128, 4, 13, "direct", True, _CLUSTER[4]),
    ("gluon_ws", 64, 128, 128, 8, 8, "direct", True, _CLUSTER[4]),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct", True, _CLUSTER[2]),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct", True, _CLUSTER[4]),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct", True, _CLUSTER[8]),
    ("gluon_ws", 128, 128, 128, 8, 5, "direct", True, _CLUSTER[2]),
    ("gluon_ws", 128, 128, 128, 8, 5, "direct", True, _CLUSTER[4]),
    ("gluon_ws", 160, 128, 128, 8, 5, "split", True, _WHOLE),
    ("gluon_ws", 192, 128, 128, 8, 5, "split", True, _WHOLE),
)
"""(pipeline, rows, columns, bytes of K, warps, stages, store, whether A and B are swapped,
schedule)."""

FP8_TILES = (
    ("gluon_ws", 128, 128, 128, 4, 6, "direct", False, _WHOLE),
    ("gluon_pingpong", 64, 192, 128, 8, 6, "split", False, _WHOLE),
    ("gluon_ws", 64, 64, 128, 4, 12, "direct", True, _WHOLE),
    ("gluon_ws", 96, 192, 128, 12, 5, "direct", True, _WHOLE),
    ("gluon_ws", 128, 192, 128, 12, 4, "direct", True, _WHOLE),
    ("gluon_ws", 136, 192, 128, 12, 4, "split", True, _WHOLE),
    ("gluon_ws", 224, 128, 128, 8, 4, "split", True, _WHOLE),
    ("gluon_pingpong", 80, 128, 128, 8, 7, "direct", True, _WHOLE),
)
"""Tiles for e4m3fn with 16-bit results."""

FEW_ROWS, FEW_COLUMNS = (33, 64), 1792
FEW = (
    ("gluon_ws", 64, 64, 128, 4, 13, "direct", True, _CLUSTER[4]),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct", False, _CLUSTER[8]),
)
"""Tiles for `FEW_ROWS` of A and up to `FEW_COLUMNS` of B."""


def tiles_of(problem: GemmProblem) -> tuple[tuple[Any, ...], ...]:
    """Those of the lists above that the default space of `problem` has."""
    p = problem
    plain = p.layout == "rcr" and p.batching == "none" and epilogues.fold(p.epilogue) == 1
    if not plain or p.pre_a or p.pre_b or scales.count(p) or DTYPES[p.dtype_c].bits != 16:
        return ()
    middle = LEAST_M <= p.m <= MOST_M
    if p.dtype_a == p.dtype_b == "e4m3fn":
        return FP8_TILES if middle else ()
    if not DTYPES[p.dtype_a].bits == DTYPES[p.dtype_b].bits == 16:
        return ()
    few = FEW_ROWS[0] <= p.m <= FEW_ROWS[1] and p.n <= FEW_COLUMNS
    return TILES if middle else FEW if few else ()


def algorithms(problem: GemmProblem, arch: Arch) -> Iterator[dict[str, Any]]:
    """The algorithms of `tiles_of` for the pipelines of `arch`."""
    here, element = pipelines.on(arch), DTYPES[problem.dtype_a].bytes
    tiles = tiles_of(problem)
    for pipeline, tile_m, tile_n, k_bytes, warps, stages, store, swapped, schedule in tiles:
        if pipeline in here:
            scheduler, split_k, reduction = schedule
            yield {
                "pipeline": pipeline,
                "tile_m": tile_m,
                "tile_n": tile_n,
                "tile_k": k_bytes // element,
                "num_warps": warps,
                "num_stages": stages,
                "store": store,
                "swap_ab": swapped,
                "scheduler": scheduler,
                "split_k": split_k,
                "reduction": reduction,
                "group_m": usual_order(swapped, reduction),
                "alignment": 16,
                "index_bits": 32,
                "dependent_launch": "none",
            }
