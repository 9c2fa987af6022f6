"""How long a convolution should take, from sizes and the data sheet's rates. Only what gathering
few channels takes and what gradients of the data take were fitted (`GATHERED_INSTRUCTIONS`,
`DATA_FACTOR`).

A workgroup walks its tile's steps: products on the matrix units (or the vector units), the
operands' way from L2, of which every step has its own although taps share pixels, and their way
from shared memory to the warps. The slowest decides, the others overlap it in part, and workgroups
come in waves. The memory's traffic, each array once, overlaps: the two
times add up like the legs of a right triangle, as in GEMM's estimate. The launch comes on top, and
where parts are summed, a second kernel with its traffic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import device_rates as rates
from tilewright.ops.conv import pipelines, runs, sharing, totals, windows
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines.bands import estimate as bands_estimate
from tilewright.ops.conv.pipelines.boxed import estimate as boxed_estimate
from tilewright.ops.conv.pipelines.grouped import estimate as grouped_estimate
from tilewright.ops.conv.pipelines.packed import estimate as packed_estimate
from tilewright.ops.conv.pipelines.subpixel import estimate as subpixel_estimate
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.conv.rules import vector
from tilewright.ops.estimate import Estimate

PRODUCTS, PORT, SHARED, MEMORY, STEPS, GATHERING, TOTALS, LAUNCH = (
    "products", "L2", "shared memory", "memory", "steps", "gathering", "sum of parts", "launch",
)  # fmt: skip

SHARE = 0.6
"""Share of the published matrix rate that products reach: a guess, under that of GEMM's kernel
through pointers (`rates.BASIC`), as every step finds its pixels anew."""

DATA_FACTOR = 1.4
"""What gradients of the data on the matrix units take of the time that their terms say: fitted to
2,200 kernels for the layers of benchmarks/results/conv_tuned_h200.json. In the other directions a
factor ranks no better."""

STEP_US = 0.25
"""Time of a step beside products and loads: places, masks, barriers. Other workgroups on its
compute unit hide it."""

EDGE = 32
"""Rows of a warp's part of a tile."""

GATHERED = 4.0
"""Factor on the time of a load where elements are read one by one."""

GATHERED_INSTRUCTIONS, FINISHED_INSTRUCTIONS = 70, 50
"""Instructions of a lane for each load of a merged step, whose place is found by divisions, with
its share of waiting, and for each sum of the result that is stored. Fitted to 16 kernels for two
stems on an H200 (docs/notes/conv-gather.md)."""

SECTOR = 32
"""Bytes that a memory moves at least: of a group's channels alone, fewer may be wanted."""

TAP_INSTRUCTIONS = 6
"""Instructions of a lane for each element and tap of a depthwise kernel, with its share of masks
and addresses."""


LOAD_INSTRUCTIONS = 4
"""Instructions of a lane for each element that a window which holds its filter loads: masks, the
address and the conversion."""


def estimate(config: ConvConfig, problem: ConvProblem, device: Device) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    own = _OWN.get(config.pipeline, _through_pointers)
    return own(config, problem, device)


_OWN: Mapping[str, Callable[[ConvConfig, ConvProblem, Device], Estimate]] = {
    "gluon_ws": boxed_estimate.estimate,
    "gluon_pingpong": boxed_estimate.estimate,
    "gluon_grouped": grouped_estimate.estimate,
    "gluon_bands": bands_estimate.estimate,
    "packed": packed_estimate.estimate,
    "subpixel": subpixel_estimate.estimate,
}
"""The pipelines with estimates of their own."""


