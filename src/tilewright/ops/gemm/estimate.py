"""How long a kernel should take, and the terms of that time, from sizes and the data sheet's rates.

It ranks kernels where nothing was measured. A compute unit walks K in steps. Four things happen
side by side in a step, and the slowest decides: the matrix units multiply; shared memory takes the
operands in and feeds the units; the port to L2 brings the operands; and loads are under way, as
many steps ahead as the pipeline is deep.

Compute units take whole tiles, so the busiest unit decides. A unit that holds several workgroups
hides the waits of one behind the work of another. All of this overlaps the device's memory traffic,
but not fully: the two times add up like the legs of a right triangle, which fitted best. The
launch, the first load and the last tile's store come on top.

A step is in `estimate_step`, sums that workgroups put together in `estimate_sums`. The rates and
their sources are in `rates` and in the pipelines' records. Kernels that multiply on the vector
units, and kernels for 4-bit weights, have other limits: see `estimate_few`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import (
    clusters,
    estimate_few,
    orders,
    pipelines,
    rates,
    small_m,
    swap,
    two_stage,
)
from tilewright.ops.gemm.breakdown import (
    L2,
    LATENCY,
    LAUNCH,
    MEMORY,
    PRODUCTS,
    SHARED_MEMORY,
    Breakdown,
)
from tilewright.ops.gemm.config import SHARING, GemmConfig
from tilewright.ops.gemm.estimate_step import (
    cold_step,
    port_rate,
    port_share,
    residents,
    rows_us,
    step_of,
)
from tilewright.ops.gemm.estimate_sums import (
    added_up_us,
    tile_meeting_us,
    tiles_apart,
    totals_us,
)
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import tiles as tiles_of


def estimate(config: GemmConfig, problem: GemmProblem, device: Device) -> Breakdown:
    """What `config` should take for `problem` on `device`."""
    if config.swap_ab:
        config, problem = swap.config(config), swap.problem(problem)
    this = arch(device.arch)
    record = pipelines.of(config)
    if record.has("few_rows") and small_m.vector(config):
        return estimate_few.vectors(config, problem, device, this)
    if record.estimate == "unpacking":
        return estimate_few.unpacking(config, problem, device, this)
    return _tiled(config, problem, device)


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
    record, this = pipelines.of(config), arch(device.arch)
    if record.estimate == "unpacking" or (record.has("few_rows") and small_m.vector(config)):
        return None
    step = step_of(config, device)
    steps = tiles_of(config, problem) * -(-problem.k // config.tile_k)
    clocks = steps * device.clock_mhz
    return Work(
        matrix_clocks=step.at_peak * clocks * this.simds_per_cu,
        shared_clocks=step.shared * clocks,
        read_bytes=step.read * port_rate(device) * steps,
        memory_bytes=_least(problem),
        resident=residents(config, this),
    )


def key(
    config: GemmConfig, found: Breakdown, problem: GemmProblem
) -> tuple[float, float, bool, int, int, float, str]:
    """What to sort by, best first. Ties of the estimate go to the kernel

    1. whose next-slowest resource of the compute unit is least loaded (not for few rows);
    2. that leaves its warps less to do: descriptors before pointers;
    3. with fewer steps of K, if it has a compute unit to itself;
    4. with the deeper ring then; for few rows the shallower ring, which is filled sooner;
    5. whose order of tiles is near the usual one (`orders`);
    6. that comes first by name.

    These kernels were mostly the faster ones on an H200.
    """
    record = pipelines.of(config)
    alone, few = config.scheduler == "persistent", record.has("few_rows")
    side_by_side = sorted((found.compute_us, found.shared_us, found.l2_us, found.latency_us))
    return (
        round(found.total_us, 2),
        0.0 if few else side_by_side[-2],
        record.reads == "pointers",
        -config.tile_k * alone,
        config.num_stages if few else -config.num_stages * alone,
        abs(math.log2(config.group_m / orders.usual(config, problem.m))),
        config.name,
    )


def _tiled(config: GemmConfig, problem: GemmProblem, device: Device) -> Breakdown:
    units = clusters.places(config, device)
    step = step_of(two_stage.config(config), device)
    tiles, steps = tiles_of(config, problem), -(-problem.k // config.tile_k)
    parts = tiles * config.split_k
    waves = max(1, -(-parts // units))
    cold = (
        waves == 1
        and min(problem.m, problem.n) >= rates.COLD_LEAST_ROWS
        and pipelines.of(config).has("loads_apart")
        and not config.two_stage
    )
    if cold:
        step = cold_step(step, config, device, parts / units)
    elif tiles / units * steps * step.read < rates.SHORT_US:
        step = replace(step, read=step.read * port_share(device) / rates.SHORT_PORT_SHARE)
    if (rows := rows_us(config, problem)) > step.read:
        step = replace(step, read=rows)
    share: float = waves
    if config.scheduler == "stream_k":  # equal shares, each in some tiles
        share, at_once, fullness = parts / units, 1, 1.0
        rounds = waves
        apart = tiles_apart(config, tiles, units) * steps
        body = max(1.0, share * steps - apart) * step.longest(1)
        body += apart * max(step.longest(1), step.read * rates.READ_APART)
    else:
        steps = -(-steps // config.split_k)
        fullness = parts / units / waves
        at_once = min(waves, step.resident)
        full, last = divmod(waves, at_once)
        rounds = full + (last > 0)
        body = full * steps * step.longest(at_once)
        if last:
            body += steps * step.longest(last)
    body = max(body, steps * step.at_peak * _powered(parts / units, config.scheduler))
    fill = rates.LATENCY_US * (1 if step.walks else rounds)
    fill += step.store * (1 if step.stores_beside else rounds)
    added_up = added_up_us(config) * rounds
    moved = _least(problem) + _again(config, problem, device, tiles, at_once)
    memory = moved / (device.bandwidth_gbs * 1e3)
    total = math.hypot(body + fill, memory + rates.LATENCY_US) + added_up
    meeting = 0.0
    if config.two_stage:
        parts = two_stage.bytes_of_parts(config, problem)
        meeting = totals_us(parts, device, rates.TOTALS_US)
        total += meeting
    elif config.scheduler in SHARING:
        # Who walks meets the others once for each part, and so do clusters, which end with them.
        again = config.scheduler == "split_k" and (step.walks or config.clustered)
        meeting = (rounds if again else 1) * tile_meeting_us(config, tiles, device)
        if config.scheduler == "stream_k" and cold:
            meeting += rates.COLD_STREAM_US
        total += meeting
    if config.alignment < 4:
        total /= rates.ELEMENTWISE
    if config.index_bits == 64:
        total /= rates.WIDE_INDEX[arch(device.arch).backend]
    compute, shared = (
        share * steps * (step.products + step.issue / at_once),
        share * steps * step.shared,
    )
    read, latency = share * steps * step.read, share / at_once * steps * step.waits
    launch = rates.FEW_LAUNCH_US if pipelines.of(config).has("few_rows") else rates.LAUNCH_US
    _, limiter = max(
        (compute, PRODUCTS),
        (read, L2),
        (shared, SHARED_MEMORY),
        (latency, LATENCY),
        (memory, MEMORY),
        (launch, LAUNCH),
    )
    return Breakdown(
        parts=parts,
        parts_per_unit=share,
        waves=waves,
        fullness=fullness,
        compute_us=compute,
        shared_us=shared,
        l2_us=read,
        latency_us=latency,
        memory_us=memory,
        fill_us=fill + added_up,
        meeting_us=meeting,
        launch_us=launch,
        total_us=launch + total,
        limiter=limiter,
    )


@lru_cache(maxsize=256)
def _least(problem: GemmProblem) -> int:
    """The problem's `min_bytes`, which every kernel for it has to move."""
    return problem.min_bytes


