"""Forward, and the gradient of the data, as an implicit GEMM through pointers, on every
architecture, for every stride, dilation, padding, group and layout.

Idea. Rows are pixels of the result, columns its channels. A step multiplies the source's pixels
that one tap joins with the rows by that tap's weights (Chetlur et al., "cuDNN: Efficient Primitives
for Deep Learning", 2014, section 3). The gradient of the data is the same walk in each residue
class of the strides (see `geometry`): classes are more tiles of one launch, and one without a tap
writes what the epilogue makes of zero.

Few channels. Steps of one tap leave most of TILE_K empty where a group has few channels. MERGED
steps go through taps and channels as through one dimension, and each element finds its own tap.

Runs. The elements of such a step are still loaded one by one where a pixel has 3 channels. With
RUNS, a row of the filter with its channels is one stretch of memory, in whose elements the step
goes (see `runs`): two or more of them are one load, and masks take fewer comparisons.

Groups of few channels. A tile of one group has few columns. With BUNDLE, a tile has the channels of
so many groups, a *bundle*: a step reads the channels of all of them, and the weights are block
diagonal, with zeros read for a group's filters and another's channels. The zeros cost products,
which these layers have to spare, and an infinite element would make NaN of another group's sums. So
a tile whose sums have NaN is computed anew, group by group, with zeros in place of the other
groups' elements; what is NaN then is NaN.

Data movement. Loads through pointers, masked at the padding, in vectors of channels where channels
are neighbours. Taps are the inner loop, so that a tile's pixels come from L1 or L2 for all taps but
the first. Triton makes asynchronous copies of them, in num_stages (sm_80 and later). Groups are in
the grid, or bundles of them: a tile never reads channels beyond its last group's.

What limits it: addresses and masks are computed anew for each step by all warps; nothing overlaps
the store. Not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.conv.kernels.finish import finish
from tilewright.ops.conv.kernels.places import apart, channel, inside, offset, walk
from tilewright.ops.device.division import apart_by
from tilewright.ops.device.schedule import tile_coordinates


@triton.jit
def _sums(
    source, weights, base, there, cols, cols_there, at_d, at_h, at_w, count_d, count_h, count_w,
    tap_d, tap_h, tap_w, first_d, first_h, first_w, apart_d, apart_h, apart_w, source_strides,
    weight_strides, channels_in, channels_out, depth_in, only, sizes, runs,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, NDIM: tl.constexpr,
    DATA: tl.constexpr, MERGED: tl.constexpr, RUNS: tl.constexpr, BUNDLE: tl.constexpr,
    ONE: tl.constexpr,
    UNIT: tl.constexpr, PRECISION: tl.constexpr, INT_ACC: tl.constexpr,
):  # fmt: skip
    """A tile's sums over taps and `depth_in` channels, those of the bundle. With ONE, over the
    channels of the bundle's group number `only`."""
    # The compiler pipelines the loop that always runs.
    STAGES: tl.constexpr = 1 if ONE else None
    col = cols
    if BUNDLE > 1:
        col = cols % channels_out
        group_of_col = cols // channels_out
    if DATA:  # weights [channels in of this direction, channels out]
        w_cols = channel(col, weight_strides[1], UNIT)
    else:
        w_cols = cols * weight_strides[0]

    acc = tl.zeros((TILE_M, TILE_N), tl.int32 if INT_ACC else tl.float32)
    if MERGED:
        span = depth_in
        count = count_w
        within = sizes
        if RUNS:
            span = runs[0]
            count = 1
            within = (sizes[0], sizes[1], runs[3])
        depth = count_d * count_h * count * span
        # A class without a tap has a count of 0. The pipelined loop divides for its first step
        # before it asks whether there is one, and the compiler would conclude that none is 0.
        across = max(count, 1)
        down = max(count_h, 1)
        for k0 in tl.range(0, depth, TILE_K, num_stages=STAGES):
            k = k0 + tl.arange(0, TILE_K)
            ch = k % span
            t = k // span
            j_w = t % across
            j_h = t // across % down
            j_d = t // across // down
            k_there = k < depth
            a_there = k_there
            inner = ch
            wide = j_w * tap_w
            w_tap = first_w + j_w * apart_w
            if RUNS:
                # Of the run, the elements of a tap are past the first few.
                inner = ch - runs[4]
                wide = ch
                w_tap = inner // channels_in
                k_there = k_there & (inner >= 0) & (w_tap < count_w)
                inner = inner % channels_in
            if ONE:
                a_there = a_there & (ch // channels_in == only)
            seen = inside(
                at_d[:, None] + (j_d * tap_d)[None, :], at_h[:, None] + (j_h * tap_h)[None, :],
                at_w[:, None] + wide[None, :], within, NDIM,
            )  # fmt: skip
            to = offset(j_d * tap_d, j_h * tap_h, j_w * tap_w, source_strides, NDIM)
            to += channel(ch, source_strides[1], UNIT or RUNS)  # of one channel the stride is 0
            a = tl.load(
                source + (base[:, None] + to[None, :]),
                mask=seen & there[:, None] & a_there[None, :], other=0.0,
            )  # fmt: skip
            if RUNS:
                a = tl.where(k_there[None, :], a, tl.zeros_like(a))
            w_rows = offset(
                first_d + j_d * apart_d, first_h + j_h * apart_h, w_tap, weight_strides, NDIM
            )
            w_there = k_there[:, None] & cols_there[None, :]
            if BUNDLE > 1:
                w_there = w_there & ((ch // channels_in)[:, None] == group_of_col[None, :])
            if DATA:
                w_rows += ch * weight_strides[0]
            else:
                inner = ch % channels_in if BUNDLE > 1 else inner
                w_rows += channel(inner, weight_strides[1], UNIT)
            b = tl.load(weights + (w_rows[:, None] + w_cols[None, :]), mask=w_there, other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
    else:
        j_d = 0
        j_h = 0
        j_w = 0
        k0 = 0
        steps = count_d * count_h * count_w * tl.cdiv(depth_in, TILE_K)
        for _ in tl.range(0, steps, num_stages=STAGES):
            ch = tl.multiple_of(k0, TILE_K) + tl.arange(0, TILE_K)
            ch_there = ch < depth_in
            a_there = ch_there
            if ONE:
                a_there = a_there & (ch // channels_in == only)
            seen = inside(at_d + j_d * tap_d, at_h + j_h * tap_h, at_w + j_w * tap_w, sizes, NDIM)
            to = offset(j_d * tap_d, j_h * tap_h, j_w * tap_w, source_strides, NDIM)
            a = tl.load(
                source + ((base + to)[:, None] + channel(ch, source_strides[1], UNIT)[None, :]),
                mask=(seen & there)[:, None] & a_there[None, :], other=0.0,
            )  # fmt: skip
            w_there = ch_there[:, None] & cols_there[None, :]
            if BUNDLE > 1:
                w_there = w_there & ((ch // channels_in)[:, None] == group_of_col[None, :])
            if DATA:
                w_rows = ch * weight_strides[0]
            else:
                w_rows = channel(ch % channels_in if BUNDLE > 1 else ch, weight_strides[1], UNIT)
            w_rows += offset(
                first_d + j_d * apart_d, first_h + j_h * apart_h, first_w + j_w * apart_w,
                weight_strides, NDIM,
            )  # fmt: skip
            b = tl.load(weights + (w_rows[:, None] + w_cols[None, :]), mask=w_there, other=0.0)
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=acc.dtype)
            # The next tap, or the next channels.
            j_w += 1
            turn = j_w == count_w
            j_w = tl.where(turn, 0, j_w)
            j_h = tl.where(turn, j_h + 1, j_h)
            turn = j_h == count_h
            j_h = tl.where(turn, 0, j_h)
            j_d = tl.where(turn, j_d + 1, j_d)
            turn = j_d == count_d
            j_d = tl.where(turn, 0, j_d)
            k0 = tl.where(turn, k0 + TILE_K, k0)
    return acc


@triton.jit
def conv_gather(
    source, weights, made, extra, source_strides, weight_strides, made_strides, images, channels_in,
    channels_out, groups, sizes, full, walked, walked_by, taps, stride, dilation, before, phase,
    common, inverse, runs,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    NDIM: tl.constexpr, DATA: tl.constexpr, MERGED: tl.constexpr, RUNS: tl.constexpr,
    BUNDLE: tl.constexpr, UNIT: tl.constexpr, UNIT_OUT: tl.constexpr, PRECISION: tl.constexpr,
    INT_ACC: tl.constexpr, TAKES: tl.constexpr, LARGEST: tl.constexpr,
    CHAIN: tl.constexpr,
):  # fmt: skip
    """A tile of the result. The arguments are those of the catalogue (`arguments`)."""
    pixels = images * walked[0] * walked[1] * walked[2]
    tiles_m = tl.cdiv(pixels, TILE_M)
    tiles_n = tl.cdiv(channels_out * BUNDLE, TILE_N)
    bundles = tl.cdiv(groups, BUNDLE)
    rest = tl.program_id(0) // (tiles_m * tiles_n)
    group = rest % bundles * BUNDLE
    tile = tl.program_id(0) % (tiles_m * tiles_n)
    tile_m, tile_n = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
    class_d = 0
    class_h = 0
    class_w = 0
    if DATA:
        _, class_d, class_h, class_w = apart(rest // bundles, stride, NDIM)
    first_w, count_w, apart_w, origin_w, pixel_w, tap_w = walk(
        class_w, taps[2], stride[2], dilation[2], before[2], phase[2], common[2], inverse[2], DATA
    )
    first_h, count_h, apart_h, origin_h, pixel_h, tap_h = walk(
        class_h, taps[1], stride[1], dilation[1], before[1], phase[1], common[1], inverse[1], DATA
    )
    first_d, count_d, apart_d, origin_d, pixel_d, tap_d = walk(
        class_d, taps[0], stride[0], dilation[0], before[0], phase[0], common[0], inverse[0], DATA
    )

    rows = tile_m * TILE_M + tl.arange(0, TILE_M)
    image, d, h, w = apart_by(rows, walked, walked_by, NDIM)
    at_d = origin_d + d * pixel_d
    at_h = origin_h + h * pixel_h
    at_w = origin_w + w * pixel_w
    if DATA:
        d = class_d + d * stride[0]
        h = class_h + h * stride[1]
        w = class_w + w * stride[2]
    there = rows < pixels
    if DATA:
        there = there & inside(d, h, w, full, NDIM)
    depth_in = channels_in
    width_out = channels_out
    if BUNDLE > 1:
        in_bundle = min(groups - group, BUNDLE)
        depth_in = channels_in * in_bundle
        width_out = channels_out * in_bundle
    cols = tile_n * TILE_N + tl.arange(0, TILE_N)
    cols_there = cols < width_out

    if RUNS:  # elements of a row, from here on; of one group, which keeps vectors aligned
        at_w = w * runs[1] + runs[2]
        base = image * source_strides[0] + offset(at_d, at_h, 0, source_strides, NDIM) + at_w
    else:
        base = image * source_strides[0] + offset(at_d, at_h, at_w, source_strides, NDIM)
        base += group * channels_in * source_strides[1]
    if DATA:
        weights += group * channels_in * weight_strides[0]
    else:
        weights += group * channels_out * weight_strides[0]

    acc = _sums(
        source, weights, base, there, cols, cols_there, at_d, at_h, at_w, count_d, count_h,
        count_w, tap_d, tap_h, tap_w, first_d, first_h, first_w, apart_d, apart_h, apart_w,
        source_strides, weight_strides, channels_in, channels_out, depth_in, 0, sizes,
        runs, TILE_M, TILE_N, TILE_K, NDIM, DATA, MERGED, RUNS, BUNDLE, False, UNIT, PRECISION,
        INT_ACC,
    )  # fmt: skip
    if BUNDLE > 1 and not INT_ACC:  # noqa: SIM102 - the compiler decides the first alone
        if tl.max((acc != acc).to(tl.int32)) > 0:
            for one in range(in_bundle):
                alone = _sums(
                    source, weights, base, there, cols, cols_there, at_d, at_h, at_w, count_d,
                    count_h, count_w, tap_d, tap_h, tap_w, first_d, first_h, first_w, apart_d,
                    apart_h, apart_w, source_strides, weight_strides, channels_in, channels_out,
                    depth_in, one, sizes, runs,
                    TILE_M, TILE_N, TILE_K, NDIM, DATA, MERGED, RUNS, BUNDLE, True, UNIT, PRECISION,
                    INT_ACC,
                )  # fmt: skip
                acc = tl.where((cols // channels_out == one)[None, :], alone, acc)

    places = image * made_strides[0] + offset(d, h, w, made_strides, NDIM)
    channels = group * channels_out + cols
    places = places[:, None] + channel(channels, made_strides[1], UNIT_OUT)[None, :]
    finish(
        acc, made, extra, places, channels, there[:, None] & cols_there[None, :], cols_there,
        CHAIN, TAKES, LARGEST,
    )  # fmt: skip
