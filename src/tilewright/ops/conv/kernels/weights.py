"""The gradient of the weights as an implicit GEMM through pointers, on every architecture.

Idea. Rows are a group's filters, columns the places of a filter (taps and channels), and the sum is
over the pixels of y: dY is read transposed, and of X the pixels that a place's tap joins with them.
A tile's columns are channels of one tap; MERGED columns go through taps and channels as through one
dimension, which fills tiles where a group has few channels.

With RUNS, columns are the elements of runs (see `runs`), which are read in vectors. Elements that
belong to no tap are summed too, but not stored.

With BUNDLE, a tile has the filters and the channels of so many groups. Of its sums, those of a
filter and a channel of one group are stored; the others are products that were not asked for, and
meet no other sum.

A gradient of few weights over many pixels has few tiles. Under ``split``, several workgroups share
the pixels of a tile. TWO_STAGE: each writes its sums to its own part of a workspace, and
`conv_totals` adds the parts in order, so results repeat bit for bit. Depthwise filters and groups
of few channels have few weights in many parts, which `conv_few_totals` adds, WAYS at once: one
after the other would wait for memory each time. Else parts meet in a tree or by atomics, as in GEMM
(`ops.device.reduce`). Under ``stream_k``, as many workgroups as compute units share the steps of
all tiles evenly (`ops.device.schedule`).

Data movement. Each tile reads all of its channels of dY and X, pixel after pixel; other taps' tiles
read the same X at about the same time, from L2.

What limits it: addresses and masks, computed for each step of pixels; the sums of many taps read X
and dY once for each tap. Not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.places import apart, channel, inside, offset
from tilewright.ops.device.division import apart_by
from tilewright.ops.device.reduce import (
    add,
    load,
    reduce,
    reduce_split,
    store,
    take_turn,
    within_tile,
)
from tilewright.ops.device.schedule import (
    contributors,
    shared_steps,
    stream_segment,
    tile_coordinates,
)


@triton.jit
def _bundle(number, group_c, group_k, groups, BUNDLE: tl.constexpr):
    """A bundle's first group, and the channels and the filters of all its groups."""
    first = number * BUNDLE
    if BUNDLE > 1:
        count = min(groups - first, BUNDLE)
        group_c = group_c * count
        group_k = group_k * count
    return first, group_c, group_k


@triton.jit
def _columns(
    tile_n, channels, taps, runs, TILE_N: tl.constexpr, MERGED: tl.constexpr, RUNS: tl.constexpr
):  # fmt: skip
    """A tile's columns: the tap (of each, if MERGED), the channel, and which there are. With RUNS:
    the first tap of each one's run, its place in the run, and which there are."""
    all_taps = taps[0] * taps[1] * taps[2]
    if RUNS:
        cols = tile_n * TILE_N + tl.arange(0, TILE_N)
        there = cols < taps[0] * taps[1] * runs[0]
        c = cols % runs[0]
        tap = cols // runs[0] * taps[2]
    elif MERGED:
        cols = tile_n * TILE_N + tl.arange(0, TILE_N)
        there = cols < all_taps * channels
        c = cols % channels
        tap = cols // channels
    else:
        c = tile_n // all_taps * TILE_N + tl.arange(0, TILE_N)
        there = c < channels
        tap = tile_n % all_taps
    return tap, c, there


