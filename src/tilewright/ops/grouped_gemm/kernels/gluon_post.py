"""Which tile is next, in Gluon for sm_90: workgroups take tiles from a counter, and the warps that
load tell the warp groups that multiply; shared by the grouped kernels with warp roles.

Tiles take times of different length: of two that are one below the other, the second has only what
is left of its group's rows. With a fixed stride, a workgroup would meet the same half of such pairs
again and again, since the stride is an even number. A counter gives the next tile to whoever is
ready for it.

A workgroup's first tile is its own number, so nobody waits for the counter then. The next number is
asked for while the ring is full. Messages lie in shared memory, in SLOTS slots.
"""

from tilewright.ops.device.gluon_api import gl, jit, mbarrier
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import barriers, turned
from tilewright.ops.grouped_gemm.kernels.gluon_walk import place

Post = bundle("Post", "counter message told heard")
"""counter: of the tiles that were taken, 0 before and after. message: numbers, WORDS in each slot.
told, heard: barriers of each slot."""

SLOTS = gl.constexpr(4)
WORDS = gl.constexpr(5)
"""Numbers of a message, of which the first is the tile's group."""
NONE = gl.constexpr(-1)
FOUR_WARPS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@jit
def posted(counter, WARP_GROUPS: gl.constexpr):
    """The post of a workgroup of which WARP_GROUPS warp groups multiply; its roles see the barriers
    after the next fence."""
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    message = gl.allocate_shared_memory(gl.int32, [SLOTS * WORDS, 1], PLAIN)
    told, heard = barriers(SLOTS, WARP_GROUPS)
    return Post(counter, message, told, heard)


@jit
def asks_at(w, STAGES: gl.constexpr):
    """The column of K at which the next tile is asked for: when the ring is full, so that nothing
    waits for the answer."""
    return gl.minimum(STAGES, gl.cdiv(w.k, w.TILE_K) - 1) * w.TILE_K


@jit
def taken(post, tiles):
    """The number of this workgroup's tile after the current one. Every tile has one taken, so who
    takes the last sets the counter back. Accesses are relaxed: nothing else follows from it."""
    count = gl.atomic_add(post.counter, 1, sem="relaxed")
    if count == tiles - 1:
        gl.atomic_xchg(post.counter, 0, sem="relaxed")
    return gl.num_programs(0) + count


@jit
def tell_place(w, post, tile, slot, slot_phase, WARPS: gl.constexpr):
    """Tell of a tile of a walk: its group, that group's first row and number of rows, and the
    tile's first row in the group and its column. Returns these, and the next slot."""
    group, begin, rows, tile_m, tile_n = place(w, tile, WARPS)
    row = tile_m * w.TILE_M
    col = tile_n * w.TILE_N
    slot, slot_phase = tell(post, (group, begin, rows, row, col), slot, slot_phase, WARPS)
    return group, begin, rows, row, col, slot, slot_phase


@jit
def tell_end(post, slot, slot_phase, WARPS: gl.constexpr):
    """Tell that there is no further tile: its group is NONE."""
    tell(post, (NONE, 0, 0, 0, 0), slot, slot_phase, WARPS)


@jit
def tell(post, words, slot, slot_phase, WARPS: gl.constexpr):
    """Write a message's WORDS numbers into a slot, once all have heard what was in it; returns the
    next slot. WARPS: that load."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    mbarrier.wait(post.heard.index(slot), slot_phase)
    for i in gl.static_range(WORDS):
        word = gl.full((1,), words[i], gl.int32, LAYOUT)
        post.message.index(slot * WORDS + i).store(word)
    mbarrier.arrive(post.told.index(slot), count=1)
    return turned(slot, slot_phase, SLOTS)


@jit
def hear(post, slot, slot_phase):
    """Wait for the message of a slot; returns its numbers."""
    mbarrier.wait(post.told.index(slot), slot_phase)
    a = _word(post, slot, 0)
    b = _word(post, slot, 1)
    c = _word(post, slot, 2)
    d = _word(post, slot, 3)
    e = _word(post, slot, 4)
    return a, b, c, d, e


@jit
def heard(post, slot, slot_phase):
    """Give a slot back, whose numbers all threads have read long ago; returns the next one."""
    mbarrier.arrive(post.heard.index(slot), count=1)
    return turned(slot, slot_phase, SLOTS)


@jit
def _word(post, slot, WORD: gl.constexpr):
    return gl.max(post.message.index(slot * WORDS + WORD).load(FOUR_WARPS), 0)
