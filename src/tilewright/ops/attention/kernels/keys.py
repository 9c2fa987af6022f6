"""Where rows lie: the sequence of a workgroup, the rows of its tile, the keys of a step.

Query i of a sequence is row `q_start + i` of Q, and key j is row `kv_start + j` of K, or, in a
paged cache, row `(kv_start + j) % PAGE` of the page that the sequence has at `(kv_start + j) //
PAGE`. Left padding moves `kv_start`.

Addresses are a scalar of 64 bits plus a vector of 32, so that a thread computes the long part once
and the compiler can prove how wide a load may be. Only pages shorter than a step, or cut by left
padding, need a vector of 64 bits: each key then has a page of its own.
"""

import triton
import triton.language as tl

from tilewright.ops.attention.kernels.lengths import keys_of, page_at, queries_of
from tilewright.ops.device.lengths import bounded, length_at


@triton.constexpr_function
def pieces(dim, least):
    """The widths of the blocks that hold a row of `dim` elements: powers of two from `least`.

    A block of 128 for 80 elements would multiply 48 zeros; 64 and 16 multiply none. Two blocks are
    enough for every usual size (192: 128 and 64; 576: 512 and 64), and one is taken where two
    would be no less."""
    whole = max(least, 1 << (dim - 1).bit_length())
    first = max(least, whole // 2)
    second = max(least, 1 << (dim - first - 1).bit_length()) if dim > first else 0
    return (first, second) if second and first + second < whole else (whole,)


@triton.constexpr_function
def width(widths, n):
    """The width of piece `n`."""
    return widths[n]


@triton.constexpr_function
def begins(widths, n):
    """Where piece `n` of a row begins."""
    return sum(widths[:n])


@triton.constexpr_function
def ragged(widths, n, dim):
    """Whether piece `n` is longer than what is left of a row of `dim` elements."""
    return sum(widths[: n + 1]) > dim


@triton.jit
def sequence(
    b, q_offsets, kv_offsets, q_used, kv_used, left_pad, q_len, kv_len, total_q, total_kv, new_kv,
    PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, USEDKV: tl.constexpr,
    LEFTPAD: tl.constexpr, APPEND: tl.constexpr,
):  # fmt: skip
    """For sequence `b`, or each of a vector: its first row of Q, its queries, its first row of K
    and V, its keys."""
    q_start, n_q = queries_of(b, q_len, total_q, q_offsets, q_used, PACKEDQ, USEDQ)
    kv_start, n_kv = keys_of(
        b, kv_len, total_kv, new_kv, kv_offsets, kv_used, PACKEDKV, USEDKV, APPEND
    )
    if LEFTPAD:
        kv_start = length_at(left_pad, b, length_at(kv_used, b, kv_len))
        n_kv -= kv_start
    return b * 0 + q_start, b * 0 + n_q, b * 0 + kv_start, b * 0 + n_kv


@triton.jit
def tile_rows(tile, h, group, TILE_Q: tl.constexpr, PACK: tl.constexpr):
    """The first query of a tile, and of each of its rows the query (counted from there) and the
    query head. `h`: the head of queries; with PACK, of keys."""
    r = tl.arange(0, TILE_Q)
    i0 = tile * TILE_Q
    head = h
    if PACK:
        r += i0
        i0 = i0 // group
        head = h * group + r % group
        r = r // group - i0
    return i0, r, head


@triton.jit
def row_places(x, strides, b, start, i0, i, head):
    """A pointer, and how far from there the first elements of the rows of a tile of Q or O are (see
    `tile_rows`)."""
    x += b.to(tl.int64) * strides[0] + (start + i0).to(tl.int64) * strides[1]
    return x, i * strides[1] + head.to(tl.int64) * strides[2]


@triton.jit
def located(
    j0, b, kv_start, n_kv, entries, pages,
    TILE_KV: tl.constexpr, PAGE: tl.constexpr, LEFTPAD: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Where keys `j0`, … `j0 + TILE_KV - 1` are: the batch or page, the row there of the first, and
    the rows counted from that. `j0` is a multiple of TILE_KV. `entries`: see `lengths.pages_of`.

    MASKED: whether some of the keys may be at or beyond `n_kv`; the table is not read for these."""
    keys = tl.arange(0, TILE_KV)
    first = (kv_start + j0).to(tl.int64)
    outer = b.to(tl.int64)
    if PAGE > 0:
        if PAGE % TILE_KV == 0 and not LEFTPAD:
            outer = page_at(entries, j0 // PAGE, pages).to(tl.int64)
            first = ((kv_start + j0) % PAGE).to(tl.int64)
        else:
            at = kv_start + j0 + keys
            if MASKED:
                listed = tl.load(entries + at // PAGE, mask=j0 + keys < n_kv, other=0)
                outer = bounded(listed, pages - 1).to(tl.int64)
            else:
                outer = page_at(entries, at // PAGE, pages).to(tl.int64)
            first = b.to(tl.int64) * 0
            keys = at % PAGE
    return outer, first, keys


@triton.jit
def key_places(
    x, strides, outer, first, keys, g, kv_heads,
    DIM: tl.constexpr, PAGE: tl.constexpr, VECTORISED: tl.constexpr, IS_V: tl.constexpr,
):  # fmt: skip
    """A pointer, and how far from there the first elements of the rows of K or V are that `located`
    found, of head `g`.

    VECTORISED: K is [pages, heads, dim / n, rows, n], and V [pages, heads, rows / n, dim, n], with
    n elements of 16 bytes."""
    base = x
    if VECTORISED:
        N: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
        start = (outer * kv_heads + g) * (PAGE * DIM)
        row = first.to(tl.int32) + keys
        if IS_V:
            far = (row // N) * (DIM * N) + row % N
        else:
            far = row * N
    else:
        start = outer * strides[0] + first * strides[1] + g.to(tl.int64) * strides[2]
        far = keys * strides[1]
    if len(start.shape) == 0:
        base = x + start
    else:
        far = start + far
    return base, far


@triton.jit
def columns(
    x, strides, WIDTHS: tl.constexpr, PIECE: tl.constexpr, PAGE: tl.constexpr,
    VECTORISED: tl.constexpr, IS_V: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """The elements of piece PIECE of a row: their numbers, and how far they are from the first."""
    d = tl.arange(0, width(WIDTHS, PIECE)) + begins(WIDTHS, PIECE)
    return d, places(x, strides, d, PAGE, VECTORISED, IS_V, UNIT)


@triton.jit
def places(
    x, strides, d, PAGE: tl.constexpr, VECTORISED: tl.constexpr, IS_V: tl.constexpr,
    UNIT: tl.constexpr,
):  # fmt: skip
    """How far elements `d` of a row are from the first."""
    far = d
    if VECTORISED:
        N: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
        if IS_V:
            far = d * N
        else:
            far = (d // N) * (PAGE * N) + d % N
    elif not UNIT:
        far = d * strides[3]
    return far


@triton.jit
def load_piece(
    x, rows, d, far, seen, DIM: tl.constexpr, RAGGED: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """[rows, WIDTH] elements: of rows `rows` from `x`, those that are `far` from a row's first; 0
    beyond the row's end, and in rows that are not `seen`."""
    where = x + (rows[:, None] + far[None, :])
    if MASKED and RAGGED:
        found = tl.load(where, mask=seen[:, None] & (d < DIM)[None, :], other=0.0)
    elif MASKED:
        found = tl.load(where, mask=seen[:, None], other=0.0)
    elif RAGGED:
        found = tl.load(where, mask=(d < DIM)[None, :], other=0.0)
    else:
        found = tl.load(where)
    return found


@triton.jit
def converted(x, DTYPE: tl.constexpr, BY_FP16: tl.constexpr):
    """Keys or values in the dtype that they are multiplied in; with BY_FP16, by fp16, which holds
    each value of an fp8."""
    if BY_FP16:
        x = x.to(tl.float16)
    return x.to(DTYPE)
