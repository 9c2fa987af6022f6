"""Groups of 4 to 32 channels, forward and the gradient of the data, in Gluon (sm_90): pixels come
into shared memory once, and all taps read them there.

Idea. An implicit GEMM of such a group has few products for each element, so the way of the elements
decides. Tiles of one tap bring each pixel from L2 once for each tap. Here a workgroup walks down
the rows of an image with a ring of input rows in shared memory, and every tap is a view of the
ring.

Matrix instructions read their operands in blocks of eight rows, and a view may begin at a block
only. So the eight rows of a block are eight *images*: an atom is one pixel of eight images by 64
channels. A tap to the right is then the next atom, a tap further down the ring's next slot. The
copy engine makes atoms on its own: the tensor map has the dimensions (height, width, image,
channel).

Products are of the older instruction, whose operands come from registers: two atoms by a slice of
16 channels, and the 16 filters that see them. Four slices are one product with a dimension of
batches: each warp has a slice. Groups of 32 channels make two slices of 32, with two warps each, 16
filters a warp. Slices of groups of 4 and 8 hold several groups (MERGED), with zeros between a
group's filters and another's channels. Taps along the width share their pixels in registers
(`gluon_atoms`), so a row is read once for each row of the filter.

The weights lie in shared memory in this form for as long as the workgroup runs, which stays with
its 64 channels. Of groups of 32 channels, up to nine taps lie in registers instead (KEPT). The
gradient of the data is the same with taps in the reverse order, and the weights read along their
other side. With a stride of 2, an input row is two rows of atoms, its even pixels and its odd ones;
the gradient of the data then has a launch for each residue class (see `geometry`).

Edges. Rows and columns outside the image come as zeros, which is the padding, and the copy engine
writes nothing outside the result. An infinite element of one group times MERGED's zeros is NaN in
another group's sums. If a workgroup's sums had NaN or infinity, it makes its rows again, group by
group, with other groups' elements set to zero.

On a CPU. Gluon has no interpreter; `gather` computes the same result there.

What limits it. Memory, where workgroups on one compute unit overlap. On an H200 3×3 layers run at
1.09 to 2.93 times cuDNN's speed forward, 1.14 to 3.00 for data. More measurements, counts, and what
was tried: docs/notes/conv-gluon_grouped.md.
"""

from tilewright.ops.conv.kernels.finish import chained
from tilewright.ops.conv.kernels.gluon_atoms import (
    IMAGES,
    SLAB,
    box_at,
    pair_at,
    pairs_at,
    place_of,
)
from tilewright.ops.conv.kernels.gluon_bands import written
from tilewright.ops.conv.kernels.places import offset
from tilewright.ops.device.epilogue import rounded
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    mma_v2,
    reinterpreted,
    thread_barrier,
    tma_load,
    tma_store,
    tma_store_wait,
)
from tilewright.ops.device.gluon_store import indices

TAPS_AT_ONCE = gl.constexpr(9)
"""Taps whose weights are on their way to registers together."""


