"""A first guess at a kernel's time: that of a GEMM with as many rows as the tiles of all groups.

The sizes of groups are unknown when a kernel is chosen. Rows are assumed to be distributed as by a
router: group number r gets a share like 1/(r+1). Of a capacity, half is assumed to be used. Every
group with rows has one partial tile, which low tiles serve best. A group's B is read from memory
whatever the tile. The constants are round guesses, not fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tilewright.arch.figures import figures
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues, physics
from tilewright.ops.estimate import Estimates, Ranking
from tilewright.ops.gemm import estimate as gemm
from tilewright.ops.gemm.breakdown import LAUNCH, MEMORY
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem
from tilewright.ops.grouped_gemm.rules import one
from tilewright.ops.pool import Pool, each

GROUPED = figures("grouped_gemm")


def _height(config: GroupedGemmConfig) -> int:
    """Rows of a tile that a warp group multiplies: one without rows does not, so the others take
    less time."""
    sharing = warpgroups.groups(config.one) if PIPELINES[config.pipeline].num_warps else 1
    return config.tile_m // sharing


def _share(config: GroupedGemmConfig) -> float:
    """Of the matrix rate, that the pipeline reaches."""
    rates = PIPELINES[config.pipeline].one.rates
    return rates.share if rates else 0.0


def estimates(
    configs: Sequence[GroupedGemmConfig], problem: GroupedGemmProblem, device: Device
) -> Estimates:
    """The estimated time of each of `configs`, which are one or more."""
    pool = Pool.of(configs)
    heights = each(pool.columns, _height)
    found = []
    for height in np.unique(heights).tolist():
        places = np.flatnonzero(heights == height)
        found.append((places, _of_height(height, pool.part(places), problem, device)))
    return Estimates.joined(found)


def _of_height(height: int, pool: Pool, p: GroupedGemmProblem, device: Device) -> Estimates:
    of_a, of_b = DTYPES[p.dtype_a], DTYPES[p.dtype_b]
    spared = 0  # bytes of matrices of groups without rows, which the problem's floor counts
    if p.form == "weights":  # every group has all rows of a tile, and a share of K
        rows, n, k = p.groups * -(-p.m // height) * height, p.n, -(-p.k // p.groups)
    elif p.form == "list":
        rows = sum(-(-m // height) for m, _, _ in p.sizes) * height
        n, k = (max(1, sum(s[i] for s in p.sizes) // p.groups) for i in (1, 2))
        n = -(-n // 2) * 2 if epilogues.fold(p.epilogue) == 2 else n
    else:
        used = p.groups * -(-p.m // 2) if p.form == "masked" else p.dealt
        rows, n, k = _padded_rows(p.groups, used, height), p.one.n, p.k
        counted = min(p.groups, p.rows if p.form == "masked" else p.dealt)
        spared = of_b.size((counted - _with_rows(p.groups, used)) * n * k)
    rows = max(rows, 1)
    whole = GemmProblem(
        rows,
        n,
        k,
        dtype_a=p.dtype_a,
        dtype_b=p.dtype_b,
        dtype_c=p.dtype_c,
        layout=p.one.layout,
        precision=p.precision,
        epilogue=p.epilogue,
        scale_a=p.scale_a,
        scale_b=p.scale_b,
    )
    c = pool.columns
    busy = gemm.estimates(each(c, one), whole, device)
    tall = c.tile_m
    if p.form == "gathered":  # rows of a tile behind its group's end are not read
        tall = np.minimum(tall, -(-used // _with_rows(p.groups, used)))
    under_way = (c.num_stages - 1) * (tall * of_a.bits + c.tile_n * of_b.bits) * c.tile_k / 8
    enough = device.bandwidth_gbs * 1e3 * GROUPED.LATENCY_US / device.compute_units
    reached = np.minimum(1.0, np.maximum(under_way, of_a.bytes) / enough)
    reading = physics.memory_us(p.min_bytes - spared, device) / reached
    waves = rows / c.tile_m * np.ceil(n / c.tile_n) / device.compute_units
    reading *= np.maximum(1.0, np.ceil(waves) / waves)  # the busiest unit reads whole tiles
    longer, shorter = np.maximum(busy.total_us, reading), np.minimum(busy.total_us, reading)
    terms = {**busy.terms, MEMORY: reading, LAUNCH: busy.terms[LAUNCH] + GROUPED.WALK_US}

    def limiter(at: int) -> str:
        return busy.one(at).limiter if busy.total_us[at] > reading[at] else MEMORY

    return Estimates.of(
        GROUPED.WALK_US + longer + (1 - GROUPED.OVERLAP) * shorter,
        terms,
        lambda at: busy.one(at).facts,
        limiter,
    )


def ranking(
    problem: GroupedGemmProblem, configs: Sequence[GroupedGemmConfig], device: Device
) -> Ranking:
    """The configs, which are one or more, with their estimates, best first. Where memory decides,
    many estimates are equal; the pipeline that leaves its warps less to do goes first."""
    pool = Pool.of(configs)
    found = estimates(pool, problem, device)
    keys = (pool.columns.by_name, -each(pool.columns, _share), found.total_us)
    return Ranking(pool, found, np.lexsort(keys).tolist())


@lru_cache(maxsize=1024)
def _dealt(groups: int, rows: int) -> tuple[int, ...]:
    """Rows of each group."""
    shares = [1 / (rank + 1) for rank in range(groups)]
    scale = rows / sum(shares)
    return tuple(int(share * scale + 0.5) for share in shares)


@lru_cache(maxsize=1024)
def _padded_rows(groups: int, rows: int, height: int) -> int:
    """Rows of all tiles of `height` rows."""
    return sum(-(-size // height) for size in _dealt(groups, rows)) * height


@lru_cache(maxsize=1024)
def _with_rows(groups: int, rows: int) -> int:
    """Number of groups with rows."""
    return max(1, sum(size > 0 for size in _dealt(groups, rows)))
