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
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_store import indices

TAPS_AT_ONCE = gl.constexpr(9)
"""Taps whose weights are on their way to registers together."""

Walk = bundle(
    "Walk",
    "x edge made weights extra weight_strides made_strides begin images channels height width"
    " tiles_w octets rows origin_h origin_w first_tap taps_apart"
    " atoms staging full slab mine apart count"
    " SUMS COLS HALO STRIDE TAPS_H TAPS_W SLICE MERGED NDIM DATA STAGES KEPT TAKES LARGEST CHAIN",
)
"""How a workgroup makes its strips: the kernel's arguments; the ring of rows with its barriers, and
the buffer that results leave through; its channels, its first strip, how far its strips are apart
and how many they are; how threads hold sums (SUMS)."""


@jit
def _to_tap(w, tap):
    """Elements from a filter's begin to the tap that is walked as number `tap`."""
    tap_h = tap // w.TAPS_W
    tap_w = tap % w.TAPS_W
    if w.DATA:
        tap_h = w.first_tap[0] + (w.TAPS_H - 1 - tap // w.TAPS_W) * w.taps_apart
        tap_w = w.first_tap[1] + (w.TAPS_W - 1 - tap % w.TAPS_W) * w.taps_apart
    return offset(0, tap_h, tap_w, w.weight_strides, w.NDIM)


@jit
def _expand(w, tiles):
    """Write the slab's weights to shared memory, [taps, filters, channels of a slice]: zero where a
    filter and a channel are of different groups, or past the last."""
    TAPS: gl.constexpr = w.TAPS_H * w.TAPS_W
    EACH: gl.constexpr = w.SLICE // w.MERGED
    ACROSS: gl.constexpr = w.SLICE // 8
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [4, 1], [1, 0])
    row = gl.arange(0, SLAB, gl.SliceLayout(1, LAYOUT))
    col = gl.arange(0, w.SLICE, gl.SliceLayout(0, LAYOUT))
    filters = w.slab * SLAB + row
    there = (row % w.SLICE // EACH)[:, None] == (col // EACH)[None, :]
    there = there & (filters < w.channels)[:, None]
    places = (filters * w.weight_strides[0])[:, None] + (col % EACH * w.weight_strides[1])[None, :]
    for first in gl.static_range(0, TAPS, TAPS_AT_ONCE):
        found = ()
        for tap in gl.static_range(first, min(first + TAPS_AT_ONCE, TAPS)):
            one = gl.load(w.weights + (places + _to_tap(w, tap)), mask=there, other=0.0)
            found += (one,)  # type: ignore[assignment]
        for tap in gl.static_range(first, min(first + TAPS_AT_ONCE, TAPS)):
            tiles.index(tap).store(found[tap - first])


@jit
def _ask(w, going, wanted):
    """Ask for the next input rows of this workgroup, as many as are `wanted` or are left. Returns
    the row behind them.

    going: the next row's number in the ring, its strip's among this workgroup's, its number in the
    strip, and where the strip begins: height, width, image.

    No loop here begins at a value that a loop around it carries: see `tests/test_gluon_loops`.
    """
    BYTES: gl.constexpr = w.x.block_type.nbytes + (w.edge.block_type.nbytes if w.HALO > 0 else 0)
    rows_in = (w.rows - 1) * w.STRIDE + w.TAPS_H
    channel = w.slab * SLAB
    asked, strip, row, first_h, first_w, image = going
    for _ in range(wanted):
        if strip < w.count:
            slot = asked % w.STAGES
            ready = w.full.index(slot)
            mbarrier.expect(ready, w.STRIDE * BYTES)
            for phase in gl.static_range(w.STRIDE):
                at = (slot * w.STRIDE + phase) * (w.COLS + w.HALO)
                begin = first_w + phase
                at_x = (first_h + row, begin, image, channel)
                tma_load(w.x, at_x, ready, box_at(w.atoms, at, w.x))
                if w.HALO > 0:
                    begin += w.COLS * w.STRIDE
                    to = box_at(w.atoms, at + w.COLS, w.edge)
                    tma_load(w.edge, (first_h + row, begin, image, channel), ready, to)
            asked += 1
            row += 1
            if row == rows_in:
                row = row * 0
                strip += 1
                first_h, first_w, image = _begin_of(w, strip)
    return asked, strip, row, first_h, first_w, image


@jit
def _begin_of(w, strip):
    """The first input pixel of one of this workgroup's strips: height, width, image."""
    tile_w, octet, segment = place_of(w.mine + strip * w.apart, w.tiles_w, w.octets)
    h = segment * w.rows * w.STRIDE + w.origin_h
    return h, tile_w * w.COLS * w.STRIDE + w.origin_w, octet * IMAGES


@jit
def _begin(w, before):
    """Ask for the first input rows, where `before` came to the ring before. Returns what `_ask`
    does."""
    h, first_w, image = _begin_of(w, 0)
    return _ask(w, (before, w.rows * 0, w.rows * 0, h, first_w, image), w.STAGES)


@jit
def _kept(w):
    """The slab's weights in registers, by taps: each a slice of one group, as `_weights` has it."""
    LAYOUT: gl.constexpr = gl.DotOperandLayout(1, w.SUMS, 2)
    SLICE: gl.constexpr = w.SLICE
    part = gl.arange(0, SLAB // SLICE, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))[:, None, None]
    channel = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))[None, :, None]
    row = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, None, :]
    if w.DATA:
        filters = w.slab * SLAB + part * SLICE + channel
        places = filters * w.weight_strides[0] + row * w.weight_strides[1]
    else:
        filters = w.slab * SLAB + part * SLICE + row
        places = filters * w.weight_strides[0] + channel * w.weight_strides[1]
    there = filters < w.channels
    found = ()
    for tap in gl.static_range(w.TAPS_H * w.TAPS_W):
        one = gl.load(w.weights + (places + _to_tap(w, tap)), mask=there, other=0.0)
        found += (one,)  # type: ignore[assignment]
    return found


