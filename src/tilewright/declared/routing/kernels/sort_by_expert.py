"""Rows in the order of their experts, as maps.

Idea. A row's place is where its expert's rows begin, plus how many rows of the same expert come
before it. Both are counted by comparing, so no two workgroups write the same element, nothing is
added atomically, and rows of an expert keep their order.

- Few rows: `alone`, one launch. Each workgroup has an expert. It counts the rows of all experts,
  or without blocks those of experts up to its own, which says where its own begin, then walks over
  the rows once more and numbers its own.
- Many rows: `count` counts the rows of each expert in each chunk of CHUNK rows; `scan` turns these
  counts into how many rows of earlier chunks each expert has; `place` sorts a chunk by expert and
  row, in registers. A row's place among its expert's rows of the chunk is its place in the sorted
  chunk less the rows of lower experts. Further workgroups of `place`, one for each expert, fill in
  what no row fills.

Data. In `alone`, a tile of comparisons has COMPARED elements, whose counts stay in registers until
the end. In `place`, a row is one 32-bit key: its expert, and its number in the chunk. Neighbours of
a sorted chunk that have the same expert write neighbours of `order`.

What limits it: latency of few rows; scattered stores of many. Chunks that compared each row with
all experts and with 256 rows took 564 µs for 1,148,224 rows of 384 experts on an H200 (2026-11-30,
in graphs), where `torch.compile` of torch's calls took 354: some 2,800 instructions for each row.
Sorted chunks took 67.0 in a later run that day.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilewright.declared.routing.kernels._largest import power_of_two

WALKED = tl.constexpr(512)
FILLED = tl.constexpr(128)
COMPARED = tl.constexpr(4096)
SCANNED = tl.constexpr(256)
SCAN_BINS = tl.constexpr(8)


@triton.constexpr_function
def bins_of(experts):
    """Counters of a tile."""
    return max(16, power_of_two(experts))


@triton.constexpr_function
def piece_of(experts):
    """Rows of a tile that compares them with all experts."""
    return min(256, COMPARED.value // bins_of(experts))


@triton.jit
def experts_at(
    ids, expert_map, at, rows, global_experts, experts: tl.constexpr, has_expert_map: tl.constexpr
):
    """The experts of rows, -1 for those of none and past the end."""
    found = tl.load(ids + at, at < rows, -1)
    if has_expert_map:
        known = (found >= 0) & (found < global_experts)
        found = tl.load(expert_map + found, known, -1)
    return tl.where((found >= 0) & (found < experts), found, -1).to(tl.int32)


@triton.jit
def counted(
    ids, expert_map, first, last, rows, global_experts, experts: tl.constexpr,
    has_expert_map: tl.constexpr,
):  # fmt: skip
    """How many of the rows from `first` up to `last` each expert has."""
    BINS: tl.constexpr = bins_of(experts)
    PIECE: tl.constexpr = piece_of(experts)
    bins = tl.arange(0, BINS)[None, :]
    found = tl.zeros((PIECE, BINS), tl.int32)
    for start in tl.range(first, last, PIECE, loop_unroll_factor=2):
        at = start + tl.arange(0, PIECE)
        mine = experts_at(ids, expert_map, at, rows, global_experts, experts, has_expert_map)
        found += (mine[:, None] == bins).to(tl.int32)
    return tl.sum(found, 0)


@triton.jit
def compared(
    ids, expert_map, expert, rows, global_experts, experts: tl.constexpr,
    has_expert_map: tl.constexpr,
):  # fmt: skip
    """How many rows one expert has, how many it and those before it have, and how many all."""
    mine = tl.zeros((WALKED,), tl.int32)
    up_to = tl.zeros((WALKED,), tl.int32)
    every = tl.zeros((WALKED,), tl.int32)
    for start in range(0, rows, WALKED):
        at = start + tl.arange(0, WALKED)
        found = experts_at(ids, expert_map, at, rows, global_experts, experts, has_expert_map)
        mine += (found == expert).to(tl.int32)
        up_to += ((found >= 0) & (found <= expert)).to(tl.int32)
        every += (found >= 0).to(tl.int32)
    return tl.sum(mine, 0), tl.sum(up_to, 0), tl.sum(every, 0)


@triton.jit
def one_of(values, at):
    """The element of a tile of one dimension at a place."""
    return tl.sum(tl.where(tl.arange(0, values.shape[0]) == at, values, 0), 0)


@triton.jit
def put(order, places, weights, sorted_weights, at, place, inside, has_weights: tl.constexpr):
    """Write where rows go, and where they come from."""
    tl.store(order + place, at, inside)
    tl.store(places + at, place, inside)
    if has_weights:
        tl.store(sorted_weights + place, tl.load(weights + at, inside), inside)


@triton.jit
def fill(
    order, block_experts, ends, total, sorted_weights, expert, count, padded, end, every, rows,
    slots, blocks, experts: tl.constexpr, block: tl.constexpr, has_weights: tl.constexpr,
):  # fmt: skip
    """What one expert's rows do not fill: its padding, its blocks, and its share of the rest."""
    lane = tl.arange(0, FILLED)
    tl.store(ends + expert, end)
    for start in range(end - padded + count, end, FILLED):
        at = start + lane
        tl.store(order + at, rows, at < end)
        if has_weights:
            tl.store(sorted_weights + at, 0.0, at < end)
    for start in range((end - padded) // block, end // block, FILLED):
        tl.store(block_experts + start + lane, expert, start + lane < end // block)
    for start in range(every + expert * FILLED, slots, experts * FILLED):
        at = start + lane
        tl.store(order + at, rows, at < slots)
        if has_weights:
            tl.store(sorted_weights + at, 0.0, at < slots)
    for start in range(every // block + expert * FILLED, blocks, experts * FILLED):
        tl.store(block_experts + start + lane, -1, start + lane < blocks)
    if expert == 0:
        tl.store(total, every)


@triton.jit
def alone(
    ids, expert_map, weights, order, block_experts, counts, ends, total, places, sorted_weights,
    rows, global_experts, slots, blocks, experts: tl.constexpr, block: tl.constexpr,
    capacity: tl.constexpr, has_expert_map: tl.constexpr, has_weights: tl.constexpr,
):  # fmt: skip
    """One expert."""
    expert = tl.program_id(0)
    if block == 1 and capacity == 0:
        my_count, my_end, every = compared(
            ids, expert_map, expert, rows, global_experts, experts, has_expert_map
        )
        my_padded = my_count
    else:
        count = counted(ids, expert_map, 0, rows, rows, global_experts, experts, has_expert_map)
        count = tl.minimum(count, capacity) if capacity > 0 else count
        padded = (count + block - 1) // block * block
        end = tl.cumsum(padded, 0)
        my_count, my_padded = one_of(count, expert), one_of(padded, expert)
        my_end, every = one_of(end, expert), tl.sum(padded, 0)
    tl.store(counts + expert, my_count)
    fill(
        order, block_experts, ends, total, sorted_weights, expert, my_count, my_padded, my_end,
        every, rows, slots, blocks, experts, block, has_weights,
    )  # fmt: skip
    before = my_end - my_padded
    for start in range(0, rows, WALKED):
        at = start + tl.arange(0, WALKED)
        found = experts_at(ids, expert_map, at, rows, global_experts, experts, has_expert_map)
        mine = (found == expert).to(tl.int32)
        place = before + tl.cumsum(mine, 0) - 1
        kept = mine > 0
        if capacity > 0:
            kept &= place < my_end - my_padded + my_count
            tl.store(places + at, -1, (mine > 0) & (kept == 0))
        put(order, places, weights, sorted_weights, at, place, kept, has_weights)
        before += tl.sum(mine, 0)
        if expert == 0:
            tl.store(places + at, -1, (found < 0) & (at < rows))


@triton.jit
def count(
    ids, expert_map, chunk_counts, rows, global_experts, experts: tl.constexpr, CHUNK: tl.constexpr,
    has_expert_map: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A chunk of rows."""
    if DEPENDENT:
        gdc_launch_dependents()
    BINS: tl.constexpr = bins_of(experts)
    chunk = tl.program_id(0)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    mine = experts_at(ids, expert_map, at, rows, global_experts, experts, has_expert_map)
    found = tl.histogram(tl.maximum(mine, 0), BINS, mine >= 0)
    tl.store(chunk_counts + chunk * BINS + tl.arange(0, BINS), found)


@triton.jit
def scan(
    chunk_counts, before, counts, chunks, experts: tl.constexpr, capacity: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """SCAN_BINS experts."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    BINS: tl.constexpr = bins_of(experts)
    bins = tl.program_id(0) * SCAN_BINS + tl.arange(0, SCAN_BINS)
    sums = tl.zeros((SCAN_BINS,), tl.int32)
    for start in range(0, chunks, SCANNED):
        chunk = start + tl.arange(0, SCANNED)
        at = chunk[:, None] * BINS + bins[None, :]
        there = (chunk < chunks)[:, None] & (bins < BINS)[None, :]
        found = tl.load(chunk_counts + at, there, 0)
        tl.store(before + at, sums[None, :] + tl.cumsum(found, 0) - found, there)
        sums += tl.sum(found, 0)
    sums = tl.minimum(sums, capacity) if capacity > 0 else sums
    tl.store(counts + bins, sums, bins < experts)


@triton.jit
def place(
    ids, expert_map, weights, order, block_experts, counts, ends, total, places, sorted_weights,
    chunk_counts, before, rows, global_experts, slots, blocks, chunks, experts: tl.constexpr,
    block: tl.constexpr, capacity: tl.constexpr, CHUNK: tl.constexpr,
    has_expert_map: tl.constexpr, has_weights: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A chunk of rows, or what an expert's rows do not fill. The chunk is sorted before the other
    kernels have ended."""
    BINS: tl.constexpr = bins_of(experts)
    bins = tl.arange(0, BINS)
    chunk = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    begin = chunk * CHUNK
    key = lane
    if chunk < chunks:
        mine = experts_at(
            ids, expert_map, begin + lane, rows, global_experts, experts, has_expert_map
        )
        # Rows that go nowhere come last.
        key = tl.sort(tl.where(mine >= 0, mine, BINS) * CHUNK + lane)
    if DEPENDENT:
        gdc_wait()
    every = tl.load(counts + bins, bins < experts, 0)
    padded = (every + block - 1) // block * block
    end = tl.cumsum(padded, 0)
    if chunk < chunks:
        its = key // CHUNK
        at = begin + key % CHUNK
        kept = its < BINS
        its = tl.minimum(its, BINS - 1)
        here = tl.load(chunk_counts + chunk * BINS + bins)
        earlier = tl.load(before + chunk * BINS + bins)
        first = end - padded + earlier - (tl.cumsum(here, 0) - here)
        to = tl.gather(first, its, 0) + lane
        if capacity > 0:
            kept &= to < tl.gather(end - padded + every, its, 0)
        put(order, places, weights, sorted_weights, at, to, kept, has_weights)
        tl.store(places + at, -1, (kept == 0) & (at < rows))
    else:
        expert = chunk - chunks
        fill(
            order, block_experts, ends, total, sorted_weights, expert,
            one_of(every, expert), one_of(padded, expert), one_of(end, expert),
            tl.sum(padded, 0), rows, slots, blocks, experts, block, has_weights,
        )  # fmt: skip
