"""Which queries a tile of keys needs, and the weights of a step, in Gluon for sm_90; used by
`gluon_ws`.

A tile of scores is [keys, queries]: the keys are rows, so that the weights and their gradients are
left operands of the products that add up dV and dK. LSE and delta therefore belong to columns, a
quarter of which each thread needs. They are no operands of their own, which would take registers:
the products are added to them (`spread`). A thread has few bounds of masks, which belong to its two
rows.
"""

from tilewright.ops.attention.kernels.gluon_scores import LOG2E, base2, bias_in_base2
from tilewright.ops.attention.kernels.gluon_tiles import CHUNK, FOUR_WARPS
from tilewright.ops.attention.kernels.lengths import keys_of
from tilewright.ops.attention_backward.kernels.blocks import listed_queries
from tilewright.ops.device.gluon_api import gl, jit

NO_BOUND = gl.constexpr(2**30)


@jit
def tile_of(
    order, batch, kv_heads, kv_len, total_kv, kv_offsets, section, TILE: gl.constexpr,
    PACKEDKV: gl.constexpr, BY_LENGTH: gl.constexpr, ORDERED: gl.constexpr, MASK: gl.constexpr,
):  # fmt: skip
    """(sequence, head of keys, first key, whether tiles ascend) of this workgroup.

    Sequences that have lengths of their own begin with the longest (see `order`). Under a causal
    mask the first keys are seen by most queries, so ascending tiles are long ones first. ORDERED:
    descending tiles (see `turn_of`); under a causal mask those of the last section ascend, if there
    are more. Neighbouring numbers are the same tile of `section` heads (`catalogue`).

    Tiles of packed sequences follow one another. There are places for as many as there can be;
    those that are left over lie behind the last sequence's rows."""
    number = gl.program_id(0)
    if PACKEDKV:
        places = total_kv // TILE + batch
        lines = kv_heads
    else:
        places = (kv_len + TILE - 1) // TILE
        lines = batch * kv_heads
    before = number // (section * places) * section
    within = number - before * places
    here = gl.minimum(section, lines - before)
    line = before + within % here
    place = within // here
    ascending = False
    if PACKEDKV:
        g = line
        rank = -1
        for start in range(0, batch, CHUNK):
            n = start + gl.arange(0, CHUNK, FOUR_WARPS)
            begins = gl.load(order + batch + n, mask=n < batch, other=0)
            rank += gl.sum(((begins <= place) & (n < batch)).to(gl.int32), 0)
        b = gl.load(order + rank)
        place -= gl.load(order + batch + rank)
        if ORDERED:
            _, rows = keys_of(
                b, kv_len, total_kv, 0, kv_offsets, kv_offsets, PACKEDKV, False, False
            )  # fmt: skip
            tiles = (rows + TILE - 1) // TILE
            place = gl.where(place < tiles, tiles - 1 - place, place)
    else:
        b = line // kv_heads
        g = line % kv_heads
        if BY_LENGTH:
            b = gl.load(order + b)
        if MASK == "causal":
            ascending = (before > 0) & (before + section >= lines)
        if ORDERED:
            place = gl.where(ascending, place, places - 1 - place)
    return b, g, place * TILE, ascending


