"""Which tiles of queries a workgroup computes, and which keys each of them needs, in Gluon for
sm_90; used by `gluon_ws`.

Order. Tiles are numbered, long ones first: under a mask the last rows of a sequence see most keys.
Neighbouring numbers are the heads of one section at the same place of their sequences. The launch
says how many: as many heads as have K and V that fit into L2 together, or, of short sequences, as
many as run at once (see `pipelines/sections`). So workgroups that run together read the same keys,
and the shortest tiles come last and fill the end. This is the order of FlashAttention-3 (Shah et
al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision", NeurIPS
2024, arXiv:2407.08608).

Who takes which. Workgroups begin with the tile of their own number. Under `persistent` they go on
with every n-th tile if all tiles are equally long; else with the next number of a counter. The
counter begins and ends a launch at zero: a launch takes as many numbers as there are tiles, and
whoever takes the last sets it back.

Lengths. If sequences have their own numbers of queries, the tiles of all sequences stand one behind
the other, without gaps. The warp that loads finds a tile's sequence by a running sum over the
sequences, 32 at a time.

Masks of blocks. The lists of a line of the mask (see `blocks`) say which keys a tile walks: first
the blocks that the mask of elements or the end of the keys cuts, the last of them first, then the
whole ones. The warp that loads reads them, and tells the others each step's first key with the
step's slot.

`w` in functions here is the kernel's bundle (`gluon_ws.Work`).
"""

from tilewright.ops.attention.kernels.lengths import queries_of
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    fence_async_shared,
    gl,
    jit,
    thread_barrier,
)

CHUNK = gl.constexpr(32)
"""Sequences that are looked at together: one for each lane of the warp."""

ONE_WARP = gl.constexpr(gl.BlockedLayout([1], [32], [1], [0]))
FOUR_WARPS = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))

MESSAGE = gl.constexpr(8)
"""Numbers that tell the consumers about a tile; see `tell`."""

TURN = gl.constexpr(8)
"""The hardware barrier of the first group's turn. Triton takes those of low numbers."""


@jit
def _add(a, b):
    return a + b


