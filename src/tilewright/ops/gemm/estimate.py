"""How long a kernel should take, and the terms of that time, from sizes and the data sheet's rates.

It ranks kernels where nothing was measured. A compute unit walks K in steps. Four things happen
side by side in a step, and the slowest decides: the matrix units multiply; shared memory takes the
operands in and feeds the units; the port to L2 brings the operands; and loads are under way, as
many steps ahead as the pipeline is deep.

Compute units take whole tiles, so the busiest unit decides. A unit that holds several workgroups
hides the waits of one behind the work of another. All of this overlaps the device's memory traffic,
but not fully: the two times add up like the legs of a right triangle, which fitted best. The
launch, the first load and the last tile's store come on top.

The rates and their sources are in `rates` and in the pipelines' records. Kernels that multiply on
the vector units, and kernels for 4-bit weights, have other limits: see `estimate_few`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.device import widths
from tilewright.ops.gemm import (
    clusters,
    epilogues,
    estimate_few,
    pipelines,
    rates,
    scales,
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
from tilewright.ops.gemm.pipelines.common import ROW_BYTES
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP, WARPGROUP_ROWS
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import (
    OVERHEAD_REGISTERS,
    k_parts,
    operand_dtype,
    shared_memory,
    shared_tiles,
    vector_dot,
)
from tilewright.ops.gemm.sizes import tiles as tiles_of
from tilewright.ops.gemm.warps import Warps, warps

MIDDLE_GROUP = 6
"""The `group_m` that ties prefer: 4 and 8 go before 2, and 2 before 16."""


def estimate(config: GemmConfig, problem: GemmProblem, device: Device) -> Breakdown:
    """What `config` should take for `problem` on `device`."""
    if config.swap_ab:
        config, problem = swap.config(config), swap.problem(problem)
    this = arch(device.arch)
    record = pipelines.of(config)
    if record.few_rows and small_m.vector(config):
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
    if record.estimate == "unpacking" or (record.few_rows and small_m.vector(config)):
        return None
    step = _step(config, device)
    steps = tiles_of(config, problem) * -(-problem.k // config.tile_k)
    clocks = steps * device.clock_mhz
    return Work(
        matrix_clocks=step.at_peak * clocks * this.simds_per_cu,
        shared_clocks=step.shared * clocks,
        read_bytes=step.read * _port(device) * steps,
        memory_bytes=_least(problem),
        resident=_resident(config, this),
    )


def key(config: GemmConfig, found: Breakdown) -> tuple[float, float, bool, int, int, int, str]:
    """What to sort by, best first. Ties of the estimate go to the kernel

    1. whose next-slowest resource of the compute unit is least loaded (not for few rows);
    2. that leaves its warps less to do: descriptors before pointers;
    3. with fewer steps of K, if it has a compute unit to itself;
    4. with the deeper ring then; for few rows the shallower ring, which is filled sooner;
    5. whose groups of tiles are neither narrow nor wide;
    6. that comes first by name.

    These kernels were mostly the faster ones on an H200.
    """
    record = pipelines.of(config)
    alone, few = config.scheduler == "persistent", record.few_rows
    side_by_side = sorted((found.compute_us, found.shared_us, found.l2_us, found.latency_us))
    return (
        round(found.total_us, 2),
        0.0 if few else side_by_side[-2],
        record.reads == "pointers",
        -config.tile_k * alone,
        config.num_stages if few else -config.num_stages * alone,
        abs(config.group_m - MIDDLE_GROUP),
        config.name,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of K of one part, and other figures of a config on a device. Times are microseconds
    of one compute unit.

    products, shared, read: time on the matrix units, in shared memory and at the port to L2. These
    add up over the workgroups that a compute unit holds.
    at_peak: time of the products at the published rate.
    issue: time of the warps that multiply, beside their products.
    waits: time for loads to arrive.
    resident: workgroups on a compute unit at once.
    walks: whether a workgroup walks from part to part.
    store: time to store a tile.
    stores_beside: whether another workgroup's products hide the store.
    """

    products: float
    at_peak: float
    shared: float
    read: float
    issue: float
    waits: float
    resident: int
    walks: bool
    stores_beside: bool
    store: float

    def longest(self, at_once: float) -> float:
        """Time of a step of `at_once` workgroups side by side on one compute unit."""
        return max(
            at_once * self.products + self.issue,
            at_once * self.shared,
            at_once * self.read,
            self.waits,
        )


