"""How long a kernel should take, and the terms of that time, from sizes and the data sheet's rates.

A workgroup has a tile of rows of Q, and walks the keys that its rows see in steps. In a step, the
matrix units multiply twice, the vector and transcendental units take the softmax, and keys and
values come from L2. Products and softmax overlap in part, by the kernel's kind; the port to L2
works beside both. What a workgroup waits for (the next keys' arrival, barriers) is hidden by the
others that its compute unit holds.

Tiles are of unequal length under masks and lengths. The long ones go first, so the compute units
end together, but for one tile; equal ones come in waves, of which the last is as long as a full
one. All of this overlaps the memory's traffic: each operand once, keys and values again where L2
has lost them until the next tiles of their head come, and the partial results of splits. The two
times add up as in GEMM's estimate (`physics.together_us`). The launch, the steps beside
the kernel's own, and the first load and last store of each round come on top.

So a small tile wins for few queries: rows that a tile has beyond the queries cost products and
softmax, while the traffic is the same. And tiles with more rows win for many: they read keys and
values fewer times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import binder, physics
from tilewright.ops.attention import pipelines
from tilewright.ops.attention.catalogue import CATALOGUE
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.mask import Mask
from tilewright.ops.attention.pipelines.common import wide
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.rates import ATTENTION
from tilewright.ops.attention.splits import splits_of
from tilewright.ops.binder import Context
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Columns, Each, each
from tilewright.wording import many

PRODUCTS, SOFTMAX, L2, LATENCY, MEMORY, FILL, STEPS, LAUNCH = (
    "matrix units", "softmax", "L2", "waiting for loads", "memory", "fill and drain",
    "further steps", "launch",
)  # fmt: skip

UNEVEN = 1.05
"""Tiles whose longest is longer than their mean by this factor are unequal."""

WARPGROUP = 4
"""Warps of a group in Gluon's kernels for NVIDIA GPUs."""

SAMPLES = 16
"""Tiles that are looked at to know how many steps tiles have; without a mask they are alike, and
two are."""


