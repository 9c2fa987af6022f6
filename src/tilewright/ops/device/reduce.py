"""Combines the partial sums of workgroups that share a tile's K range; shared by every GEMM kernel.

Each of `count` contributors has a partial sum of the same tile. A tile has a flag, and slots in the
workspace for partial sums. Idle flags are zero, and the workgroup that consumes a flag resets it,
so no launch has to clear flags.

    atomic  contributors add into one slot. The last to arrive reads the sum, adds its own part and
            writes zeros back. The order of the additions, and so the last bits, change from run to
            run. An idle slot is zero.
    linear  the last to arrive adds all partials in order. Repeatable bit for bit.
    tree    neighbours are added pairwise; the later of two adds both and goes to the next level.
            A sum of two does not depend on which is later. Repeatable bit for bit; the depth grows
            with the logarithm of the contributors.

Under `atomic` and `linear` a contributor takes a turn when it begins, or later. All except the last
deliver their partial and leave. The last keeps its own partial in registers and waits until the
others have delivered. The others have all taken their turn, so they are running and wait for
nobody: the wait ends however the hardware schedules workgroups. Under `tree` nobody waits.

Contributor `i` has slot ``base + stride * i``, plus `shift` if it is the first (stream-K's first
contributor began its range in an earlier tile). `atomic` has one slot, `base`.

Memory order: all threads of a workgroup store and meet at a barrier. One thread's release addition
to a flag then publishes the stores to every workgroup that reads the flag with acquire. Partials
are read bypassing L1, which is not coherent.

On AMD's GPUs the barrier does not wait for stores, and the release waits for those of its own wave
only: another workgroup may find the flag, and not yet what the other waves stored. (The memory
model of LLVM's AMDGPU backend allows that for its workgroup fences; its developers changed such
fences of RDNA for this reason, llvm-project#160501.) So each wave first waits for its own
accesses, with the instruction `DONE`. Emulation found this; no GPU has shown it.
"""

import triton
import triton.language as tl

TURN = tl.constexpr(1)
DELIVERED = tl.constexpr(1 << 16)
"""The low half of a flag counts arrivals, the high half deliveries."""
BY_BARRIER = tl.constexpr("")
"""The value of DONE where a barrier makes accesses complete."""


@triton.jit
def slot(i, base, stride, shift):
    """The slot of contributor `i`."""
    return base + stride * i + tl.where(i == 0, shift, 0)


