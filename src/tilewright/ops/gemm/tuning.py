"""The spaces that a tuning chooses from: the default space, and everything else that was the best
on some problem when it was measured (f1dfe4c6:benchmarks/gemm_vs_vendor.py on an H200, for whose
sets of problems these lists were made).

The default space serves every problem with some tens of kernels, from which an estimate picks. The
further lists (`tiles`) have the deep rings, the orders of tiles and the ways of sharing a tile that
win on some sizes and lose on most. Partial sums meet in a fixed order (``linear``, ``tree``), so
that a tuned kernel gives the same bits in every run. Atomic sums, which won some of those sets by a
few percent, are for users who declare them.
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
    orders,
    pipelines,
    scales,
    tiles,
)
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.small_m import VECTOR_ROWS
from tilewright.ops.gemm.spaces import FEW_ROWS, default_space
from tilewright.ops.gemm.tiles import Schedule, Tile, listed, schedules
from tilewright.ops.powers import power_of_two
from tilewright.space import KernelSpace

ORDERS = (2, 4, 8, 16)
"""Orders of the list ``large``."""

DEEP_ORDERS = (2, 8)
"""Orders of clusters' tiles, and of whole tiles of ``deep`` and ``swapped``. Neither is always the
better one (docs/notes/gemm-orders.md). The usual one is measured first (`orders`)."""

LEAST_SWAPPED, MOST_SWAPPED = 17, 2048
"""Rows of A where exchanged tiles may matter: fewer have kernels of their own, and of many only a
small share is padding."""

MOST_DEPENDENT = 512
"""Rows of A up to which a product is short enough for its beginning to matter."""

PORTABLE = tuple(
    Tile(pipeline, rows, columns, 128, warps, stages, "direct", False, ())
    for pipeline in ("basic", "tma", "gluon_cdna")
    for rows, columns, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 8), (128, 256, 8))
    for stages in (2, 3)
)
"""Pipelines of which every architecture has one; tiles shared."""

(_WHOLE,) = schedules("persistent")
(_WHOLE_FEW,) = schedules("tile")
CLUSTERS = tuple(("split_k", parts, "cluster") for parts in clusters.SIZES)
SHARED = schedules(
    "stream_k_linear stream_k_tree split_k2_linear split_k3_linear split_k4_linear split_k8_linear"
    " split_k16_linear split_k4_two_stage split_k8_two_stage split_k16_two_stage"
    " split_k32_two_stage"
)
_DEPENDENT_SCHEDULES = schedules("persistent split_k2_linear split_k4_linear split_k8_linear")
_PARTS_OF_FEW = schedules(
    "tile split_k2_linear split_k4_linear split_k8_linear split_k8_two_stage split_k16_two_stage"
)
_PARTS_OF_SCALED = schedules(
    "persistent split_k2_linear split_k3_linear split_k4_linear split_k8_linear split_k4_two_stage"
    " split_k8_two_stage split_k16_two_stage"
)

Row = tuple[Tile, Schedule, int]
"""A tile, how it is scheduled, and the order of tiles (`group_m`)."""

_ALGORITHM = (
    "pipeline", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "store", "swap_ab",
    "scheduler", "split_k", "reduction", "group_m",
)  # fmt: skip


def tuning_spaces(problem: GemmProblem, arch: Arch) -> list[KernelSpace]:
    """The default space of `problem`, and the lists of `tiles`. With block scales only those for
    few rows; the default space alone for operations on A and B, operands in few bits and
    shuffled weights."""
    default = default_space(problem, arch)
    combined = problem.pre_a or problem.pre_b
    few_bits = lowbit.concerns(problem) or lowbit.widens(problem)
    if few_bits or problem.layout[1] == "s" or combined:
        return [default]
    if scales.count(problem):
        return [default, *_space([*_few(problem), *_few_scaled(problem)], problem, arch)]
    spaces = [default, *_space(_algorithms(problem), problem, arch)]
    spaces += _space(_swapped(problem), problem, arch)
    if tiles.LEAST_M <= problem.m <= tiles.MOST_M:
        more = tiles.odd_algorithms(problem, arch, tiles.odd())
        found = [tuple(algorithm[name] for name in _ALGORITHM) for algorithm in more]
        spaces += [KernelSpace("gemm", default.axes, linked={_ALGORITHM: found})] if found else []
    return spaces + dependent_spaces(problem, arch)


def dependent_spaces(problem: GemmProblem, arch: Arch) -> list[KernelSpace]:
    """The kernels that load B while the kernel before them drains, if the problem lets them."""
    if not (problem.constant_b and problem.m <= MOST_DEPENDENT and arch.has("pdl")):
        return []
    spaces = []
    for swaps in (False, True)[: 1 + _may_swap(problem)]:
        each = listed("dependent_swapped" if swaps else "dependent")
        found = [
            (tile, how, orders.usual_order(swaps, how[2]))
            for tile, how in itertools.product(each, _DEPENDENT_SCHEDULES)
        ]
        spaces += _space(found, problem, arch, "ahead")
    return spaces


def _space(
    rows: Iterable[Row], problem: GemmProblem, arch: Arch, dependent: str = ""
) -> list[KernelSpace]:
    """The space of those `rows` whose pipelines `arch` has, if there are any.

    dependent: the value of `dependent_launch`; "" for the usual one.
    """
    here, bytes_each = pipelines.on(arch), DTYPES[problem.dtype_a].bytes
    found = []
    for (pipeline, m, n, k_bytes, warps, stages, store, swaps, _), how, order in rows:
        if pipeline in here:
            word = dependent or dependent_launch.usual(pipeline, m, warps, stages, arch)
            tile = (pipeline, m, n, k_bytes // bytes_each, warps, stages, store, swaps)
            found.append((*tile, *how, order, word))
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]]
    linked = {(*_ALGORITHM, "dependent_launch"): found}
    axes = default_space(problem, arch).axes
    return [KernelSpace("gemm", axes, linked=linked)] if found else []


def _may_swap(problem: GemmProblem) -> bool:
    return problem.batching == "none" and epilogues.fold(problem.epilogue) == 1


def _swapped(problem: GemmProblem) -> list[Row]:
    """Kernels that have A and B swapped."""
    if not (_may_swap(problem) and LEAST_SWAPPED <= problem.m <= MOST_SWAPPED):
        return []
    swapped, clustered = listed("swapped"), listed("clustered_swapped")
    found = [(t, how, orders.usual_order(True, how[2])) for t in swapped for how in SHARED]
    return [*found, *_in_orders(swapped, (_WHOLE,)), *_in_orders(clustered, CLUSTERS)]


def _in_orders(each: Iterable[Tile], schedules: Sequence[Schedule]) -> Iterator[Row]:
    """Tiles in every order of `DEEP_ORDERS`."""
    return itertools.product(each, schedules, DEEP_ORDERS)


def _algorithms(problem: GemmProblem) -> Iterable[Row]:
    """Kernels as the operands lie, each once."""
    deep, wider = listed("deep"), orders.wider(problem.m)
    found: list[Row] = [*itertools.product(listed("large"), (_WHOLE,), ORDERS)]
    found += itertools.product(deep, SHARED, (8,))
    found += [*_in_orders(deep, (_WHOLE,)), *_in_orders(listed("clustered"), CLUSTERS)]
    found += [(t, _WHOLE, orders.WIDER) for t in deep if t.tile_m in wider]
    found += itertools.product(PORTABLE, SHARED, (8,))
    if problem.m <= FEW_ROWS:
        found += _few(problem)
        found += itertools.product(listed("few"), _PARTS_OF_FEW, (8,))
    return dict.fromkeys(found)


def _few(problem: GemmProblem) -> Iterator[Row]:
    """The pipelines for few rows."""
    if problem.m > FEW_ROWS:
        return
    rows = power_of_two(problem.m)
    if rows <= VECTOR_ROWS:
        for tile in listed("vector"):
            yield tile._replace(pipeline="small_m", tile_m=rows), _WHOLE_FEW, 1
    each = [t._replace(pipeline="small_m_tma", tile_m=max(8, rows)) for t in listed("matrix")]
    each += [t for t in listed("matrix_pointers") if rows <= t.tile_m]
    yield from itertools.product(each, _PARTS_OF_FEW, (1,))


def _few_scaled(problem: GemmProblem) -> Iterable[Row]:
    """`gluon_scaled` for few rows."""
    if problem.m > FEW_ROWS:
        return ()
    return itertools.product(listed("scaled_few"), _PARTS_OF_SCALED, (8,))