@jit
def _to_tap(
    tap, weight_strides, first_tap, taps_apart,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, DATA: gl.constexpr, NDIM: gl.constexpr,
):  # fmt: skip
    """Elements from a filter's begin to the tap that is walked as number `tap`."""
    tap_h = tap // TAPS_W
    tap_w = tap % TAPS_W
    if DATA:
        tap_h = first_tap[0] + (TAPS_H - 1 - tap // TAPS_W) * taps_apart
        tap_w = first_tap[1] + (TAPS_W - 1 - tap % TAPS_W) * taps_apart
    return offset(0, tap_h, tap_w, weight_strides, NDIM)


@jit
def _expand(
    weights, tiles, weight_strides, slab, channels, first_tap, taps_apart,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr,
    DATA: gl.constexpr, NDIM: gl.constexpr,
):  # fmt: skip
    """Write the slab's weights to shared memory, [taps, filters, channels of a slice]: zero where a
    filter and a channel are of different groups, or past the last."""
    EACH: gl.constexpr = SLICE // MERGED
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // SLICE, SLICE // 8], [4, 1], [1, 0])
    row = gl.arange(0, SLAB, gl.SliceLayout(1, LAYOUT))
    col = gl.arange(0, SLICE, gl.SliceLayout(0, LAYOUT))
    filters = slab * SLAB + row
    there = (row % SLICE // EACH)[:, None] == (col // EACH)[None, :]
    there = there & (filters < channels)[:, None]
    places = (filters * weight_strides[0])[:, None] + (col % EACH * weight_strides[1])[None, :]
    for first in gl.static_range(0, TAPS_H * TAPS_W, TAPS_AT_ONCE):
        found = ()
        for tap in gl.static_range(first, min(first + TAPS_AT_ONCE, TAPS_H * TAPS_W)):
            to = _to_tap(tap, weight_strides, first_tap, taps_apart, TAPS_H, TAPS_W, DATA, NDIM)
            one = gl.load(weights + (places + to), mask=there, other=0.0)
            found += (one,)  # type: ignore[assignment]
        for tap in gl.static_range(first, min(first + TAPS_AT_ONCE, TAPS_H * TAPS_W)):
            tiles.index(tap).store(found[tap - first])


@jit
def _ask(
    x, edge, atoms, full, rows_wanted, asked, strip, row, h, w, image, count, mine, apart, rows_in,
    rows, tiles_w, octets, channel, origin_h, origin_w,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Ask for the next input rows of this workgroup, as many as are wanted or are left. Input row
    `asked` is number `row` of this workgroup's strip `strip`, which begins at (h, w, image).
    Returns the same of the next one.

    No loop here begins at a value that a loop around it carries: see `tests/test_gluon_loops`.
    """
    BYTES: gl.constexpr = x.block_type.nbytes + (edge.block_type.nbytes if HALO > 0 else 0)
    for _ in range(rows_wanted):
        if strip < count:
            slot = asked % STAGES
            ready = full.index(slot)
            mbarrier.expect(ready, STRIDE * BYTES)
            for phase in gl.static_range(STRIDE):
                at = (slot * STRIDE + phase) * (COLS + HALO)
                begin = w + phase
                tma_load(x, (h + row, begin, image, channel), ready, box_at(atoms, at, x))
                if HALO > 0:
                    begin += COLS * STRIDE
                    to = box_at(atoms, at + COLS, edge)
                    tma_load(edge, (h + row, begin, image, channel), ready, to)
            asked += 1
            row += 1
            if row == rows_in:
                row = row * 0
                strip += 1
                tile_w, octet, segment = place_of(mine + strip * apart, tiles_w, octets)
                h = segment * rows * STRIDE + origin_h
                w = tile_w * COLS * STRIDE + origin_w
                image = octet * IMAGES
    return asked, strip, row, h, w, image


@jit
def _begin(
    x, edge, atoms, full, before, count, mine, apart, rows, tiles_w, octets, slab, origin_h,
    origin_w,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Ask for the first input rows, where `before` came to the ring before. Returns what `_ask`
    does."""
    tile_w, octet, segment = place_of(mine, tiles_w, octets)
    return _ask(
        x, edge, atoms, full, STAGES, before, rows * 0, rows * 0,
        segment * rows * STRIDE + origin_h, tile_w * COLS * STRIDE + origin_w, octet * IMAGES,
        count, mine, apart, (rows - 1) * STRIDE + TAPS_H, rows, tiles_w, octets, slab * SLAB,
        origin_h, origin_w, COLS, HALO, STRIDE, STAGES,
    )  # fmt: skip


@jit
def _kept(
    weights, weight_strides, slab, channels, first_tap, taps_apart, LAYOUT: gl.constexpr,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, SLICE: gl.constexpr, DATA: gl.constexpr,
    NDIM: gl.constexpr,
):  # fmt: skip
    """The slab's weights in registers, by taps: each a slice of one group, as `_weights` has it."""
    part = gl.arange(0, SLAB // SLICE, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    channel = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    row = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    if DATA:
        filters = slab * SLAB + part * SLICE + channel
        places = filters * weight_strides[0] + row * weight_strides[1]
    else:
        filters = slab * SLAB + part * SLICE + row
        places = filters * weight_strides[0] + channel * weight_strides[1]
    there = filters < channels
    found = ()
    for tap in gl.static_range(TAPS_H * TAPS_W):
        to = _to_tap(tap, weight_strides, first_tap, taps_apart, TAPS_H, TAPS_W, DATA, NDIM)
        one = gl.load(weights + (places + to), mask=there, other=0.0)
        found += (one,)  # type: ignore[assignment]
    return found


@jit
def _weights(
    tiles, tap, LAYOUT: gl.constexpr, SLICE: gl.constexpr, DATA: gl.constexpr, KEPT: gl.constexpr
):  # fmt: skip
    """A tap's weights by slices, [slices, what is read, what is made]."""
    if KEPT:
        found = tiles[tap]
    else:
        slices = tiles.index(tap).reshape((SLAB // SLICE, SLICE, SLICE))
        if not DATA:
            slices = slices.permute((0, 2, 1))
        found = slices.load(LAYOUT)
    return found


@jit
def _multiply(
    atoms, tiles, base, SUMS: gl.constexpr,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, STAGES: gl.constexpr, DATA: gl.constexpr,
    KEPT: gl.constexpr,
):  # fmt: skip
    """The sums of a row of the result, whose first input row is `base`: of pairs of pixels,
    [slices, 16, filters]."""
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    sums = ()
    for _ in gl.static_range(COLS // 2):
        zeros = gl.zeros((SLAB // SLICE, 2 * IMAGES, SLICE), gl.float32, SUMS)
        sums += (zeros,)  # type: ignore[assignment]
    for r in gl.static_range(TAPS_H):
        slot = (base + r) % STAGES
        for phase in gl.static_range(min(STRIDE, TAPS_W)):
            seen = pairs_at(
                atoms, (slot * STRIDE + phase) * (COLS + HALO),
                (TAPS_W - phase + STRIDE - 1) // STRIDE, COLS, gl.DotOperandLayout(0, SUMS, 2),
                SLICE,
            )  # fmt: skip
            for s in gl.static_range(phase, TAPS_W, STRIDE):
                b = _weights(tiles, r * TAPS_W + s, WEIGHTS, SLICE, DATA, KEPT)
                more = ()
                for pair in gl.static_range(COLS // 2):
                    one = mma_v2(seen[2 * pair + s // STRIDE], b, sums[pair])
                    more += (one,)  # type: ignore[assignment]
                sums = more
    return sums


@jit
def _multiply_apart(
    atoms, tiles, base, SUMS: gl.constexpr,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, MERGED: gl.constexpr, STAGES: gl.constexpr, DATA: gl.constexpr,
):  # fmt: skip
    """As `_multiply`, but elements of one group meet no weights of another."""
    SLICE: gl.constexpr = tiles.shape[2]
    EACH: gl.constexpr = SLICE // MERGED
    PIXELS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    of_channel = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, PIXELS))) // EACH
    of_column = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, SUMS))) // EACH
    done = ()
    for pair in gl.static_range(COLS // 2):
        found = gl.zeros((SLAB // SLICE, 2 * IMAGES, SLICE), gl.float32, SUMS)
        for one in range(MERGED):
            sums = gl.zeros((SLAB // SLICE, 2 * IMAGES, SLICE), gl.float32, SUMS)
            for tap in range(TAPS_H * TAPS_W):
                s = tap % TAPS_W
                row = (base + tap // TAPS_W) % STAGES * STRIDE + s % STRIDE
                at = row * (COLS + HALO) + s // STRIDE + 2 * pair
                pixels = pair_at(atoms, at, PIXELS, False, SLICE)
                of_group = (of_channel == one)[None, None, :]
                pixels = gl.where(of_group, pixels, gl.zeros_like(pixels))
                b = _weights(tiles, tap, gl.DotOperandLayout(1, SUMS, 2), SLICE, DATA, False)
                sums = mma_v2(pixels, b, sums)
            found = gl.where((of_column == one)[None, None, :], sums, found)
        done += (found,)  # type: ignore[assignment]
    return done


@jit
def _stacked(pairs):
    """Pairs of pixels one upon the other, [slices, pixels and images, filters]; in registers."""
    COUNT: gl.constexpr = len(pairs)
    if COUNT == 1:
        found = pairs[0]
    else:
        above = _stacked(pairs[: COUNT // 2])
        below = _stacked(pairs[COUNT // 2 :])
        ROWS: gl.constexpr = above.shape[1]
        both = gl.join(above, below).permute((0, 3, 1, 2))
        found = both.reshape((above.shape[0], 2 * ROWS, above.shape[2]))
    return found


@jit
def _side_by_side(slices):
    """Slices as columns of one tile, [pixels and images, filters]."""
    ROWS: gl.constexpr = slices.shape[1]
    return slices.permute((1, 0, 2)).reshape((ROWS, SLAB))


@jit
def _walk(
    x, edge, made, tiles, extra, atoms, staging, full, before, ahead, made_strides, begin,
    images, channels, height, width, slab, mine, apart, count, tiles_w, octets, rows, origin_h,
    origin_w,
    SUMS: gl.constexpr, COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr,
    NDIM: gl.constexpr, DATA: gl.constexpr, STAGES: gl.constexpr, KEPT: gl.constexpr,
    TAKES: gl.constexpr, LARGEST: gl.constexpr, CHAIN: gl.constexpr, APART: gl.constexpr,
):  # fmt: skip
    """Make this workgroup's strips.

    before: input rows that came to the ring before. ahead: what `_begin` returned. APART: group by
    group. Returns numbers of which one is NaN if groups are merged and a sum was NaN or infinite.
    """
    rows_in = (rows - 1) * STRIDE + TAPS_H
    asked, next_strip, next_row, h, w, image = ahead
    dirt = gl.zeros((SLAB // SLICE, 2 * IMAGES, SLICE), gl.float32, SUMS)
    for strip in range(count):
        tile_w, octet, segment = place_of(mine + strip * apart, tiles_w, octets)
        for row in range(rows):
            base = before + strip * rows_in + row * STRIDE
            past = base + TAPS_H
            new = STRIDE
            if row == 0:
                new = TAPS_H
            for number in range(past - new, past):
                mbarrier.wait(full.index(number % STAGES), number // STAGES & 1)
            if APART:
                sums = _multiply_apart(
                    atoms, tiles, base, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, MERGED, STAGES,
                    DATA,
                )  # fmt: skip
            else:
                sums = _multiply(
                    atoms, tiles, base, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, STAGES,
                    DATA, KEPT,
                )  # fmt: skip
            fence_async_shared()  # the copy engine writes where threads have read
            thread_barrier()  # all warps have read the rows that make room
            over = STRIDE
            if row + 1 == rows:
                over = TAPS_H
            asked, next_strip, next_row, h, w, image = _ask(
                x, edge, atoms, full, over, asked, next_strip, next_row, h, w, image, count, mine,
                apart, rows_in, rows, tiles_w, octets, slab * SLAB, origin_h, origin_w,
                COLS, HALO, STRIDE, STAGES,
            )  # fmt: skip

            of_h = segment * rows + row
            if MERGED > 1:
                for pair in gl.static_range(COLS // 2):
                    dirt += sums[pair] * 0.0
            out = _side_by_side(_stacked(sums))
            i = indices(out, 0)
            of_channel = slab * SLAB + indices(out, 1)
            here = of_channel < channels
            of_w = tile_w * COLS + i // IMAGES
            of_image = octet * IMAGES + i % IMAGES
            there = (of_image < images) & (of_h < height) & (of_w < width)
            places = begin + of_image * made_strides[0]
            places += offset(0, of_h, of_w, made_strides, NDIM)
            out = chained(
                out, extra, places[:, None] + of_channel[None, :], of_channel,
                there[:, None] & here[None, :], here, CHAIN, TAKES,
            )  # fmt: skip
            tma_store_wait(0)  # the row before has left the buffer
            staging.store(rounded(out, made.dtype, LARGEST))
            fence_async_shared()
            tma_store(
                made, (of_h, tile_w * COLS, octet * IMAGES, slab * SLAB),
                reinterpreted(staging, made.dtype, made.block_type.shape, made.layout),
            )  # fmt: skip
    return dirt


@jit
def conv_gluon_grouped(
    x, edge, made, weights, extra, weight_strides, made_strides, begin, images, channels, height,
    width, slabs, tiles_w, octets, strips, rows, origin_h, origin_w, first_tap, taps_apart,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr, NDIM: gl.constexpr,
    DATA: gl.constexpr, STAGES: gl.constexpr, KEPT: gl.constexpr, TAKES: gl.constexpr,
    LARGEST: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """This workgroup's strips of the result: COLS pixels wide and `rows` high, of eight images and
    one slab of channels.

    x, edge, made: tensor descriptors of [height, width, image, channel]; `edge` of the pixels
        behind a strip's, in boxes of HALO.
    made_strides, begin: of the result's pixels, in elements, for the epilogue's arrays.
    images, channels, height, width: of the result. slabs, tiles_w, octets: that cover the channels,
        the width and the images. strips: of a slab.
    origin_h, origin_w: the first pixel that the first pixel of the result sees.
    first_tap, taps_apart: of a residue class of the gradient of the data.
    """
    PARTS: gl.constexpr = SLAB // SLICE
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [PARTS, 1, 4 // PARTS], [1, 16, 8])
    ATOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([IMAGES, SLAB], x.dtype)
    COLUMNS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SLAB, SLICE], x.dtype)
    STAGING: gl.constexpr = gl.NVMMASharedLayout.get_default_for([COLS * IMAGES, SLAB], made.dtype)
    atoms = gl.allocate_shared_memory(
        x.dtype, [STAGES * STRIDE * (COLS + HALO), IMAGES, SLAB], ATOM
    )
    staging = gl.allocate_shared_memory(made.dtype, [COLS * IMAGES, SLAB], STAGING)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)

    slab = gl.program_id(0) % slabs
    mine = gl.program_id(0) // slabs
    apart = gl.num_programs(0) // slabs
    count = gl.cdiv(strips - mine, apart)
    fence_async_shared()  # the copy engine sees the barriers too
    thread_barrier()
    ahead = _begin(
        x, edge, atoms, full, rows * 0, count, mine, apart, rows, tiles_w, octets, slab, origin_h,
        origin_w, COLS, HALO, STRIDE, TAPS_H, STAGES,
    )  # fmt: skip
    if KEPT:
        tiles = _kept(
            weights, weight_strides, slab, channels, first_tap, taps_apart,
            gl.DotOperandLayout(1, SUMS, 2), TAPS_H, TAPS_W, SLICE, DATA, NDIM,
        )  # fmt: skip
    else:
        tiles = gl.allocate_shared_memory(x.dtype, [TAPS_H * TAPS_W, SLAB, SLICE], COLUMNS)
        _expand(
            weights, tiles, weight_strides, slab, channels, first_tap, taps_apart,
            TAPS_H, TAPS_W, SLICE, MERGED, DATA, NDIM,
        )  # fmt: skip
    dirt = _walk(
        x, edge, made, tiles, extra, atoms, staging, full, rows * 0, ahead, made_strides, begin,
        images, channels, height, width, slab, mine, apart, count, tiles_w, octets, rows, origin_h,
        origin_w, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED, NDIM, DATA, STAGES, KEPT,
        TAKES, LARGEST, CHAIN, False,
    )  # fmt: skip
    tma_store_wait(0)
    if MERGED > 1:
        dirty = gl.sum(gl.sum(gl.sum(dirt, 2), 1), 0)
        if dirty != dirty:
            written(rows)  # or what was stored might come after what will be
            before = count * ((rows - 1) * STRIDE + TAPS_H)
            again = _begin(
                x, edge, atoms, full, before, count, mine, apart, rows, tiles_w, octets, slab,
                origin_h, origin_w, COLS, HALO, STRIDE, TAPS_H, STAGES,
            )  # fmt: skip
            _walk(
                x, edge, made, tiles, extra, atoms, staging, full, before, again, made_strides,
                begin, images, channels, height, width, slab, mine, apart, count, tiles_w, octets,
                rows, origin_h, origin_w, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED,
                NDIM, DATA, STAGES, KEPT, TAKES, LARGEST, CHAIN, True,
            )  # fmt: skip
            tma_store_wait(0)