def _through_pointers(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    this = arch(device.arch)
    units = device.compute_units
    splits = sharing.splits(c, p, device) if c.scheduler == "split" else 1
    count = pipelines.of(c).tiles(c, p) * splits
    resident = _resident(c, this)
    steps = _steps(c, p, splits)
    waves: float = -(-count // units)
    if c.scheduler == "stream_k":
        waves, resident = count / units, 1
    read = _step_bytes(c, p) / (rates.PORT_BYTES_PER_CLOCK * rates.PORT_SHARE * device.clock_mhz)
    width = min(c.alignment, 16)
    if width < 16 and c.pipeline == "implicit":
        # Of runs, y is read in whole vectors.
        narrow = c.tile_n / (c.tile_m + c.tile_n) if c.runs and c.direction == "weights" else 1.0
        read *= 1 + narrow * (min(GATHERED, 16 / width) - 1)
    products = _products(c, this, device)
    shared = _shared_bytes(c) / (rates.SHARED_BYTES_PER_CLOCK * device.clock_mhz)
    alone = (products + read + shared + STEP_US) / min(resident, max(1, waves))
    longest = max(products, read, shared)
    together = longest + rates.SERIAL_PRODUCTS * (products + read + shared - longest)
    body = waves * steps * max(together, alone)
    gathered = count / units * _gathered(c, p, steps, device) if _gathers(c, p) else 0.0
    body = max(body, gathered)
    memory = p.min_bytes / (device.bandwidth_gbs * 1e3)
    stored = 1.0 if c.alignment_out >= 4 else 1.5
    terms = {
        PRODUCTS: waves * steps * products,
        PORT: waves * steps * read,
        SHARED: waves * steps * shared,
        MEMORY: memory * stored,
        STEPS: waves * steps * STEP_US / resident,
    }
    if gathered:
        terms[GATHERING] = gathered
    factor = DATA_FACTOR if c.direction == "data" and c.pipeline == "implicit" else 1.0
    total = factor * math.hypot(body, memory * stored) + rates.LAUNCH_US + 2 * rates.LATENCY_US
    terms[LAUNCH] = rates.LAUNCH_US + 2 * rates.LATENCY_US
    if c.scheduler in SHARING:
        terms[TOTALS] = totals.us(c, p, splits, device)
        total += terms[TOTALS]
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{count} workgroups",))


def _gathers(c: ConvConfig, p: ConvProblem) -> bool:
    """Whether a kernel is of those that `GATHERED_INSTRUCTIONS` is of."""
    return c.merged and p.groups == 1


def _gathered(c: ConvConfig, p: ConvProblem, steps: float, device: Device) -> float:
    """Microseconds in which a compute unit gathers the operands of merged steps, and stores a tile
    of the result."""
    size = DTYPES[c.dtype].bytes
    first, second = c.tile_m * c.tile_k * size, c.tile_n * c.tile_k * size
    width = max(c.alignment, size)
    finished = c.tile_m * c.tile_n * FINISHED_INSTRUCTIONS
    if c.direction == "weights":
        loads = first / (runs.READ if c.runs else width) + second / width
        finished = 0
    else:
        loads = (first + second) / width
    if c.direction == "forward":
        row = runs.sizes(p, c.alignment)[0] if c.runs else p.filter[-1] * p.c
        steps = cdiv(p.taps // p.filter[-1] * row, c.tile_k)
    instructions = steps * loads * GATHERED_INSTRUCTIONS + finished
    lanes = arch(device.arch).fma_flops_per_cu_per_clock / 2
    return instructions / lanes / device.clock_mhz


def _resident(c: ConvConfig, this: Arch) -> int:
    """Workgroups on a compute unit at once."""
    threads = c.num_warps * this.warp_size
    registers = min(this.max_registers, pipelines.of(c).sums(c) // threads + 64)
    file = this.registers_per_lane * this.simds_per_cu * this.warp_size
    by_registers = file // (registers * threads)
    shared = pipelines.of(c).shared_memory(c, this) + this.shared_memory_reserved
    by_memory = this.shared_memory_per_cu // shared if shared else this.max_workgroups_per_cu
    by_warps = this.max_warps_per_simd * this.simds_per_cu // c.num_warps
    return max(1, min(by_registers, by_memory, by_warps, this.max_workgroups_per_cu))


def _steps(c: ConvConfig, p: ConvProblem, splits: int) -> float:
    """Steps of a workgroup, on average over classes."""
    if c.window:
        lines = cdiv(windows.count(c, p), c.tile_m) / splits if c.direction == "weights" else 1
        each: float = windows.steps(c, p) + windows.held(c).ahead
        if windows.of_row(c) and c.direction != "weights":
            each = p.taps / p.filter[-1] / windows.classes(c, p)
        return max(1.0, lines * each)
    if c.direction == "weights":
        return max(1.0, p.n * math.prod(p.out_sizes) / c.tile_k / splits)
    taps = p.taps / math.prod(p.stride) if c.direction == "data" else p.taps
    if c.depthwise:
        return max(1.0, taps)
    channels = _read_channels(p) * c.merged_groups
    if c.merged:
        return max(1.0, taps * channels / c.tile_k)
    return max(1.0, taps * -(-channels // c.tile_k))


def _step_bytes(c: ConvConfig, p: ConvProblem) -> float:
    size = DTYPES[c.dtype].bytes
    if c.window:
        read = windows.pixels(c) * windows.rows(c)
        read += windows.held(c).strip if c.direction == "weights" else 0
        return c.tile_m * c.tile_n * size * read
    if not c.depthwise:
        if c.direction == "weights":
            of_pixels, others = c.tile_m + c.tile_n, 0
        else:
            of_pixels, others = c.tile_m, c.tile_n
        return (of_pixels * _sectors(c, p) + others) * c.tile_k * size
    if c.direction == "weights":
        return (c.tile_m + 1) * c.tile_n * c.tile_k * size
    return c.tile_m * c.tile_n * size


def _sectors(c: ConvConfig, p: ConvProblem) -> float:
    """Bytes that memory moves for each byte of a pixel's channels that a tile reads."""
    if p.groups == 1:
        return 1.0
    channels = min(p.group_c, p.group_k) if c.direction == "weights" else _read_channels(p)
    return max(1.0, SECTOR / max(1, channels * c.merged_groups * DTYPES[c.dtype].bytes))


def _read_channels(p: ConvProblem) -> int:
    """Channels of a group of what pixels are gathered from."""
    return p.group_k if p.direction == "data" else p.group_c


def _shared_bytes(c: ConvConfig) -> float:
    """Bytes that the warps of a workgroup read from shared memory in a step: each those of its part
    of the tile, of `EDGE` rows or more."""
    if c.depthwise:
        return 0.0
    down = min(c.num_warps, max(1, c.tile_m // EDGE))
    across = max(1, c.num_warps // down)
    return (c.tile_m * across + c.tile_n * down) * c.tile_k * DTYPES[c.dtype].bytes


def _products(c: ConvConfig, this: Arch, device: Device) -> float:
    """Microseconds that a step's products take on a compute unit."""
    count = c.tile_m * c.tile_n * c.tile_k
    if vector(c, this):
        lanes = this.fma_flops_per_cu_per_clock / 2
        if c.window:
            loads = windows.pixels(c) * windows.rows(c)
            each = windows.products(c) + LOAD_INSTRUCTIONS * loads
            count = c.tile_m * c.tile_n * each
        elif c.depthwise:
            count *= TAP_INSTRUCTIONS
        return count / lanes / device.clock_mhz
    word = "tf32" if c.precision == "tf32" else c.dtype
    rate = peak_tflops(this, device, word) * 1e6 / device.compute_units * SHARE
    return 2 * count / rate