@jit
def _weights(w, tiles, tap):
    """A tap's weights by slices, [slices, what is read, what is made]."""
    if w.KEPT:
        found = tiles[tap]
    else:
        slices = tiles.index(tap).reshape((SLAB // w.SLICE, w.SLICE, w.SLICE))
        if not w.DATA:
            slices = slices.permute((0, 2, 1))
        found = slices.load(gl.DotOperandLayout(1, w.SUMS, 2))
    return found


@jit
def _multiply(w, tiles, base):
    """The sums of a row of the result, whose first input row is `base`: of pairs of pixels,
    [slices, 16, filters]."""
    PIXELS: gl.constexpr = gl.DotOperandLayout(0, w.SUMS, 2)
    sums = ()
    for _ in gl.static_range(w.COLS // 2):
        zeros = gl.zeros((SLAB // w.SLICE, 2 * IMAGES, w.SLICE), gl.float32, w.SUMS)
        sums += (zeros,)  # type: ignore[assignment]
    for r in gl.static_range(w.TAPS_H):
        slot = (base + r) % w.STAGES
        for phase in gl.static_range(min(w.STRIDE, w.TAPS_W)):
            seen = pairs_at(
                w.atoms, (slot * w.STRIDE + phase) * (w.COLS + w.HALO),
                (w.TAPS_W - phase + w.STRIDE - 1) // w.STRIDE, w.COLS, PIXELS, w.SLICE,
            )  # fmt: skip
            for s in gl.static_range(phase, w.TAPS_W, w.STRIDE):
                b = _weights(w, tiles, r * w.TAPS_W + s)
                more = ()
                for pair in gl.static_range(w.COLS // 2):
                    one = mma_v2(seen[2 * pair + s // w.STRIDE], b, sums[pair])
                    more += (one,)  # type: ignore[assignment]
                sums = more
    return sums


@jit
def _multiply_apart(w, tiles, base):
    """As `_multiply`, but elements of one group meet no weights of another."""
    SLICE: gl.constexpr = w.SLICE
    EACH: gl.constexpr = SLICE // w.MERGED
    PIXELS: gl.constexpr = gl.DotOperandLayout(0, w.SUMS, 2)
    of_channel = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, PIXELS))) // EACH
    of_column = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, w.SUMS))) // EACH
    done = ()
    for pair in gl.static_range(w.COLS // 2):
        found = gl.zeros((SLAB // SLICE, 2 * IMAGES, SLICE), gl.float32, w.SUMS)
        for one in range(w.MERGED):
            sums = gl.zeros((SLAB // SLICE, 2 * IMAGES, SLICE), gl.float32, w.SUMS)
            for tap in range(w.TAPS_H * w.TAPS_W):
                s = tap % w.TAPS_W
                row = (base + tap // w.TAPS_W) % w.STAGES * w.STRIDE + s % w.STRIDE
                at = row * (w.COLS + w.HALO) + s // w.STRIDE + 2 * pair
                pixels = pair_at(w.atoms, at, PIXELS, False, SLICE)
                of_group = (of_channel == one)[None, None, :]
                pixels = gl.where(of_group, pixels, gl.zeros_like(pixels))
                sums = mma_v2(pixels, _weights(w, tiles, tap), sums)
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
def _walk(w, tiles, before, going, APART: gl.constexpr):
    """Make this workgroup's strips.

    before: input rows that came to the ring before. going: what `_begin` returned. APART: group by
    group. Returns numbers of which one is NaN if groups are merged and a sum was NaN or infinite.
    """
    rows_in = (w.rows - 1) * w.STRIDE + w.TAPS_H
    dirt = gl.zeros((SLAB // w.SLICE, 2 * IMAGES, w.SLICE), gl.float32, w.SUMS)
    for strip in range(w.count):
        tile_w, octet, segment = place_of(w.mine + strip * w.apart, w.tiles_w, w.octets)
        for row in range(w.rows):
            base = before + strip * rows_in + row * w.STRIDE
            past = base + w.TAPS_H
            new = w.STRIDE
            if row == 0:
                new = w.TAPS_H
            for number in range(past - new, past):
                mbarrier.wait(w.full.index(number % w.STAGES), number // w.STAGES & 1)
            if APART:
                sums = _multiply_apart(w, tiles, base)
            else:
                sums = _multiply(w, tiles, base)
            fence_async_shared()  # the copy engine writes where threads have read
            thread_barrier()  # all warps have read the rows that make room
            over = w.STRIDE
            if row + 1 == w.rows:
                over = w.TAPS_H
            going = _ask(w, going, over)

            of_h = segment * w.rows + row
            if w.MERGED > 1:
                for pair in gl.static_range(w.COLS // 2):
                    dirt += sums[pair] * 0.0
            out = _side_by_side(_stacked(sums))
            i = indices(out, 0)
            of_channel = w.slab * SLAB + indices(out, 1)
            here = of_channel < w.channels
            of_w = tile_w * w.COLS + i // IMAGES
            of_image = octet * IMAGES + i % IMAGES
            there = (of_image < w.images) & (of_h < w.height) & (of_w < w.width)
            places = w.begin + of_image * w.made_strides[0]
            places += offset(0, of_h, of_w, w.made_strides, w.NDIM)
            out = chained(
                out, w.extra, places[:, None] + of_channel[None, :], of_channel,
                there[:, None] & here[None, :], here, w.CHAIN, w.TAKES,
            )  # fmt: skip
            tma_store_wait(0)  # the row before has left the buffer
            w.staging.store(rounded(out, w.made.dtype, w.LARGEST))
            fence_async_shared()
            tma_store(
                w.made, (of_h, tile_w * w.COLS, octet * IMAGES, w.slab * SLAB),
                reinterpreted(w.staging, w.made.dtype, w.made.block_type.shape, w.made.layout),
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
    w = Walk(
        x, edge, made, weights, extra, weight_strides, made_strides, begin, images, channels,
        height, width, tiles_w, octets, rows, origin_h, origin_w, first_tap, taps_apart,
        atoms, staging, full, slab, mine, apart, count,
        SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED, NDIM, DATA, STAGES, KEPT, TAKES,
        LARGEST, CHAIN,
    )  # fmt: skip
    going = _begin(w, rows * 0)
    if KEPT:
        tiles = _kept(w)
    else:
        tiles = gl.allocate_shared_memory(x.dtype, [TAPS_H * TAPS_W, SLAB, SLICE], COLUMNS)
        _expand(w, tiles)
    dirt = _walk(w, tiles, rows * 0, going, False)
    tma_store_wait(0)
    if MERGED > 1:
        dirty = gl.sum(gl.sum(gl.sum(dirt, 2), 1), 0)
        if dirty != dirty:
            written(rows)  # or what was stored might come after what will be
            before = count * ((rows - 1) * STRIDE + TAPS_H)
            _walk(w, tiles, before, _begin(w, before), True)
            tma_store_wait(0)
