"""How workgroups that share a tile's K range put its sum together: shared by every GEMM kernel.

Each of `count` contributors brings a partial sum of the same tile. A tile has a flag, and slots
in the workspace for partial sums; flags are zero at rest, and whoever consumes one puts it back,
so no launch has to clear them.

    atomic  contributors add into one slot; the last to arrive reads the sum, adds its own part and
            puts zeros back. The order of the additions, and so the last bits, change from run to
            run. The slot is zero at rest.
    linear  the last to arrive adds all partials in order. Repeatable bit for bit.
    tree    neighbours meet pairwise, the later of two adds both and goes on to the next level.
            Which one is later does not matter to a sum of two. Repeatable bit for bit; its depth
            grows with the logarithm of the contributors.

Under `atomic` and `linear` a contributor takes a turn, when it begins or later. All but the last
deliver their partial and leave; the last, who keeps its own in registers, waits until the others
have delivered. They have all taken their turn, so they are running and wait for nobody: the wait
ends however the hardware schedules workgroups. Under `tree` nobody waits.

Contributor `i` has slot ``base + stride * i``, and `shift` more if it is the first (stream-K's
first contributor has begun its range in an earlier tile). `atomic` has one slot, `base`.

Memory order: all threads of a workgroup store, meet at a barrier, and one thread's release
addition to a flag publishes the stores to whoever sees it (acquire); partials are read past L1,
which is not coherent.
"""

import triton
import triton.language as tl

TURN = tl.constexpr(1)
DELIVERED = tl.constexpr(1 << 16)
"""A flag counts in its low half who has arrived, in its high half who has delivered."""


@triton.jit
def slot(i, base, stride, shift):
    """The slot of contributor `i`."""
    return base + stride * i + tl.where(i == 0, shift, 0)


@triton.jit
def within_tile(TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """Where in its slot each element of a partial lies."""
    return tl.arange(0, TILE_M)[:, None] * TILE_N + tl.arange(0, TILE_N)[None, :]


@triton.jit
def store(slot, within, part):
    """A partial into its slot."""
    tl.store(slot + within, part)


@triton.jit
def load(slot, within, like):
    """A partial, of the shape and dtype of `like`, from its slot."""
    return tl.load(slot + within, cache_modifier=".cg")


@triton.jit
def add(slot, within, part):
    """A partial added to what its slot holds."""
    tl.atomic_add(slot + within, part, sem="relaxed")


@triton.jit
def take_turn(flags, count, base, stride, shift, REDUCTION: tl.constexpr):
    """Whether this contributor is the last of `count` to take its turn; under `tree` none is."""
    last = count < 0
    if REDUCTION != "tree":
        flag = flags + _meeting(base, stride, shift, REDUCTION)
        last = tl.atomic_add(flag, TURN, sem="relaxed") % DELIVERED == count - 1
    return last


@triton.jit
def reduce(
    acc, last, flags, partials, within, i, count, base, stride, shift, REDUCTION: tl.constexpr,
    STORE: tl.constexpr = store, LOAD: tl.constexpr = load, ADD: tl.constexpr = add,
):  # fmt: skip
    """Contribute `acc`, whose elements lie `within` their slot, after `take_turn` said `last`.
    Returns (whether this workgroup has the whole sum, the sum). Gluon has its own STORE, LOAD and
    ADD."""
    if REDUCTION == "tree":
        whole = count > 0
        width = count * 0 + 1
        while whole & (width < count):
            right = (i // (2 * width)) * 2 * width + width
            if right < count:
                mine = (i // width) * width
                STORE(_at(partials, slot(mine, base, stride, shift), within), within, acc)
                tl.debug_barrier()
                flag = flags + slot(right, base, stride, shift)
                whole = tl.atomic_add(flag, 1, sem="acq_rel") == 1
                if whole:
                    tl.store(flag, 0)
                    theirs = slot(tl.where(mine < right, right, right - width), base, stride, shift)
                    acc += LOAD(_at(partials, theirs, within), within, acc)
            width *= 2
    else:
        meeting = _meeting(base, stride, shift, REDUCTION)
        mine = base if REDUCTION == "atomic" else slot(i, base, stride, shift)
        flag = flags + meeting
        whole = last
        if whole:
            # Of two partials either may come first in a sum. Of more, its own takes its place
            # among the others.
            if (REDUCTION == "linear") & (count > 2):
                STORE(_at(partials, mine, within), within, acc)
            delivered = tl.atomic_add(flag, 0, sem="acquire") // DELIVERED
            while delivered < count - 1:
                delivered = tl.atomic_add(flag, 0, sem="acquire") // DELIVERED
            tl.store(flag, 0)
            if REDUCTION == "atomic":
                acc += LOAD(_at(partials, meeting, within), within, acc)
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
            tl.debug_barrier()
            tl.atomic_add(flag, DELIVERED, sem="release")
    return whole, acc


@triton.jit
def _meeting(base, stride, shift, REDUCTION: tl.constexpr):
    """The number of a tile's flag, and under `atomic` of its slot."""
    return base if REDUCTION == "atomic" else slot(0, base, stride, shift)


@triton.jit
def _at(partials, index, within):
    """Where a slot begins."""
    size: tl.constexpr = within.shape[0] * within.shape[1]
    return partials + tl.cast(index, tl.int64) * size


@triton.jit
def reduce_split(
    acc, flags, partials, tile, i, splits, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    REDUCTION: tl.constexpr,
):  # fmt: skip
    """Contribute `acc`, part `i` of the `splits` of a tile under split-K. Returns as `reduce`."""
    base = tile if REDUCTION == "atomic" else tile * splits
    last = take_turn(flags, splits, base, 1, 0, REDUCTION)
    return reduce(
        acc, last, flags, partials, within_tile(TILE_M, TILE_N), i, splits, base, 1, 0, REDUCTION
    )
