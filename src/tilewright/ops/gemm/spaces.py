"""The axes of a GEMM space, the values of ``"*"`` on each, and the default space."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops import epilogues
from tilewright.ops.gemm import dependent_launch, lowbit, orders, pipelines, scales, tiles
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    DEPENDENT_LAUNCHES,
    INDEX_BITS,
    MAX_TILE,
    REDUCTIONS,
    SCHEDULERS,
    STORES,
    GemmConfig,
)
from tilewright.ops.gemm.pipelines.common import depth
from tilewright.ops.gemm.pipelines.gluon_weights import GLUON_TILE_K
from tilewright.ops.gemm.pipelines.record import Grid
from tilewright.ops.gemm.problem import LAYOUTS, GemmProblem
from tilewright.ops.gemm.small_m import VECTOR_ROWS
from tilewright.ops.gemm.tiles import listed
from tilewright.ops.powers import power_of_two
from tilewright.ops.products import OUTPUTS, PRECISIONS
from tilewright.space import KernelSpace

AXES: dict[str, Any] = {
    "layout": "rcr",
    "dtype_a": "bf16",
    "dtype_b": "",
    "dtype_c": "",
    "dtype_acc": "",
    "precision": "ieee",
    "epilogue": "",
    "tile_m": 128,
    "tile_n": 128,
    "tile_k": 64,
    "num_warps": 8,
    "num_stages": 3,
    "pipeline": "basic",
    "scheduler": "tile",
    "split_k": 1,
    "reduction": "none",
    "group_m": 8,
    "store": "direct",
    "pad_m": True,
    "pad_n": True,
    "pad_k": True,
    "alignment": 16,
    "mma": (0, 0, 0),
    "index_bits": 32,
    "batching": "none",
    "scale_a": "",
    "scale_b": "",
    "pre_a": "",
    "pre_b": "",
    "swap_ab": False,
    "dependent_launch": "none",
}
"""Every axis, in the order of expansion, with its default; ``""`` follows `dtype_a`."""


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """The values of ``"*"`` on `axis`. Raises `BadArgument` if it has no meaning there."""
    if axis in ("tile_m", "tile_n", "tile_k"):
        least = max(16, arch.min_dot["mnk".index(axis[-1])])
        usual = {size for size in (16, 32, 64, 128, 256) if least <= size <= MAX_TILE}
        here = [pipelines.PIPELINES[name] for name in pipelines.on(arch)]
        odd = {"tile_m": [p.odd_rows for p in here], "tile_n": [p.odd_columns for p in here]}
        return sorted(usual.union(*odd.get(axis, ())))
    if axis == "dtype_a":
        return [d for d in OUTPUTS if d in arch.dtypes and arch.dtypes[d].support == "native"]
    if axis == "mma":
        shapes = (shape for unit in arch.mma for shape in unit.shapes)
        return [(0, 0, 0), *dict.fromkeys(shapes)] if arch.mma_selectable else [(0, 0, 0)]
    values: dict[str, Sequence[Any]] = {
        "layout": LAYOUTS,  # shuffled weights must be named, here and under pipeline
        "precision": PRECISIONS,
        "num_warps": arch.num_warps,
        "num_stages": arch.num_stages,
        "pipeline": [p for p in pipelines.on(arch) if not pipelines.PIPELINES[p].has("shuffled_b")],
        "scheduler": SCHEDULERS,
        "split_k": (1, 2, 4, 8),
        "reduction": REDUCTIONS,
        "group_m": (1, 4, 8, 16),
        "store": STORES,
        "pad_m": (False, True),
        "pad_n": (False, True),
        "pad_k": (False, True),
        "alignment": ALIGNMENTS,
        "index_bits": INDEX_BITS,
        "batching": BATCHINGS,
        "swap_ab": (False, True),
        "dependent_launch": DEPENDENT_LAUNCHES,
    }
    if axis in ("epilogue", "pre_a", "pre_b"):
        raise BadArgument(f"'*' has no meaning on axis {axis}: name the chains, as in bias+gelu")
    if axis in ("scale_a", "scale_b"):
        raise BadArgument(f"'*' has no meaning on axis {axis}: name the blocks, as in 1x128")
    if axis not in values:
        raise BadArgument(f"'*' has no meaning on axis {axis}: it follows dtype_a; leave it out")
    return values[axis]


_SIGNATURE = (
    "layout", "dtype_a", "dtype_b", "dtype_c", "precision", "epilogue", "batching", "scale_a",
    "scale_b", "pre_a", "pre_b",
)  # fmt: skip


def default_space(problem: GemmProblem, arch: Arch) -> KernelSpace:
    """Some tens of kernels for problems with the dtypes, layout and precision of `problem`. At
    least one of them serves every size, alignment and stride. Problems of one kind get the same
    object."""
    few = power_of_two(problem.m) if problem.m <= FEW_ROWS else 0
    lists = tuple(bool(of(problem)) for of in _FURTHER)
    wider = orders.wider(problem.m)
    kind = (arch.name, few, lists, wider, *(getattr(problem, field) for field in _SIGNATURE))
    found = _made.get(kind)
    if found is None:
        if len(_made) >= MOST_KINDS:
            _made.clear()
        found = _made[kind] = _default_space(problem, arch)
    return found


_FURTHER = (tiles.middle, tiles.sums, tiles.across)
"""Lists that some problems have."""

MOST_KINDS = 1024
_made: dict[tuple[Any, ...], KernelSpace] = {}


LOW_TILE = 16
"""Rows of the lowest tile. With block scales and more rows of A, such tiles miss wgmma and read B
several times."""


def _default_space(problem: GemmProblem, arch: Arch) -> KernelSpace:
    if lowbit.concerns(problem) or lowbit.widens(problem):
        return _few_bits(problem, arch)
    scaled = scales.count(problem) > 0
    taller = scaled and arch.async_mma and problem.m > LOW_TILE
    algorithms: dict[str, Sequence[Any]] = {
        "tile_m": (64, 128) if taller else (LOW_TILE, 64, 128),
        "tile_n": (32, 128, 256),
        "tile_k": [k for k in (32, 64, 128) if k == depth(problem)],
        "num_warps": (4, 8),
        "num_stages": (2, 3, 4),
        "pipeline": _listed(arch, "whole"),
        "scheduler": ("tile", "persistent"),
        "split_k": (1,),
        "reduction": ("none",),
        "group_m": (8,),
        "store": STORES if epilogues.has_matrix(problem.epilogue) else ("direct",),
        "alignment": (16, 1),
        "index_bits": INDEX_BITS,
        "swap_ab": (False,),
        "dependent_launch": ("none",),
    }
    rows = list(itertools.product(*algorithms.values()))
    combined = bool(problem.pre_a or problem.pre_b)
    if problem.layout[1] == "s":  # weights, for few rows: few tiles leave a GPU idle
        shared = {"scheduler": ("split_k",), "split_k": (2, 4, 8), "reduction": ("linear",)}
        rows += itertools.product(*{**algorithms, **shared}.values())
    elif problem.m <= FEW_ROWS and not combined:
        rows += (tuple(row[axis] for axis in algorithms) for row in _few_rows(problem, arch))
    deep = listed("default_scaled" if scaled else "default_deep")
    further = (tile for of in _FURTHER for tile in of(problem))
    more = tiles.algorithms(problem, arch, (*deep, *further))
    rows += (tuple(row[axis] for axis in algorithms) for row in more)
    rows = [_in_usual_order(dict(zip(algorithms, row, strict=True)), problem.m) for row in rows]
    return KernelSpace(
        "gemm",
        {
            "layout": [problem.layout],
            "dtype_a": [problem.dtype_a],
            "dtype_b": [problem.dtype_b],
            "dtype_c": [problem.dtype_c],
            "precision": [problem.precision],
            "epilogue": [problem.epilogue],
            "batching": [problem.batching],
            "scale_a": [problem.scale_a],
            "scale_b": [problem.scale_b],
            "pre_a": [problem.pre_a],
            "pre_b": [problem.pre_b],
        },
        linked={tuple(algorithms): _worth_having(problem, "whole", [*algorithms], rows)},
    )


def _in_usual_order(algorithm: dict[str, Any], m: int) -> tuple[Any, ...]:
    """The values of `algorithm`, with wider groups of tiles where `m` rows of A ask for them."""
    whole = algorithm["scheduler"] == "persistent" and not algorithm["swap_ab"]
    if whole and algorithm["pipeline"] in _ORDERED and algorithm["tile_m"] in orders.wider(m):
        algorithm["group_m"] = orders.WIDER
    return tuple(algorithm.values())


_ORDERED = ("gluon_ws", "gluon_pingpong")
"""Pipelines whose orders were timed."""


def _listed(arch: Arch, grid: Grid) -> list[str]:
    """The pipelines of `arch` that occur in a grid of the default space."""
    return [name for name in pipelines.on(arch) if grid in pipelines.PIPELINES[name].grids]


FEW_ROWS = 64
"""Most rows of A for which the default space has the pipelines for few rows."""


def _few_rows(problem: GemmProblem, arch: Arch) -> Iterator[dict[str, Any]]:
    """Algorithms of the pipelines for few rows."""
    rows, cuda = power_of_two(problem.m), arch.backend == "cuda"
    matrix, vector = listed("default_matrix"), listed("default_vector")
    if cuda:
        matrix += listed("default_matrix_cuda")
        vector += listed("default_vector_cuda") + listed("default_vector_rows_cuda") * (rows > 1)
    for name in pipelines.on(arch):
        record = pipelines.PIPELINES[name]
        if not record.has("few_rows"):
            continue
        least = max(rows, arch.min_dot[1])
        found = [tile._replace(pipeline=name, tile_m=least) for tile in matrix]
        if record.reads == "pointers" and rows <= VECTOR_ROWS:
            found += [tile._replace(pipeline=name, tile_m=rows) for tile in vector]
        for one in tiles.algorithms(problem, arch, found):
            how = (name, one["tile_m"], one["num_warps"], one["num_stages"], arch)
            yield one | {"group_m": 1, "dependent_launch": dependent_launch.usual(*how)}


def _few_bits(problem: GemmProblem, arch: Arch) -> KernelSpace:
    """The default space for 4-bit operands, the MX formats, and a B of 8 bits beside an A of 16."""
    signature = ("layout", "dtype_a", "dtype_b", "dtype_c", "precision", "epilogue", "batching")
    whole, parts = ("tile", 1, "none"), ("split_k", 4, "linear")
    algorithms: dict[str, Sequence[Any]] = {
        "tile_m": (16, 64, 128),
        "tile_n": (64, 128),
        "tile_k": (32, 64, 128),
        "num_warps": (4, 8),
        "num_stages": (2, 3),
        "pipeline": _listed(arch, "few bits"),
        "group_m": (8,),
        "alignment": (16, 1),
        "index_bits": INDEX_BITS,
        "schedule": (whole, parts),
    }
    rows = [(*row[:-1], *row[-1]) for row in itertools.product(*algorithms.values())]
    if "gluon_weights" in pipelines.on(arch):
        rows += [
            (tile_m, tile_n, GLUON_TILE_K, warps, 2, "gluon_weights", 1, 16, 32, *schedule)
            for tile_m in (8, 16, 32, 64)
            for tile_n, warps in _UNPACKED_COLUMNS[tile_m]
            for schedule in (whole, ("split_k", 2, "linear"), parts, ("split_k", 8, "linear"))
        ]
    names = [name for name in algorithms if name != "schedule"]
    names += ["scheduler", "split_k", "reduction"]
    return KernelSpace(
        "gemm",
        {
            **{field: [getattr(problem, field)] for field in signature},
            "scale_a": [problem.scale_a],
            "scale_b": [problem.scale_b],
        },
        linked={tuple(names): _worth_having(problem, "few bits", names, rows)},
    )


_UNPACKED_COLUMNS = {
    8: ((64, 2), (128, 4)),
    16: ((64, 2), (128, 4)),
    32: ((64, 4), (64, 2)),
    64: ((64, 4),),
}
"""(columns, warps) for pipeline gluon_weights, by rows."""


def _worth_having(
    problem: GemmProblem, grid: Grid, axes: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> list[tuple[Any, ...]]:
    """The rows of a grid that are the best for some problem, if they are kernels at all. Most are
    neither, and judging each of them would take most of the time of a first plan."""
    fields = AXES | {field: getattr(problem, field) for field in (*_SIGNATURE, "dtype_acc")}
    kept = []
    for row in rows:
        said = dict(zip(axes, row, strict=True))
        record = pipelines.PIPELINES[said["pipeline"]]
        if (
            said["scheduler"] in record.schedulers
            and said["alignment"] in record.alignments
            and said["index_bits"] in record.index_bits
            and record.worth_having[grid](GemmConfig(**(fields | said)))
        ):
            kept.append(row)
    return kept
