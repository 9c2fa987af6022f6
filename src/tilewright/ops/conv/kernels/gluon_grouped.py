"""Groups of 4 to 32 channels, forward and the gradient of the data, in Gluon (sm_90): pixels come
into shared memory once, and all taps read them there.

Idea. An implicit GEMM of such a group has few products for each element, so the way of the elements
decides. Tiles of one tap bring each pixel from L2 once for each tap. Here a workgroup walks down
the rows of an image with a ring of input rows in shared memory, and every tap is a view of the
ring.

wgmma reads its first operand from shared memory in atoms of eight rows of 128 bytes, and a view
may begin at an atom only. So the eight rows of an atom are eight *images*: an atom is one pixel of
eight images by 64 channels. A tap to the right is then the next atom, a tap further down the ring's
next slot, and both are legal beginnings. The copy engine makes atoms on its own: the tensor map has
the dimensions (height, width, image, channel) in place of (image, height, width, channel).

A row of a tile's pixels, COLS by eight images, is multiplied by wgmma of 16 columns: a slice of 16
channels by the 16 filters that see them. Groups of 32 channels make slices of 32. Slices of groups
of 4 and 8 hold several groups (MERGED), with zeros between a group's filters and another's
channels.

The weights lie in shared memory in this form for as long as the workgroup runs, which stays with
its 64 channels; threads write them there when it begins. The gradient of the data is the same with
taps in the reverse order, and wgmma reads the weights along their other side.

With a stride of 2, an input row is two rows of atoms: its even pixels and its odd ones, which the
copy engine picks by its element strides. Taps alternate between them, and views still begin at
atoms. The gradient of the data then has residue classes (see `geometry`), which are convolutions of
stride 1: a launch for each, of a kernel that is written out for the class's taps.

An infinite element of one group times these zeros is NaN in another group's sums. If a row's sums
have NaN or infinity, the kernel multiplies the row again, group by group, with other groups'
elements set to zero: from registers, by the older matrix instruction. (With wgmma there too, the
compiler waited after every product of the kernel.)

Data movement. STAGES rows are in the ring or on their way. After a row's products have ended, its
oldest input row makes room for the next; rows of the next strip follow those of the last without a
gap. An input row has COLS pixels and HALO more behind them, the next power of two of what the
filter reaches over. Sums leave through a staging buffer and the copy engine, which writes no
pixel outside the image, no image past the last, and no channel past the last. Rows and columns
outside the image come as zeros, which is the padding.

Not built: atoms of eight neighbouring pixels of one image. A view shifted by one pixel would begin
inside an atom, so each column of the filter would need its own copy of each row: a 3×3 filter would
read three times as much from L2.

As compiled by Triton 3.6: an atom becomes a larger view by reading its bytes as a tile that goes
beyond it (`pixels_at`). Descriptors in the PTX have the atom's address, a distance of 1024 bytes
between atoms, and 32 bytes from slice to slice. All products of a row are in flight together, and
nothing spills. Warps have no roles: one loop waits, multiplies, asks for the next row and stores;
other workgroups on the same compute unit fill the gaps.

On a CPU. Gluon has no interpreter; `gather` computes the same result there.

The first version hung on a ResNeXt layer (32 images, 256 channels in 32 groups, 56×56). It waited
in a loop that began at the number of the row that was waited for last. Triton 3.6 took that number
to be 0 for good, so each row waited for all rows before it too: right while the ring had not come
round twice, a hang afterwards.

Measured on an H200, bf16, 3×3, by single calls with L2 flushed
(benchmarks/results/conv_grouped_h200.json): 1.06 to 2.43 times cuDNN's speed forward, 1.37 to 2.53
for data. The layer above takes 43.7 µs, where the memory's part is 24.5; with 512 channels in
groups of 16 at 28×28 27.0 of 12.3; with a stride of 2 38 forward and 72 for data, of 31. Rings of 4
rows against 5: from 11 % faster to 33 % slower.

What limits it. By counting, a row of 64 pixels and 64 channels of a 3×3 filter:

    groups of    wgmma           read from shared memory        at 128 bytes a clock
    4, 8, 16     36 of 64x16x16  2 KB of pixels, 0.5 of weights   720 clocks
    32           36 of 64x32x16  2 KB of pixels, 1 KB of weights  864 clocks

The row's 8 KB of x and 8 KB of y take 900 clocks of a 132nd of 4.2 TB/s, so memory should limit it
where workgroups on the same compute unit overlap. Products that are not of one group, a half of
groups of 8 and three quarters of groups of 4, cost nothing more: the reads take as long. One wgmma
of 64 columns for 64 channels would read 4 KB for each 16 channels, and take 1,152 clocks. With
fewer than eight images, atoms are partly empty.
"""

from tilewright.ops.conv.kernels.finish import chained
from tilewright.ops.conv.kernels.gluon_atoms import IMAGES, SLAB, box_at, place_of
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
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.gemm.kernels.gluon_store import indices

