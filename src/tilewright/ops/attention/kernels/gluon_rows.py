"""Rows of decoding kernels in Gluon for sm_90: the heads that share a head of keys, for each query;
used by `gluon_decode` and `gluon_latent`.

Row r of a sequence and a head of keys is query r // group, head r % group of those. A tile has 64
of them, what one wgmma multiplies at least.

`w` in functions here is a kernel's bundle (`Work` of either), `part` the `Part` that its workgroup
computes.
"""

from tilewright.ops.attention.kernels.lengths import keys_of, pages_of, queries_of
from tilewright.ops.device.gluon_api import gl, jit
from tilewright.ops.device.gluon_bundle import bundle

ROWS = gl.constexpr(64)

Part = bundle("Part", "tile g split b q_begin n_q listed kv_begin n_kv begin end")
"""A workgroup's tile of rows, head of keys, split and sequence; the sequence's first query and its
queries; where the list of its pages begins; its first key and its keys; the blocks of keys of the
workgroup, from `begin` to `end`."""


@jit
def part_of(w):
    """What this workgroup computes. Tiles of one sequence and head are neighbours, so that they
    read the same keys at once."""
    number = gl.program_id(0)
    tiles = (w.q_len * w.group + ROWS - 1) // ROWS
    tile = number % tiles
    number //= tiles
    split = 0
    if w.SPLIT:
        split = number % w.splits
        number //= w.splits
    g = number % w.kv_heads
    b = number // w.kv_heads
    q_begin, n_q = queries_of(b, w.q_len, w.total_q, w.q_offsets, w.q_used, w.PACKEDQ, w.USEDQ)
    listed, room = pages_of(
        b, w.page_table, w.page_list, w.page_starts, w.page_entries, w.kv_len, w.PAGE, w.PAGETABLE,
        w.PAGELIST,
    )  # fmt: skip
    kv_begin, n_kv = keys_of(
        b, room, w.total_kv, w.new_kv, w.kv_offsets, w.kv_used, w.PACKEDKV, w.USEDKV, w.APPEND
    )  # fmt: skip
    begin, end = _span_of(w, tile, split, n_q, n_kv)
    return Part(tile, g, split, b, q_begin, n_q, listed, kv_begin, n_kv, begin, end)


@jit
def lowest_key(w, tile, n_q, n_kv):
    """The first key that some row of a tile sees."""
    low = 0
    if w.MASK == "window":
        low = gl.maximum(tile * ROWS // w.group + w.bottom_right * (n_kv - n_q) - w.left, 0)
        low = gl.minimum(low, n_kv)
    return low


@jit
def _span_of(w, tile, split, n_q, n_kv):
    """(begin, end) of the blocks of keys of a workgroup, of those that its rows see: none for a
    tile without queries. `split_len` counts from key 0."""
    first = lowest_key(w, tile, n_q, n_kv) // w.TILE_KV
    end = (n_kv + w.TILE_KV - 1) // w.TILE_KV
    begin = first
    if w.SPLIT:
        if w.split_len > 0:
            begin = split * (w.split_len // w.TILE_KV)
            end = gl.minimum(end, begin + w.split_len // w.TILE_KV)
            begin = gl.maximum(begin, first)
        else:
            each = (gl.maximum(end - first, 0) + w.splits - 1) // w.splits
            begin = first + split * each
            end = gl.minimum(end, begin + each)
    if tile * ROWS >= n_q * w.group:
        end = begin
    return begin, end


@jit
def load_rows(w, part, q, first, out):
    """Elements `first`… of a tile's rows of Q, to shared memory; 0 in rows behind the last.

    q: a pointer to the sequence and its first head.
    """
    WIDTH: gl.constexpr = out.shape[1]
    ACROSS: gl.constexpr = min(32, WIDTH // 8)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    r = part.tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    d = first + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    i = r // w.group
    at = (part.q_begin + i).to(gl.int64) * w.q_strides[1] + r % w.group * w.q_strides[2]
    where = q + gl.expand_dims(at, 1) + gl.expand_dims(d, 0)
    out.store(gl.load(where, mask=gl.expand_dims(i < part.n_q, 1), other=0.0))


@jit
def clear(tile, rows):
    """Set the rows of a tile of values from `rows` on to zero: a weight of zero times the NaN that
    may be there would be NaN."""
    KEYS: gl.constexpr = tile.shape[0]
    STEP: gl.constexpr = 8
    ACROSS: gl.constexpr = min(32, tile.shape[1] // 8)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    for at in gl.static_range(0, KEYS, STEP):
        if at + STEP > rows:
            part = tile.slice(at, STEP)
            value = part.load(LAYOUT)
            j = at + gl.arange(0, STEP, gl.SliceLayout(1, LAYOUT))
            part.store(gl.where(gl.expand_dims(j < rows, 1), value, gl.zeros_like(value)))


@jit
def lines_of(w, part, r):
    """The lines of LSE and of partial results of rows `r`."""
    h = part.g * w.group + r % w.group
    line = (part.b.to(gl.int64) * w.heads + h) * w.q_len + r // w.group
    if w.PACKEDQ:
        line = h.to(gl.int64) * w.total_q + (part.q_begin + r // w.group)
    return line


@jit
def write_rows(w, part, out, first):
    """Write columns `first`… of a tile's rows of O, or of a split's partial O."""
    OF_O: gl.constexpr = out.type.layout
    r = part.tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, OF_O))
    e = first + gl.arange(0, out.shape[1], gl.SliceLayout(0, OF_O))
    inside = gl.expand_dims(r // w.group < part.n_q, 1)
    if w.SPLIT:
        line = lines_of(w, part, r)
        at = (gl.to_tensor(part.split).to(gl.int64) * w.rows + line) * w.HEAD_DIM_V
        gl.store(w.partial_o + gl.expand_dims(at, 1) + gl.expand_dims(e, 0), out, mask=inside)
    else:
        o_b = 0 if w.PACKEDQ else part.b
        at = (part.q_begin + r // w.group).to(gl.int64) * w.o_strides[1]
        at = at + (part.g * w.group + r % w.group) * w.o_strides[2]
        where = w.o + o_b * w.o_strides[0] + gl.expand_dims(at, 1) + gl.expand_dims(e, 0)
        gl.store(where, out.to(w.o.dtype.element_ty), mask=inside)
