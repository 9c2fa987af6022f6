"""How long a kernel that copies boxes (`boxed`) should take: GEMM's rates, and whole boxes.

Copies and products overlap, so a step takes the longer of the two, and so does a tile's way
through its steps. A tile's store comes on top where the groups share the tile; where they take
turns, only the last.

The copy engine is slower for rows that lie askew or outside an array (`arch/figures`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Context
from tilewright.ops.conv import boxes, sharing
from tilewright.ops.conv.catalogue import channels_in
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.boxed import parts, shape
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.estimate import Estimate

PRODUCTS, PORT, MEMORY, STORES, TOTALS, LAUNCH = (
    "products", "L2", "memory", "stores", "sum of parts", "launch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Steps:
    """Microseconds of a step of a kernel.

    products: of the matrix units. read: of the operands on their way from L2.
    outside: how much longer that takes in the last tile of columns, which has rows outside.
    edges: the share of tiles that are such.
    """

    products: float
    read: float
    outside: float
    edges: float

    @property
    def average(self) -> float:
        """The time of a step, over all tiles."""
        return self._over_all(self.read)

    @property
    def alone(self) -> float:
        """The time of a step where no two workgroups read the same bytes at the same time."""
        return self._over_all(self.read * DEVICE.READ_APART)

    def _over_all(self, read: float) -> float:
        whole = max(self.products, read)
        return whole + self.edges * (max(self.products, read + self.outside) - whole)


@dataclass(frozen=True, slots=True)
class Work:
    """What the busiest compute unit does.

    tiles: of all, and of their parts. waves: tiles that it stores. steps: of these. apart: how many
    of the steps read what no other workgroup reads at that time.
    """

    tiles: int
    waves: float
    steps: float
    apart: float = 0.0


def estimate(x: Context) -> Estimate:
    """What a launch should take."""
    c, p, device = x.config, x.problem, x.device
    through = physics.port_rate(device)
    stored = c.tile_m * c.tile_n * DTYPES[shape.stored(c)].bytes / through / DEVICE.STORE_SHARE
    if c.direction == "weights":
        work = [_of_weights(x)]
    else:
        walks = (boxes.walks(p, residue) for residue in boxes.residues(p))
        work = [_of_pixels(c, p, of, device) for of in walks]
    one = _step(c, p, device, through)
    steps = sum(each.steps for each in work)
    apart = sum(each.apart for each in work)
    read = one.read + one.edges * one.outside
    body = (steps - apart) * one.average + apart * one.alone
    stores = stored * (len(work) if c.pipeline == shape.PINGPONG else sum(w.waves for w in work))
    launch = common.LAUNCH_US + DEVICE.SECOND_US * (len(work) - 1)
    memory = physics.memory_us(p.min_bytes, device)
    terms = {
        PRODUCTS: steps * one.products,
        PORT: (steps + apart * (DEVICE.READ_APART - 1)) * read,
        MEMORY: memory,
        STORES: stores,
        LAUNCH: launch,
    }
    total = physics.together_us(body + stores, memory) + launch
    if c.scheduler in SHARING:
        terms[TOTALS] = sharing.adding_us(x, sharing.parts(x))
        total += terms[TOTALS]
    return common.estimated(total, terms, sum(each.tiles for each in work), "tiles")


def _of_pixels(c: ConvConfig, p: ConvProblem, of: tuple[boxes.Walk, ...], device: Device) -> Work:
    """The tiles of a residue class."""
    tiles = parts.tiles_of_class(c, p, of)
    waves = cdiv(tiles, device.compute_units)
    steps = waves * cdiv(channels_in(p), c.tile_k) * math.prod(w.count for w in of)
    return Work(tiles, waves, steps)


def _of_weights(x: Context) -> Work:
    """The tiles of a gradient of weights, and their parts."""
    tiles, every, units = x.case.tiles, x.case.steps, x.device.compute_units
    if x.config.scheduler == "stream_k":
        share = sharing.shares(x)
        whole = (tiles - share.tiles) / units
        apart = 0.0 if share.ways > 1 else share.steps
        return Work(tiles, whole + (share.tiles > 0), whole * every + share.steps, apart)
    waves = cdiv(tiles * x.splits, units)
    return Work(tiles * x.splits, waves, waves * cdiv(every, x.splits))


def _step(c: ConvConfig, p: ConvProblem, device: Device, through: float) -> Steps:
    """A step, where a compute unit takes in `through` bytes a microsecond."""
    size = DTYPES[c.dtype].bytes
    columns = sum(max(part, DEVICE.LEAST_PART) for part in widths.parts(c.tile_n))
    rate = physics.matrix_rate(device, c.dtype) * DEVICE.POWER_SHARE
    products = 2 * c.tile_m * columns * c.tile_k / rate
    whole = max(shape.stage_bytes(c) / through, _rows_us(c, p))
    if c.spread:  # boxes behind the last are read from inside
        return Steps(products, whole, 0.0, 0.0)
    channels = p.c if c.direction == "weights" else p.channels_out
    tiles = cdiv(channels, c.tile_n)
    past = tiles * c.tile_n - channels
    rows = past * c.tile_k * size / DEVICE.ROW_BYTES
    longer = DEVICE.OUTSIDE_ROW_US - DEVICE.ROW_BYTES / through
    return Steps(products, whole, rows * longer, 1 / tiles if past else 0.0)


def _rows_us(c: ConvConfig, p: ConvProblem) -> float:
    """Microseconds that the copy engine takes for a step's rows of channels, where these lie askew,
    or end in the middle of the last step; the average of all steps."""
    if c.direction == "weights":
        return 0.0
    channels = channels_in(p)
    steps = cdiv(channels, c.tile_k)
    size = DTYPES[c.dtype].bytes
    rows = (c.tile_m + c.tile_n) * -(-c.tile_k * size // DEVICE.ROW_BYTES)
    each = DEVICE.ASKEW_ROW_US if channels * size % DEVICE.SECTOR_BYTES else 0.0
    last = DEVICE.OUTSIDE_ROW_US if channels % c.tile_k else each
    return rows * ((steps - 1) * each + last) / steps