def estimates(c: Columns, problem: AttentionProblem, device: Device) -> Estimates:
    """What each of `c`, which are one or more, should take for `problem` on `device`."""
    p, units = problem, device.compute_units
    step, record = each(c, _step, device), each(c, _record)
    splits = _splits(c, p, device)
    heads = np.where(c.pack, p.kv_heads, p.heads)
    grouped = np.where(c.pack, p.group, 1)  # rows of a tile for each query
    walk = _walk(c, p, c.tile_q / grouped)
    tiles = np.ceil(p.lengths[0] * grouped / c.tile_q) * heads * p.batch  # that have queries
    launched = np.ceil(p.q_len * grouped / c.tile_q) * heads * p.batch  # as the longest one asks
    groups = tiles * splits
    # Steps of the longest workgroup, and of all workgroups together.
    longest, total = np.ceil(walk.longest / splits), tiles * walk.mean
    at_once = np.maximum(1, np.minimum(step.resident, np.ceil(groups / units)))
    uneven = walk.longest > UNEVEN * walk.mean
    busy = _busy(groups, longest, total, uneven, units)
    masked = walk.cut * step.masked
    waits = step.waits + (step.page if p.paged else 0.0)
    softmax = step.softmax + masked
    computes = np.maximum(step.products, softmax)
    computes = computes + step.serial * np.minimum(step.products, softmax)
    alone = (step.products + step.softmax + masked) / step.warp_groups + ATTENTION.STEP_US
    body = busy * np.maximum(computes, np.maximum(step.read, np.maximum(waits, alone) / at_once))
    rounds = np.ceil(groups / (units * at_once))
    fill = 2 * DEVICE.LATENCY_US + step.store
    fill = fill * np.where(c.scheduler == "persistent", 1, rounds) + rounds * record.tile_us
    empty = np.maximum(0, launched - tiles) * splits
    fill += empty * ATTENTION.EMPTY_US / (units * step.resident)
    split = np.where(c.scheduler == "split", 1, 0)
    partial = float(2 * 4 * p.batch * p.heads * p.q_len * (p.head_dim_v + 1))
    moved = p.min_bytes + _again(c, p, device, step.resident) + partial * splits * split
    moved += 2 * _workspace(c, p, device, record.before)
    memory = physics.memory_us(moved * record.narrow, device)
    further = ATTENTION.COMBINE_US * (
        split + ("append" in p.words) + ("blocks" in p.words) + record.before
    )
    traffic = np.where(groups, memory + DEVICE.LATENCY_US, 0.0)
    total_us = physics.together_us(body + fill, traffic) + (further + DEVICE.LAUNCH_US)

    def facts(at: int) -> tuple[str, ...]:
        waves = max(1, -(-int(groups[at]) // units)) if groups[at] else 0
        said = [f"{many(round(float(groups[at])), 'tile')} in {many(waves, 'wave')}"]
        mean = walk.mean[at] / splits[at]
        even = longest[at] <= UNEVEN * mean
        steps = f"{mean:.0f}" if even else f"{mean:.0f} to {longest[at]:.0f}"
        said.append(f"{steps} steps each")
        return (*said, f"{splits[at]} splits") if splits[at] > 1 else (*said,)

    return Estimates.of(
        total_us,
        {
            PRODUCTS: busy * step.products,
            SOFTMAX: busy * softmax,
            L2: busy * step.read,
            LATENCY: busy * waits / at_once,
            MEMORY: memory,
            FILL: fill,
            STEPS: further,
            LAUNCH: np.full(len(c), DEVICE.LAUNCH_US),
        },
        facts,
    )


@dataclass(frozen=True, slots=True)
class _Record:
    """What the estimate takes from a config's record, and from its alignment (``NARROW``).
    before: kernels that prepare operands."""

    tile_us: float
    before: int
    narrow: float


def _record(c: AttentionConfig) -> _Record:
    record = pipelines.of(c)
    return _Record(record.pace.tile_us, len(record.before), ATTENTION["NARROW"][c.alignment])


def _splits(c: Columns, p: AttentionProblem, device: Device) -> Each:
    found = np.ones(len(c), int)
    for i in np.flatnonzero(c.scheduler == "split").tolist():
        found[i] = splits_of(c[i], p, device)
    return found


def _workspace(c: Columns, p: AttentionProblem, device: Device, before: Each) -> Each:
    """Bytes that kernels before a config's own write for it."""
    found = np.zeros(len(c))
    for i in np.flatnonzero(before).tolist():
        parts = pipelines.of(c[i]).before
        found[i] = binder.launch(parts, CATALOGUE, Context(c[i], p, device)).workspace_bytes
    return found


def _busy(groups: Each, longest: Each, total: Each, uneven: Each, units: int) -> Each:
    """Steps that the busiest compute unit takes. Of unequal tiles the last to begin are the short
    ones: half of a mean one is left over."""
    mean = total / np.maximum(1, groups)
    left = np.maximum(longest, total / units + 0.5 * mean * (groups > units))
    return np.where(groups, np.where(uneven, left, np.ceil(groups / units) * longest), 0.0)


# --- tiles, and the steps that they walk -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Walk:
    """Steps of tiles: on average, of the longest, and the share that the mask or the end cuts."""

    mean: Each
    longest: Each
    cut: Each


def _walk(c: Columns, p: AttentionProblem, queries: Each) -> Walk:
    n_q, n_kv = p.lengths
    found = walks(p.mask, n_q, n_kv, queries, c.tile_kv)
    longest = found.longest
    if (n_q, n_kv) != (p.q_len, p.kv_len):
        longest = walks(p.mask, p.q_len, p.kv_len, queries, c.tile_kv).longest
    # Tiles are taken to see the same share of a mask of blocks.
    return Walk(found.mean * p.share_seen, longest * p.share_seen, found.cut)


def walks(mask: Mask, n_q: int, n_kv: int, queries: Each, tile_kv: Each) -> Walk:
    """Steps of the tiles of one sequence, by looking at some of them.

    queries, tile_kv: of each config's tiles; arrays.
    """
    tiles = np.ceil(n_q / queries)
    if not n_q or not n_kv:
        nothing = np.zeros(len(tiles))
        return Walk(nothing, nothing, nothing)
    last = tiles[:, None] - 1
    looked_at = SAMPLES if mask.left is not None or mask.right is not None else 2
    some = np.rint(np.arange(looked_at) * last / (looked_at - 1))
    counted = np.ones(some.shape)
    counted[:, 1:] = some[:, 1:] != some[:, :-1]  # a tile once
    first = np.floor(some * queries[:, None])
    ends = np.minimum(n_q, np.ceil((some + 1) * queries[:, None])) - 1
    steps, cut = tile_steps(mask, first, ends, n_q, n_kv, tile_kv[:, None])
    together = (steps * counted).sum(1)
    cuts = (cut * counted).sum(1) / np.maximum(1, together)
    return Walk(together / counted.sum(1), np.max(steps, axis=1), cuts)


def tile_steps(
    mask: Mask, first: Each, last: Each, n_q: int, n_kv: int, tile_kv: Each
) -> tuple[Each, Each]:
    """Steps of the tile with these queries, and how many of them the mask or the end cuts."""
    shift = n_kv - n_q if mask.bottom_right else 0
    low, high, whole_low, whole_high = 0 * first, n_kv + 0 * first, 0 * first, n_kv
    if mask.right is not None:
        high = np.minimum(n_kv, last + shift + mask.right + 1)
        whole_high = np.minimum(n_kv, first + shift + mask.right + 1)
    if mask.left is not None:
        low = np.maximum(0, first + shift - mask.left)
        whole_low = np.maximum(0, last + shift - mask.left)
    end = np.ceil(high / tile_kv)
    begin = np.where(low < high, low // tile_kv, end)
    whole = np.maximum(0, whole_high // tile_kv - np.maximum(begin, np.ceil(whole_low / tile_kv)))
    steps = end - begin
    cut = steps - np.minimum(whole, steps)
    if mask.left is not None:  # and the first keys, which it keeps
        kept = np.minimum(begin, np.ceil(np.minimum(mask.first, high) / tile_kv))
        steps, cut = steps + kept, cut + kept
    seen = high > 0
    return np.where(seen, steps, 0), np.where(seen, cut, 0)


# --- one step ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of one workgroup on one compute unit, and other figures. Times in microseconds.

    products, softmax, read: of the matrix units, of the vector and transcendental units, and of
        the port to L2. masked: what softmax takes more if the mask cuts all of the step.
    serial: share of the shorter of products and softmax that the longer does not hide.
    waits: for keys and values to arrive. page: for the entry of the page table before.
    store: of a tile of O.
    warp_groups: groups of warps in a workgroup, each with rows of its own, that do not wait for one
        another.
    resident: workgroups that a compute unit holds.
    """

    products: float
    softmax: float
    masked: float
    serial: float
    read: float
    waits: float
    page: float
    store: float
    warp_groups: int
    resident: int


@lru_cache(maxsize=8192)
def _step(c: AttentionConfig, device: Device) -> _Step:
    this, record, clock = arch(device.arch), pipelines.of(c), device.clock_mhz
    d, d_v = (wide(size) for size in (c.head_dim, c.head_dim_v))
    scores = c.tile_q * c.tile_kv
    pace = record.pace
    share = pace.share_8_bit if DTYPES[c.dtype].bits == 8 else pace.share
    if this.async_mma and c.tile_q < 64:
        share *= ATTENTION.SMALL_DOT
    products = 2 * scores * (d + d_v) / (physics.matrix_rate(device, c.dtype) * share)
    lanes = physics.lanes(this)
    taken = pace.instructions + sum(
        count for word, count in ATTENTION["FEATURE_INSTRUCTIONS"].items() if word in c.words
    )
    rescaled = pace.rescales * c.tile_q * d_v / lanes  # sums, by the new maximum
    exponentials = 1 + sum(
        count for word, count in ATTENTION["FEATURE_EXPONENTIALS"].items() if word in c.words
    )
    rate = physics.exponentials(this)
    softmax = max(scores * exponentials / rate, scores * taken / lanes + rescaled)
    element = DTYPES[c.dtype_kv].bytes
    latent = "latent" in c.words
    step_bytes = c.tile_kv * (c.head_dim + (0 if latent else c.head_dim_v)) * element
    port = physics.port_rate(device)
    read = step_bytes * ATTENTION["NARROW"][c.alignment] / port
    ahead = max(1, c.num_stages - pace.in_use)
    loads = (ATTENTION.MEMORY_US + read) / ahead
    if c.num_stages == 1:
        loads += products + softmax / clock
    page = 0.0
    if c.page_size:
        pages = max(1.0, c.tile_kv / c.page_size)
        page = ATTENTION.PAGE_US / ahead + pages * ATTENTION.PAGE_INSTRUCTIONS / clock
    stored = c.tile_q * c.head_dim_v * DTYPES[c.dtype_o].bytes
    groups = 1 if record.in_triton else max(1, c.num_warps // WARPGROUP)
    resident = _resident(c, this, step_bytes)
    return _Step(
        products=products,
        softmax=softmax / clock,
        masked=scores * ATTENTION.MASK_INSTRUCTIONS / lanes / clock,
        serial=pace.serial / (groups + pace.beside * (resident - 1)),
        read=read,
        waits=loads,
        page=page,
        store=stored / (DEVICE.STORE_SHARE * port),
        warp_groups=groups,
        resident=resident,
    )


def _resident(c: AttentionConfig, this: Arch, step_bytes: int) -> int:
    """Workgroups that a compute unit holds at once."""
    record = pipelines.of(c)
    if record.resident is not None:
        return record.resident(c, this)
    registers = record.registers(c, this) + int(ATTENTION.RESIDENT_REGISTERS)
    # What the compiler takes where the record cannot say: the ring, and Q beside it.
    shared = step_bytes * c.num_stages + c.tile_q * c.head_dim * DTYPES[c.dtype].bytes
    if record.shared_memory is not None:
        shared = record.shared_memory(c, this)
    return physics.resident(this, min(this.max_registers, registers), shared, c.num_warps)


def _again(c: Columns, p: AttentionProblem, device: Device, resident: Each) -> Each:
    """Bytes of keys and values that are read from memory again. The tiles of a head of keys that
    run at once read them together, nearly; the next ones find in L2 what it kept."""
    n_q, n_kv = p.lengths
    if not n_q or not n_kv or not p.batch:
        return 0.0
    dims = p.head_dim + (0 if "latent" in p.words else p.head_dim_v)
    one = n_kv * dims * DTYPES[p.dtype_kv].bytes
    # Tiles that read one head of keys.
    of_head = np.ceil(n_q * np.where(c.pack, p.group, 1) / c.tile_q) * np.where(c.pack, 1, p.group)
    slots = device.compute_units * resident
    rounds = np.ceil(of_head / slots)
    in_use = np.maximum(1, slots // of_head) * one
    lost = np.maximum(0.0, 1.0 - ATTENTION.L2_KEPT * device.l2_bytes / in_use) * (rounds > 1)
    seen = min(1.0, p.mask.pairs(n_q, n_kv) / (n_q * n_kv)) * p.share_seen
    again = (rounds - 1) * lost + (of_head - 1) * ATTENTION.L2_MISSED
    return again * one * p.kv_heads * p.batch * seen
