"""The spaces that a tuning chooses from: the default space, and everything else that was the best
on some problem when it was measured (f1dfe4c6:benchmarks/gemm_vs_vendor.py on an H200, for whose
sets of problems these lists were made).

The default space serves every problem with some tens of kernels, from which an estimate picks. The
lists here have the deep rings, the orders of tiles and the ways of sharing a tile that win on some
sizes and lose on most. Partial sums meet in a fixed order (``linear``, ``tree``), so that a tuned
kernel gives the same bits in every run. Atomic sums, which won some of those sets by a few percent,
are for users who declare them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import (
    clusters,
    dependent_launch,
    lowbit,
    odd_tiles,
    orders,
    pipelines,
    scales,
)
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.small_m import VECTOR_ROWS
from tilewright.ops.gemm.spaces import FEW_ROWS, default_space, power_of_two
from tilewright.space import KernelSpace

Tile = tuple[str, int, int, int, int, int, str]
"""Pipeline, rows, columns, bytes of K, warps, stages, store."""

LARGE: tuple[Tile, ...] = (
    ("tma", 128, 256, 128, 8, 3, "direct"),
    ("tma", 128, 256, 128, 8, 4, "split"),
    ("gluon_ws", 128, 256, 128, 8, 3, "direct"),
    ("gluon_ws", 128, 256, 128, 8, 4, "split"),
    ("gluon_ws", 256, 128, 128, 8, 4, "split"),
    ("gluon_ws", 128, 192, 128, 8, 5, "split"),
    ("gluon_ws", 128, 160, 128, 8, 5, "split"),
    ("gluon_ws", 128, 128, 128, 8, 6, "direct"),
    ("gluon_ws", 192, 128, 128, 12, 4, "direct"),
    ("gluon_ws", 192, 192, 128, 12, 4, "split"),
    ("gluon_pingpong", 64, 256, 128, 8, 4, "split"),
    ("gluon_pingpong", 128, 128, 128, 8, 5, "direct"),
    ("gluon_pingpong", 128, 128, 128, 8, 6, "split"),
    ("gluon_pingpong", 128, 160, 128, 8, 5, "split"),
    ("gluon_pingpong", 128, 192, 128, 8, 4, "split"),
)
"""For large products, in several orders of tiles (`ORDERS`)."""
ORDERS = (2, 4, 8, 16)

DEEP: tuple[Tile, ...] = (
    ("gluon_ws", 64, 64, 128, 4, 13, "direct"),
    ("gluon_ws", 64, 64, 256, 4, 6, "direct"),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct"),
    ("gluon_ws", 64, 128, 256, 4, 4, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 64, 256, 4, 4, "direct"),
    ("gluon_ws", 64, 96, 128, 4, 10, "direct"),
    ("gluon_ws", 64, 160, 128, 4, 7, "split"),
    ("gluon_ws", 64, 192, 128, 4, 6, "split"),
    ("gluon_ws", 64, 256, 128, 4, 5, "split"),
    ("gluon_ws", 128, 96, 128, 8, 7, "direct"),
    ("gluon_ws", 128, 128, 128, 4, 6, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 6, "direct"),
    ("gluon_ws", 128, 192, 128, 8, 5, "split"),
    ("gluon_ws", 192, 128, 128, 12, 4, "direct"),
    ("gluon_ws", 192, 160, 128, 12, 4, "split"),
    ("gluon_ws", 192, 192, 128, 12, 4, "split"),
    ("gluon_ws", 128, 256, 128, 8, 4, "split"),
    ("gluon_ws", 256, 128, 128, 8, 4, "split"),
    ("gluon_pingpong", 64, 64, 128, 8, 12, "direct"),
    ("gluon_pingpong", 64, 128, 128, 8, 8, "split"),
    ("gluon_pingpong", 128, 64, 128, 8, 8, "split"),
    ("gluon_pingpong", 64, 160, 128, 8, 7, "split"),
    ("gluon_pingpong", 64, 192, 128, 8, 6, "split"),
    ("gluon_pingpong", 64, 256, 128, 8, 4, "split"),
    ("gluon_pingpong", 128, 128, 128, 8, 6, "split"),
    ("gluon_pingpong", 128, 192, 128, 8, 4, "split"),
)
"""As many stages as fit, for few tiles and a large K; tiles whole, and shared."""

CLUSTERED: tuple[Tile, ...] = (
    ("gluon_ws", 64, 64, 128, 4, 13, "direct"),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 6, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 5, "direct"),
)
"""For few tiles and a large K: a cluster's workgroups share a tile. As many stages as leave room
for what they send each other; six are faster for some sizes, up to 20 % (512×1024×8192)."""
CLUSTERED_SWAPPED: tuple[Tile, ...] = (
    ("gluon_ws", 32, 64, 128, 4, 16, "direct"),
    ("gluon_ws", 64, 64, 128, 4, 13, "direct"),
    ("gluon_ws", 64, 128, 128, 8, 8, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 6, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 5, "direct"),
)
"""`CLUSTERED` with A and B swapped."""
CLUSTERS = tuple(("split_k", parts, "cluster") for parts in clusters.SIZES)
DEEP_ORDERS = (2, 8)
"""Orders of the tiles above, and of whole tiles of `DEEP` and `SWAPPED`. Neither is always the
better one (docs/notes/gemm-orders.md). The usual one is measured first (`orders`)."""

SWAPPED: tuple[Tile, ...] = (
    ("gluon_ws", 32, 64, 128, 4, 12, "direct"),
    ("gluon_ws", 32, 64, 256, 4, 8, "direct"),
    ("gluon_ws", 32, 128, 128, 8, 9, "direct"),
    ("gluon_ws", 64, 64, 128, 4, 12, "direct"),
    ("gluon_ws", 64, 64, 256, 4, 6, "direct"),
    ("gluon_ws", 64, 128, 128, 8, 8, "direct"),
    ("gluon_ws", 96, 64, 128, 4, 9, "direct"),
    ("gluon_ws", 96, 128, 128, 8, 7, "direct"),
    ("gluon_ws", 96, 192, 128, 12, 5, "direct"),
    ("gluon_ws", 96, 256, 128, 8, 4, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 6, "direct"),
    ("gluon_ws", 128, 192, 128, 12, 4, "direct"),
    ("gluon_ws", 160, 64, 128, 4, 7, "split"),
    ("gluon_ws", 160, 128, 128, 8, 5, "split"),
    ("gluon_ws", 160, 192, 128, 12, 4, "split"),
    ("gluon_ws", 192, 64, 128, 4, 6, "split"),
    ("gluon_ws", 192, 128, 128, 8, 5, "split"),
    ("gluon_ws", 192, 192, 128, 12, 4, "split"),
    ("gluon_ws", 256, 64, 128, 4, 5, "split"),
    ("gluon_ws", 256, 128, 128, 8, 4, "split"),
    ("gluon_pingpong", 64, 64, 128, 8, 12, "direct"),
    ("gluon_pingpong", 64, 128, 128, 8, 8, "split"),
    ("gluon_pingpong", 96, 128, 128, 8, 6, "direct"),
    ("gluon_pingpong", 128, 128, 128, 8, 6, "split"),
    ("gluon_pingpong", 160, 128, 128, 8, 5, "split"),
    ("gluon_pingpong", 192, 128, 128, 8, 4, "split"),
)
"""With A and B swapped (`swap`), tiles whole and shared: for M that these rows of tiles fit better
than multiples of 64 do."""
LEAST_SWAPPED, MOST_SWAPPED = 17, 2048
"""Rows of A where that may matter: fewer have kernels of their own, and of many only a small share
is padding."""

DEPENDENT: tuple[Tile, ...] = (
    ("gluon_ws", 64, 64, 128, 4, 6, "direct"),
    ("gluon_ws", 64, 64, 256, 4, 6, "direct"),
    ("gluon_ws", 64, 128, 128, 4, 4, "direct"),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 6, "direct"),
    ("gluon_pingpong", 64, 128, 128, 8, 8, "split"),
    ("gluon_pingpong", 128, 128, 128, 8, 6, "split"),
)
"""For products in a chain whose B is constant (`GemmProblem.constant_b`): kernels that load B while
the kernel before them drains. The shallow rings leave an SM's shared memory room for the next
kernel's. Not timed yet."""
DEPENDENT_SWAPPED: tuple[Tile, ...] = (
    ("gluon_ws", 8, 64, 256, 4, 5, "direct"),
    ("gluon_ws", 8, 64, 256, 4, 11, "direct"),
    ("gluon_ws", 16, 64, 256, 4, 5, "direct"),
    ("gluon_ws", 16, 64, 256, 4, 10, "direct"),
    ("gluon_ws", 32, 64, 256, 4, 4, "direct"),
    ("gluon_ws", 32, 64, 256, 4, 8, "direct"),
    ("gluon_ws", 64, 64, 128, 4, 6, "direct"),
    ("gluon_ws", 64, 64, 256, 4, 6, "direct"),
    ("gluon_ws", 64, 128, 128, 8, 8, "direct"),
    ("gluon_ws", 128, 64, 128, 4, 4, "direct"),
)
"""`DEPENDENT` with A and B swapped: the weights' columns are the rows of the matrix instruction, so
that few rows of A need no padding to 64."""
MOST_DEPENDENT = 512
"""Rows of A up to which a product is short enough for its beginning to matter."""

