"""Tiles that spaces list one by one: `tiles.json` has them, in the words of kernels' names.

A line has a pipeline, rows, columns and bytes of K, warps, stages, store ``split``, ``swapab`` and
schedules, as far as its list says them.

At M of 65 to 2048 (`LEAST_M`, `MOST_M`) a GPU takes a few waves of tiles or less than one, so the
time goes by how full the last wave and the tiles are. A tile that just fits M or N is worth more
there than one whose columns are a power of two: "odd" tiles have an edge in steps of 8. The edge
that is free is N, or M where A and B are swapped. How they did when they were timed:
docs/notes/gemm-odd_tiles.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.jsonfile import convert, load_json
from tilewright.ops import epilogues
from tilewright.ops.gemm import pipelines, scales, swap
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.orders import usual_order
from tilewright.ops.gemm.pipelines.common import ROW_BYTES
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.limits import MAX_STAGES

Schedule = tuple[str, int, str]
"""Scheduler, parts of K, and how partial sums are put together."""


class Tile(NamedTuple):
    """A tile of a list; what the list leaves out is "" or 0.

    k_bytes: bytes of K. schedules: the ways in which it is scheduled.
    """

    pipeline: str
    tile_m: int
    tile_n: int
    k_bytes: int
    num_warps: int
    num_stages: int
    store: str
    swap_ab: bool
    schedules: tuple[Schedule, ...]


@dataclass(frozen=True, slots=True)
class _List:
    about: str
    tiles: tuple[str, ...]


_TILE = re.compile(
    r"(?:(\w+) )?(?:(\d+)x)?(\d+)x(\d+)B w(\d+)(?: s(\d+))?( split)?( swapab)?((?: \w+)*)"
)


@cache
def listed(name: str) -> tuple[Tile, ...]:
    """The tiles of a list."""
    return tuple(map(_tile, _lists()[name].tiles))


@cache
def _lists() -> dict[str, _List]:
    path = Path(__file__).with_name("tiles.json")
    return convert(load_json(path), dict[str, _List], str(path))


def _tile(words: str) -> Tile:
    found = _TILE.fullmatch(words)
    assert found is not None, words
    pipeline, *sizes, split, swapped, ways = found.groups()
    m, n, k_bytes, warps, stages = (int(size or 0) for size in sizes)
    store = "split" if split else "direct"
    return Tile(pipeline or "", m, n, k_bytes, warps, stages, store, bool(swapped), schedules(ways))


def schedules(words: str) -> tuple[Schedule, ...]:
    """Schedules as names say them: ``persistent split_k4_linear stream_k_tree``."""
    return tuple(map(_schedule, words.split()))


def _schedule(word: str) -> Schedule:
    shared = re.fullmatch(r"(split_k|stream_k)(\d*)_(\w+)", word)
    if shared is None:
        return word, 1, "none"
    scheduler, parts, reduction = shared.groups()
    return scheduler, int(parts or 1), reduction


# --- from tiles to algorithms -------------------------------------------------------------------


def algorithms(problem: GemmProblem, arch: Arch, tiles: Iterable[Tile]) -> Iterator[dict[str, Any]]:
    """The algorithms of `tiles`, each with its own schedules, for the pipelines of `arch`."""
    here = pipelines.on(arch)
    for tile in tiles:
        for schedule in tile.schedules if tile.pipeline in here else ():
            yield _algorithm(problem, tile, schedule)


def _algorithm(
    problem: GemmProblem, tile: Tile, schedule: Schedule, tiles_m: int = 1
) -> dict[str, Any]:
    scheduler, split_k, reduction = schedule
    return {
        "pipeline": tile.pipeline,
        "tile_m": tile.tile_m,
        "tile_n": tile.tile_n,
        "tile_k": tile.k_bytes // DTYPES[problem.dtype_a].bytes,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
        "store": tile.store,
        "swap_ab": tile.swap_ab,
        "scheduler": scheduler,
        "split_k": split_k,
        "reduction": reduction,
        "group_m": usual_order(tile.swap_ab, reduction, tiles_m),
        "alignment": 16,
        "index_bits": 32,
        "dependent_launch": "none",
    }


# --- tiles for a middle number of rows ----------------------------------------------------------

LEAST_M, MOST_M = 65, 2048
"""Rows of A for which spaces have tiles that won there, and odd ones."""

FEW_ROWS, FEW_COLUMNS = (33, 64), 1792
"""Rows of A and columns of B for which the default space has the list ``default_narrow``."""


def middle(problem: GemmProblem) -> tuple[Tile, ...]:
    """The tiles that the default space has because they won in the shipped tables for such M. int8
    does not have them: the estimate chose worse with them."""
    p = problem
    if p.layout[1:] not in ("cr", "rr") or not _plain(p):
        return ()
    in_middle = LEAST_M <= p.m <= MOST_M
    if p.dtype_a == p.dtype_b == "e4m3fn":
        return listed("default_middle_fp8") if in_middle else ()
    if not _in_16_bits(p):
        return ()
    narrow = FEW_ROWS[0] <= p.m <= FEW_ROWS[1] and p.n <= FEW_COLUMNS
    return listed("default_middle") if in_middle else listed("default_narrow") if narrow else ()


def _plain(p: GemmProblem) -> bool:
    """Whether it is one product of two matrices into 16 bits, whatever is done to its elements."""
    plain = p.batching == "none" and epilogues.fold(p.epilogue) == 1 and not scales.count(p)
    return plain and not (p.pre_a or p.pre_b) and DTYPES[p.dtype_c].bits == 16


def _in_16_bits(p: GemmProblem) -> bool:
    return DTYPES[p.dtype_a].bits == DTYPES[p.dtype_b].bits == 16


def across(problem: GemmProblem) -> tuple[Tile, ...]:
    """The tiles that the default space has where rows of B lie along N, for more than few rows of
    A."""
    p = problem
    taken = p.layout[1:] == "rr" and p.m >= LEAST_M and _plain(p) and _in_16_bits(p)
    return listed("default_across") if taken else ()


SUMMED, DEEP = 32, 4096
"""Most tiles of 128x128, and least K, for which the default space has the list ``default_sums``."""


def sums(problem: GemmProblem) -> tuple[Tile, ...]:
    """The tiles that the default space has for gradients of weights: few tiles, and a K that is all
    rows of a batch."""
    p = problem
    plain = p.layout[0] == "c" and p.batching == "none" and not (p.epilogue or p.pre_a or p.pre_b)
    if not plain or scales.count(p) or not DTYPES[p.dtype_a].bits == DTYPES[p.dtype_b].bits == 16:
        return ()
    few = -(-p.m // 128) * -(-p.n // 128) <= SUMMED
    return listed("default_sums") if few and p.k >= DEEP else ()


_EDGES = (72, 80, 88, 96, 112, 136, 144, 160, 176, 208, 224)
_OTHERS = (
    ("gluon_ws", 64, 4),
    ("gluon_ws", 128, 8),
    ("gluon_ws", 192, 12),
    ("gluon_pingpong", 64, 8),
    ("gluon_pingpong", 128, 8),
)


def odd() -> tuple[Tile, ...]:
    """The list ``odd``, and every other edge that has two or three accumulators."""
    more = (
        Tile(pipeline, *sides, ROW_BYTES, warps, 0, store, swapped, ())
        for swapped in (False, True)
        for pipeline, other, warps in _OTHERS
        for edge in _EDGES
        for sides in (((edge, other) if swapped else (other, edge)),)
        for store in ("split" if edge > 128 else "direct",)
    )
    return (*listed("odd"), *more)


LEAST_STAGES = 3
"""A ring with fewer hides too little of a load."""


def odd_algorithms(
    problem: GemmProblem, arch: Arch, tiles: Iterable[Tile]
) -> Iterator[dict[str, Any]]:
    """The algorithms of odd `tiles` for the pipelines of `arch`, with as many stages as fit. None
    with A and B swapped if `problem` does not allow that."""
    here = pipelines.on(arch)
    swappable = problem.batching == "none" and epilogues.fold(problem.epilogue) == 1
    for tile in tiles:
        if tile.pipeline in here and (swappable or not tile.swap_ab):
            rows = -(-problem.m // tile.tile_m)
            algorithm = _algorithm(problem, tile, ("persistent", 1, "none"), rows)
            stages = _deepest(problem, arch, algorithm)
            if stages >= LEAST_STAGES:
                yield {**algorithm, "num_stages": stages}


def _deepest(problem: GemmProblem, arch: Arch, algorithm: dict[str, Any]) -> int:
    """As many stages as fit into shared memory, up to the most there may be; under 1 if not even
    one fits."""
    signature = (
        "layout", "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "precision", "epilogue", "batching"
    )  # fmt: skip
    rest = {"pad_m": True, "pad_n": True, "pad_k": True, "mma": (0, 0, 0), "num_stages": 1}
    same: dict[str, Any] = {field: getattr(problem, field) for field in signature}
    first = swap.config(GemmConfig(**(same | algorithm | rest)))
    one = shared_memory(first, arch)
    each = shared_memory(replace(first, num_stages=2), arch) - one
    return min(MAX_STAGES, 1 + (arch.shared_memory - one) // each)