def _powered(waves: float, scheduler: str) -> float:
    """Waves, where each counts for more the more power limits its clock."""
    if scheduler == "stream_k":
        return waves / rates.POWER_SHARE
    full, last = divmod(waves, 1.0)
    return full / rates.POWER_SHARE + (max(1.0, last / rates.POWER_SHARE) if last else 0.0)


def _again(
    config: GemmConfig, problem: GemmProblem, device: Device, tiles: int, resident: int
) -> float:
    """Bytes of A and B that are read from memory again, because L2 does not keep them until the
    next wave. Each wave reads the rows and columns of its tiles once."""
    a, b = DTYPES[problem.dtype_a], DTYPES[problem.dtype_b]
    all_a, all_b = a.size(problem.m * problem.k), b.size(problem.n * problem.k)
    if 2 * (all_a + all_b) < device.l2_bytes or not tiles:
        return 0.0
    tiles_m, tiles_n = -(-problem.m // config.tile_m), -(-problem.n // config.tile_n)
    together = min(tiles_m * tiles_n, device.compute_units * resident)
    columns = min(tiles_n, together / min(config.group_m, tiles_m))
    rows = min(tiles_m, together / columns)
    wave = a.size(round(rows * config.tile_m) * problem.k)
    wave += b.size(round(columns * config.tile_n) * problem.k)
    return max(0.0, tiles / together * wave - problem.batch * (all_a + all_b))