PORTABLE: tuple[Tile, ...] = tuple(
    (pipeline, rows, columns, 128, warps, stages, "direct")
    for pipeline in ("basic", "tma", "gluon_cdna")
    for rows, columns, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 8), (128, 256, 8))
    for stages in (2, 3)
)
"""Pipelines of which every architecture has one; tiles shared."""

_WHOLE = ("persistent", 1, "none")
SHARED = (
    ("stream_k", 1, "linear"),
    ("stream_k", 1, "tree"),
    *(("split_k", parts, "linear") for parts in (2, 3, 4, 8, 16)),
    *(("split_k", parts, "two_stage") for parts in (4, 8, 16, 32)),
)
_DEPENDENT_SCHEDULES = (_WHOLE, *(("split_k", parts, "linear") for parts in (2, 4, 8)))
"""Schedulers, parts of K, and how partial sums are put together."""

VECTOR_TILES = (
    (1, 4096, 8, 1), (2, 4096, 8, 1), (2, 4096, 4, 1), (2, 2048, 4, 1), (2, 2048, 4, 4),
    (4, 4096, 8, 1), (4, 2048, 4, 1), (4, 1024, 2, 1), (2, 512, 1, 1), (4, 512, 1, 1),
    (8, 1024, 2, 1), (8, 512, 1, 1),
)  # fmt: skip
"""Columns, bytes of K, warps, stages: for few rows, on the vector units."""
MATRIX_TILES = (
    (16, 1024, 4, 3), (16, 1024, 4, 4), (16, 512, 4, 4), (32, 1024, 4, 3), (32, 1024, 4, 4),
    (32, 512, 4, 3), (32, 512, 4, 4), (64, 512, 4, 3), (64, 512, 4, 4), (64, 256, 4, 3),
    (64, 256, 4, 4), (64, 256, 4, 6), (64, 256, 4, 8), (64, 128, 4, 4), (64, 128, 4, 8),
    (128, 256, 4, 3), (128, 256, 4, 4), (128, 128, 4, 4), (128, 128, 4, 6),
)  # fmt: skip
"""Columns, bytes of K, warps, stages: for few rows, on the matrix units."""
FEW: tuple[Tile, ...] = (
    ("tma", 16, 32, 512, 4, 3, "direct"),
    ("tma", 16, 32, 256, 4, 5, "direct"),
    ("tma", 32, 32, 256, 4, 5, "direct"),
    ("tma", 64, 64, 256, 4, 3, "direct"),
    *(("tma", 64, n, 128, 4, stages, "direct") for n in (64, 128) for stages in (3, 5)),
)
"""Other kernels for few rows."""
_WHOLE_FEW = ("tile", 1, "none")
_PARTS_OF_FEW = (
    _WHOLE_FEW,
    *(("split_k", parts, "linear") for parts in (2, 4, 8)),
    *(("split_k", parts, "two_stage") for parts in (8, 16)),
)

