"""Rows of decoding kernels in Gluon for sm_90: the heads that share a head of keys, for each query;
used by `gluon_decode` and `gluon_latent`.

Row r of a sequence and a head of keys is query r // group, head r % group of those. A tile has 64
of them, what one wgmma multiplies at least.
"""

from tilewright.ops.device.gluon_api import gl, jit

ROWS = gl.constexpr(64)


@jit
def place_of(q_len, group, kv_heads, splits, SPLIT: gl.constexpr):
    """(tile, head of keys, split, sequence) of this workgroup. Tiles of one sequence and head are
    neighbours, so that they read the same keys at once."""
    number = gl.program_id(0)
    tiles = (q_len * group + ROWS - 1) // ROWS
    tile = number % tiles
    number //= tiles
    split = 0
    if SPLIT:
        split = number % splits
        number //= splits
    return tile, number % kv_heads, split, number // kv_heads


@jit
def span_of(
    tile, split, n_q, low, n_kv, group, splits, split_len, KEYS: gl.constexpr, SPLIT: gl.constexpr
):  # fmt: skip
    """(begin, end) of the blocks of KEYS keys of a workgroup, of those from key `low` on: none for
    a tile without queries. `split_len` counts from key 0."""
    first = low // KEYS
    end = (n_kv + KEYS - 1) // KEYS
    begin = first
    if SPLIT:
        if split_len > 0:
            begin = split * (split_len // KEYS)
            end = gl.minimum(end, begin + split_len // KEYS)
            begin = gl.maximum(begin, first)
        else:
            each = (gl.maximum(end - first, 0) + splits - 1) // splits
            begin = first + split * each
            end = gl.minimum(end, begin + each)
    if tile * ROWS >= n_q * group:
        end = begin
    return begin, end


@jit
def load_rows(q, strides, begin, n_q, tile, group, first, out, WIDTH: gl.constexpr):
    """Elements `first`… of a tile's rows of Q, to shared memory; 0 in rows behind the last.

    q: a pointer to the sequence and its first head. begin: row of its first query.
    """
    ACROSS: gl.constexpr = min(32, WIDTH // 8)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    r = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    d = first + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    i = r // group
    at = (begin + i).to(gl.int64) * strides[1] + r % group * strides[2]
    where = q + gl.expand_dims(at, 1) + gl.expand_dims(d, 0)
    out.store(gl.load(where, mask=gl.expand_dims(i < n_q, 1), other=0.0))


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
def lines_of(r, b, g, q_begin, heads, group, q_len, total_q, PACKEDQ: gl.constexpr):
    """The lines of LSE and of partial results of rows `r`."""
    h = g * group + r % group
    line = (b.to(gl.int64) * heads + h) * q_len + r // group
    if PACKEDQ:
        line = h.to(gl.int64) * total_q + (q_begin + r // group)
    return line


@jit
def write_rows(
    out, o, partial_o, strides, q_b, b, g, split, q_begin, n_q, tile, heads, group, q_len, total_q,
    rows, first, HEAD_DIM_V: gl.constexpr, SPLIT: gl.constexpr, PACKEDQ: gl.constexpr,
):  # fmt: skip
    """Write columns `first`… of a tile's rows of O, or of a split's partial O."""
    OF_O: gl.constexpr = out.type.layout
    r = tile * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, OF_O))
    e = first + gl.arange(0, out.shape[1], gl.SliceLayout(0, OF_O))
    inside = gl.expand_dims(r // group < n_q, 1)
    if SPLIT:
        line = lines_of(r, b, g, q_begin, heads, group, q_len, total_q, PACKEDQ)
        at = (gl.to_tensor(split).to(gl.int64) * rows + line) * HEAD_DIM_V
        gl.store(partial_o + gl.expand_dims(at, 1) + gl.expand_dims(e, 0), out, mask=inside)
    else:
        at = (q_begin + r // group).to(gl.int64) * strides[1] + (g * group + r % group) * strides[2]
        where = o + q_b * strides[0] + gl.expand_dims(at, 1) + gl.expand_dims(e, 0)
        gl.store(where, out.to(o.dtype.element_ty), mask=inside)
