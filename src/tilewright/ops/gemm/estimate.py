"""How long a kernel should take, and the terms of that time, from sizes and the data sheet's rates.

It ranks kernels where nothing was measured. A compute unit walks K in steps. Four things happen
side by side in a step, and the slowest decides: the matrix units multiply; shared memory takes the
operands in and feeds the units; the port to L2 brings the operands; and loads are under way, as
many steps ahead as the pipeline is deep.

Compute units take whole tiles, so the busiest unit decides. A unit that holds several workgroups
hides the waits of one behind the work of another. All of this overlaps the device's memory traffic,
but not fully (`physics.together_us`). The
launch, the first load and the last tile's store come on top.

A step is in `estimate_step`, sums that workgroups put together in `estimate_sums`: they follow from
a config and a device alone, and a `Pool` works them out once for all of its configs. The terms here
are functions of a problem and of the columns of a pool: they estimate all of its kernels at once.
The rates are in `arch/figures`, with their sources, and in the pipelines' records. Kernels
that multiply on the vector units, and kernels for 4-bit weights, have other limits: see
`estimate_few`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.device import widths
from tilewright.ops.estimate import Estimate, Estimates, Ranking
from tilewright.ops.gemm import (
    breakdown,
    clusters,
    estimate_few,
    orders,
    pipelines,
    small_m,
    swap,
    two_stage,
)
from tilewright.ops.gemm.breakdown import L2, LATENCY, PRODUCTS, SHARED_MEMORY
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.estimate_step import (
    Step,
    residents,
    speed,
    step_of,
)
from tilewright.ops.gemm.estimate_sums import (
    added_up_us,
    tile_meeting_us,
    tiles_apart,
)
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.gemm.sizes import steps as steps_of
from tilewright.ops.gemm.sizes import tiles as tiles_of
from tilewright.ops.pool import Columns, Each, Pool, each
from tilewright.ops.tile_sharing import MOST_WAYS


def estimate(config: GemmConfig, problem: GemmProblem, device: Device) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    return estimates([config], problem, device).one(0)


def estimates(configs: Sequence[GemmConfig], problem: GemmProblem, device: Device) -> Estimates:
    """What each of `configs` should take, which are one or more."""
    groups = Pool.of(configs).columns.groups(_limits).items()
    return Estimates.joined([(at, _TERMS[word](c, problem, device)) for word, (at, c) in groups])


def _limits(config: GemmConfig) -> str:
    record = pipelines.of(config)
    if record.has("few_rows") and small_m.vector(config):
        return "vectors"
    return "tiled" if record.rates else "unpacking"


@dataclass(frozen=True, slots=True)
class Work:
    """What the estimate takes the tiles of a problem to cost, in what can be counted.

    matrix_clocks: of all matrix units, at the rate of the tile's instruction.
    shared_clocks: of shared memory.
    read_bytes: of A and B that enter compute units from L2.
    memory_bytes: that have to move between the device's memory and L2.
    resident: workgroups on a compute unit at once.
    """

    matrix_clocks: float
    shared_clocks: float
    read_bytes: float
    memory_bytes: int
    resident: int


def work(config: GemmConfig, problem: GemmProblem, device: Device) -> Work | None:
    """The work of a kernel that is estimated by tiles; None for the others. Sums that workgroups
    put together, and what an epilogue reads, are not in it."""
    if _limits(config) != "tiled":
        return None
    step, this = step_of(config, device), arch(device.arch)
    steps = tiles_of(config, problem) * steps_of(config, problem)
    clocks = steps * device.clock_mhz
    return Work(
        matrix_clocks=step.at_peak * clocks * this.simds_per_cu,
        shared_clocks=step.shared * clocks,
        read_bytes=step.read * physics.port_rate(device, physics.port_share(device)) * steps,
        memory_bytes=problem.min_bytes,
        resident=residents(config, this),
    )


# --- kernels that multiply whole tiles ---------------------------------------------------------


def _tiled(asked: Columns, p: GemmProblem, device: Device) -> Estimates:
    m, n = np.where(asked.swap_ab, p.n, p.m), np.where(asked.swap_ab, p.m, p.n)
    c, few = each(asked, swap.config), each(asked, pipelines.has, "few_rows")
    step, units = each(c, _step, device), each(c, clusters.places, device)
    streams, two_stages = each(c, _streams), c.two_stage
    tiles_m, tiles_n = np.ceil(m / c.tile_m), np.ceil(n / c.tile_n)
    tiles, whole_steps = p.matrices_of_c * (tiles_m * tiles_n), p.addends * np.ceil(p.k / c.tile_k)
    parts, steps = tiles * c.split_k, np.ceil(whole_steps / c.split_k)
    filled = parts / units
    waves = np.maximum(1, np.ceil(filled))
    share = np.where(streams, filled, waves)  # under stream-K equal, each in some tiles
    at_once = np.where(streams, 1, np.minimum(waves, step.resident))
    rounds = np.ceil(waves / at_once)
    cold = _cold(c, p, waves)
    waits = np.where(cold, _cold_wait_us(c, filled), step.waits)
    short = tiles / units * whole_steps * step.read < GEMM.SHORT_US
    read = step.read * physics.port_share(device) / _port_share(c, cold, short, device)
    read = _across_us(asked, p, read)
    read = np.maximum(read, _rows_us(asked, p, read))
    body = _steps_us(step, steps, waves, at_once, read, waits)
    meeting = each(c, _meeting_us, device) * np.where(each(c, _meets_again, device), rounds, 1)
    if two_stages.any():
        stored = c.split_k * float(two_stage.part_bytes(p))
        meeting = np.where(two_stages, physics.totals_us(stored, device, GEMM.TOTALS_US), meeting)
    if streams.any():
        streamed = _streamed_us(c, step, tiles, steps, read, waits, units)
        body = np.where(streams, streamed, body)
    for i in np.flatnonzero(streams).tolist():
        meeting[i] = tile_meeting_us(c[i], int(tiles[i]), device)
    meeting += GEMM.COLD_STREAM_US * (streams & cold)
    body = np.maximum(body, steps * step.at_peak * _powered(filled, streams))
    fill = DEVICE.LATENCY_US * np.where(step.walks, 1, rounds)
    fill += step.store * np.where(step.stores_beside, 1, rounds)
    added_up = each(c, added_up_us) * rounds
    moved = p.min_bytes + _again_bytes(c, p, device, tiles_m, tiles_n, at_once)
    memory = physics.memory_us(moved, device)
    total = physics.together_us(body + fill, memory + DEVICE.LATENCY_US) + added_up + meeting
    launch = np.where(few, GEMM.FEW_LAUNCH_US, DEVICE.LAUNCH_US)
    compute = share * steps * (step.products + step.issue / at_once)
    shared, l2, latency = (
        share * steps * step.shared, share * steps * read, share / at_once * steps * waits,
    )  # fmt: skip
    return breakdown.estimates(
        launch + total / each(c, speed, arch(device.arch)),
        (compute, shared, l2, latency, memory, fill + added_up, meeting, launch),
        parts,
        waves,
        np.where(streams, 1.0, filled / waves),
    )


def _step(c: GemmConfig, device: Device) -> Step:
    return step_of(two_stage.config(c), device)


def _streams(c: GemmConfig) -> bool:
    return c.scheduler == "stream_k"


def _meets_again(c: GemmConfig, device: Device) -> bool:
    """Whether a workgroup meets others once for each part that it takes: if it walks, or if it ends
    with its cluster."""
    return c.scheduler == "split_k" and (_step(c, device).walks or c.clustered)


def _meeting_us(c: GemmConfig, device: Device) -> float:
    """Microseconds for the workgroups that share a tile to meet in memory, or as a cluster; under
    stream-K it depends on the problem."""
    meets = c.scheduler == "split_k" and not c.two_stage
    return tile_meeting_us(c, 0, device) if meets else 0.0


def _longest_us(step: Each, at_once: Each, read: Each, waits: Each) -> Each:
    """Microseconds of a step of `at_once` workgroups side by side on one compute unit."""
    products, shared = at_once * step.products + step.issue, at_once * step.shared
    return np.maximum(np.maximum(products, shared), np.maximum(at_once * read, waits))


def _steps_us(step: Each, steps: Each, waves: Each, at_once: Each, read: Each, waits: Each) -> Each:
    """Microseconds that the busiest compute unit takes for its steps: full rounds, and the last."""
    full, last = np.divmod(waves, at_once)
    body = full * steps * _longest_us(step, at_once, read, waits)
    return body + np.where(last, steps * _longest_us(step, last, read, waits), 0.0)


def _streamed_us(
    c: Each, step: Each, tiles: Each, steps: Each, read: Each, waits: Each, units: Each
) -> Each:
    """The same of kernels under stream-K, with so many steps in a tile. Steps of tiles that are cut
    into shares read by themselves."""
    apart = tiles_apart(c, tiles, units) * steps
    longest = _longest_us(step, 1, read, waits)
    left = tiles % units
    few = (left > 0) & (left * MOST_WAYS < units)  # each has as many workgroups as a tile can have
    share = np.where(few, tiles // units + 1 / MOST_WAYS, tiles / units)
    body = np.maximum(1.0, share * steps - apart) * longest
    return body + apart * np.maximum(longest, read * DEVICE.READ_APART)


def _cold(c: Each, p: GemmProblem, waves: Each) -> Each:
    """Whether every workgroup has one part at most, so that all of A and B come from memory while
    they are waited for."""
    if min(p.m, p.n) < GEMM.COLD_LEAST_ROWS:
        return np.zeros(len(waves), bool)
    return each(c, _loads_apart) & (waves == 1)


def _loads_apart(c: GemmConfig) -> bool:
    return pipelines.has(c, "loads_apart") and not c.two_stage


def _cold_wait_us(c: Each, filled: Each) -> Each:
    """Microseconds that a step waits for memory there.

    filled: share of the device's compute units that have a part.
    """
    return (GEMM.COLD_US + GEMM.COLD_FULL_US * filled) / c.num_stages


def _port_share(c: Each, cold: Each, short: Each, device: Device) -> Each:
    """Share of `DEVICE.PORT_BYTES_PER_CLOCK` that compute units reach: more of it where all
    of A and B come from memory, and where reading is short."""
    at_first = each(c, _cold_port_share)
    return np.where(
        cold, at_first, np.where(short, GEMM.SHORT_PORT_SHARE, physics.port_share(device))
    )


def _cold_port_share(c: GemmConfig) -> float:
    whole = _persistent(c)
    return float(GEMM.COLD_PORT_SHARE if whole else GEMM.COLD_PORT_SHARE_APART)


def _across_us(c: Each, p: GemmProblem, read: Each) -> Each:
    """Microseconds of reading a step, which takes `read` where the copy engine's rows are whole and
    inside the array. Rows of A may lie along M, or those of B along N: then those of narrow tiles
    and accumulators are no whole rows, and take as long as rows that lie askew; and the array's
    edge cuts some of the last tile's. The average of all tiles."""
    bytes_, narrow, more, pointers = 0.0, 0.0, 0.0, each(c, _by_pointers)
    askew = np.where(pointers, GEMM.ASKEW_POINTERS_US, DEVICE.ASKEW_ROW_US)
    for across, tile, length, dtype, count in (
        (p.layout[0] == "c", c.tile_m, p.m, p.dtype_a, c.tile_m < _row(p.dtype_a)),
        (p.layout[1] == "r", c.tile_n, p.n, p.dtype_b, each(c, _narrow_parts)),
    ):
        size, row = DTYPES[dtype].size, _row(dtype)
        bytes_ = bytes_ + size(tile * c.tile_k)
        if across:
            narrow = narrow + size(tile % row * c.tile_k)
            cut = (length % np.minimum(tile, row) > 0) / np.maximum(1, np.ceil(length / tile))
            more = more + count * askew + cut * np.where(pointers, 0, DEVICE.OUTSIDE_ROW_US)
    return read * (1 - narrow / bytes_) + more * c.tile_k