SCALED_FEW: tuple[Tile, ...] = (
    ("gluon_scaled", 64, 16, 512, 4, 5, "direct"),
    ("gluon_scaled", 64, 16, 256, 4, 10, "direct"),
    ("gluon_scaled", 64, 32, 512, 4, 4, "direct"),
    ("gluon_scaled", 64, 32, 256, 4, 8, "direct"),
    ("gluon_scaled", 64, 64, 128, 4, 12, "direct"),
    ("gluon_scaled", 64, 64, 256, 4, 6, "direct"),
    ("gluon_scaled", 64, 128, 128, 4, 8, "direct"),
)
"""For 17 to 64 rows with block scales: small tiles and deep rings, whole and shared. On an H200
they are the kernels of 45 of 88 shipped rows; up to 16 rows those for few rows are faster."""
_PARTS_OF_SCALED = (
    _WHOLE,
    *(("split_k", parts, "linear") for parts in (2, 3, 4, 8)),
    *(("split_k", parts, "two_stage") for parts in (4, 8, 16)),
)

_ALGORITHM = (
    "pipeline", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "store",
    "scheduler", "split_k", "reduction", "group_m",
)  # fmt: skip


def tuning_spaces(problem: GemmProblem, arch: Arch) -> list[KernelSpace]:
    """The default space of `problem`, and the lists above and `odd_tiles`. With block scales only
    those for few rows; the default space alone for operations on A and B, 4-bit operands and
    shuffled weights."""
    default = default_space(problem, arch)
    if lowbit.concerns(problem) or problem.layout[1] == "s" or problem.pre_a or problem.pre_b:
        return [default]
    if scales.count(problem):
        return [default, *_space([*_few(problem), *_few_scaled(problem)], problem, arch)]
    spaces = [default, *_space(_algorithms(problem), problem, arch)]
    spaces += _space(_swapped(problem), problem, arch, swap_ab=[True])
    if odd_tiles.LEAST_M <= problem.m <= odd_tiles.MOST_M:
        more = odd_tiles.algorithms(problem, arch, (*odd_tiles.FIRST, *odd_tiles.MORE))
        axis = (*_ALGORITHM, "swap_ab")
        found = [tuple(algorithm[name] for name in axis) for algorithm in more]
        spaces += [KernelSpace("gemm", default.axes, linked={axis: found})] if found else []
    return spaces + dependent_spaces(problem, arch)