@jit
def steps_of(
    j0, n_q, n_kv, shift, left, right, first, TILE: gl.constexpr, STEP: gl.constexpr,
    MASK: gl.constexpr,
):  # fmt: skip
    """(begin, low, high, end) of the steps of the tile from key `j0`. A step is a block of STEP
    queries. Steps `low` to `high` need no mask: each of their queries sees each key of the tile. A
    tile at the end of its sequence, or of which a part is among the first keys that a window never
    hides, has none of these."""
    begin = 0
    low = 0
    end = (n_q + STEP - 1) // STEP
    high = end
    last = gl.minimum(j0 + TILE, n_kv) - 1
    whole = j0 + TILE <= n_kv
    if MASK != "none":
        begin = gl.maximum(j0 - shift - right, 0) // STEP
        low = (gl.maximum(last - shift - right, 0) + STEP - 1) // STEP
    if MASK == "window":
        bounded = j0 >= first
        reach = (gl.maximum(last - shift + left + 1, 0) + STEP - 1) // STEP
        end = gl.where(bounded, gl.minimum(end, reach), end)
        high = gl.where(bounded, gl.maximum(j0 - shift + left + 1, 0) // STEP, high)
        whole = whole & (bounded | (last < first))
    end = gl.where(j0 < n_kv, end, 0)
    begin = gl.minimum(begin, end)
    low = gl.where(whole, gl.minimum(gl.maximum(low, begin), end), end)
    high = gl.maximum(gl.minimum(high, end), low)
    return begin, low, high, end


@jit
def walked(w, n, TILE: gl.constexpr):
    """(begin, low, high, end, way) of the steps of head `n` of those that share the tile's keys:
    numbers that `step_at` makes steps of, those from `low` to `high` without a mask."""
    if w.BLOCKS:
        query_list, query_counts, q_len, kv_len, block_size, block_heads = w.lists
        left, right, first, _ = w.bounds
        at, places, whole, before, cut = listed_queries(
            query_list, query_counts, w.b, w.g * w.group + n, w.j0,
            gl.minimum(w.j0 + TILE, w.n_kv) - 1, w.n_q, w.n_kv, q_len, kv_len, w.shift, left, right,
            first, block_size, block_heads, w.STEP, w.MASK,
        )  # fmt: skip
        end = cut + whole // w.STEP
        found = (0, cut, end, end, (at, places, before // w.STEP, cut, block_size // w.STEP))
    else:
        found = (w.begin, w.low, w.high, w.end, ())
    return found


@jit
def step_at(w, x, way):
    """The step that is number `x` of `walked`. Under a mask of blocks those of cut blocks, which
    are listed from the end, come first."""
    if w.BLOCKS:
        at, places, before, cut, each = way
        y = gl.where(x < cut, x + before, x - cut)
        place = gl.where(x < cut, places - 1 - y // each, y // each)
        t = gl.load(at + place) * each + y % each
    else:
        t = x
    return t


@jit
def nothing(token):
    """0, of which the compiler does not know that it is the same in every step. Added to the number
    of a tile, it keeps the tile's descriptors from being computed before the loop and spilled: 400
    bytes of them at head dim 256."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, 0;", "=r,r", [token], gl.int32, is_pure=False, pack=1
    )


@jit
def turn_of(
    t, j0, ascending, n_kv, shift, left, right, first, TILE: gl.constexpr, STEP: gl.constexpr,
    MASK: gl.constexpr,
):  # fmt: skip
    """How many tiles of keys add to block `t` of dQ before the tile from key `j0`.

    Tiles add in descending order, in which they also start, so that a workgroup waits only for
    those that have started. Under a causal mask short tiles come first, and come to a block of
    queries in just this order: tile n begins with the block at its diagonal, and has `t` as its
    next the sooner the later its keys are. The tiles that add are those of `steps_of`.

    Long tiles that start last leave most of a GPU idle at the end. So in the last section they
    start first (`ascending`), when tiles of the section before end, the short ones first: tile n
    has its first block when tile n - 1 has had it."""
    top = (n_kv - 1) // TILE
    low = 0
    kept = 0
    if MASK != "none":
        top = gl.minimum((t + 1) * STEP - 1 + shift + right, n_kv - 1) // TILE
    if MASK == "window":
        begin = gl.maximum(t * STEP + shift - left, 0)
        low = gl.where(begin < n_kv, begin // TILE, top + 1)
        kept = (gl.minimum(first, n_kv) + TILE - 1) // TILE
    above = j0 // TILE + 1
    turn = gl.maximum(top + 1 - gl.maximum(low, above), 0)
    if MASK == "causal":
        turn = gl.where(ascending, above - 1, turn)
    if MASK == "window":
        turn += gl.maximum(gl.minimum(kept, gl.minimum(low, top + 1)) - above, 0)
    return turn


@jit
def spread(row, ROWS: gl.constexpr):
    """A number for each column, as sums [ROWS, columns] that products are added to."""
    OF: gl.constexpr = row.type.layout.parent
    return gl.zeros((ROWS, row.shape[0]), gl.float32, OF) + gl.expand_dims(row, 0)


@jit
def weights_of(
    s, log_tile, i0, j0, n_kv, shift, bounds, scale, softcap, slope, MASK: gl.constexpr,
    MASKED: gl.constexpr, SOFTCAP: gl.constexpr, ALIBI: gl.constexpr, bias_tile=None, top_tile=None,
):  # fmt: skip
    """(P, P times the derivative of the soft cap) of a tile of products whose first is of key `j0`
    and query `i0`.

    log_tile: with a soft cap or a bias, LSE of the queries times log₂e, in shared memory. Else it
    is in the products already: they began with minus LSE, divided by the scale.
    slope: of the queries' head, from `slope_of`.
    bias_tile: what is added to the scores, [queries, keys] in shared memory; None: nothing.
    top_tile: with a bias, what is taken from scores before `log_tile` (see `logarithms`)."""
    left, right, first, _ = bounds
    OF: gl.constexpr = s.type.layout
    j = j0 + gl.arange(0, s.shape[0], gl.SliceLayout(1, OF))
    i = gl.arange(0, s.shape[1], gl.SliceLayout(0, OF))
    if SOFTCAP:
        # The hardware's own tanh is off by 2⁻¹¹.
        tanh = 1.0 - 2.0 / (1.0 + gl.exp2(s * (scale / softcap * (2.0 * LOG2E))))
        s = tanh * (softcap * LOG2E)
    else:
        s = s * base2(scale)
    if bias_tile is not None:
        s += bias_in_base2(bias_tile.permute((1, 0)).load(OF))
        s -= gl.expand_dims(top_tile.load(gl.SliceLayout(0, OF)), 0)
    if ALIBI:
        ahead = (i0 + shift - j).to(gl.float32)
        far = gl.abs(gl.expand_dims(ahead, 1) + gl.expand_dims(i.to(gl.float32), 0))
        s = s - slope * far
    if SOFTCAP or bias_tile is not None:
        s -= gl.expand_dims(log_tile.load(gl.SliceLayout(0, OF)), 0)
    p = gl.exp2(s)
    if MASKED:
        low = gl.zeros_like(j)
        if MASK != "none":
            low = j - shift - right - i0
        low = gl.where(j < n_kv, low, NO_BOUND)
        seen = gl.expand_dims(i, 0) >= gl.expand_dims(low, 1)
        if MASK == "window":
            high = gl.where(j < first, NO_BOUND, j - shift + left - i0)
            seen = seen & (gl.expand_dims(i, 0) <= gl.expand_dims(high, 1))
        p = gl.where(seen, p, 0.0)
    through = p
    if SOFTCAP:
        through = p * (1.0 - tanh * tanh)
    return p, through