def _tiled(config: GemmConfig, problem: GemmProblem, device: Device) -> Breakdown:
    units = clusters.places(config, device)
    step = _step(two_stage.config(config), device)
    tiles, steps = tiles_of(config, problem), -(-problem.k // config.tile_k)
    parts = tiles * config.split_k
    waves = max(1, -(-parts // units))
    cold = (
        waves == 1
        and min(problem.m, problem.n) >= rates.COLD_LEAST_ROWS
        and pipelines.of(config).loads_apart
        and not config.two_stage
    )
    if cold:
        step = _cold(step, config, parts / units)
    elif tiles / units * steps * step.read < rates.SHORT_US:
        step = replace(step, read=step.read * rates.PORT_SHARE / rates.SHORT_PORT_SHARE)
    if (rows := _rows_us(config, problem)) > step.read:
        step = replace(step, read=rows)
    share: float = waves
    if config.scheduler == "stream_k":  # equal shares, each in some tiles
        share, at_once, fullness = parts / units, 1, 1.0
        rounds = waves
        apart = _apart(config, tiles, units) * steps
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
    added_up = _added_up_us(config) * rounds
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
        meeting = (rounds if again else 1) * _meeting_us(config, tiles, device)
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
    launch = rates.FEW_LAUNCH_US if pipelines.of(config).few_rows else rates.LAUNCH_US
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


@lru_cache(maxsize=8192)
def _step(config: GemmConfig, device: Device) -> _Step:
    this, clock, record = arch(device.arch), device.clock_mhz, pipelines.of(config)
    port = _port(device)
    a = DTYPES[config.dtype_a].size(config.tile_m * config.tile_k)
    b = DTYPES[config.dtype_b].size(config.tile_n * config.tile_k)
    rows = _rows(config)
    feeds_itself = this.async_mma and rows >= WARPGROUP_ROWS
    on_amd = warps(config, this)
    at_peak = _flops(config) / _flops_per_us(device, operand_dtype(config))
    if on_amd:
        at_peak *= on_amd.again / on_amd.share
    products = _products(config, device, this, feeds_itself, on_amd)
    issue = float(config.num_warps * rates.WARP_CLOCKS)
    if not feeds_itself:
        issue *= on_amd.again if on_amd else _idle(config, this)
    if record.reads == "pointers":
        copies = (a + b) / (16 * this.warp_size * config.num_warps)
        issue += copies * rates.COPY_CLOCKS
    issue /= clock
    shared = float(a + b)  # in; and out:
    if on_amd:
        shared += _read_by_warps_on_amd(config, on_amd, a, b) / _faster_reads(this)
    elif feeds_itself:  # A once for each part, and B once for the rows of each instruction
        tallest = max(shape[0] for unit in this.mma for shape in unit.shapes)
        first, second = (b, a) if record.few_rows else (a, b)
        shared += first * len(_parts(config)) + second * max(1.0, rows / tallest)
    else:
        shared += _read_by_warps(config, this, a, b)
        if this.backend == "hip" and not record.few_rows:  # no matrix units
            shared *= rates.SHARED_OF_VECTORS
    waits = (rates.LATENCY_US + (a + b) / port) / max(1, config.num_stages - 1) + issue
    if not feeds_itself:
        waits += rates.SERIAL_PRODUCTS * products
    if config.num_stages == 1:
        waits += products  # nothing is loaded ahead
    walks = config.scheduler in ("persistent", "stream_k") or (
        config.scheduler == "split_k" and record.walks_parts and not config.clustered
    )
    groups = config.num_warps // WARPGROUP if record.takes_turns else 1
    return _Step(
        products=products,
        at_peak=at_peak,
        shared=shared / (rates.SHARED_BYTES_PER_CLOCK * clock),
        read=(a + b) / port,
        issue=0.0 if record.loads_apart else issue,
        waits=waits,
        resident=groups if walks else _resident(config, this),
        walks=walks,
        stores_beside=record.takes_turns,
        store=_stored(config) / (rates.STORE_SHARE * port),
    )


def _cold(step: _Step, config: GemmConfig, fullness: float) -> _Step:
    """A step where every workgroup has one part at most: A and B come from memory.

    fullness: share of the device's compute units that have a part.
    """
    waits = (rates.COLD_US + rates.COLD_FULL_US * fullness) / config.num_stages
    whole = config.scheduler == "persistent"
    port = rates.COLD_PORT_SHARE if whole else rates.COLD_PORT_SHARE_APART
    return replace(step, waits=waits, read=step.read * rates.PORT_SHARE / port)


def _rows_us(config: GemmConfig, problem: GemmProblem) -> float:
    """Microseconds that a step's rows of A and B take where these lie askew, or end in the middle
    of the copy engine's last step; the average of all steps."""
    pointers = pipelines.of(config).reads == "pointers"
    askew = rates.ASKEW_POINTERS_US if pointers else rates.ASKEW_ROW_US
    steps = -(-problem.k // config.tile_k)
    found = 0.0
    for letter, by_k, tile, leading, dtype in (
        (config.layout[0], "r", config.tile_m, problem.lda, config.dtype_a),
        (config.layout[1], "c", config.tile_n, problem.ldb, config.dtype_b),
    ):
        size = DTYPES[dtype].size
        along = letter == by_k
        long, rows = (config.tile_k, tile) if along else (tile, config.tile_k)
        rows *= -(-size(long) // rates.ROW_BYTES)
        each = askew if size(leading) % rates.SECTOR_BYTES else 0.0
        outside = along and problem.k % config.tile_k and not pointers
        last = rates.OUTSIDE_ROW_US if outside else each
        found += rows * ((steps - 1) * each + last) / max(1, steps)
    return found


@lru_cache(maxsize=256)
def _least(problem: GemmProblem) -> int:
    """The problem's `min_bytes`, which every kernel for it has to move."""
    return problem.min_bytes


def _port(device: Device) -> float:
    """Bytes a microsecond that a compute unit takes in from L2."""
    return rates.PORT_BYTES_PER_CLOCK * rates.PORT_SHARE * device.clock_mhz


def _products(
    config: GemmConfig, device: Device, this: Arch, feeds_itself: bool, on_amd: Warps | None
) -> float:
    """Microseconds that a step's products take on one compute unit."""
    of_pipeline = pipelines.of(config).rates
    assert of_pipeline is not None, f"pipeline {config.pipeline} is not estimated by tiles"
    reached = of_pipeline.share
    if on_amd:
        reached = min(reached, rates.BASIC) * on_amd.share / on_amd.again
    elif not feeds_itself:
        reached = min(reached, rates.BASIC) / _idle(config, this)
    unpacked = 0.0
    if not _scales_in_hardware(config, this):
        unpacked = of_pipeline.unpacked.get(config.dtype_b, 0.0)
        reached *= 1.0 if unpacked else of_pipeline.converted
    if scales.count(config):
        reached *= of_pipeline.scaled
    if DTYPES[config.dtype_a].size(config.tile_k) < ROW_BYTES:
        reached *= rates.NARROW_ROWS
    rows = _rows(config)
    flops = _flops(config) * max(rows, this.min_dot[0]) / rows
    rate = _flops_per_us(device, operand_dtype(config))
    lanes = this.fma_flops_per_cu_per_clock / 2
    if vector_dot(config, this):
        rate = 2 * lanes * device.clock_mhz
    multiplying = flops / (rate * reached)
    if "rest" in pipelines.of(config).arguments:
        columns = sum(max(part, rates.LEAST_PART) for part in _parts(config))
        multiplying *= columns / config.tile_n
    if on_amd:
        multiplying += _converting(config, device, this, on_amd)
    return multiplying + config.tile_n * config.tile_k * unpacked / (lanes * device.clock_mhz)


def _converting(config: GemmConfig, device: Device, this: Arch, on_amd: Warps) -> float:
    """Microseconds in which a step's operands of a type without matrix instructions are converted
    on AMD GPUs."""
    dtype = operand_dtype(config)
    if this.dtypes[dtype].support != "emulated":
        return 0.0
    rows = config.tile_m / on_amd.down + config.tile_n / on_amd.across
    elements = config.num_warps * on_amd.reads * rows * config.tile_k
    lanes = this.fma_flops_per_cu_per_clock / 4  # of a clock: published rates have two products
    return elements * rates.CONVERTING.get(dtype, 0) / (lanes * device.clock_mhz)


def _read_by_warps(config: GemmConfig, this: Arch, a: float, b: float) -> float:
    """Bytes of A and B that warps read from shared memory in a step, where they feed the matrix
    units through registers. Each warp reads the rows and columns that it multiplies."""
    record = pipelines.of(config)
    if record.few_rows:  # these share out K
        return a + b
    if record.b_in_registers:
        return a
    m, n, _ = this.min_dot
    down, across = -(-config.tile_m // max(m, 16)), -(-config.tile_n // n)
    ways = (1 << i for i in range(config.num_warps.bit_length()) if 1 << i <= max(1, down))
    each = ((rows, config.num_warps / rows) for rows in ways)
    return min(a * columns + b * rows * max(1.0, columns / across) for rows, columns in each)


def _read_by_warps_on_amd(config: GemmConfig, on_amd: Warps, a: float, b: float) -> float:
    """The same on AMD GPUs."""
    if pipelines.of(config).b_in_registers:
        b = 0.0
    return config.num_warps * on_amd.reads * (a / on_amd.down + b / on_amd.across)


def _faster_reads(this: Arch) -> float:
    """How much more a clock is read from shared memory than written to it."""
    if this.cdna is None:
        return 1.0
    return this.cdna.bank_bytes / rates.SHARED_BYTES_PER_CLOCK


def _rows(config: GemmConfig) -> int:
    """Rows of a tile as the matrix units see it: kernels for few rows transpose the tile."""
    return config.tile_n if pipelines.of(config).few_rows else config.tile_m


def _parts(config: GemmConfig) -> tuple[int, ...]:
    """Columns of each of a tile's accumulators, where a kernel has several."""
    several = "rest" in pipelines.of(config).arguments
    return widths.parts(config.tile_n) if several else (config.tile_n,)


def _flops(config: GemmConfig) -> float:
    """Of a step."""
    return 2.0 * config.tile_m * config.tile_n * config.tile_k


def _powered(waves: float, scheduler: str) -> float:
    """Waves, where each counts for more the more power limits its clock."""
    if scheduler == "stream_k":
        return waves / rates.POWER_SHARE
    full, last = divmod(waves, 1.0)
    return full / rates.POWER_SHARE + (max(1.0, last / rates.POWER_SHARE) if last else 0.0)


@lru_cache(maxsize=256)
def _flops_per_us(device: Device, dtype: str) -> float:
    """Rate of the matrix units of one compute unit, in FLOP a microsecond."""
    return peak_tflops(arch(device.arch), device, dtype) * 1e6 / device.compute_units


def _scales_in_hardware(config: GemmConfig, this: Arch) -> bool:
    dtype = operand_dtype(config)
    return dtype in ("mxfp8", "mxfp4") and this.dtypes[dtype].support == "native"


def _idle(config: GemmConfig, this: Arch) -> float:
    """How many warps do the same products: more than 1 where the tile has fewer matrix instructions
    side by side than there are warps, and the warps do not share out K."""
    if pipelines.of(config).few_rows:
        return 1.0
    m, n, _ = this.min_dot
    instructions = -(-config.tile_m // max(m, 16)) * -(-config.tile_n // n)
    return max(1.0, config.num_warps / instructions)


def _resident(config: GemmConfig, this: Arch) -> int:
    """Workgroups that a compute unit holds at once."""
    accumulators = config.tile_m * config.tile_n // (this.warp_size * config.num_warps)
    pointers = pipelines.of(config).reads == "pointers"
    beside = rates.POINTER_REGISTERS if pointers else OVERHEAD_REGISTERS
    registers = min(this.max_registers, accumulators + beside)
    lanes = this.registers_per_lane * this.simds_per_cu
    shared = shared_memory(config, this) + this.shared_memory_reserved
    return max(
        1,
        min(
            this.shared_memory_per_cu // max(1, shared),
            lanes // (registers * config.num_warps),
            this.max_warps_per_simd * this.simds_per_cu // config.num_warps,
            this.max_workgroups_per_cu,
        ),
    )


def _stored(config: GemmConfig) -> int:
    """Bytes of a tile of C, and of the matrix that an epilogue combines it with."""
    columns = config.tile_n // epilogues.fold(config.epilogue)
    matrices = 2 if epilogues.has_matrix(config.epilogue) else 1
    return config.tile_m * columns * DTYPES[config.dtype_c].bytes * matrices


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


def _meeting_us(config: GemmConfig, tiles: int, device: Device) -> float:
    """Time for the workgroups that share a tile to meet."""
    ways = config.split_k
    if config.scheduler == "stream_k":
        ways = stream_ways(tiles, device.compute_units)
    return meeting_us(config.reduction, ways, config.tile_m * config.tile_n, device)


def stream_ways(tiles: int, units: int) -> int:
    """Workgroups that share each of the tiles that whole waves leave over."""
    return max(2, units // (tiles % units or units))


def meeting_us(reduction: str, ways: int, sums: int, device: Device) -> float:
    """Time for `ways` workgroups that share a tile of so many sums to meet. Each publishes its
    sums. Then the last workgroup reads the sums of the others (``linear``) or the sum that atomics
    made; in a ``tree`` two workgroups meet at each level, and one of them reads the sums of the
    other. In a ``cluster`` each sends all but its share to the others."""
    partial = sums * 4
    stored, read = partial / rates.STORE_SHARE / _port(device), partial / _port(device)
    if reduction == "tree":
        levels = math.ceil(math.log2(ways))
        again = (levels - 1) * rates.MEETING_AGAIN_US
        return rates.MEETING_US + again + levels * (stored + read)
    if reduction == "cluster":
        return rates.CLUSTER_US + (ways - 1) / ways * stored
    reads = {"linear": ways, "atomic": rates.ATOMIC_READS}
    later = math.log2(ways / 2) * rates.LATER_US
    return rates.MEETING_US + later + stored + read * reads[reduction]


def totals_us(partials: int, device: Device, start: float = rates.SECOND_US) -> float:
    """Time of a kernel that adds up parts of sums that another stored, and of their way to memory
    and back.

    partials: bytes. start: what the kernel takes without any.
    """
    return start + 2 * partials / (device.bandwidth_gbs * 1e3)


def _apart(config: GemmConfig, tiles: int, units: int) -> float:
    """Tiles for each compute unit whose K steps stream-K cuts into shares that cross tiles. The
    shares begin anywhere in K, so no two workgroups read the same bytes at the same time."""
    shared = shared_tiles(config, tiles, units)
    return shared / units if units < 2 * shared else 0.0


def _added_up_us(config: GemmConfig) -> float:
    """Time for warps that shared out K to add up their sums of the whole tile, at its end."""
    if k_parts(config) == 1:
        return 0.0
    return rates.ADDING_UP_US * config.tile_m * config.tile_n
