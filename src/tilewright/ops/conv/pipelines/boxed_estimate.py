"""How long a kernel that copies boxes (`boxed`) should take: GEMM's rates, and whole boxes.

Copies and products overlap, so a step takes the longer of the two, and so does a tile's way
through its steps. A tile's store comes on top where the groups share the tile; where they take
turns, only the last.

One figure is of convolutions' own: what rows outside an array cost (`OUTSIDE_US`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import sharing, totals
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.pipelines import boxed, boxed_launch, boxed_weights, boxes
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import rates

PRODUCTS, PORT, MEMORY, STORES, TOTALS, LAUNCH = (
    "products", "L2", "memory", "stores", "sum of parts", "launch",
)  # fmt: skip

OUTSIDE_US = 0.005
"""What the copy engine takes for a row of 128 bytes outside an array, which it fills with zeros. A
row inside takes half as long. Read off 16 layers of 320 and 640 channels on an H200, and GEMM's
table of padding rows (ops/device/schedule.py) gives the same."""

ROW_BYTES = 128
"""Of such a row: a swizzle's span."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Microseconds of a step of a kernel.

    products: of the matrix units. read: of what is inside arrays on its way from L2.
    outside: of rows outside, in the last tile of columns. edges: the share of tiles that have such.
    """

    products: float
    read: float
    outside: float
    edges: float

    @property
    def average(self) -> float:
        """Of a step, over all tiles."""
        whole = max(self.products, self.read)
        return whole + self.edges * (max(self.products, self.read + self.outside) - whole)


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """What `c` should take for `p` on `device`."""
    splits = sharing.splits(c, p, device) if c.scheduler == "split" else 1
    if c.direction == "weights":
        each = [boxed_weights.tiles(c, p) * splits]
        depth = [boxed_weights.steps_of(c, p) / splits]
    else:
        of = [boxes.walks(p, residue) for residue in boxes.residues(p)]
        each = [boxed_launch.tiles(c, p, walks) for walks in of]
        channels = -(-(p.group_k if p.direction == "data" else p.group_c) // c.tile_k)
        depth = [channels * math.prod(w.count for w in walks) for walks in of]
    waves: list[float] = [-(-count // device.compute_units) for count in each]
    if c.scheduler == "stream_k":
        waves = [count / device.compute_units for count in each]
    through = device.clock_mhz * rates.PORT_BYTES_PER_CLOCK * rates.PORT_SHARE
    one = _step(c, p, device, through)
    steps = sum(count * long for count, long in zip(waves, depth, strict=True))
    stored = c.tile_m * c.tile_n * DTYPES[boxed.stored(c)].bytes / through / rates.STORE_SHARE
    stores = (len(waves) if c.pipeline == boxed.PINGPONG else sum(waves)) * stored
    launch = rates.LAUNCH_US + 2 * rates.LATENCY_US + totals.SECOND_US * (len(each) - 1)
    memory = p.min_bytes / (device.bandwidth_gbs * 1e3)
    terms = {
        PRODUCTS: steps * one.products,
        PORT: steps * (one.read + one.edges * one.outside),
        MEMORY: memory,
        STORES: stores,
        LAUNCH: launch,
    }
    total = math.hypot(steps * one.average + stores, memory) + launch
    if c.scheduler in SHARING:
        terms[TOTALS] = totals.us(c, p, splits, device)
        total += terms[TOTALS]
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{sum(each)} tiles",))


def _step(c: ConvConfig, p: ConvProblem, device: Device, through: float) -> Steps:
    """A step, where a compute unit takes in `through` bytes a microsecond."""
    this = arch(device.arch)
    size = DTYPES[c.dtype].bytes
    columns = sum(max(part, rates.LEAST_PART) for part in widths.parts(c.tile_n))
    rate = peak_tflops(this, device, c.dtype) * 1e6 / device.compute_units * rates.POWER_SHARE
    products = 2 * c.tile_m * columns * c.tile_k / rate
    whole = boxed.stage_bytes(c) / through
    if c.direction == "weights":
        return Steps(products, whole, 0.0, 0.0)
    tiles = -(-p.channels_out // c.tile_n)
    past = tiles * c.tile_n - p.channels_out
    rows = past * c.tile_k * size / ROW_BYTES
    return Steps(products, whole, rows * OUTSIDE_US, 1 / tiles if past else 0.0)
