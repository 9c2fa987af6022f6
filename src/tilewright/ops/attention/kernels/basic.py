"""Attention from plain pointers: the portable kernel, which has every feature.

Idea. A workgroup computes TILE_Q rows of O. Q stays; K and V pass by in steps of TILE_KV keys, and
the softmax is renormalised at each step (Milakov and Gimelshein, "Online normalizer calculation for
softmax", 2018; Dao et al., "FlashAttention", 2022). Scores are in units of log2(e), so that the
multiplication by the scale and the subtraction of the maximum are one instruction before `exp2`.

Rows. With PACK, the rows of a tile are the query heads that share a head of keys, for each query: K
and V are then read once for all of them, and a single query fills a tile.

Data movement. Ordinary loads, which Triton turns into asynchronous copies where there are such, and
pipelines over `num_stages`. Each thread computes addresses: see `keys`. A row of 80 or 576 elements
is held in two blocks of powers of two (64 and 16, 512 and 64). Latent attention uses the block of
keys that it has as its block of values.

Order. Keys that every row of the tile sees need no mask; these steps are a loop of their own,
without any comparison. A second loop takes the steps with a mask: the end of the keys, the
diagonal, the left edge of a window, and the first keys that a window keeps. Tiles that see most
keys start first. Under a mask of blocks both loops walk lists of blocks (see `blocks`).

fp8. Weights are multiplied by 2^7 before they are rounded to the dtype of V, which keeps small
ones; so is their sum. 8-bit keys and values under 16-bit queries are converted when loaded.

ROLLED. Matrix and vector units of AMD's waves of 32 take whole rows of both operands from each
wave's registers, RDNA 3 twice. There long rows of Q do not stay: Q·Kᵀ is a loop along the head dim
that loads 32 columns of Q and K at a time. The compiler cannot unroll it, because it does not know
the grid's second size, 1.

What limits it. Addresses and conversions take issue slots from the exponentials, and on sm_90 one
warp group waits for its own products. An H200 reads large caches of single-token pages at 0.87 to
1.08 of a large copy's rate; long prompts were not timed. Measurements:
docs/notes/attention-basic.md.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from tilewright.ops.attention.kernels.blocks import listed, listed_key, listed_key_back
from tilewright.ops.attention.kernels.dropout import random_bytes
from tilewright.ops.attention.kernels.keys import (
    begins,
    columns,
    converted,
    key_places,
    load_piece,
    located,
    pieces,
    places,
    ragged,
    row_places,
    sequence,
    tile_rows,
    width,
)
from tilewright.ops.attention.kernels.lengths import pages_of
from tilewright.ops.attention.kernels.scores import (
    LOG2E,
    biased,
    capped,
    in_base2,
    masked_tile,
    natural,
    seen,
    slope_of,
    sloped,
    spans,
)
from tilewright.ops.device.epilogue import rounded


@triton.constexpr_function
def lift(bits):
    """The power of two that weights are multiplied by."""
    return 7.0 if bits == 8 else 0.0


@triton.constexpr_function
def same_piece(k_widths, v_widths, n):
    """Whether piece `n` of the values, the beginning of the keys, is a piece of these."""
    return n < len(k_widths) and k_widths[n] == v_widths[n] and k_widths[:n] == v_widths[:n]


@triton.constexpr_function
def leaves_rest(size, step):
    """Whether the last of equal steps is longer than what is left."""
    return size % step != 0


ROLLED_COLUMNS = tl.constexpr(32)


@triton.jit
def _load_q(at, d, DIM: tl.constexpr, RAGGED: tl.constexpr, UNIT: tl.constexpr):
    """Elements `d` of a tile's rows of Q; 0 in rows that are not there. at: a pointer, how far the
    rows are from it (see `row_places`), strides, which rows are there, and the scale of scores."""
    base, rows, strides, there, scale = at
    far = places(base, strides, d, 0, False, False, UNIT)
    found = load_piece(base, rows, d, far, there, DIM, RAGGED, True)
    # The largest product is that of the largest score only if the scale is positive.
    return tl.where(scale < 0, -found.to(tl.float32), found.to(tl.float32)).to(found.dtype)


@triton.jit
def _step(
    x, x_at, sums, m, total, j0, i, line, k, v, k_strides, v_strides, b, g, kv_start, n_q, n_kv,
    kv_heads, entries, pages, bias, slope, q_scale, k_scale, v_scale, kv_scale_strides, scale_block,
    kv_len, shift, left, right, first, softcap, dropped, factor, seed, offset,
    TILE_Q: tl.constexpr, TILE_KV: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    K_WIDTHS: tl.constexpr, V_WIDTHS: tl.constexpr, MASK: tl.constexpr, PAGE: tl.constexpr,
    SOFTCAP: tl.constexpr, BIAS: tl.constexpr, ALIBI: tl.constexpr, DROPOUT: tl.constexpr,
    LEFTPAD: tl.constexpr, VECTORISED: tl.constexpr, LATENT: tl.constexpr, BSCALE: tl.constexpr,
    UNIT: tl.constexpr, BY_FP16: tl.constexpr, ROLLED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The sums, maxima and totals after keys `j0` to `j0 + TILE_KV`.

    x: the tile of Q; with ROLLED, (). x_at: where it is, see `_load_q`."""
    DTYPE: tl.constexpr = x_at[0].dtype.element_ty
    LIFT: tl.constexpr = lift(DTYPE.primitive_bitwidth)
    PRECISION: tl.constexpr = "ieee"
    j = j0 + tl.arange(0, TILE_KV)
    outer, row, keys = located(
        j0, b, kv_start, n_kv, entries, pages, TILE_KV, PAGE, LEFTPAD, MASKED
    )
    k_base, k_rows = key_places(
        k, k_strides, outer, row, keys, g, kv_heads, HEAD_DIM, PAGE, VECTORISED, False
    )  # fmt: skip
    y = ()
    s = tl.zeros((TILE_Q, TILE_KV), tl.float32)
    if ROLLED:
        for d0 in range(0, HEAD_DIM * tl.num_programs(1), ROLLED_COLUMNS):
            d = d0 + tl.arange(0, ROLLED_COLUMNS)
            far = places(k, k_strides, d, PAGE, VECTORISED, False, UNIT)
            RAGGED: tl.constexpr = leaves_rest(HEAD_DIM, ROLLED_COLUMNS)
            piece = load_piece(k_base, k_rows, d, far, j < n_kv, HEAD_DIM, RAGGED, MASKED)
            piece = converted(piece, DTYPE, BY_FP16)
            mine = _load_q(x_at, d, HEAD_DIM, RAGGED, UNIT)
            s = tl.dot(mine, piece.T, s, input_precision=PRECISION)
    else:
        for n in tl.static_range(len(K_WIDTHS)):
            d, far = columns(k, k_strides, K_WIDTHS, n, PAGE, VECTORISED, False, UNIT)
            piece = load_piece(
                k_base, k_rows, d, far, j < n_kv, HEAD_DIM, ragged(K_WIDTHS, n, HEAD_DIM), MASKED
            )
            piece = converted(piece, DTYPE, BY_FP16)
            s = tl.dot(x[n], piece.T, s, input_precision=PRECISION)
            y += (piece,)

    if MASKED or SOFTCAP or BIAS or ALIBI or BSCALE:
        if BSCALE:
            at = (j0 // scale_block) * kv_scale_strides[2]
            s = s * (q_scale * (factor * tl.load(k_scale + at)))[:, None]
        else:
            s = s * factor
        if SOFTCAP:
            s = capped(s, softcap)
        if BIAS:
            s = biased(s, bias, i, j, n_q, n_kv, kv_len, MASKED)
        if ALIBI:
            s = sloped(s, slope, i, j, shift)
        if MASKED:
            s = tl.where(seen(i, j, n_kv, shift, left, right, first, MASK), s, float("-inf"))
        most = tl.maximum(m, tl.max(s, 1))
        base = tl.where(most == float("-inf"), 0.0, most)
        again = tl.exp2(m - base)
        p = tl.exp2(s - (base - LIFT)[:, None])
    else:
        most = tl.maximum(m, tl.max(s, 1) * factor)
        again = tl.exp2(m - most)
        p = tl.exp2(s * factor - (most - LIFT)[:, None])
    total = total * again + tl.sum(p, 1)
    if DROPOUT:
        r = random_bytes(j0, i, line, seed, offset, TILE_Q, TILE_KV)
        p = tl.where(r < dropped, 0.0, p)
    v_base, v_rows = k_base, k_rows
    if not LATENT:
        v_base, v_rows = key_places(
            v, v_strides, outer, row, keys, g, kv_heads, HEAD_DIM_V, PAGE, VECTORISED, True
        )
    p = p.to(DTYPE)
    found = ()
    for n in tl.static_range(len(V_WIDTHS)):
        if LATENT and same_piece(K_WIDTHS, V_WIDTHS, n):
            z = y[n]
        else:
            d, far = columns(v, v_strides, V_WIDTHS, n, PAGE, VECTORISED, not LATENT, UNIT)
            z = load_piece(
                v_base,
                v_rows,
                d,
                far,
                j < n_kv,
                HEAD_DIM_V,
                ragged(V_WIDTHS, n, HEAD_DIM_V),
                MASKED,
            )
            z = converted(z, DTYPE, BY_FP16)
        if BSCALE:
            at = (j0 // scale_block) * kv_scale_strides[2]
            product = tl.dot(p, z, input_precision=PRECISION) * tl.load(v_scale + at)
            found += (sums[n] * again[:, None] + product,)
        else:
            found += (tl.dot(p, z, sums[n] * again[:, None], input_precision=PRECISION),)
    return found, most, total


@triton.jit
def _share(n, part, splits, split_len, TILE_KV: tl.constexpr):
    """(begin, end): the keys, of `n`, that part `part` of `splits` has."""
    long = split_len
    if split_len == 0:
        long = tl.cdiv(tl.cdiv(n, TILE_KV), splits) * TILE_KV
    begin = part * long
    return begin, max(min(n, begin + long), begin)


@triton.jit
def attention_basic(
    q, k, v, o, lse, random, bias, slopes, sinks, q_offsets, kv_offsets, q_used, kv_used, left_pad,
    page_table, page_list, page_starts, block_list, block_counts, q_scale, k_scale, v_scale,
    o_scale, partial_o, partial_lse, q_strides, k_strides, v_strides, o_strides, bias_strides,
    q_scale_strides, kv_scale_strides, heads, kv_heads, group, q_len, kv_len, total_q, total_kv,
    rows, pages, page_entries, new_kv, slopes_stride, scale_block, block_size, block_heads, splits,
    split_len, left, right, first, bottom_right, softcap, dropped, scale, seed, offset,
    TILE_Q: tl.constexpr, TILE_KV: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    MASK: tl.constexpr, PAGE: tl.constexpr, PACK: tl.constexpr, SPLIT: tl.constexpr,
    LSE: tl.constexpr, RANDOM: tl.constexpr, SOFTCAP: tl.constexpr, BIAS: tl.constexpr,
    BLOCKS: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr, DROPOUT: tl.constexpr,
    PACKEDQ: tl.constexpr, PACKEDKV: tl.constexpr, USEDQ: tl.constexpr, USEDKV: tl.constexpr,
    LEFTPAD: tl.constexpr, PAGETABLE: tl.constexpr, PAGELIST: tl.constexpr,
    VECTORISED: tl.constexpr, LATENT: tl.constexpr, TSCALE: tl.constexpr, HSCALE: tl.constexpr,
    BSCALE: tl.constexpr, OSCALE: tl.constexpr, APPEND: tl.constexpr, LARGEST_O: tl.constexpr,
    UNIT: tl.constexpr, BY_FP16: tl.constexpr, ROLLED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """A tile of O = softmax(mask(scale · Q·Kᵀ))·V, or, with SPLIT, what a part of the keys gives.

    The arguments are those of the catalogue (`arguments`)."""
    LEAST: tl.constexpr = 32 if q.dtype.element_ty.primitive_bitwidth == 8 else 16
    LIFT: tl.constexpr = lift(q.dtype.element_ty.primitive_bitwidth)
    K_WIDTHS: tl.constexpr = pieces(HEAD_DIM, LEAST)
    V_WIDTHS: tl.constexpr = pieces(HEAD_DIM_V, LEAST)
    each = 1
    lines = heads
    if PACK:
        each = group
        lines = kv_heads
    tiles = tl.cdiv(q_len * each, TILE_Q)
    tile = tl.program_id(0) % tiles
    h = tl.program_id(0) // tiles % lines
    b = tl.program_id(0) // tiles // lines
    part = 0
    if SPLIT:
        part = b % splits
        b = b // splits
    if MASK != "none":
        tile = tiles - 1 - tile  # what takes longest first
    entries, room = pages_of(
        b, page_table, page_list, page_starts, page_entries, kv_len, PAGE, PAGETABLE, PAGELIST
    )  # fmt: skip
    q_start, n_q, kv_start, n_kv = sequence(
        b, q_offsets, kv_offsets, q_used, kv_used, left_pad, q_len, room, total_q, total_kv, new_kv,
        PACKEDQ, PACKEDKV, USEDQ, USEDKV, LEFTPAD, APPEND,
    )  # fmt: skip
    if tile * TILE_Q >= n_q * each:
        return
    g = h
    if not PACK:
        g = h // group
    i0, r, head = tile_rows(tile, h, group, TILE_Q, PACK)
    i = i0 + r
    there = i < n_q
    line = b * heads + head + i * 0
    shift = (n_kv - n_q) * bottom_right

    q_base, q_rows = row_places(q, q_strides, b, q_start, i0, r, head)
    x_at = (q_base, q_rows, q_strides, there, scale)
    x = ()
    if not ROLLED:
        for n in tl.static_range(len(K_WIDTHS)):
            d = begins(K_WIDTHS, n) + tl.arange(0, width(K_WIDTHS, n))
            x += (_load_q(x_at, d, HEAD_DIM, ragged(K_WIDTHS, n, HEAD_DIM), UNIT),)

    factor = tl.abs(scale) * LOG2E
    v_factor = 1.0
    q_scales = 1.0
    if TSCALE or HSCALE or BSCALE:
        kv_at = b * kv_scale_strides[0] + g * kv_scale_strides[1]
        k_scale += kv_at
        v_scale += kv_at
        if BSCALE:
            q_scales = tl.full((TILE_Q,), 1.0, tl.float32)
            if q.dtype.element_ty.primitive_bitwidth == 8:
                q_at = b * q_scale_strides[0] + head * q_scale_strides[1]
                q_at += (i // scale_block) * q_scale_strides[2]
                q_scales = tl.load(q_scale + q_at, mask=there, other=0.0)
        else:
            factor *= tl.load(k_scale)
            v_factor = tl.load(v_scale)
            if q.dtype.element_ty.primitive_bitwidth == 8:
                factor *= tl.load(q_scale + b * q_scale_strides[0] + g * q_scale_strides[1])
    slope = 0.0
    if ALIBI:
        slope = slope_of(tl.load(slopes + b * slopes_stride + head + i * 0))[:, None]
    if BIAS:
        at = b.to(tl.int64) * bias_strides[0] + head.to(tl.int64) * bias_strides[1]
        bias = bias + (at + i.to(tl.int64) * bias_strides[2])
    begin = 0
    end = n_kv
    if SPLIT:
        begin, end = _share(n_kv, part, splits, split_len, TILE_KV)
    i1 = min((tile * TILE_Q + TILE_Q - 1) // each, n_q - 1)
    lo, full_lo, full_hi, firsts, lefts, rights = spans(
        i0, i1, shift, left, right, first, begin, end, TILE_KV, MASK
    )
    if BLOCKS:
        # Keys are counted along the list: whole blocks, and behind them cut ones, with a mask.
        blocks_at, columns, whole, cut = listed(
            block_list, block_counts, b, h, i0, i1, n_kv, q_len, kv_len, shift, right, block_size,
            block_heads, TILE_KV, MASK,
        )  # fmt: skip
        walk = 0
        walk_end = whole + cut
        if SPLIT:
            walk, walk_end = _share(whole + cut, part, splits, split_len, TILE_KV)
        full_lo = min(walk, whole)
        full_hi = min(walk_end, whole)
        cut_lo = max(walk - whole, 0)
        firsts = 0
        lefts = 0
        rights = (max(walk_end - whole, 0) - cut_lo) // TILE_KV

    m = tl.full((TILE_Q,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_Q,), tl.float32)
    if SINKS and not SPLIT:
        m = in_base2(tl.load(sinks + head + i * 0))
        total = tl.where(m == float("-inf"), 0.0, tl.exp2(total + LIFT))
    sums = ()
    for n in tl.static_range(len(V_WIDTHS)):
        sums += (tl.zeros((TILE_Q, width(V_WIDTHS, n)), tl.float32),)
    for walked in range(full_lo, full_hi, TILE_KV):
        j0 = walked
        if BLOCKS:
            j0 = listed_key(blocks_at, walked, block_size)
        sums, m, total = _step(
            x, x_at, sums, m, total, j0, i, line, k, v, k_strides, v_strides, b, g, kv_start, n_q,
            n_kv, kv_heads, entries, pages, bias, slope, q_scales, k_scale, v_scale,
            kv_scale_strides, scale_block, kv_len, shift, left, right, first, softcap, dropped,
            factor, seed, offset,
            TILE_Q, TILE_KV, HEAD_DIM, HEAD_DIM_V, K_WIDTHS, V_WIDTHS, MASK, PAGE, SOFTCAP, BIAS,
            ALIBI, DROPOUT, LEFTPAD, VECTORISED, LATENT, BSCALE, UNIT, BY_FP16, ROLLED, False,
        )  # fmt: skip
    for t in range(firsts + lefts + rights):
        j0 = masked_tile(t, begin, lo, full_hi, firsts, lefts, TILE_KV, MASK)
        if BLOCKS:
            j0 = listed_key_back(blocks_at, columns, cut_lo + t * TILE_KV, block_size)
        sums, m, total = _step(
            x, x_at, sums, m, total, j0, i, line, k, v, k_strides, v_strides, b, g, kv_start, n_q,
            n_kv, kv_heads, entries, pages, bias, slope, q_scales, k_scale, v_scale,
            kv_scale_strides, scale_block, kv_len, shift, left, right, first, softcap, dropped,
            factor, seed, offset,
            TILE_Q, TILE_KV, HEAD_DIM, HEAD_DIM_V, K_WIDTHS, V_WIDTHS, MASK, PAGE, SOFTCAP, BIAS,
            ALIBI, DROPOUT, LEFTPAD, VECTORISED, LATENT, BSCALE, UNIT, BY_FP16, ROLLED, True,
        )  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()  # the kernel that combines splits, which waits for the end of this
    if RANDOM:
        to = random + (line.to(tl.int64) * q_len + i) * kv_len
        for j0 in range(begin, end, TILE_KV):
            j = j0 + tl.arange(0, TILE_KV)
            found = random_bytes(j0, i, line, seed, offset, TILE_Q, TILE_KV)
            inside = there[:, None] & (j < n_kv)[None, :]
            tl.store(to[:, None] + j[None, :], found.to(tl.uint8), mask=inside)

    weight = v_factor / tl.where(total == 0.0, 1.0, total)
    if DROPOUT:
        weight *= 256.0 / (256 - dropped)
    if OSCALE and not SPLIT:
        weight /= tl.load(o_scale)
    # The logarithm of 0 is -inf, which is what a row that sees nothing has.
    log_sum = natural(m + tl.log2(total) - LIFT)
    log_sum = tl.where(total == 0.0, float("-inf"), log_sum)
    at = line.to(tl.int64) * q_len + i
    if PACKEDQ:
        at = head.to(tl.int64) * total_q + q_start + i
    if SPLIT:
        at += part * rows.to(tl.int64)
        if BIAS:  # the logarithm of a sum may drown in a maximum: they go apart
            tl.store(partial_lse + at, natural(m), mask=there)
            tl.store(partial_lse + at + splits * rows.to(tl.int64), total * 2.0**-LIFT, mask=there)
        else:
            tl.store(partial_lse + at, log_sum, mask=there)
        o_base, o_rows = partial_o, at * HEAD_DIM_V
    else:
        if LSE:
            tl.store(lse + at, log_sum, mask=there)
        o_base, o_rows = row_places(o, o_strides, b, q_start, i0, r, head)
    for n in tl.static_range(len(V_WIDTHS)):
        d = begins(V_WIDTHS, n) + tl.arange(0, width(V_WIDTHS, n))
        far = d
        if not UNIT and not SPLIT:
            far = d * o_strides[3]
        out = sums[n] * weight[:, None]
        if not SPLIT:
            out = rounded(out, o.dtype.element_ty, LARGEST_O)
        inside = there[:, None]
        if ragged(V_WIDTHS, n, HEAD_DIM_V):
            inside = inside & (d < HEAD_DIM_V)[None, :]
        tl.store(o_base + (o_rows[:, None] + far[None, :]), out, mask=inside)