@jit
def _tiles_of(w, start):
    """Tiles of the CHUNK sequences from `start`."""
    b = start + gl.arange(0, CHUNK, ONE_WARP)
    known = gl.minimum(b, w.batch - 1)
    _, rows = queries_of(known, w.q_len, w.total_q, w.q_offsets, w.q_used, w.PACKEDQ, w.USEDQ)
    return gl.where(b < w.batch, (rows + w.TILE_Q - 1) // w.TILE_Q, 0)


@jit
def lines_of(w):
    """(places, lines): tiles are a grid of them. A line is a head of a sequence, and a place one of
    its tiles; or, if sequences have their own numbers of queries, a line is a head of all
    sequences."""
    if w.PACKEDQ or w.USEDQ:
        places = 0
        for start in range(0, w.batch, CHUNK):
            places += gl.sum(_tiles_of(w, start), 0)
        lines = w.heads
    else:
        places = (w.q_len + w.TILE_Q - 1) // w.TILE_Q
        lines = w.batch * w.heads
    return places, lines


@jit
def tile_of(w, number, places, lines):
    """(sequence, head, first row) of tile `number`."""
    before = number // (w.section * places) * w.section
    within = number - before * places
    here = gl.minimum(w.section, lines - before)
    place = within // here
    line = before + within % here
    if w.PACKEDQ or w.USEDQ:
        h = line
        b = 0
        first = 0  # place of the sequence's first tile
        count = 0  # and its tiles
        done = 0
        for start in range(0, w.batch, CHUNK):
            tiles = _tiles_of(w, start)
            ends = done + gl.associative_scan(tiles, 0, _add)
            passed = ends <= place
            b += gl.sum(passed.to(gl.int32), 0)
            first = gl.maximum(first, gl.max(gl.where(passed, ends, 0), 0))
            mine = (ends > place) & (ends - tiles <= place)
            count += gl.sum(gl.where(mine, tiles, 0), 0)
            done += gl.sum(tiles, 0)
        place -= first
    else:
        b = line // w.heads
        h = line % w.heads
        count = places
    if w.MASK != "none":
        place = count - 1 - place
    return b, h, place * w.TILE_Q


@jit
def next_tile(w, number, last):
    """The number of the workgroup's next tile; `last` or more if there is none."""
    if w.SCHEDULER == "tile":
        following = last
    elif w.COUNTED:
        taken = gl.atomic_add(w.counter, 1)
        if taken == last - 1:
            gl.atomic_xchg(w.counter, 0)
        following = gl.num_programs(0) + taken
    else:
        following = number + gl.num_programs(0)
    return following


@jit
def steps_of(w, row, n_q, n_kv):
    """(top, window, count) of the steps of the tile from `row`. A step is a block of TILE_KV keys.
    They go down: `window` blocks below block `top`, then those of the first keys that the window
    does not reach, `count` in all. There is always one, so that a row without keys needs no code of
    its own."""
    left, right, first, bottom_right = w.bounds
    end = n_kv
    low = 0
    count = 0
    if w.MASK != "none":
        shift = bottom_right * (n_kv - n_q)
        end = gl.minimum(n_kv, gl.minimum(row + w.TILE_Q, n_q) + shift + right)
    if w.MASK == "window":
        low = gl.minimum(gl.maximum(row + shift - left, 0), n_kv) // w.TILE_KV
        kept = (gl.minimum(first, end) + w.TILE_KV - 1) // w.TILE_KV
        count = gl.maximum(gl.minimum(kept, low), 0)
    top = gl.maximum((end + w.TILE_KV - 1) // w.TILE_KV, low + 1)
    window = top - low
    return top, window, window + count


@jit
def walked(w, b, h, row, n_q, n_kv):
    """(steps, steps of blocks that are cut, what `key_of` takes) of the tile from `row`."""
    if w.BLOCKS:
        way = listed_steps(w, b, h, row, n_q, n_kv)
        masked = way[3]
        count = gl.maximum(way[4], 1)
    else:
        way = steps_of(w, row, n_q, n_kv)
        masked = 0
        count = way[2]
    return count, masked, way


@jit
def key_of(w, step, way, n_kv):
    """The first key of a step. way: from `walked`."""
    if w.BLOCKS:
        col = listed_column(w, step, way[0], way[1], way[2], way[3], way[4], n_kv)
    else:
        col = column_of(step, way[0], way[1], way[2], w.TILE_KV)
    return col


@jit
def listed_steps(w, b, h, row, n_q, n_kv):
    """(where the tile's list begins, cut blocks, steps that the last of these does not need, steps
    of cut blocks, steps of all) of the tile from `row`, under a mask of blocks."""
    right = w.bounds[1]
    places = (w.kv_len + w.block_size - 1) // w.block_size
    of_head = gl.where(w.block_heads > 1, h, 0)
    rows = (w.q_len + w.block_size - 1) // w.block_size
    line = (b * w.block_heads + of_head).to(gl.int64) * rows + row // w.block_size
    at = w.block_list + line * places
    whole = gl.load(w.block_counts + line * 2)
    cut = gl.load(w.block_counts + line * 2 + 1)
    end = n_kv
    if w.MASK != "none":
        shift = w.bounds[3] * (n_kv - n_q)
        end = gl.minimum(n_kv, gl.minimum(row + w.TILE_Q, n_q) + shift + right)
    last = gl.load(at + (places - cut), mask=cut > 0, other=0)
    each = w.block_size // w.TILE_KV
    beyond = gl.maximum((last + 1) * w.block_size - end, 0) // w.TILE_KV
    beyond = gl.where(cut > 0, gl.minimum(beyond, each), 0)
    masked = cut * each - beyond
    return at, cut, beyond, masked, masked + whole * each


@jit
def listed_column(w, step, at, cut, beyond, masked, listed, n_kv):
    """The first key of a step under a mask of blocks. A tile that sees no block has one step, with
    keys behind the last."""
    each = w.block_size // w.TILE_KV
    places = (w.kv_len + w.block_size - 1) // w.block_size
    in_cut = step < masked
    x = gl.where(in_cut, step + beyond, step - masked)
    place = gl.where(in_cut, places - cut, 0) + x // each
    behind = (n_kv + w.TILE_KV - 1) // w.TILE_KV * w.TILE_KV
    seen = step < listed
    block = gl.load(at + place, mask=seen, other=0)
    return gl.where(seen, block * w.block_size + (each - 1 - x % each) * w.TILE_KV, behind)


@jit
def column_of(step, top, window, count, TILE_KV: gl.constexpr):
    """The first key of a step."""
    return gl.where(step < window, top - 1 - step, count - 1 - step) * TILE_KV


@jit
def masked_steps(w, row, top, window, count, n_kv, shift):
    """(begin, end) of the steps whose keys all of a group's rows, from `row` on, see. Step 0 is
    none of them."""
    ROWS: gl.constexpr = w.TILE_Q // w.GROUPS
    left, right, _, _ = w.bounds
    begin = 1
    end = count
    if w.MASK != "none":
        whole = gl.minimum(n_kv, row + shift + right + 1) // w.TILE_KV
        begin = gl.maximum(gl.minimum(top - whole, window), 1)
    if w.MASK == "window":
        lowest = gl.maximum(row + ROWS - 1 + shift - left, 0)
        end = top - (lowest + w.TILE_KV - 1) // w.TILE_KV
        end = gl.maximum(gl.minimum(end, window), begin)
    return begin, end


@jit
def tell(message, slot, b, h, row, n_q, n_kv, q_begin):
    """Write what the consumers must know of a tile. `row` is negative behind the last one."""
    values = (row, h, b, n_q, n_kv, q_begin)
    for i in gl.static_range(6):
        message.index(slot * MESSAGE + i).store(gl.full((1,), values[i], gl.int32, ONE_WARP))


@jit
def tell_steps(message, slot, count, masked):
    """Write how many steps a tile has under a mask of blocks, and how many are of cut blocks."""
    values = (count, masked)
    for i in gl.static_range(2):
        message.index(slot * MESSAGE + 6 + i).store(gl.full((1,), values[i], gl.int32, ONE_WARP))


@jit
def heard(message, slot, INDEX: gl.constexpr):
    """One number of `tell`, and of `tell_steps`."""
    return gl.max(message.index(slot * MESSAGE + INDEX).load(FOUR_WARPS), 0)


@jit
def heard_key(w, stage):
    """The first key of the block in a slot, under a mask of blocks."""
    return gl.max(w.columns.index(stage).load(FOUR_WARPS), 0)


@jit
def slot_before(stage, phase, STAGES: gl.constexpr):
    """What `turned` made (stage, phase) from."""
    wrapped = gl.where(stage == 0, 1, 0)
    return stage - 1 + wrapped * STAGES, phase ^ wrapped


@jit
def wait_for_turn(GROUP: gl.constexpr):
    """Wait for `give_turn` to this group: a hardware barrier of the threads of both."""
    return gl.inline_asm_elementwise(
        "bar.sync $1, 256; mov.b32 $0, 0;", "=r,r", [gl.to_tensor(TURN + GROUP)], gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@jit
def give_turn(GROUP: gl.constexpr):
    """Let group number GROUP take its turn, and go on."""
    return gl.inline_asm_elementwise(
        "bar.arrive $1, 256; mov.b32 $0, 0;", "=r,r", [gl.to_tensor(TURN + GROUP)], gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@constexpr_function
def across(columns):
    """A layout of 16-bit tiles of so many columns, in pieces of 16 bytes, over four warps."""
    threads = min(32, columns // 8)
    return gl.BlockedLayout([1, 8], [32 // threads, threads], [4, 1], [1, 0])


@jit
def clear(tile, rows):
    """Set the rows of a tile from `rows` on to zero: they belong to others or to nobody, and a
    weight of zero times NaN would be NaN. Every group that reads the tile writes the same zeros
    before it reads, so groups need not wait for each other."""
    LAYOUT: gl.constexpr = across(tile.shape[1])
    KEYS: gl.constexpr = tile.shape[0]
    STEP: gl.constexpr = 32
    for at in gl.static_range(0, KEYS, STEP):
        if at + STEP > rows:
            part = tile.slice(at, STEP)
            value = part.load(LAYOUT)
            i = at + gl.arange(0, STEP, gl.SliceLayout(1, LAYOUT))
            part.store(gl.where(gl.expand_dims(i < rows, 1), value, gl.zeros_like(value)))
    fence_async_shared()
    thread_barrier()
