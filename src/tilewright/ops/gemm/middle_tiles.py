"""Tiles of the default space for 65 to 2048 rows of A, and for few columns of B, which won in the
shipped tables.

At such M a GPU takes few waves of tiles, so the tile that fits the problem matters more than how
fast the tile is. The estimate orders the kernels of a default space well there: where that space
had a kernel that the shipped bf16 and fp16 tables prove to be the best, or not told from it, the
estimate put a proven one first for 361 of 426 problems. But for 235 of the 661 the space had none.

These are the tiles, of those that won, with which the estimate's first kernel is a proven one most
often: for 435 of the 661 (`benchmarks/untuned.py`). The record is of 16-bit operands in layout rcr.
int8 does not have them: of 158 int8 problems, the estimate's first kernel was a proven one for 46
with them and for 58 without.

e4m3fn has its own (`FP8_TILES`): those by which the estimate's first kernel gained most, picked
greedily from 193 that were timed on 62 products of 65 to 2048 rows, with scales of rows and columns
(H200, benchmarks/results/analytical_rows_h200.json). The best kernel takes 0.974 of the time of the
default space's first one with them, 0.941 without; with eight picked from three quarters of the
products and tried on the last, four times over, 0.967 (by a script that is not kept).

The clusters are of those that won in the shipped tables since (41 rows of few tiles and a large K).
With them and the figures of `rates.COLD_US`, 26 of 600 products between those of models got another
first kernel, 20 of them a cluster: these were 1.063 times as fast as the choice before by single
calls (0.91 to 1.32), and 1.053 times in replayed graphs.

Where B has few columns, 33 to 64 rows have clusters too (`FEW`). With them the estimate puts a
cluster first for 24 problems of the bf16 table, and for 6 of these it is a proven one; without them
its first kernel was proven for none of the 24. 38 unseen products of up to 1792 columns and sums of
2048 to 12288 reached 1.076 of torch.mm by single calls and 1.156 in graphs
(`f1dfe4c6:benchmarks/gemm_unseen.py --weights narrow`). Wider B do not have them: there clusters
came first for 23 problems, and of the 13 proven first kernels among these one was left.

What did not work: constants of `rates` fitted again to the winners' times. The estimate came nearer
to these, but without the tiles below it then put a proven kernel first for 333 of the 661 instead
of 361. Winners alone do not say how slow the others are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import clusters, epilogues, pipelines, scales
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
"""The same for e4m3fn with 16-bit results."""

FEW_ROWS, FEW_COLUMNS = (33, 64), 1792
FEW = (
    ("gluon_ws", 64, 64, 128, 4, 13, "direct", True, _CLUSTER[4]),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct", False, _CLUSTER[8]),
)
"""The same for `FEW_ROWS` of A and up to `FEW_COLUMNS` of B."""


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