@triton.jit
def _accumulate(
    x, y, x_strides, y_strides, group_c, group_k, groups, sizes, outs, outs_by, taps, stride,
    dilation, before, runs, pixels, bundle, tile_m, tile_n, begin, end,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, NDIM: tl.constexpr,
    MERGED: tl.constexpr, RUNS: tl.constexpr, BUNDLE: tl.constexpr, UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A tile's sum over the pixels of y from `begin`, a multiple of TILE_K, to `end`."""
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    group, channels, filters = _bundle(bundle, group_c, group_k, groups, BUNDLE)
    k_there = k < filters
    tap, c, cols_there = _columns(tile_n, channels, taps, runs, TILE_N, MERGED, RUNS)
    _, tap_d, tap_h, tap_w = apart(tap, taps, NDIM)
    from_d = tap_d * dilation[0] - before[0]
    from_h = tap_h * dilation[1] - before[1]
    from_w = tap_w * dilation[2] - before[2]
    if not RUNS:  # of one group, which keeps vectors aligned
        x += group * group_c * x_strides[1]
    y += group * group_k * y_strides[1]
    columns = channel(c, x_strides[1], UNIT)
    within = sizes
    if RUNS:  # elements of a row, in place of pixels and channels
        columns = c
        to = offset(from_d, from_h, 0, x_strides, NDIM)
        from_w = c
        within = (sizes[0], sizes[1], runs[3])
    else:
        to = offset(from_d, from_h, from_w, x_strides, NDIM)
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    for p0 in range(begin, end, TILE_K):
        p = p0 + tl.arange(0, TILE_K)
        p_there = p < pixels
        image, d, h, w = apart_by(p, outs, outs_by, NDIM)
        of_y = image * y_strides[0] + offset(d, h, w, y_strides, NDIM)
        a = tl.load(
            y + (of_y[:, None] + channel(k, y_strides[1], UNIT)[None, :]),
            mask=p_there[:, None] & k_there[None, :], other=0.0,
        )  # fmt: skip
        d = d * stride[0]
        h = h * stride[1]
        if RUNS:
            w = w * runs[1] + runs[2]
            of_x = image * x_strides[0] + offset(d, h, 0, x_strides, NDIM) + w
        else:
            w = w * stride[2]
            of_x = image * x_strides[0] + offset(d, h, w, x_strides, NDIM)
        if MERGED:
            seen = inside(
                d[:, None] + from_d[None, :], h[:, None] + from_h[None, :],
                w[:, None] + from_w[None, :], within, NDIM,
            )  # fmt: skip
            places = of_x[:, None] + (to + columns)[None, :]
            mask = seen & p_there[:, None] & cols_there[None, :]
        else:
            seen = inside(d + from_d, h + from_h, w + from_w, sizes, NDIM)
            places = (of_x + to)[:, None] + columns[None, :]
            mask = (seen & p_there)[:, None] & cols_there[None, :]
        b = tl.load(x + places, mask=mask, other=0.0)
        acc = tl.dot(tl.trans(a), b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def _store(
    acc, made, made_strides, group_c, group_k, groups, taps, runs, part, bundle, tile_m, tile_n,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, NDIM: tl.constexpr, MERGED: tl.constexpr,
    RUNS: tl.constexpr, BUNDLE: tl.constexpr, UNIT_OUT: tl.constexpr, TWO_STAGE: tl.constexpr,
):  # fmt: skip
    """Write a tile of weights; TWO_STAGE: of sums, in their part of the workspace."""
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    all_taps = taps[0] * taps[1] * taps[2]
    group, channels, filters = _bundle(bundle, group_c, group_k, groups, BUNDLE)
    tap, c, cols_there = _columns(tile_n, channels, taps, runs, TILE_N, MERGED, RUNS)
    if RUNS:  # those before a run's first tap and behind its last are no weights
        c -= runs[4]
        cols_there = cols_there & (c >= 0) & (c < taps[2] * group_c)
        tap += c // group_c
        c = c % group_c
    mask = (k < filters)[:, None] & cols_there[None, :]
    if BUNDLE > 1:
        mask = mask & ((k // group_k)[:, None] == (c // group_c)[None, :])
        c = c % group_c
    k += group * group_k
    if TWO_STAGE:
        count = (groups * group_k).to(tl.int64) * all_taps * group_c
        places = (k * all_taps * group_c)[:, None] + (tap * group_c + c)[None, :]
        tl.store(made + part * count + places, acc, mask=mask)
    else:
        _, tap_d, tap_h, tap_w = apart(tap, taps, NDIM)
        places = offset(tap_d, tap_h, tap_w, made_strides, NDIM)
        places += channel(c, made_strides[1], UNIT_OUT)
        places = (k * made_strides[0])[:, None] + places[None, :]
        tl.store(made + places, acc.to(made.dtype.element_ty), mask=mask)


@triton.jit
def conv_weights(
    x, y, made, meeting, x_strides, y_strides, made_strides, images, group_c, group_k, groups,
    sizes, outs, outs_by, taps, stride, dilation, before, splits, runs,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    NDIM: tl.constexpr, MERGED: tl.constexpr, RUNS: tl.constexpr, BUNDLE: tl.constexpr,
    UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, TWO_STAGE: tl.constexpr, SCHEDULER: tl.constexpr,
    REDUCTION: tl.constexpr, PRECISION: tl.constexpr, DONE: tl.constexpr,
):  # fmt: skip
    """The gradient, or parts of it. The arguments are those of the catalogue (`arguments`)."""
    all_taps = taps[0] * taps[1] * taps[2]
    tiles_m = tl.cdiv(group_k * BUNDLE, TILE_M)
    if RUNS:
        tiles_n = tl.cdiv(taps[0] * taps[1] * runs[0], TILE_N)
    elif MERGED:
        tiles_n = tl.cdiv(all_taps * group_c * BUNDLE, TILE_N)
    else:
        tiles_n = all_taps * tl.cdiv(group_c * BUNDLE, TILE_N)
    each = tiles_m * tiles_n
    tiles = each * tl.cdiv(groups, BUNDLE)
    pixels = images * outs[0] * outs[1] * outs[2]
    first = tl.program_id(0)
    if SCHEDULER == "stream_k":
        steps = tl.cdiv(pixels, TILE_K)
        ways, share, at, stop = shared_steps(splits, steps)
        while at < stop:
            tile, begin, end = stream_segment(at, stop, steps, pixels, TILE_K)
            bundle = tile // each
            tile_m, tile_n = tile_coordinates(tile % each, tiles_m, tiles_n, GROUP_M)
            acc = _accumulate(
                x, y, x_strides, y_strides, group_c, group_k, groups, sizes, outs, outs_by, taps,
                stride, dilation, before, runs, pixels, bundle, tile_m, tile_n, begin, end,
                TILE_M, TILE_N, TILE_K, NDIM, MERGED, RUNS, BUNDLE, UNIT, PRECISION,
            )  # fmt: skip
            earliest, count, shift = contributors(tile, steps, ways, share)
            whole = count == 1
            if count > 1:
                base = tile if REDUCTION == "atomic" else 2 * earliest
                last = take_turn(meeting[0], count, base, 2, shift, REDUCTION)
                whole, acc = reduce(
                    acc, last, meeting[0], meeting[1], within_tile(TILE_M, TILE_N),
                    first - earliest, count, base, 2, shift, REDUCTION, store, load, add, DONE,
                )  # fmt: skip
            if whole:
                _store(
                    acc, made, made_strides, group_c, group_k, groups, taps, runs, 0, bundle,
                    tile_m, tile_n, TILE_M, TILE_N, NDIM, MERGED, RUNS, BUNDLE, UNIT_OUT, TWO_STAGE,
                )  # fmt: skip
            at = min(stop, (tile + 1) * steps)
        for tile in tl.range(splits + first, tiles, tl.num_programs(0)):
            bundle = tile // each
            tile_m, tile_n = tile_coordinates(tile % each, tiles_m, tiles_n, GROUP_M)
            acc = _accumulate(
                x, y, x_strides, y_strides, group_c, group_k, groups, sizes, outs, outs_by, taps,
                stride, dilation, before, runs, pixels, bundle, tile_m, tile_n, 0, pixels,
                TILE_M, TILE_N, TILE_K, NDIM, MERGED, RUNS, BUNDLE, UNIT, PRECISION,
            )  # fmt: skip
            _store(
                acc, made, made_strides, group_c, group_k, groups, taps, runs, 0, bundle, tile_m,
                tile_n, TILE_M, TILE_N, NDIM, MERGED, RUNS, BUNDLE, UNIT_OUT, TWO_STAGE,
            )  # fmt: skip
    else:
        tile = first % tiles
        part = first // tiles
        bundle = tile // each
        tile_m, tile_n = tile_coordinates(tile % each, tiles_m, tiles_n, GROUP_M)
        share = tl.cdiv(tl.cdiv(pixels, TILE_K), splits) * TILE_K
        acc = _accumulate(
            x, y, x_strides, y_strides, group_c, group_k, groups, sizes, outs, outs_by, taps,
            stride, dilation, before, runs, pixels, bundle, tile_m, tile_n,
            part * share, min((part + 1) * share, pixels),
            TILE_M, TILE_N, TILE_K, NDIM, MERGED, RUNS, BUNDLE, UNIT, PRECISION,
        )  # fmt: skip
        if SCHEDULER == "split" and not TWO_STAGE:
            whole, acc = reduce_split(
                acc, meeting[0], meeting[1], tile, part, splits, TILE_M, TILE_N, REDUCTION, DONE
            )
            if whole:
                _store(
                    acc, made, made_strides, group_c, group_k, groups, taps, runs, part, bundle,
                    tile_m, tile_n, TILE_M, TILE_N, NDIM, MERGED, RUNS, BUNDLE, UNIT_OUT, TWO_STAGE,
                )  # fmt: skip
        else:
            _store(
                acc, made, made_strides, group_c, group_k, groups, taps, runs, part, bundle, tile_m,
                tile_n, TILE_M, TILE_N, NDIM, MERGED, RUNS, BUNDLE, UNIT_OUT, TWO_STAGE,
            )  # fmt: skip


@triton.jit
def conv_totals(
    partials, made, made_strides, splits, count, group_c, taps,
    BLOCK: tl.constexpr, NDIM: tl.constexpr,
):  # fmt: skip
    """Weights from the sums of all parts, added in their order. Parts lie as [k, taps, c]."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < count
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in tl.range(0, splits, loop_unroll_factor=8):  # eight loads are on their way at once
        total += tl.load(partials + i, mask=there, other=0.0)
        partials += count
    c = i % group_c
    k, tap_d, tap_h, tap_w = apart(i // group_c, taps, NDIM)
    places = k * made_strides[0] + c * made_strides[1]
    places += offset(tap_d, tap_h, tap_w, made_strides, NDIM)
    tl.store(made + places, total.to(made.dtype.element_ty), mask=there)


@triton.jit
def conv_few_totals(
    partials, made, made_strides, splits, count, group_c, taps,
    BLOCK: tl.constexpr, WAYS: tl.constexpr, NDIM: tl.constexpr,
):  # fmt: skip
    """As `conv_totals`, for few weights in many parts: WAYS parts are read at once, and added in an
    order that only their number decides."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    way = tl.arange(0, WAYS)
    there = i < count
    places = partials + way.to(tl.int64)[:, None] * count + i[None, :]
    total = tl.zeros((WAYS, BLOCK), tl.float32)
    for part in range(0, splits, WAYS):
        mask = (part + way < splits)[:, None] & there[None, :]
        total += tl.load(places, mask=mask, other=0.0)
        places += count.to(tl.int64) * WAYS
    c = i % group_c
    k, tap_d, tap_h, tap_w = apart(i // group_c, taps, NDIM)
    places_of = k * made_strides[0] + c * made_strides[1]
    places_of += offset(tap_d, tap_h, tap_w, made_strides, NDIM)
    tl.store(made + places_of, tl.sum(total, 0).to(made.dtype.element_ty), mask=there)
