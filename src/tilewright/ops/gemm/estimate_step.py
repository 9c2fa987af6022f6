"""One step of K through a tile, for the estimate: its time on a compute unit's matrix units, in
shared memory, at the port to L2, and until loads arrive."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues, physics
from tilewright.ops.device import widths
from tilewright.ops.gemm import lowbit, pipelines, scales
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines.common import ROW_BYTES
from tilewright.ops.gemm.pipelines.warpgroups import PART_COLUMNS, WARPGROUP, WARPGROUP_ROWS
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.gemm.sizes import (
    OVERHEAD_REGISTERS,
    operand_dtype,
    shared_memory,
    vector_dot,
)
from tilewright.ops.gemm.warps import Warps, warps


@dataclass(frozen=True, slots=True)
class Step:
    """One step of K of one part, and other figures of a config on a device. Times are microseconds
    of one compute unit.

    products, shared, read: time on the matrix units, in shared memory and at the port to L2. These
    add up over the workgroups that a compute unit holds.
    at_peak: time of the products at the published rate, where power limits it (`rates`).
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


@lru_cache(maxsize=8192)
def step_of(config: GemmConfig, device: Device) -> Step:
    this, clock, record = arch(device.arch), device.clock_mhz, pipelines.of(config)
    port = physics.port_rate(device, physics.port_share(device))
    a = DTYPES[config.dtype_a].size(config.tile_m * config.tile_k)
    b = DTYPES[config.dtype_b].size(config.tile_n * config.tile_k)
    rows = _rows(config)
    feeds_itself = this.async_mma and rows >= WARPGROUP_ROWS
    on_amd = warps(config, this)
    at_peak = _flops(config) / physics.matrix_rate(device, operand_dtype(config))
    if len(parts := _parts(config)) > 1:
        columns = sum(GEMM["COLUMNS_AT_PEAK"].get(part, part) for part in parts)
        at_peak *= columns / config.tile_n
    if on_amd:
        at_peak *= on_amd.again / on_amd.share
    products = _products(config, device, this, feeds_itself, on_amd)
    issue = float(config.num_warps * GEMM.WARP_CLOCKS)
    if not feeds_itself:
        issue *= on_amd.again if on_amd else _idle(config, this)
    if record.reads == "pointers":
        copies = (a + b) / (16 * this.warp_size * config.num_warps)
        issue += copies * GEMM.COPY_CLOCKS
    if feeds_itself and _adds_between_products(config):
        issue += _adding_clocks(config.tile_n)
    issue /= clock
    shared = float(a + b)  # in; and out:
    if on_amd:
        shared += _read_by_warps_on_amd(config, on_amd, a, b) / _faster_reads(this)
    elif feeds_itself:  # A once for each part, and B once for the rows of each instruction
        tallest = max(shape[0] for unit in this.mma for shape in unit.shapes)
        first, second = (b, a) if record.has("few_rows") else (a, b)
        shared += first * len(parts) + second * max(1.0, rows / tallest)
    else:
        shared += _read_by_warps(config, this, a, b)
        if this.backend == "hip" and not record.has("few_rows"):  # no matrix units
            shared *= GEMM.SHARED_OF_VECTORS
    waits = physics.ring_us((a + b) / port, config.num_stages) + issue
    if not feeds_itself:
        waits += DEVICE.SERIAL_PRODUCTS * products
    if config.num_stages == 1:
        waits += products  # nothing is loaded ahead
    walks = config.scheduler in ("persistent", "stream_k") or (
        config.scheduler == "split_k" and record.has("walks_parts") and not config.clustered
    )
    groups = config.num_warps // WARPGROUP if record.has("takes_turns") else 1
    return Step(
        products=products,
        at_peak=at_peak,
        shared=shared / (DEVICE.SHARED_BYTES_PER_CLOCK * clock),
        read=(a + b) / port,
        issue=0.0 if record.has("loads_apart") else issue,
        waits=waits,
        resident=groups if walks else residents(config, this),
        walks=walks,
        stores_beside=record.has("takes_turns"),
        store=_stored(config) / (DEVICE.STORE_SHARE * port),
    )


