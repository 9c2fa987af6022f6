"""How long a kernel that copies boxes (`boxed`) should take: GEMM's rates, and whole boxes.

Copies, products and what shared memory takes in and feeds to them overlap, so a step takes the
longest of these, and so does a tile's way through its steps. Where a ring has few stages for steps
as short as 16 pixels, a step takes as long as the next one's operands are waited for. A tile's
store comes on top where the groups share the tile; where they take turns, only the last.

The copy engine is slower for rows that lie askew or outside an array (`arch/figures`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Context
from tilewright.ops.conv import boxes, sharing
from tilewright.ops.conv.catalogue import channels_in, channels_out
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import common
from tilewright.ops.conv.pipelines.boxed import parts, shape
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.estimate import Estimates
from tilewright.ops.gemm.pipelines.warpgroups import WARPGROUP_ROWS
from tilewright.ops.pool import Columns, Each, each

PRODUCTS, PORT, SHARED, LATENCY, MEMORY, STORES, TOTALS, LAUNCH = (
    "products", "L2", "shared memory", "waiting for loads", "memory", "stores", "sum of parts",
    "launch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Steps:
    """Microseconds of a step of each kernel: arrays.

    products: of the matrix units. read: of the operands on their way from L2. shared: of shared
    memory, which takes them in and feeds the units.
    waits: until the next step's operands are there.
    outside: how much longer reading takes in the last tile of columns, which has rows outside.
    edges: the share of tiles that are such.
    """

    products: Each
    read: Each
    shared: Each
    waits: Each
    outside: Each
    edges: Each

    @property
    def average(self) -> Each:
        """The time of a step, over all tiles."""
        return self._over_all(self.read)

    @property
    def alone(self) -> Each:
        """The time of a step where no two workgroups read the same bytes at the same time."""
        return self._over_all(self.read * DEVICE.READ_APART)

    def _over_all(self, read: Each) -> Each:
        least = np.maximum(np.maximum(self.products, self.shared), self.waits)
        whole = np.maximum(least, read)
        return whole + self.edges * (np.maximum(least, read + self.outside) - whole)


@dataclass(frozen=True, slots=True)
class Work:
    """What the busiest compute unit does, of one kernel or of each.

    tiles: of all, and of their parts. waves: tiles that it stores. steps: of these. apart: how many
    of the steps read what no other workgroup reads at that time.
    """

    tiles: Each
    waves: Each
    steps: Each
    apart: Each


def estimates(x: Context) -> Estimates:
    """What launches should take."""
    c, p, device = x.config, x.problem, x.device
    through = physics.port_rate(device)
    classes: Each = np.ones(len(c), int)
    if p.direction == "weights":
        work = _of_weights(x)
    else:
        walks = [boxes.walks(p, residue) for residue in boxes.residues(p)]
        classes = np.where(c.classes > 1, 1, len(walks))
        work = _of_pixels(x, walks)
    one = _step(c, p, device, through)
    steps, apart = work.steps, work.apart
    read = one.read + one.edges * one.outside
    body = (steps - apart) * one.average + apart * one.alone
    stores = np.where(c.pipeline == shape.PINGPONG, classes, work.waves)
    stores = stores * (each(c, _stored_bytes) / through / DEVICE.STORE_SHARE)
    launch = common.LAUNCH_US + DEVICE.SECOND_US * (classes - 1)
    memory = physics.memory_us(p.min_bytes, device)
    terms = {
        PRODUCTS: steps * one.products,
        PORT: (steps + apart * (DEVICE.READ_APART - 1)) * read,
        SHARED: steps * one.shared,
        LATENCY: steps * one.waits,
        MEMORY: np.full(len(c), memory),
        STORES: stores,
        LAUNCH: launch,
    }
    total = physics.together_us(body + stores, memory) + launch
    if p.direction == "weights":
        terms[TOTALS] = sharing.totals(x, sharing.parts(x))
        total = total + terms[TOTALS]
    return Estimates.of(total, terms, lambda at: (f"{work.tiles[at]:.0f} tiles",))


def _stored_bytes(c: ConvConfig) -> int:
    return c.tile_m * c.tile_n * DTYPES[shape.stored(c)].bytes


def _of_pixels(x: Context, walks: Sequence[tuple[boxes.Walk, ...]]) -> Work:
    """The tiles of all residue classes."""
    c, p = x.config, x.problem
    waves: Each = 0.0
    steps: Each = 0.0
    for of in walks:
        tiles = x.case.tiles if len(walks) == 1 else parts.tiles_of_class(c, p, of)
        mine = np.ceil(tiles / x.device.compute_units)
        waves = waves + mine
        steps = steps + mine * math.prod(walk.count for walk in of)
    if len(walks) > 1:
        taps = math.prod(walk.count for walk in walks[0])
        at_once = np.ceil(x.case.tiles / x.device.compute_units)
        waves = np.where(c.classes > 1, at_once, waves)
        steps = np.where(c.classes > 1, at_once * taps, steps)
    return Work(x.case.tiles, waves, steps * np.ceil(channels_in(p) / c.tile_k), 0.0)


def _of_weights(x: Context) -> Work:
    """The tiles of a gradient of weights, and their parts."""
    tiles, every, units = x.case.tiles, x.case.steps, x.device.compute_units
    streams, share = x.config.shares_steps, sharing.shares(x)
    whole = (tiles - share.tiles) / units
    count = tiles * sharing.parts(x)
    waves = cdiv(count, units)
    each_steps = cdiv(every, sharing.parts(x))
    return Work(
        count,
        np.where(streams, whole + (share.tiles > 0), waves),
        np.where(streams, whole * every + share.steps, waves * each_steps),
        np.where(streams & (share.ways == 1), share.steps, 0.0),
    )


def _step(c: Columns, p: ConvProblem, device: Device, through: float) -> Steps:
    """A step, where a compute unit takes in `through` bytes a microsecond."""
    products = each(c, _products, device)
    plain = each(c, shape.stage_bytes) / through + _narrow_us(c, p, through)
    whole = np.maximum(plain, _rows_us(c, p))
    channels = p.group_c if p.direction == "weights" else channels_out(p)
    tiles = np.ceil(channels / c.tile_n)
    past = tiles * c.tile_n - channels
    rows = past * c.tile_k * DTYPES[p.dtype].bytes / DEVICE.ROW_BYTES
    longer = DEVICE.OUTSIDE_ROW_US - DEVICE.ROW_BYTES / through
    # Boxes of several taps behind the last are read from inside.
    edge = (past > 0) & (c.spread == 0)
    waits = physics.ring_us(whole, c.num_stages)
    outside = np.where(edge, rows * longer, 0.0)
    shared = each(c, _shared_bytes) / (DEVICE.SHARED_BYTES_PER_CLOCK * device.clock_mhz)
    return Steps(products, whole, shared, waits, outside, edge / np.maximum(1, tiles))


def _shared_bytes(c: ConvConfig) -> float:
    """Bytes of a step through shared memory, in and out: each accumulator reads the rows again, and
    each instruction's rows the columns, as in GEMM's estimate."""
    size = c.tile_k * DTYPES[c.dtype].bytes
    rows, columns = c.tile_m * size, c.tile_n * size
    again = max(1.0, c.tile_m / WARPGROUP_ROWS)
    return rows * (1 + len(widths.parts(c.tile_n))) + columns * (1 + again)


def _narrow_us(c: Columns, p: ConvProblem, through: float) -> Each:
    """Microseconds that a step's rows of weights take longer where a narrow accumulator's are no
    whole rows, as in GEMM's estimate. Gradients of weights, whose boxes are read so too, showed
    none of it."""
    if p.direction != "data":
        return 0.0
    narrow = c.tile_n % _row(c[0]) * DTYPES[p.dtype].bytes / through
    return c.tile_k * (each(c, _narrow_parts) * DEVICE.ASKEW_ROW_US - narrow)


def _narrow_parts(c: ConvConfig) -> int:
    return sum(part < _row(c) for part in widths.parts(c.tile_n))


def _row(c: ConvConfig) -> int:
    """Elements of the copy engine's widest row."""
    return int(DEVICE.ROW_BYTES) // DTYPES[c.dtype].bytes


def _products(c: ConvConfig, device: Device) -> float:
    """Microseconds of the products of a step."""
    columns = sum(max(part, DEVICE.LEAST_PART) for part in widths.parts(c.tile_n))
    rate = physics.matrix_rate(device, c.dtype) * DEVICE.POWER_SHARE
    return 2 * c.tile_m * columns * c.tile_k / rate


def _rows_us(c: Columns, p: ConvProblem) -> Each:
    """Microseconds that the copy engine takes for a step's rows of channels, where these lie askew,
    or end in the middle of the last step; the average of all steps."""
    if p.direction == "weights":
        return 0.0
    channels, size = channels_in(p), DTYPES[p.dtype].bytes
    steps = np.ceil(channels / c.tile_k)
    rows = (c.tile_m + c.tile_n) * -(-c.tile_k * size // DEVICE.ROW_BYTES)
    askew = DEVICE.ASKEW_ROW_US if channels * size % DEVICE.SECTOR_BYTES else 0.0
    last = np.where(channels % c.tile_k, DEVICE.OUTSIDE_ROW_US, askew)
    return rows * ((steps - 1) * askew + last) / steps