TAPS_AT_ONCE = gl.constexpr(9)
"""Taps whose weights are on their way to registers together."""


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
            tap_h = tap // TAPS_W
            tap_w = tap % TAPS_W
            if DATA:
                tap_h = first_tap[0] + (TAPS_H - 1 - tap // TAPS_W) * taps_apart
                tap_w = first_tap[1] + (TAPS_W - 1 - tap % TAPS_W) * taps_apart
            to = offset(0, tap_h, tap_w, weight_strides, NDIM)
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
def pixels_at(
    atoms, slot, tap, COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr
):  # fmt: skip
    """The pixels of the row in a slot that a tap joins with those of the result, as rows of a
    matrix [COLS * IMAGES, SLAB]."""
    at = (slot * STRIDE + tap % STRIDE) * (COLS + HALO) + tap // STRIDE
    ROWS: gl.constexpr = COLS * IMAGES
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, SLAB], atoms.dtype)
    return reinterpreted(atoms.index(at), atoms.dtype, [ROWS, SLAB], LAYOUT)


@jit
def _weights(slices, tap, DATA: gl.constexpr):
    """A slice's weights for a tap, [what is read, what is made]."""
    found = slices.index(tap)
    if not DATA:
        found = found.permute((1, 0))
    return found


@jit
def _sums(ROWS: gl.constexpr, SLICE: gl.constexpr):
    """Zero sums of a slice."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SLICE, 16])
    return gl.zeros((ROWS, SLICE), gl.float32, LAYOUT)


@jit
def _joined(left, right):
    """Two tiles side by side."""
    ROWS: gl.constexpr = left.shape[0]
    COLS: gl.constexpr = left.shape[1]
    return gl.join(left, right).permute((0, 2, 1)).reshape((ROWS, 2 * COLS))


@jit
def _multiply(
    atoms, slices, base,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, STAGES: gl.constexpr, DATA: gl.constexpr,
):  # fmt: skip
    """The sums of a row of the result, whose first input row is `base`."""
    PARTS: gl.constexpr = SLAB // SLICE
    sums_0 = _sums(COLS * IMAGES, SLICE)
    sums_1 = sums_0
    sums_2 = sums_0
    sums_3 = sums_0
    for r in gl.static_range(TAPS_H):
        slot = (base + r) % STAGES
        for s in gl.static_range(TAPS_W):
            a = pixels_at(atoms, slot, s, COLS, HALO, STRIDE)
            tap = (r * TAPS_W + s) * PARTS
            more = r + s > 0
            sums_0 = warpgroup_mma(
                a.slice(0, SLICE, dim=1), _weights(slices, tap, DATA), sums_0,
                use_acc=more, is_async=True,
            )  # fmt: skip
            sums_1 = warpgroup_mma(
                a.slice(SLICE, SLICE, dim=1), _weights(slices, tap + 1, DATA), sums_1,
                use_acc=more, is_async=True,
            )  # fmt: skip
            if PARTS == 4:
                sums_2 = warpgroup_mma(
                    a.slice(2 * SLICE, SLICE, dim=1), _weights(slices, tap + 2, DATA), sums_2,
                    use_acc=more, is_async=True,
                )  # fmt: skip
                sums_3 = warpgroup_mma(
                    a.slice(3 * SLICE, SLICE, dim=1), _weights(slices, tap + 3, DATA), sums_3,
                    use_acc=more, is_async=True,
                )  # fmt: skip
    if PARTS == 4:
        sums_0, sums_1, sums_2, sums_3 = warpgroup_mma_wait(
            0, deps=(sums_0, sums_1, sums_2, sums_3)
        )
        found = _joined(_joined(sums_0, sums_1), _joined(sums_2, sums_3))
    else:
        sums_0, sums_1 = warpgroup_mma_wait(0, deps=(sums_0, sums_1))
        found = _joined(sums_0, sums_1)
    return found


@jit
def _slice_apart(
    atoms, slices, base, PART: gl.constexpr,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr, STAGES: gl.constexpr,
    DATA: gl.constexpr,
):  # fmt: skip
    """The sums of slice PART, of which each group's elements were multiplied on their own."""
    PARTS: gl.constexpr = SLAB // SLICE
    EACH: gl.constexpr = SLICE // MERGED
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8])
    PIXELS: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(1, LAYOUT, 2)
    found = gl.zeros((COLS * IMAGES, SLICE), gl.float32, LAYOUT)
    of_channel = gl.arange(0, SLICE, gl.SliceLayout(0, PIXELS)) // EACH
    of_column = gl.arange(0, SLICE, gl.SliceLayout(0, LAYOUT)) // EACH
    for one in range(MERGED):
        sums = gl.zeros((COLS * IMAGES, SLICE), gl.float32, LAYOUT)
        for tap in range(TAPS_H * TAPS_W):
            slot = (base + tap // TAPS_W) % STAGES
            a = pixels_at(atoms, slot, tap % TAPS_W, COLS, HALO, STRIDE)
            pixels = a.slice(PART * SLICE, SLICE, dim=1).load(PIXELS)
            pixels = gl.where((of_channel == one)[None, :], pixels, gl.zeros_like(pixels))
            b = _weights(slices, tap * PARTS + PART, DATA).load(WEIGHTS)
            sums = mma_v2(pixels, b, sums)
        found = gl.where((of_column == one)[None, :], sums, found)
    return gl.convert_layout(found, _sums(COLS * IMAGES, SLICE).type.layout)


@jit
def _apart(
    atoms, slices, base,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr, STAGES: gl.constexpr,
    DATA: gl.constexpr,
):  # fmt: skip
    """As `_multiply`, but elements of one group meet no weights of another."""
    sums_0 = _slice_apart(
        atoms, slices, base, 0, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED, STAGES, DATA
    )
    sums_1 = _slice_apart(
        atoms, slices, base, 1, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED, STAGES, DATA
    )
    sums_2 = _slice_apart(
        atoms, slices, base, 2, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED, STAGES, DATA
    )
    sums_3 = _slice_apart(
        atoms, slices, base, 3, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED, STAGES, DATA
    )
    return _joined(_joined(sums_0, sums_1), _joined(sums_2, sums_3))


@jit
def conv_gluon_grouped(
    x, edge, made, weights, extra, weight_strides, made_strides, begin, images, channels, height,
    width, slabs, tiles_w, octets, strips, rows, origin_h, origin_w, first_tap, taps_apart,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr, NDIM: gl.constexpr,
    DATA: gl.constexpr, STAGES: gl.constexpr, TAKES: gl.constexpr, LARGEST: gl.constexpr,
    CHAIN: gl.constexpr,
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
    ROWS: gl.constexpr = COLS * IMAGES
    PARTS: gl.constexpr = SLAB // SLICE
    ATOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([IMAGES, SLAB], x.dtype)
    COLUMNS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SLAB, SLICE], x.dtype)
    SQUARE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([SLICE, SLICE], x.dtype)
    STAGING: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, SLAB], made.dtype)
    atoms = gl.allocate_shared_memory(
        x.dtype, [STAGES * STRIDE * (COLS + HALO), IMAGES, SLAB], ATOM
    )
    tiles = gl.allocate_shared_memory(x.dtype, [TAPS_H * TAPS_W, SLAB, SLICE], COLUMNS)
    slices = reinterpreted(tiles, x.dtype, [TAPS_H * TAPS_W * PARTS, SLICE, SLICE], SQUARE)
    staging = gl.allocate_shared_memory(made.dtype, [ROWS, SLAB], STAGING)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)

    slab = gl.program_id(0) % slabs
    mine = gl.program_id(0) // slabs
    apart = gl.num_programs(0) // slabs
    count = gl.cdiv(strips - mine, apart)
    rows_in = (rows - 1) * STRIDE + TAPS_H
    fence_async_shared()  # the copy engine sees the barriers too
    thread_barrier()
    first_w, first_octet, first_segment = place_of(mine, tiles_w, octets)
    asked, next_strip, next_row, h, w, image = _ask(
        x, edge, atoms, full, STAGES, rows * 0, rows * 0, rows * 0,
        first_segment * rows * STRIDE + origin_h, first_w * COLS * STRIDE + origin_w,
        first_octet * IMAGES, count, mine, apart, rows_in, rows, tiles_w, octets, slab * SLAB,
        origin_h, origin_w, COLS, HALO, STRIDE, STAGES,
    )  # fmt: skip
    _expand(
        weights, tiles, weight_strides, slab, channels, first_tap, taps_apart,
        TAPS_H, TAPS_W, SLICE, MERGED, DATA, NDIM,
    )  # fmt: skip
    fence_async_shared()  # wgmma sees the weights
    thread_barrier()

    for strip in range(count):
        tile_w, octet, segment = place_of(mine + strip * apart, tiles_w, octets)
        for row in range(rows):
            base = strip * rows_in + row * STRIDE
            past = base + TAPS_H
            new = STRIDE
            if row == 0:
                new = TAPS_H
            for number in range(past - new, past):
                mbarrier.wait(full.index(number % STAGES), number // STAGES & 1)
            out = _multiply(
                atoms, slices, base, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, STAGES, DATA
            )
            if MERGED > 1:
                dirt = gl.sum(gl.sum(out * 0.0, 1), 0)  # NaN if a sum is NaN or infinite
                if dirt != dirt:
                    out = _apart(
                        atoms, slices, base, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, MERGED,
                        STAGES, DATA,
                    )  # fmt: skip
            thread_barrier()  # all warps have read the rows that make room
            over = STRIDE
            if row + 1 == rows:
                over = TAPS_H
            asked, next_strip, next_row, h, w, image = _ask(
                x, edge, atoms, full, over, asked, next_strip, next_row, h, w, image, count, mine,
                apart, rows_in, rows, tiles_w, octets, slab * SLAB, origin_h, origin_w,
                COLS, HALO, STRIDE, STAGES,
            )  # fmt: skip

            i = indices(out, 0)
            of_channel = slab * SLAB + indices(out, 1)
            here = of_channel < channels
            of_h = segment * rows + row
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
    tma_store_wait(0)
