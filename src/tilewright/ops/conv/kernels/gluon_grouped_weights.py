"""Groups of 4 to 32 channels, the gradient of the weights, in Gluon (sm_90): pixels come into
shared memory once, and all taps read them there.

Idea. Rows of atoms (eight images of a pixel by 64 channels), the ring, and strips are those of
`gluon_grouped`. A workgroup has a slab of 64 channels and walks down rows of y. Each row of y is
multiplied with the rows of x that its taps see, for each tap by another view of the ring, and the
sums of all taps stay in registers for as long as the workgroup runs.

A slice of 16 channels is multiplied with the 16 filters that see them. wgmma would multiply 64
filters with each slice, four times too many: 1,152 clocks for a row of 64 pixels, 64 channels and
nine taps. The older instruction takes 16 filters and 8 channels from registers. Products of four
slices are one product with a dimension of batches: each warp has a slice. For groups of 32 channels
there are two slices of 32, with two warps each.

Data movement. A row of y comes together with the last row of x that it needs, to the same slot.
Both are read by pixels, transposed on the way to registers (ldmatrix, without conflicts, as
128-byte swizzles have none for it). Each workgroup writes sums of its own to a workspace, and
`weights.conv_totals` adds them in order, so results repeat bit for bit. A slice of several groups
makes products between groups too, which are dropped: what is infinite stays in its group.

Edges. Beside a pixel that y does not have, zero, there may be one of x that is infinite, and their
product would be NaN. So pixels of x are set to zero there, in tiles and rows at an end only.

Measured on an H200, bf16, 3×3, by single calls with L2 flushed
(benchmarks/results/conv_grouped_h200.json): groups of 4 59.9 µs, 2.30 times cuDNN's speed; of 8
53.5, 1.45; of 16 51.6, 1.02; of 32 73.0, 0.65; with a stride of 2 0.82 and 0.88. 0.49 to 0.70 of
that time was estimated.

What limits it. By counting, for a row of 64 pixels of groups of 8 or 16: 40 loads of 512
bytes in each of 4 warps, 640 clocks of shared memory at 128 bytes a clock; 288 products of
16x8x16, 440 clocks at 1,340 multiply-adds a clock; from memory 16 KB, 900 clocks of a 132nd of
4.2 TB/s. For groups of 32 about twice the loads and the products.

On a CPU. Gluon has no interpreter; `weights` computes the same result there.
"""

from tilewright.ops.conv.kernels.gluon_grouped import IMAGES, SLAB, box_at, pixels_at, place_of
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    mma_v2,
    reinterpreted,
    thread_barrier,
    tma_load,
)


@jit
def _ask(
    x, edge, y, atoms, of_y, full, rows_wanted, asked, strip, row, h, w, image, count, mine, apart,
    rows_in, rows, tiles_w, octets, channel, origin_h, origin_w,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, STAGES: gl.constexpr,
    TAPS_H: gl.constexpr,
):  # fmt: skip
    """Ask for the next rows of x of this workgroup, as many as are wanted or are left, each with
    the row of y for which it is the last. (h, w, image): where strip `strip` begins in y. The
    others, and what is returned: as `gluon_grouped._ask`."""
    BYTES: gl.constexpr = x.block_type.nbytes + (edge.block_type.nbytes if HALO > 0 else 0)
    for _ in range(rows_wanted):
        if strip < count:
            slot = asked % STAGES
            ready = full.index(slot)
            ends = (row >= TAPS_H - 1) & ((row - (TAPS_H - 1)) % STRIDE == 0)
            if ends:
                mbarrier.expect(ready, STRIDE * BYTES + y.block_type.nbytes)
                down = h + (row - (TAPS_H - 1)) // STRIDE
                to = box_at(of_y, slot * COLS, y)
                tma_load(y, (down, w, image, channel), ready, to)
            else:
                mbarrier.expect(ready, STRIDE * BYTES)
            of_x = h * STRIDE + origin_h + row
            for phase in gl.static_range(STRIDE):
                at = (slot * STRIDE + phase) * (COLS + HALO)
                begin = w * STRIDE + origin_w + phase
                tma_load(x, (of_x, begin, image, channel), ready, box_at(atoms, at, x))
                if HALO > 0:
                    begin += COLS * STRIDE
                    to = box_at(atoms, at + COLS, edge)
                    tma_load(edge, (of_x, begin, image, channel), ready, to)
            asked += 1
            row += 1
            if row == rows_in:
                row = row * 0
                strip += 1
                tile_w, octet, segment = place_of(mine + strip * apart, tiles_w, octets)
                h = segment * rows
                w = tile_w * COLS
                image = octet * IMAGES
    return asked, strip, row, h, w, image


