"""A first guess at a kernel's time: that of a GEMM with as many rows as the tiles of all groups,
and of reading the matrices from memory.

The sizes of groups are unknown when a kernel is chosen: `loads` says what is assumed. Of a
capacity, half is assumed to be used. A group's B is read from memory once, whatever the tile, if it
has rows.

Reading goes in rounds: as many tiles as there are workgroups at once, and then the tiles that are
left. A round takes the memory's time for its tiles' bytes, and the time that a workgroup waits for
one tile: for the ring's steps, and between two tiles, while it asks for nothing. The two add up
like the legs of a right triangle, and so do reading and arithmetic.

Low tiles of 8-bit floats have no matrix instructions of their own where those read shared memory
(sm_90, sm_100): the compiler makes fp16 of each step's operands first, and where that takes longer
than the steps' way from memory, a tile waits for it. A warp alone waits for most of its
conversions; what the warps of other workgroups on its compute unit convert meanwhile costs it
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE, figures
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues, physics
from tilewright.ops.estimate import Estimates, Ranking
from tilewright.ops.gemm import estimate as gemm
from tilewright.ops.gemm.breakdown import L2, LATENCY, LAUNCH, MEMORY, PRODUCTS, SHARED_MEMORY
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP_ROWS
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.grouped_gemm import loads, low_tiles
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem
from tilewright.ops.grouped_gemm.rules import one
from tilewright.ops.pool import Columns, Each, Pool, each

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
    tall, heights = pool.columns.tile_m, each(pool.columns, _height)
    found = []
    for tile_m, height in dict.fromkeys(zip(tall.tolist(), heights.tolist(), strict=True)):
        places = np.flatnonzero((tall == tile_m) & (heights == height))
        found.append((places, _of_tiles(tile_m, height, pool.part(places), problem, device)))
    return Estimates.joined(found)


def _of_tiles(
    tile_m: int, height: int, pool: Pool, p: GroupedGemmProblem, device: Device
) -> Estimates:
    """Estimates of kernels with tiles of `tile_m` rows, of which a warp group multiplies `height`
    each."""
    c = pool.columns
    busy = _busy(c, height, p, device)
    fixed = busy.terms[LAUNCH]
    computing = busy.total_us - fixed
    if height != tile_m:  # rows that nobody multiplies are not loaded, but B is for every tile
        whole = _busy(c, tile_m, p, device)
        for word in (L2, LATENCY):
            computing = np.maximum(computing, whole.terms[word])
    # Workgroups that share a compute unit wait at the same time.
    waiting = busy.terms[LATENCY] / each(c, low_tiles.resident, arch(device.arch))
    others = [busy.terms[word] for word in (PRODUCTS, SHARED_MEMORY, L2)]
    least = np.maximum(waiting, np.maximum.reduce(others))
    computing = computing - np.maximum(0.0, busy.terms[LATENCY] - least)
    if p.form == "gathered":
        computing = computing - _unread_us(c, busy, waiting, tile_m, p)
    reading = _reading_us(c, _cases(tile_m, p), p, device)
    launch = fixed + GROUPED.WALK_US
    terms = {**busy.terms, MEMORY: reading, LAUNCH: launch}

    def limiter(at: int) -> str:
        return busy.one(at).limiter if computing[at] > reading[at] else MEMORY

    return Estimates.of(
        launch + physics.together_us(computing, reading),
        terms,
        lambda at: busy.one(at).facts,
        limiter,
    )


@dataclass(frozen=True, slots=True)
class _Cases:
    """What may be asked of a kernel's tiles, arrays [cases, 1].

    rows: of tiles, one below the other, of all groups.
    first: of these, the ones that are first to read their group's B.
    moved: bytes between memory and L2.
    """

    rows: Each
    first: Each
    moved: Each


def _cases(tile_m: int, p: GroupedGemmProblem) -> _Cases:
    """The loads that are assumed, each with a few tiles less and more; one case where the host
    knows the sizes."""
    if p.form in ("weights", "list"):
        known = np.array([[_row_tiles(p, tile_m, "")]])
        return _Cases(known, known, np.array([[float(p.min_bytes)]]))
    counted = min(p.groups, p.rows if p.form == "masked" else p.dealt)
    of_one = DTYPES[p.dtype_b].size(p.one.n * p.k)
    found = []
    for load in loads.ASSUMED:
        there = loads.with_rows(load, p.groups, _used(p))
        # The problem's floor counts matrices of groups without rows.
        moved = p.min_bytes - (counted - there) * of_one
        found.append((_row_tiles(p, tile_m, load), there, moved))
    columns = (np.outer(SPREAD, column).reshape(-1, 1) for column in zip(*found, strict=True))
    return _Cases(*columns)


SPREAD = (0.9, 1.0, 1.1)
"""Numbers of tiles beside the expected one: no load is known to a tile, and a kernel for which one
tile more would mean another round is no better for just not having it."""


def _used(p: GroupedGemmProblem) -> int:
    """Rows of all groups that are assumed to be used."""
    return p.groups * -(-p.m // 2) if p.form == "masked" else p.dealt


def _row_tiles(p: GroupedGemmProblem, height: int, load: str) -> float:
    """Tiles of `height` rows, one below the other, of all groups."""
    if p.form == "weights":  # every group has all rows of a tile, and a share of K
        return float(p.groups * -(-p.m // height))
    if p.form == "list":
        return float(max(1, sum(-(-m // height) for m, _, _ in p.sizes)))
    return loads.tiles(load, p.groups, _used(p), height)


def _sums(p: GroupedGemmProblem) -> tuple[int, int]:
    """N and K of a group."""
    if p.form == "weights":
        return p.n, -(-p.k // p.groups)
    if p.form == "list":
        n, k = (max(1, sum(s[i] for s in p.sizes) // p.groups) for i in (1, 2))
        return -(-n // 2) * 2 if epilogues.fold(p.epilogue) == 2 else n, k
    return p.one.n, p.k


def _busy(c: Columns, height: int, p: GroupedGemmProblem, device: Device) -> Estimates:
    """A GEMM with the rows of all tiles of `height` rows."""
    assumed = ("",) if p.form in ("weights", "list") else loads.ASSUMED
    rows = sum(_row_tiles(p, height, load) for load in assumed) / len(assumed) * height
    n, k = _sums(p)
    whole = GemmProblem(
        round(rows),
        n,
        k,
        dtype_a=p.dtype_a,
        dtype_b=p.dtype_b,
        dtype_c=p.dtype_c,
        layout=p.one.layout,
        precision=p.precision,
        epilogue=p.one.epilogue,
        scale_a=p.scale_a,
        scale_b=p.scale_b,
    )
    return gemm.estimates(each(c, one), whole, device)


def _unread_us(
    c: Columns, busy: Estimates, waiting: Each, tile_m: int, p: GroupedGemmProblem
) -> Each:
    """Of `busy`, the microseconds at the port to L2 in which rows behind their groups' ends would
    be read: gathered ones are not."""
    used = _used(p)
    read = min(tile_m, max(used / _row_tiles(p, tile_m, load) for load in loads.ASSUMED))
    a, b = DTYPES[p.dtype_a].bits, DTYPES[p.dtype_b].bits * c.tile_n
    from_l2 = busy.terms[L2]
    least = from_l2 * (read * a + b) / (tile_m * a + b)
    for other in (busy.terms[PRODUCTS], busy.terms[SHARED_MEMORY], waiting):
        least = np.maximum(least, other)
    return np.maximum(0.0, from_l2 - least)


def _reading_us(c: Columns, cases: _Cases, p: GroupedGemmProblem, device: Device) -> Each:
    """Microseconds in which workgroups read what has to move, in rounds; the mean of the cases."""
    n, k = _sums(p)
    tiles = np.maximum(1.0, cases.rows * np.ceil(n / c.tile_n))
    at_once = device.compute_units * each(c, low_tiles.resident, arch(device.arch))
    one_us = physics.memory_us(cases.moved, device) / tiles
    from_l2 = DEVICE.LATENCY_US  # of a tile that another one has asked for
    first = np.minimum(1.0, cases.first / cases.rows)
    step_us = from_l2 + (GROUPED.LATENCY_US - from_l2) * first
    steps = np.ceil(k / c.tile_k)
    waits = steps / np.maximum(1, c.num_stages - 1) * step_us
    full, last = np.divmod(tiles, at_once)
    waits = np.maximum(waits, steps * each(c, _converting_us, device)) + each(c, _between_us)
    rest = np.where(last > 0, physics.together_us(last * one_us, waits), 0.0)
    return (full * physics.together_us(at_once * one_us, waits) + rest).mean(0)


def _converting_us(config: GroupedGemmConfig, device: Device) -> float:
    """Microseconds in which a workgroup makes fp16 of one step's 8-bit floats, two to an
    instruction: each warp its columns of B, and all rows of A, which it has no part in."""
    in_registers = arch(device.arch).async_mma and config.tile_m < WARPGROUP_ROWS
    kinds = (DTYPES[config.dtype_a], DTYPES[config.dtype_b])
    if low_tiles.turned(config, arch(device.arch)):  # nothing is converted
        return 0.0
    if not in_registers or any(one.kind != "float" or one.bits != 8 for one in kinds):
        return 0.0
    of_warp = (config.tile_m + config.tile_n / config.num_warps) * config.tile_k
    return float(of_warp / 2 / GROUPED.CONVERTED_BY_WARP / device.clock_mhz)


def _between_us(config: GroupedGemmConfig) -> float:
    """Microseconds between two tiles of a workgroup in which it asks for nothing."""
    record = PIPELINES[config.pipeline].one
    if record.has("loads_apart"):
        return 0.0
    return float(GROUPED.BETWEEN_US if record.reads == "pointers" else GROUPED.FLATTENED_US)


def ranking(
    problem: GroupedGemmProblem, configs: Sequence[GroupedGemmConfig], device: Device
) -> Ranking:
    """The configs, which are one or more, with their estimates, best first. Where memory decides,
    many estimates are equal; the pipeline that leaves its warps less to do goes first."""
    pool = Pool.of(configs)
    found = estimates(pool, problem, device)
    keys = (pool.columns.by_name, -each(pool.columns, _share), found.total_us)
    return Ranking(pool, found, np.lexsort(keys).tolist())
