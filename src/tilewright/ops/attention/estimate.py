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
times add up like the legs of a right triangle, as in GEMM's estimate. The launch, the steps beside
the kernel's own, and the first load and last store of each round come on top.

So a small tile wins for few queries: rows that a tile has beyond the queries cost products and
softmax, while the traffic is the same. And tiles with more rows win for many: they read keys and
values fewer times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import binder, device_rates
from tilewright.ops.attention import pipelines, rates
from tilewright.ops.attention.catalogue import CATALOGUE
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.mask import Mask
from tilewright.ops.attention.pipelines.common import heads, q_tiles, wide
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.splits import splits_of
from tilewright.ops.binder import Context
from tilewright.ops.estimate import Estimate

PRODUCTS, SOFTMAX, L2, LATENCY, MEMORY, FILL, STEPS, LAUNCH = (
    "matrix units", "softmax", "L2", "waiting for loads", "memory", "fill and drain",
    "further steps", "launch",
)  # fmt: skip

UNEVEN = 1.05
"""Tiles whose longest is longer than their mean by this factor are unequal."""

WARPGROUP = 4
"""Warps of a group in Gluon's kernels for NVIDIA GPUs."""

SAMPLES = 16
"""Tiles that are looked at to know how many steps tiles have."""


def estimate(config: AttentionConfig, problem: AttentionProblem, device: Device) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    c, p = config, problem
    step = _step(c, device)
    splits = splits_of(c, p, device)
    walk = _walk(c, p)
    units = device.compute_units
    tiles = _tiles(c, p)
    groups = tiles * splits
    # Steps of the longest workgroup, and of all workgroups together.
    longest = math.ceil(walk.longest / splits)
    total = tiles * walk.mean
    at_once = max(1, min(step.resident, -(-groups // units)))
    busy = _busy(groups, longest, total, walk.longest > UNEVEN * walk.mean, units, at_once)
    masked = walk.cut * step.masked
    waits = step.waits + (step.page if p.paged else 0.0)
    shorter, longer = sorted((step.products, step.softmax + masked))
    computes = longer + step.serial * shorter
    alone = (step.products + step.softmax + masked) / step.groups + rates.STEP_US
    body = busy * max(computes, step.read, max(waits, alone) / at_once)
    rounds = max(1, -(-groups // (units * at_once))) if groups else 0
    fill = 2 * device_rates.LATENCY_US + step.store
    fill *= 1 if c.scheduler == "persistent" else rounds
    fill += rounds * pipelines.of(c).pace.tile_us
    fill += _empty(c, p, splits) * rates.EMPTY_US / (units * step.resident)
    moved = p.min_bytes + _again(c, p, device, step.resident)
    partial = 2 * 4 * splits * p.batch * p.heads * p.q_len * (c.head_dim_v + 1)
    moved += partial if c.scheduler == "split" else 0
    before = pipelines.of(c).before
    moved += 2 * binder.launch(before, CATALOGUE, Context(c, p, device)).workspace_bytes
    memory = moved * rates.NARROW[c.alignment] / (device.bandwidth_gbs * 1e3)
    further = rates.COMBINE_US * ((c.scheduler == "split") + ("append" in c.words) + len(before))
    total_us = math.hypot(body + fill, memory + device_rates.LATENCY_US if groups else 0.0)
    total_us += further + device_rates.LAUNCH_US
    terms = (
        (PRODUCTS, busy * step.products),
        (SOFTMAX, busy * (step.softmax + masked)),
        (L2, busy * step.read),
        (LATENCY, busy * waits / at_once),
        (MEMORY, memory),
        (FILL, fill),
        (STEPS, further),
        (LAUNCH, device_rates.LAUNCH_US),
    )
    limiter = max(terms, key=lambda term: term[1])[0]
    return Estimate(total_us, limiter, terms, _facts(groups, splits, units, walk, longest))


def _facts(groups: int, splits: int, units: int, walk: _Walk, longest: int) -> tuple[str, ...]:
    waves = max(1, -(-groups // units)) if groups else 0
    facts = [f"{groups} tiles in {waves} wave{'s' * (waves != 1)}"]
    mean = walk.mean / splits
    many = f"{mean:.0f}" if longest <= UNEVEN * mean else f"{mean:.0f} to {longest}"
    facts.append(f"{many} steps each")
    if splits > 1:
        facts.append(f"{splits} splits")
    return tuple(facts)


# --- tiles, and the steps that they walk -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """Steps of tiles: on average, of the longest, and the share that the mask or the end cuts."""

    mean: float
    longest: int
    cut: float


def _queries(c: AttentionConfig, p: AttentionProblem) -> float:
    """Queries of a tile: its rows, of which `pack` gives a group's heads to each query."""
    return c.tile_q / p.group if c.pack else float(c.tile_q)


def _tiles(c: AttentionConfig, p: AttentionProblem) -> int:
    """Tiles with queries, of all sequences of average length."""
    rows = p.lengths[0] * (p.group if c.pack else 1)
    return -(-rows // c.tile_q) * heads(c, p) * p.batch


def _empty(c: AttentionConfig, p: AttentionProblem, splits: int) -> int:
    """Workgroups beyond the queries: a launch has as many as the longest sequence asks for."""
    return max(0, q_tiles(c, p) * heads(c, p) * p.batch - _tiles(c, p)) * splits


def _walk(c: AttentionConfig, p: AttentionProblem) -> _Walk:
    n_q, n_kv = p.lengths
    mean = _steps(p.mask, n_q, n_kv, _queries(c, p), c.tile_kv)
    if (n_q, n_kv) == (p.q_len, p.kv_len):
        return mean
    longest = _steps(p.mask, p.q_len, p.kv_len, _queries(c, p), c.tile_kv).longest
    return _Walk(mean.mean, longest, mean.cut)


@lru_cache(maxsize=4096)
def _steps(mask: Mask, n_q: int, n_kv: int, queries: float, tile_kv: int) -> _Walk:
    """Steps of the tiles of one sequence, by looking at some of them."""
    tiles = math.ceil(n_q / queries)
    if not tiles or not n_kv:
        return _Walk(0.0, 0, 0.0)
    some = sorted({round(i * (tiles - 1) / (SAMPLES - 1)) for i in range(SAMPLES)})
    counts, cuts = [], 0
    for tile in some:
        first = int(tile * queries)
        last = min(n_q, math.ceil((tile + 1) * queries)) - 1
        steps, cut = _tile_steps(mask, first, last, n_q, n_kv, tile_kv)
        counts.append(steps)
        cuts += cut
    return _Walk(sum(counts) / len(counts), max(counts), cuts / max(1, sum(counts)))


def _tile_steps(
    mask: Mask, first: int, last: int, n_q: int, n_kv: int, tile_kv: int
) -> tuple[int, int]:
    """Steps of the tile with these queries, and how many of them the mask or the end cuts."""
    shift = n_kv - n_q if mask.bottom_right else 0
    low, high, whole_low, whole_high = 0, n_kv, 0, n_kv
    if mask.right is not None:
        high = min(n_kv, last + shift + mask.right + 1)
        whole_high = min(n_kv, first + shift + mask.right + 1)
    if mask.left is not None:
        low = max(0, first + shift - mask.left)
        whole_low = max(0, last + shift - mask.left)
    if high <= 0:
        return 0, 0
    end = -(-high // tile_kv)
    begin = low // tile_kv if low < high else end
    whole = max(0, whole_high // tile_kv - max(begin, -(-whole_low // tile_kv)))
    kept = min(begin, -(-min(mask.first, high) // tile_kv)) if mask.left is not None else 0
    return end - begin + kept, end - begin - min(whole, end - begin) + kept


def _busy(groups: int, longest: int, total: float, uneven: bool, units: int, at_once: int) -> float:
    """Steps that the busiest compute unit takes."""
    if not groups:
        return 0.0
    if not uneven:
        full, last = divmod(-(-groups // units), at_once)
        return float((full * at_once + last) * longest)
    # The last tiles to begin are the short ones: half of a mean one is left over.
    return max(float(longest), total / units + 0.5 * total / groups * (groups > units))


# --- one step ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of one workgroup on one compute unit, and other figures. Times in microseconds.

    products, softmax, read: of the matrix units, of the vector and transcendental units, and of
        the port to L2. masked: what softmax takes more if the mask cuts all of the step.
    serial: share of the shorter of products and softmax that the longer does not hide.
    waits: for keys and values to arrive. page: for the entry of the page table before.
    store: of a tile of O.
    groups: of warps in a workgroup, each with rows of its own, that do not wait for one another.
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
    groups: int
    resident: int


@lru_cache(maxsize=8192)
def _step(c: AttentionConfig, device: Device) -> _Step:
    this, record, clock = arch(device.arch), pipelines.of(c), device.clock_mhz
    d, d_v = (wide(size) for size in (c.head_dim, c.head_dim_v))
    scores = c.tile_q * c.tile_kv
    pace = record.pace
    share = pace.share_8_bit if DTYPES[c.dtype].bits == 8 else pace.share
    if this.async_mma and c.tile_q < 64:
        share *= rates.SMALL_DOT
    peak = peak_tflops(this, device, c.dtype) * 1e6 / device.compute_units
    products = 2 * scores * (d + d_v) / (peak * share)
    lanes = this.fma_flops_per_cu_per_clock / 2
    taken = pace.instructions + sum(
        count for word, count in rates.FEATURE_INSTRUCTIONS.items() if word in c.words
    )
    rescaled = pace.rescales * c.tile_q * d_v / lanes  # sums, by the new maximum
    exponentials = 1 + sum(
        count for word, count in rates.FEATURE_EXPONENTIALS.items() if word in c.words
    )
    rate = this.exp_per_cu_per_clock or lanes / 4
    softmax = max(scores * exponentials / rate, scores * taken / lanes + rescaled)
    element = DTYPES[c.dtype_kv].bytes
    latent = "latent" in c.words
    step_bytes = c.tile_kv * (c.head_dim + (0 if latent else c.head_dim_v)) * element
    port = device_rates.PORT_BYTES_PER_CLOCK * device_rates.PORT_SHARE * clock
    read = step_bytes * rates.NARROW[c.alignment] / port
    ahead = max(1, c.num_stages - pace.in_use)
    loads = (rates.MEMORY_US + read) / ahead
    if c.num_stages == 1:
        loads += products + softmax / clock
    page = 0.0
    if c.page_size:
        pages = max(1.0, c.tile_kv / c.page_size)
        page = rates.PAGE_US / ahead + pages * rates.PAGE_INSTRUCTIONS / clock
    stored = c.tile_q * c.head_dim_v * DTYPES[c.dtype_o].bytes
    groups = 1 if record.in_triton else max(1, c.num_warps // WARPGROUP)
    return _Step(
        products=products,
        softmax=softmax / clock,
        masked=scores * rates.MASK_INSTRUCTIONS / lanes / clock,
        serial=pace.serial / groups,
        read=read,
        waits=loads,
        page=page,
        store=stored / (device_rates.STORE_SHARE * port),
        groups=groups,
        resident=_resident(c, this, step_bytes),
    )


def _resident(c: AttentionConfig, this: Arch, step_bytes: int) -> int:
    """Workgroups that a compute unit holds at once."""
    record = pipelines.of(c)
    if c.scheduler == "persistent":
        return 1
    registers = min(this.max_registers, record.registers(c, this) + rates.RESIDENT_REGISTERS)
    # What the compiler takes where the record cannot say: the ring, and Q beside it.
    shared = step_bytes * c.num_stages + c.tile_q * c.head_dim * DTYPES[c.dtype].bytes
    if record.shared_memory is not None:
        shared = record.shared_memory(c, this)
    lanes = this.registers_per_lane * this.simds_per_cu
    return max(
        1,
        min(
            this.shared_memory_per_cu // (shared + this.shared_memory_reserved),
            lanes // (registers * c.num_warps),
            this.max_warps_per_simd * this.simds_per_cu // c.num_warps,
            this.max_workgroups_per_cu,
        ),
    )


def _again(c: AttentionConfig, p: AttentionProblem, device: Device, resident: int) -> float:
    """Bytes of keys and values that are read from memory again. The tiles of a head of keys that
    run at once read them together, nearly; the next ones find in L2 what it kept."""
    n_q, n_kv = p.lengths
    if not n_q or not n_kv or not p.batch:
        return 0.0
    dims = p.head_dim + (0 if "latent" in p.words else p.head_dim_v)
    one = n_kv * dims * DTYPES[p.dtype_kv].bytes
    of_head = -(-n_q * (p.group if c.pack else 1) // c.tile_q)  # tiles that read one head of keys
    of_head *= 1 if c.pack else p.group
    slots = device.compute_units * resident
    rounds = -(-of_head // slots)
    in_use = max(1, slots // of_head) * one
    lost = max(0.0, 1.0 - rates.L2_KEPT * device.l2_bytes / in_use) if rounds > 1 else 0.0
    seen = min(1.0, p.mask.pairs(n_q, n_kv) / (n_q * n_kv))
    again = (rounds - 1) * lost + (of_head - 1) * rates.L2_MISSED
    return again * one * p.kv_heads * p.batch * seen
