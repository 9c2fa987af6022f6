"""Groups of 4 to 32 channels, the gradient of the weights, in Gluon (sm_90): pixels come into
shared memory once, and all taps read them there.

Idea. Rows of atoms (eight images of a pixel by 64 channels), the ring, and strips are those of
`gluon_grouped`. A workgroup has a slab of 64 channels and walks down rows of y. Each row of y is
multiplied with the rows of x that its taps see, for each tap by another view of the ring, and the
sums of all taps stay in registers for as long as the workgroup runs.

A slice of 16 channels is multiplied with the 16 filters that see them. wgmma would multiply 64
filters with each slice, four times too many. The older instruction takes 16 filters and 8 channels
from registers. Products of four slices are one product with a dimension of batches: each warp has a
slice. For groups of 32 channels there are two slices of 32, with two warps each, 16 filters a warp.

Data movement. A row of y comes together with the last row of x that it needs, to the same slot.
Both are read by pixels, transposed on the way to registers (ldmatrix, without conflicts, as
128-byte swizzles have none for it). Taps along the width share their pixels in registers
(`gluon_atoms`), so a row of x is read once for each row of the filter. Each workgroup writes sums
of its own to a workspace, and `weights.conv_few_totals` adds them, so results repeat bit for bit. A
slice of several groups makes products between groups too, which are dropped: what is infinite stays
in its group.

Edges. Beside a pixel that y does not have, zero, there may be one of x that is infinite, and their
product would be NaN. So if a workgroup's sums have NaN or infinity when all rows are done, it walks
its rows again, and this time pixels of x are zero where y has none.

On a CPU. Gluon has no interpreter; `weights` computes the same result there.

What limits it. By counting, memory, and for groups of 32 products as well. On an H200 3×3 layers
run at 1.02 to 3.56 times cuDNN's speed. More measurements, counts, and the first version:
docs/notes/conv-gluon_grouped_weights.md.
"""

