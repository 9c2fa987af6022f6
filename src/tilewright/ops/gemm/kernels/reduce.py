"""How workgroups that share a tile's K range put its sum together: shared by every GEMM kernel.

Each of `count` contributors brings a partial sum of the same tile. A contributor's partial has a
slot in the workspace, and a flag; flags are zero at rest, and whoever consumes one puts it back,
so no launch has to clear them. Nobody waits for anybody: whoever arrives last does the work that
is left, which cannot deadlock however the hardware schedules workgroups.

    atomic  every contributor adds into one fp32 tile; the last reads the sum. The order of the
            additions, and so the last bits, change from run to run. The tile must start at zero.
    linear  the last to arrive adds all partials in order. Repeatable bit for bit.
    tree    neighbours meet pairwise, the later of two adds both and goes on to the next level.
            Which one is later does not matter to a sum of two. Repeatable bit for bit; its depth
            grows with the logarithm of the contributors.

Contributor `i` has slot ``base + stride * i``, and `shift` more if it is the first (stream-K's
first contributor has begun its range in an earlier tile).

Memory order: all threads of a workgroup store, meet at a barrier, and one thread's
acquire-release addition to a flag publishes the stores to whoever sees it; partials are read past
L1, which is not coherent.
"""

import triton
import triton.language as tl


@triton.jit
def workspace(work, FLAG_BYTES: tl.constexpr, INT_ACC: tl.constexpr):
    """Flags and slots of a workspace that lies at `work`."""
    flags = work.to(tl.pointer_type(tl.int32))
    slots = (work + FLAG_BYTES).to(tl.pointer_type(tl.int32 if INT_ACC else tl.float32))
    return flags, slots


@triton.jit
def slot(i, base, stride, shift):
    """The slot of contributor `i`."""
    return base + stride * i + tl.where(i == 0, shift, 0)


@triton.jit
def reduce(
    acc, flags, partials, i, count, base, stride, shift,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, REDUCTION: tl.constexpr,
):  # fmt: skip
    """Contribute `acc`. Returns (whether this workgroup has the whole sum, the sum)."""
    within = tl.arange(0, TILE_M)[:, None] * TILE_N + tl.arange(0, TILE_N)[None, :]
    if REDUCTION == "tree":
        whole = count > 0
        width = count * 0 + 1
        while whole & (width < count):
            right = (i // (2 * width)) * 2 * width + width
            if right < count:
                mine = (i // width) * width
                tl.store(_at(partials, slot(mine, base, stride, shift), within), acc)
                tl.debug_barrier()
                flag = flags + slot(right, base, stride, shift)
                whole = tl.atomic_add(flag, 1, sem="acq_rel") == 1
                if whole:
                    tl.store(flag, 0)
                    theirs = tl.where(mine < right, right, right - width)
                    there = _at(partials, slot(theirs, base, stride, shift), within)
                    acc += tl.load(there, cache_modifier=".cg")
            width *= 2
    else:
        meeting = slot(0, base, stride, shift)
        if REDUCTION == "atomic":
            tl.atomic_add(_at(partials, meeting, within), acc, sem="relaxed")
        else:
            tl.store(_at(partials, slot(i, base, stride, shift), within), acc)
        tl.debug_barrier()
        flag = flags + meeting
        whole = tl.atomic_add(flag, 1, sem="acq_rel") == count - 1
        if whole:
            tl.store(flag, 0)
            acc = tl.load(_at(partials, meeting, within), cache_modifier=".cg")
            if REDUCTION == "linear":
                for j in range(1, count):
                    there = _at(partials, slot(j, base, stride, shift), within)
                    acc += tl.load(there, cache_modifier=".cg")
    return whole, acc


@triton.jit
def _at(partials, index, within):
    """Addresses of a slot's elements."""
    size: tl.constexpr = within.shape[0] * within.shape[1]
    return partials + tl.cast(index, tl.int64) * size + within