def dependent_spaces(problem: GemmProblem, arch: Arch) -> list[KernelSpace]:
    """The kernels that load B while the kernel before them drains, if the problem lets them."""
    if not (problem.constant_b and problem.m <= MOST_DEPENDENT and arch.has("pdl")):
        return []
    axes = {**default_space(problem, arch).axes, "dependent_launch": ["ahead"]}
    bytes_each = DTYPES[problem.dtype_a].bytes
    here = pipelines.on(arch)
    spaces = []
    for swaps, tiles in ((False, DEPENDENT), (True, DEPENDENT_SWAPPED)):
        if swaps and not _may_swap(problem):
            continue
        found = [
            (pipeline, m, n, k_bytes // bytes_each, *rest, *how, orders.usual_order(swaps, how[2]))
            for (pipeline, m, n, k_bytes, *rest), how in itertools.product(
                tiles, _DEPENDENT_SCHEDULES
            )
            if pipeline in here
        ]
        if found:
            more = {**axes, "swap_ab": [swaps]}
            spaces.append(KernelSpace("gemm", more, linked={_ALGORITHM: found}))
    return spaces


def _space(
    rows: Iterable[Sequence[Any]], problem: GemmProblem, arch: Arch, **axes: Sequence[Any]
) -> list[KernelSpace]:
    """The space of those `rows` (values of `_ALGORITHM`, K in bytes) whose pipelines `arch` has, if
    there are any."""
    here, bytes_each = pipelines.on(arch), DTYPES[problem.dtype_a].bytes
    found = []
    for pipeline, m, n, k_bytes, warps, stages, *rest in rows:
        if pipeline in here:
            word = dependent_launch.usual(pipeline, m, warps, stages, arch)
            found.append((pipeline, m, n, k_bytes // bytes_each, warps, stages, *rest, word))
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]]
    linked = {(*_ALGORITHM, "dependent_launch"): found}
    more = {**default_space(problem, arch).axes, **axes}
    return [KernelSpace("gemm", more, linked=linked)] if found else []


def _may_swap(problem: GemmProblem) -> bool:
    return problem.batching == "none" and epilogues.fold(problem.epilogue) == 1


def _swapped(problem: GemmProblem) -> list[Sequence[Any]]:
    """Values of `_ALGORITHM`, K in bytes, of kernels that have A and B swapped."""
    if not _may_swap(problem):
        return []
    if not LEAST_SWAPPED <= problem.m <= MOST_SWAPPED:
        return []
    found = [(*t, *how, orders.usual_order(True, how[2])) for t in SWAPPED for how in SHARED]
    return [*found, *_in_orders(SWAPPED, (_WHOLE,)), *_in_orders(CLUSTERED_SWAPPED, CLUSTERS)]


def _in_orders(
    tiles: Iterable[Tile], schedules: Sequence[tuple[str, int, str]]
) -> Iterator[Sequence[Any]]:
    """Values of `_ALGORITHM` for tiles in every order of `DEEP_ORDERS`."""
    for tile, how, order in itertools.product(tiles, schedules, DEEP_ORDERS):
        yield (*tile, *how, order)


def _algorithms(problem: GemmProblem) -> Iterator[Sequence[Any]]:
    """Values of `_ALGORITHM`, K in bytes, each once."""
    found: list[Sequence[Any]] = [(*t, *_WHOLE, order) for t in LARGE for order in ORDERS]
    found += [(*t, *how, 8) for t in DEEP for how in SHARED]
    found += [*_in_orders(DEEP, (_WHOLE,)), *_in_orders(CLUSTERED, CLUSTERS)]
    wider = orders.wider(problem.m)
    found += [(*t, *_WHOLE, orders.WIDER) for t in DEEP if t[1] in wider]
    found += [(*t, *how, 8) for t in PORTABLE for how in SHARED]
    if problem.m <= FEW_ROWS:
        found += _few(problem)
        found += [(*tile, *how, 8) for tile in FEW for how in _PARTS_OF_FEW]
    yield from dict.fromkeys(found)


def _few(problem: GemmProblem) -> Iterator[Sequence[Any]]:
    """Values of `_ALGORITHM`, K in bytes, of the pipelines for few rows."""
    if problem.m > FEW_ROWS:
        return
    rows = power_of_two(problem.m)
    if rows <= VECTOR_ROWS:
        yield from (("small_m", rows, *tile, "direct", *_WHOLE_FEW, 1) for tile in VECTOR_TILES)
    tiles = [("small_m_tma", max(8, rows), *tile) for tile in MATRIX_TILES]
    tiles += [("small_m", least, 16, 512, 4, 4) for least in (8, 16) if rows <= least]
    yield from ((*tile, "direct", *how, 1) for tile in tiles for how in _PARTS_OF_FEW)


def _few_scaled(problem: GemmProblem) -> Iterator[Sequence[Any]]:
    """Values of `_ALGORITHM`, K in bytes, of `gluon_scaled` for few rows."""
    if problem.m <= FEW_ROWS:
        yield from ((*tile, *how, 8) for tile in SCALED_FEW for how in _PARTS_OF_SCALED)