from tilewright.ops.conv.kernels.gluon_atoms import (
    IMAGES,
    SLAB,
    box_at,
    pair_at,
    pairs_at,
    place_of,
)
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    mma_v2,
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
def _multiply(
    sums, atoms, of_y, base, SUMS: gl.constexpr, COLS: gl.constexpr, HALO: gl.constexpr,
    STRIDE: gl.constexpr, TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, SLICE: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """The sums of all taps with one more row of y, whose first row of x is `base`."""
    FILTERS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    CHANNELS: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    at = (base + TAPS_H - 1) % STAGES * COLS
    filters = ()
    for pair in gl.static_range(COLS // 2):
        filters += (pair_at(of_y, at + 2 * pair, FILTERS, True, SLICE),)  # type: ignore[assignment]
    done = ()
    for r in gl.static_range(TAPS_H):
        slot = (base + r) % STAGES
        for phase in gl.static_range(min(STRIDE, TAPS_W)):
            now = ()
            for _ in gl.static_range(phase, TAPS_W, STRIDE):
                now += (sums[len(done) + len(now)],)  # type: ignore[assignment]
            first = (slot * STRIDE + phase) * (COLS + HALO)
            seen = pairs_at(atoms, first, len(now), COLS, CHANNELS, SLICE)
            for pair in gl.static_range(COLS // 2):
                more = ()
                for tap in gl.static_range(len(now)):
                    one = mma_v2(filters[pair], seen[2 * pair + tap], now[tap])
                    more += (one,)  # type: ignore[assignment]
                now = more
            done += now
    return done


@jit
def _multiply_apart(
    sums, atoms, of_y, base, left, SUMS: gl.constexpr, COLS: gl.constexpr, HALO: gl.constexpr,
    STRIDE: gl.constexpr, TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, SLICE: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """As `_multiply`, but pixels of x meet none beyond the `left` that y's row has."""
    FILTERS: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    CHANNELS: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    at = (base + TAPS_H - 1) % STAGES * COLS
    pixel = gl.arange(0, 2 * IMAGES, gl.SliceLayout(0, gl.SliceLayout(2, CHANNELS))) // IMAGES
    done = ()
    for r in gl.static_range(TAPS_H):
        slot = (base + r) % STAGES
        for phase in gl.static_range(min(STRIDE, TAPS_W)):
            for tap in gl.static_range((TAPS_W - phase + STRIDE - 1) // STRIDE):
                first = (slot * STRIDE + phase) * (COLS + HALO) + tap
                total = sums[len(done)]
                for pair in range(COLS // 2):
                    filters = pair_at(of_y, at + 2 * pair, FILTERS, True, SLICE)
                    seen = pair_at(atoms, first + 2 * pair, CHANNELS, False, SLICE)
                    here = (2 * pair + pixel < left)[None, :, None]
                    seen = gl.where(here, seen, gl.zeros_like(seen))
                    total = mma_v2(filters, seen, total)
                done += (total,)  # type: ignore[assignment]
    return done


@jit
def _walk(
    x, edge, y, atoms, of_y, full, before, height, width, slab, mine, apart, count, tiles_w, octets,
    rows, origin_h, origin_w,
    SUMS: gl.constexpr, COLS: gl.constexpr, HALO: gl.constexpr, STRIDE: gl.constexpr,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, SLICE: gl.constexpr, STAGES: gl.constexpr,
    APART: gl.constexpr,
):  # fmt: skip
    """The sums of all taps over this workgroup's strips, by rows of the filter, and in a row the
    even taps first if the stride is 2. before: rows of x
    that came to the ring before. APART: whether pixels that y lacks meet zeros."""
    rows_in = (rows - 1) * STRIDE + TAPS_H
    first_w, first_octet, first_segment = place_of(mine, tiles_w, octets)
    asked, next_strip, next_row, h, w, image = _ask(
        x, edge, y, atoms, of_y, full, STAGES, before, rows * 0, rows * 0, first_segment * rows,
        first_w * COLS, first_octet * IMAGES, count, mine, apart, rows_in, rows, tiles_w, octets,
        slab * SLAB, origin_h, origin_w, COLS, HALO, STRIDE, STAGES, TAPS_H,
    )  # fmt: skip
    sums = ()
    for _ in gl.static_range(TAPS_H * TAPS_W):
        zeros = gl.zeros((SLAB // SLICE, SLICE, SLICE), gl.float32, SUMS)
        sums += (zeros,)  # type: ignore[assignment]
    for strip in range(count):
        for row in range(rows):
            base = before + strip * rows_in + row * STRIDE
            past = base + TAPS_H
            new = STRIDE
            if row == 0:
                new = TAPS_H
            for number in range(past - new, past):
                mbarrier.wait(full.index(number % STAGES), number // STAGES & 1)
            if APART:
                tile_w, _octet, segment = place_of(mine + strip * apart, tiles_w, octets)
                left = width - tile_w * COLS
                if segment * rows + row >= height:
                    left = left * 0
                sums = _multiply_apart(
                    sums, atoms, of_y, base, left, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE,
                    STAGES,
                )  # fmt: skip
            else:
                sums = _multiply(
                    sums, atoms, of_y, base, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE,
                    STAGES,
                )  # fmt: skip
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
    return sums


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
    PARTS: gl.constexpr = SLAB // SLICE
    TAPS: gl.constexpr = TAPS_H * TAPS_W
    EACH: gl.constexpr = SLICE // MERGED
    ATOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([IMAGES, SLAB], x.dtype)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [PARTS, 4 // PARTS, 1], [1, 16, 8])
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
    fence_async_shared()  # the copy engine sees the barriers too
    thread_barrier()
    sums = _walk(
        x, edge, y, atoms, of_y, full, rows * 0, height, width, slab, mine, apart, count, tiles_w,
        octets, rows, origin_h, origin_w, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, STAGES,
        False,
    )  # fmt: skip
    dirt = sums[0] * 0.0  # NaN if a sum is NaN or infinite
    for number in gl.static_range(1, TAPS):
        dirt += sums[number] * 0.0
    dirty = gl.sum(gl.sum(gl.sum(dirt, 2), 1), 0)
    if dirty != dirty:
        rows_in = (rows - 1) * STRIDE + TAPS_H
        sums = _walk(
            x, edge, y, atoms, of_y, full, count * rows_in, height, width, slab, mine, apart, count,
            tiles_w, octets, rows, origin_h, origin_w, SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W,
            SLICE, STAGES, True,
        )  # fmt: skip

    part = gl.arange(0, PARTS, gl.SliceLayout(1, gl.SliceLayout(2, SUMS)))[:, None, None]
    i = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(2, SUMS)))[None, :, None]
    j = gl.arange(0, SLICE, gl.SliceLayout(0, gl.SliceLayout(1, SUMS)))[None, None, :]
    k = slab * SLAB + part * SLICE + i
    there = (i // EACH == j // EACH) & (k < channels)
    places = (mine * channels + k) * (TAPS * EACH) + j % EACH
    left = sums
    for r in gl.static_range(TAPS_H):
        for phase in gl.static_range(min(STRIDE, TAPS_W)):
            for s in gl.static_range(phase, TAPS_W, STRIDE):
                gl.store(made + places + (r * TAPS_W + s) * EACH, left[0], mask=there)
                left = left[1:]