def speed(config: GemmConfig, this: Arch) -> float:
    """Factor on the speed of a kernel whose loads are no vectors, or whose offsets are 64-bit."""
    found = GEMM.ELEMENTWISE if config.alignment < 4 else 1.0
    return found * GEMM["WIDE_INDEX"][this.backend] if config.index_bits == 64 else found


def _products(
    config: GemmConfig, device: Device, this: Arch, feeds_itself: bool, on_amd: Warps | None
) -> float:
    """Microseconds that a step's products take on one compute unit."""
    of_pipeline = pipelines.of(config).rates
    assert of_pipeline is not None, f"pipeline {config.pipeline} is not estimated by tiles"
    reached = of_pipeline.share
    if on_amd:
        reached = min(reached, DEVICE.BASIC) * on_amd.share / on_amd.again
    elif not feeds_itself:
        reached = min(reached, DEVICE.BASIC) / _idle(config, this)
    unpacked = 0.0
    if not _scales_in_hardware(config, this):
        if lowbit.converts(config):
            unpacked = of_pipeline.unpacked.get(config.dtype_b, 0.0)
        reached *= 1.0 if unpacked else of_pipeline.converted
    if scales.count(config):
        between = feeds_itself and _adds_between_products(config)
        reached *= GEMM.SCALED_BETWEEN if between else of_pipeline.scaled
    if DTYPES[config.dtype_a].size(config.tile_k) < ROW_BYTES:
        reached *= GEMM.NARROW_ROWS
    rows = _rows(config)
    flops = _flops(config) * max(rows, this.min_dot[0]) / rows
    rate = physics.matrix_rate(device, operand_dtype(config))
    lanes = physics.lanes(this)
    if vector_dot(config, this):
        rate = 2 * lanes * device.clock_mhz
    multiplying = flops / (rate * reached)
    if config.pipeline == "gluon_scaled":
        multiplying = _scaled_by_groups(config, multiplying, device)
    if pipelines.of(config).takes("b_rest"):
        columns = sum(max(part, DEVICE.LEAST_PART) for part in _parts(config))
        multiplying *= columns / config.tile_n
    if on_amd:
        multiplying += _converting(config, device, this, on_amd)
    elif pipelines.of(config).has("few_rows") and (block := scales.k_block(config)):
        warps_of_each = config.num_warps / max(1, config.tile_k // block)
        multiplying += GEMM.UNSHARED_BLOCK_US * max(0.0, warps_of_each - 1)
    return multiplying + config.tile_n * config.tile_k * unpacked / (lanes * device.clock_mhz)


def _adds_between_products(config: GemmConfig) -> bool:
    """Whether all warps of a workgroup wait for the products of a block and add them to the sums,
    before the next products."""
    return scales.count(config) > 0 and config.pipeline in ("basic", "tma")


def _adding_clocks(columns: int) -> float:
    """Clocks of a warp group that adds the products of a block to its 64 rows of sums."""
    return GEMM.SCALING_CLOCKS + GEMM.SCALING_COLUMN_CLOCKS * columns


def _scaled_by_groups(config: GemmConfig, multiplying: float, device: Device) -> float:
    """Microseconds of a step of `gluon_scaled`, whose products alone take `multiplying`. A warp
    group waits for the products of a part and adds them to its sums, while the other group's
    products run, if there is one."""
    columns = min(config.tile_n, PART_COLUMNS)
    groups = config.num_warps // WARPGROUP
    parts = config.tile_m * config.tile_n // (WARPGROUP_ROWS * columns * groups)  # of a group
    blocks = config.tile_k // pipelines.of(config).summed_k(config)
    each = multiplying * max(columns, DEVICE.LEAST_PART) / columns / (groups * parts * blocks)
    adding = _adding_clocks(columns) / device.clock_mhz
    in_turn = each + parts * adding
    return blocks * max(in_turn, groups * parts * each + GEMM.SCALING_SHOWS * adding)


def _converting(config: GemmConfig, device: Device, this: Arch, on_amd: Warps) -> float:
    """Microseconds in which a step's operands of a type without matrix instructions are converted
    on AMD GPUs."""
    dtype = operand_dtype(config)
    if this.dtypes[dtype].support != "emulated":
        return 0.0
    rows = config.tile_m / on_amd.down + config.tile_n / on_amd.across
    elements = config.num_warps * on_amd.reads * rows * config.tile_k
    lanes = this.fma_flops_per_cu_per_clock / 4  # of a clock: published rates have two products
    return elements * GEMM["CONVERTING"].get(dtype, 0) / (lanes * device.clock_mhz)


def _read_by_warps(config: GemmConfig, this: Arch, a: float, b: float) -> float:
    """Bytes of A and B that warps read from shared memory in a step, where they feed the matrix
    units through registers. Each warp reads the rows and columns that it multiplies."""
    record = pipelines.of(config)
    if record.has("few_rows"):  # these share out K
        return a + b
    if record.has("b_in_registers"):
        return a
    m, n, _ = this.min_dot
    down, across = -(-config.tile_m // max(m, 16)), -(-config.tile_n // n)
    ways = (1 << i for i in range(config.num_warps.bit_length()) if 1 << i <= max(1, down))
    each = ((rows, config.num_warps / rows) for rows in ways)
    return min(a * columns + b * rows * max(1.0, columns / across) for rows, columns in each)


def _read_by_warps_on_amd(config: GemmConfig, on_amd: Warps, a: float, b: float) -> float:
    """Bytes of A and B that warps read from shared memory in a step on AMD GPUs."""
    if pipelines.of(config).has("b_in_registers"):
        b = 0.0
    return config.num_warps * on_amd.reads * (a / on_amd.down + b / on_amd.across)


def _faster_reads(this: Arch) -> float:
    """How much more a clock is read from shared memory than written to it."""
    if this.cdna is None:
        return 1.0
    return this.cdna.bank_bytes / DEVICE.SHARED_BYTES_PER_CLOCK


def _rows(config: GemmConfig) -> int:
    """Rows of a tile as the matrix units see it: kernels for few rows transpose the tile."""
    return config.tile_n if pipelines.of(config).has("few_rows") else config.tile_m


def _parts(config: GemmConfig) -> tuple[int, ...]:
    """Columns of each of a tile's accumulators, where a kernel has several."""
    several = pipelines.of(config).takes("b_rest")
    return widths.parts(config.tile_n) if several else (config.tile_n,)


def _flops(config: GemmConfig) -> float:
    """Operations of a step."""
    return 2.0 * config.tile_m * config.tile_n * config.tile_k


def _scales_in_hardware(config: GemmConfig, this: Arch) -> bool:
    dtype = operand_dtype(config)
    return dtype in ("mxfp8", "mxfp4") and this.dtypes[dtype].support == "native"


def _idle(config: GemmConfig, this: Arch) -> float:
    """How many warps do the same products: more than 1 where the tile has fewer matrix instructions
    side by side than there are warps, and the warps do not share out K."""
    if pipelines.of(config).has("few_rows"):
        return 1.0
    m, n, _ = this.min_dot
    instructions = -(-config.tile_m // max(m, 16)) * -(-config.tile_n // n)
    return max(1.0, config.num_warps / instructions)


def residents(config: GemmConfig, this: Arch) -> int:
    """Workgroups that a compute unit holds at once."""
    accumulators = config.tile_m * config.tile_n // (this.warp_size * config.num_warps)
    pointers = pipelines.of(config).reads == "pointers"
    beside = int(GEMM.POINTER_REGISTERS) if pointers else OVERHEAD_REGISTERS
    registers = min(this.max_registers, accumulators + beside)
    return physics.resident(this, registers, shared_memory(config, this), config.num_warps)


def _stored(config: GemmConfig) -> int:
    """Bytes of a tile of C, and of the matrix that an epilogue combines it with."""
    columns = config.tile_n // epilogues.fold(config.epilogue)
    matrices = 2 if epilogues.has_matrix(config.epilogue) else 1
    return config.tile_m * columns * DTYPES[config.dtype_c].bytes * matrices