@triton.jit
def within_tile(TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """The offset in its slot of each element of a partial."""
    return tl.arange(0, TILE_M)[:, None] * TILE_N + tl.arange(0, TILE_N)[None, :]


@triton.jit
def store(slot, within, part):
    """Write a partial to its slot."""
    tl.store(slot + within, part)


@triton.jit
def load(slot, within, like):
    """A partial, with the shape and dtype of `like`, read from its slot."""
    return tl.load(slot + within, cache_modifier=".cg")


@triton.jit
def add(slot, within, part):
    """Add a partial to the contents of its slot."""
    tl.atomic_add(slot + within, part, sem="relaxed")


@triton.jit
def meet(DONE: tl.constexpr):
    """A barrier behind which all loads and stores of the workgroup are complete."""
    if DONE != BY_BARRIER:
        tl.inline_asm_elementwise(
            DONE + "\ns_mov_b32 $0, 0", "=s,~{memory}", [], tl.int32, is_pure=False, pack=1
        )
    tl.debug_barrier()


@triton.jit
def take_turn(flags, count, base, stride, shift, REDUCTION: tl.constexpr):
    """Whether this contributor is the last of `count` to take its turn; always false under
    `tree`."""
    last = count < 0
    if REDUCTION != "tree":
        flag = flags + _meeting(base, stride, shift, REDUCTION)
        last = tl.atomic_add(flag, TURN, sem="relaxed") % DELIVERED == count - 1
    return last


@triton.jit
def reduce(
    acc, last, flags, partials, within, i, count, base, stride, shift, REDUCTION: tl.constexpr,
    STORE: tl.constexpr = store, LOAD: tl.constexpr = load, ADD: tl.constexpr = add,
    DONE: tl.constexpr = BY_BARRIER,
):  # fmt: skip
    """Contribute `acc`; `within` has the offsets of its elements in a slot, and `last` is the
    result of `take_turn`. Returns (whether this workgroup has the whole sum, the sum). Gluon passes
    its own STORE, LOAD and ADD. DONE: see `meet`."""
    if REDUCTION == "tree":
        whole = count > 0
        width = count * 0 + 1
        while whole & (width < count):
            right = (i // (2 * width)) * 2 * width + width
            if right < count:
                mine = (i // width) * width
                STORE(_at(partials, slot(mine, base, stride, shift), within), within, acc)
                meet(DONE)
                flag = flags + slot(right, base, stride, shift)
                whole = tl.atomic_add(flag, 1, sem="acq_rel") == 1
                if whole:
                    tl.store(flag, 0)
                    theirs = slot(tl.where(mine < right, right, right - width), base, stride, shift)
                    acc += LOAD(_at(partials, theirs, within), within, acc)
                    meet(DONE)  # the next level may store into the slot that others still load
            width *= 2
    else:
        meeting = _meeting(base, stride, shift, REDUCTION)
        mine = base if REDUCTION == "atomic" else slot(i, base, stride, shift)
        flag = flags + meeting
        whole = last
        if whole:
            # A sum of two partials does not depend on their order. With more partials, its own must
            # take its place among the others.
            if (REDUCTION == "linear") & (count > 2):
                STORE(_at(partials, mine, within), within, acc)
                meet(DONE)  # what a thread stores, another may load
            delivered = tl.atomic_add(flag, 0, sem="acquire") // DELIVERED
            while delivered < count - 1:
                delivered = tl.atomic_add(flag, 0, sem="acquire") // DELIVERED
            tl.store(flag, 0)
            if REDUCTION == "atomic":
                acc += LOAD(_at(partials, meeting, within), within, acc)
                meet(DONE)  # what a thread clears, another may load
                STORE(_at(partials, meeting, within), within, (within * 0).to(acc.dtype))
            elif count == 2:
                theirs = slot(1 - i, base, stride, shift)
                acc += LOAD(_at(partials, theirs, within), within, acc)
            else:
                acc = LOAD(_at(partials, meeting, within), within, acc)
                for j in range(1, count):
                    theirs = slot(j, base, stride, shift)
                    acc += LOAD(_at(partials, theirs, within), within, acc)
        else:
            if REDUCTION == "atomic":
                ADD(_at(partials, mine, within), within, acc)
            else:
                STORE(_at(partials, mine, within), within, acc)
            meet(DONE)
            tl.atomic_add(flag, DELIVERED, sem="release")
    return whole, acc


@triton.jit
def _meeting(base, stride, shift, REDUCTION: tl.constexpr):
    """The number of a tile's flag, and under `atomic` also of its slot."""
    return base if REDUCTION == "atomic" else slot(0, base, stride, shift)


@triton.jit
def _at(partials, index, within):
    """The address of a slot."""
    size: tl.constexpr = within.shape[0] * within.shape[1]
    return partials + tl.cast(index, tl.int64) * size


@triton.jit
def reduce_split(
    acc, flags, partials, tile, i, splits, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    REDUCTION: tl.constexpr, DONE: tl.constexpr = BY_BARRIER,
):  # fmt: skip
    """Contribute `acc`, part `i` of the `splits` of a tile under split-K. Returns as `reduce`."""
    base = tile if REDUCTION == "atomic" else tile * splits
    last = take_turn(flags, splits, base, 1, 0, REDUCTION)
    return reduce(
        acc, last, flags, partials, within_tile(TILE_M, TILE_N), i, splits, base, 1, 0, REDUCTION,
        store, load, add, DONE,
    )  # fmt: skip