def _row(dtype: str) -> int:
    """Elements of the copy engine's widest row."""
    return int(DEVICE.ROW_BYTES) * 8 // DTYPES[dtype].bits


def _narrow_parts(c: GemmConfig) -> int:
    """Accumulators whose columns are less than a row."""
    return sum(part < _row(c.dtype_b) for part in widths.parts(c.tile_n))


def _by_pointers(c: GemmConfig) -> bool:
    return pipelines.of(c).reads == "pointers"


def _rows_us(c: Each, p: GemmProblem, read: Each) -> Each:
    """Microseconds that a step's rows of A and B take where these lie askew, or end in the middle
    of the copy engine's last step; the average of all steps. Where one operand's rows lie askew and
    the other's do not, the other's take their share of `read`, the time of whole rows."""
    pointers, steps = each(c, _by_pointers), np.ceil(p.k / c.tile_k)
    ends_outside = (p.k % c.tile_k > 0) & (pointers ^ True)
    strides = ((p.dtype_a, p.lda), (p.dtype_b, p.ldb))
    uneven = [DTYPES[of].size(ld) % DEVICE.SECTOR_BYTES > 0 for of, ld in strides]
    if not any(uneven) and not ends_outside.any():
        return 0.0
    askew = np.where(pointers, GEMM.ASKEW_POINTERS_US, DEVICE.ASKEW_ROW_US)
    found: Each = 0.0
    bytes_ = sum(
        DTYPES[of].size(tile * c.tile_k)
        for of, tile in ((p.dtype_a, c.tile_m), (p.dtype_b, c.tile_n))
    )
    for letter, by_k, tile, askew_rows, dtype in (
        (p.layout[0], "r", c.tile_m, uneven[0], p.dtype_a),
        (p.layout[1], "c", c.tile_n, uneven[1], p.dtype_b),
    ):
        size = DTYPES[dtype].size
        if any(uneven) and not askew_rows:
            found += read * size(tile * c.tile_k) / bytes_ * steps
            continue
        along = letter == by_k
        long, rows = (c.tile_k, tile) if along else (tile, c.tile_k)
        rows = rows * -(-size(long) // DEVICE.ROW_BYTES)
        one = askew * askew_rows
        last = np.where(ends_outside & along, DEVICE.OUTSIDE_ROW_US, one)
        found += rows * ((steps - 1) * one + last)
    return found / np.maximum(1, steps)


def _powered(waves: Each, streams: Each) -> Each:
    """Waves, where each counts for more the more power limits its clock."""
    full, last = np.divmod(waves, 1.0)
    whole = full / DEVICE.POWER_SHARE
    whole += np.where(last, np.maximum(1.0, last / DEVICE.POWER_SHARE), 0.0)
    return np.where(streams, waves / DEVICE.POWER_SHARE, whole)


def _again_bytes(
    c: Each, p: GemmProblem, device: Device, tiles_m: Each, tiles_n: Each, resident: Each
) -> Each:
    """Bytes of A and B that are read from memory again, because L2 does not keep them until the
    next wave. Each wave reads the rows and columns of its tiles once."""
    a, b, k = DTYPES[p.dtype_a], DTYPES[p.dtype_b], p.k * p.addends
    once = a.size(p.m * k) + b.size(p.n * k)
    if 2 * once < device.l2_bytes or 0 in (p.m, p.n, p.batch):
        return np.zeros(len(c))
    together = np.minimum(tiles_m * tiles_n, device.compute_units * resident)
    columns = np.minimum(tiles_n, together / np.minimum(c.group_m, tiles_m))
    rows = np.minimum(tiles_m, together / columns)
    wave = a.size(np.rint(rows * c.tile_m) * k) + b.size(np.rint(columns * c.tile_n) * k)
    return np.maximum(0.0, p.matrices_of_c * (tiles_m * tiles_n / together * wave - once))


_TERMS: Mapping[str, Callable[[Columns, GemmProblem, Device], Estimates]] = {
    "tiled": _tiled,
    "vectors": estimate_few.vectors,
    "unpacking": estimate_few.unpacking,
}
"""What estimates kernels, by what limits them."""


# --- the order of kernels ----------------------------------------------------------------------


def keys(configs: Sequence[GemmConfig], found: Estimates, problem: GemmProblem) -> tuple[Each, ...]:
    """What to sort `configs` by, whose estimates are `found`. Ties of the estimate go to the kernel

    1. whose next-slowest resource of the compute unit is least loaded (not for few rows);
    2. that leaves its warps less to do: descriptors before pointers;
    3. with fewer steps of K, if it has a compute unit to itself;
    4. with the deeper ring then; for few rows the shallower ring, which is filled sooner;
    5. whose order of tiles is near the usual one (`orders`);
    6. that comes first by name.

    These kernels were mostly the faster ones on an H200.
    """
    c = Pool.of(configs).columns
    few, alone = each(c, pipelines.has, "few_rows"), each(c, _persistent)
    side_by_side = [found.terms[word] for word in (PRODUCTS, SHARED_MEMORY, L2, LATENCY)]
    tiles_m = np.ceil(problem.m / c.tile_m)
    over = (tiles_m >= orders.OVER.start) & (tiles_m < orders.OVER.stop)
    usual = np.where(over, each(c, orders.usual, orders.OVER[0]), each(c, orders.usual, 1))
    return (
        np.round(found.total_us, 2),
        np.where(few, 0.0, np.sort(side_by_side, axis=0)[-2]),
        each(c, _by_pointers),
        -c.tile_k * alone,
        np.where(few, c.num_stages, -c.num_stages * alone),
        np.abs(np.log2(c.group_m / usual)),
        c.by_name,
    )


def _persistent(c: GemmConfig) -> bool:
    return c.scheduler == "persistent"


def ranking(problem: GemmProblem, configs: Sequence[GemmConfig], device: Device) -> Ranking:
    """The configs, which are one or more, with their estimates, best first."""
    pool = Pool.of(configs)
    found = estimates(pool, problem, device)
    places = np.lexsort(keys(pool, found, problem)[::-1]).tolist()
    return Ranking(pool, found, places)