@jit
def conv_gluon_grouped_weights(
    x, edge, y, made, channels, height, width, slabs, tiles_w, octets, strips, rows, origin_h,
    origin_w,
    COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr, TAPS_H: gl.constexpr,
    TAPS_W: gl.constexpr, SLICE: gl.constexpr, MERGED: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """The sums of this workgroup's strips of y: COLS pixels wide and `rows` high, of eight images
    and one slab of channels.

    x, edge, y: tensor descriptors of [height, width, image, channel]; `edge` of the pixels behind a
        strip's, in boxes of HALO.
    made: fp32 sums of each workgroup of a slab, [workgroups, filters, taps, channels of a group].
    channels: of x, and of y. height, width: of y. slabs, tiles_w, octets: that cover the channels,
        the width and the images. strips: of a slab.
    origin_h, origin_w: the first pixel of x that the first pixel of y sees.
    """
    ROWS: gl.constexpr = COLS * IMAGES
    PARTS: gl.constexpr = SLAB // SLICE
    TAPS: gl.constexpr = TAPS_H * TAPS_W
    EACH: gl.constexpr = SLICE // MERGED
    ATOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([IMAGES, SLAB], x.dtype)
    MATRIX: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, SLAB], x.dtype)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [PARTS, 4 // PARTS, 1], [1, 16, 8])
    FILTERS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    CHANNELS: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    atoms = gl.allocate_shared_memory(
        x.dtype, [STAGES * STRIDE * (COLS + HALO), IMAGES, SLAB], ATOM
    )
    of_y = gl.allocate_shared_memory(x.dtype, [STAGES * COLS, IMAGES, SLAB], ATOM)
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
        x, edge, y, atoms, of_y, full, STAGES, rows * 0, rows * 0, rows * 0,
        first_segment * rows, first_w * COLS, first_octet * IMAGES, count, mine, apart, rows_in,
        rows, tiles_w, octets, slab * SLAB, origin_h, origin_w, COLS, HALO, STRIDE, STAGES, TAPS_H,
    )  # fmt: skip
    sums = ()
    for _ in gl.static_range(TAPS):
        zeros = gl.zeros((PARTS, SLICE, SLICE), gl.float32, SUMS)
        sums += (zeros,)  # type: ignore[assignment]
    pixel = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, CHANNELS))) // IMAGES

    for strip in range(count):
        tile_w, _octet, segment = place_of(mine + strip * apart, tiles_w, octets)
        for row in range(rows):
            base = strip * rows_in + row * STRIDE
            past = base + TAPS_H
            new = STRIDE
            if row == 0:
                new = TAPS_H
            for number in range(past - new, past):
                mbarrier.wait(full.index(number % STAGES), number // STAGES & 1)
            left = width - tile_w * COLS
            if segment * rows + row >= height:
                left = left * 0
            here = (pixel < left)[None, :, None]
            at = (past - 1) % STAGES * COLS
            filters = reinterpreted(of_y.index(at), x.dtype, [ROWS, SLAB], MATRIX)
            filters = filters.reshape((ROWS, PARTS, SLICE)).permute((1, 2, 0)).load(FILTERS)
            more = ()
            for tap in gl.static_range(TAPS):
                slot = (base + tap // TAPS_W) % STAGES
                seen = pixels_at(atoms, slot, tap % TAPS_W, COLS, HALO, STRIDE)
                seen = seen.reshape((ROWS, PARTS, SLICE)).permute((1, 0, 2)).load(CHANNELS)
                if left < COLS:
                    seen = gl.where(here, seen, gl.zeros_like(seen))
                more += (mma_v2(filters, seen, sums[tap]),)  # type: ignore[assignment]
            sums = more
            fence_async_shared()  # the copy engine writes where threads have read
            thread_barrier()  # all warps have read the rows that make room
            over = STRIDE
            if row + 1 == rows:
                over = TAPS_H
            asked, next_strip, next_row, h, w, image = _ask(
                x, edge, y, atoms, of_y, full, over, asked, next_strip, next_row, h, w, image,
                count, mine, apart, rows_in, rows, tiles_w, octets, slab * SLAB, origin_h, origin_w,
                COLS, HALO, STRIDE, STAGES, TAPS_H,
            )  # fmt: skip

    part = gl.arange(0, PARTS, gl.SliceLayout(1, gl.SliceLayout(2, SUMS)))[:, None, None]
    i = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(2, SUMS)))[None, :, None]
    j = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, SUMS)))[None, None, :]
    k = slab * SLAB + part * SLICE + i
    there = (i // EACH == j // EACH) & (k < channels)
    places = (mine * channels + k) * (TAPS * EACH) + j % EACH
    for tap in gl.static_range(TAPS):
        gl.store(made + places + tap * EACH, sums[tap], mask=there)
