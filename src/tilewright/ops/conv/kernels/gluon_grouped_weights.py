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
from tilewright.ops.device.gluon_bundle import bundle

Walk = bundle(
    "Walk",
    "x edge y height width tiles_w octets rows origin_h origin_w"
    " atoms of_y full slab mine apart count"
    " SUMS COLS HALO STRIDE TAPS_H TAPS_W SLICE STAGES",
)
"""How a workgroup walks down its strips: the kernel's arguments; the rings of rows of x and of y,
with their barriers; its channels, its first strip, how far its strips are apart and how many they
are; how threads hold sums (SUMS)."""


@jit
def _ask(w, going, wanted):
    """Ask for the next rows of x of this workgroup, as many as are `wanted` or are left, each with
    the row of y for which it is the last. `going`, and what is returned: as `gluon_grouped._ask`,
    where the strip begins in y."""
    BYTES: gl.constexpr = w.x.block_type.nbytes + (w.edge.block_type.nbytes if w.HALO > 0 else 0)
    rows_in = (w.rows - 1) * w.STRIDE + w.TAPS_H
    channel = w.slab * SLAB
    asked, strip, row, first_h, first_w, image = going
    for _ in range(wanted):
        if strip < w.count:
            slot = asked % w.STAGES
            ready = w.full.index(slot)
            ends = (row >= w.TAPS_H - 1) & ((row - (w.TAPS_H - 1)) % w.STRIDE == 0)
            if ends:
                mbarrier.expect(ready, w.STRIDE * BYTES + w.y.block_type.nbytes)
                down = first_h + (row - (w.TAPS_H - 1)) // w.STRIDE
                to = box_at(w.of_y, slot * w.COLS, w.y)
                tma_load(w.y, (down, first_w, image, channel), ready, to)
            else:
                mbarrier.expect(ready, w.STRIDE * BYTES)
            of_x = first_h * w.STRIDE + w.origin_h + row
            for phase in gl.static_range(w.STRIDE):
                at = (slot * w.STRIDE + phase) * (w.COLS + w.HALO)
                begin = first_w * w.STRIDE + w.origin_w + phase
                at_x = (of_x, begin, image, channel)
                tma_load(w.x, at_x, ready, box_at(w.atoms, at, w.x))
                if w.HALO > 0:
                    begin += w.COLS * w.STRIDE
                    to = box_at(w.atoms, at + w.COLS, w.edge)
                    tma_load(w.edge, (of_x, begin, image, channel), ready, to)
            asked += 1
            row += 1
            if row == rows_in:
                row = row * 0
                strip += 1
                first_h, first_w, image = _begin_of(w, strip)
    return asked, strip, row, first_h, first_w, image


@jit
def _begin_of(w, strip):
    """The first pixel of y of one of this workgroup's strips: height, width, image."""
    tile_w, octet, segment = place_of(w.mine + strip * w.apart, w.tiles_w, w.octets)
    return segment * w.rows, tile_w * w.COLS, octet * IMAGES


@jit
def _multiply(w, sums, base):
    """The sums of all taps with one more row of y, whose first row of x is `base`."""
    FILTERS: gl.constexpr = gl.DotOperandLayout(0, w.SUMS, 2)
    CHANNELS: gl.constexpr = gl.DotOperandLayout(1, w.SUMS, 2)
    at = (base + w.TAPS_H - 1) % w.STAGES * w.COLS
    filters = ()
    for pair in gl.static_range(w.COLS // 2):
        one = pair_at(w.of_y, at + 2 * pair, FILTERS, True, w.SLICE)
        filters += (one,)  # type: ignore[assignment]
    done = ()
    for r in gl.static_range(w.TAPS_H):
        slot = (base + r) % w.STAGES
        for phase in gl.static_range(min(w.STRIDE, w.TAPS_W)):
            now = ()
            for _ in gl.static_range(phase, w.TAPS_W, w.STRIDE):
                now += (sums[len(done) + len(now)],)  # type: ignore[assignment]
            first = (slot * w.STRIDE + phase) * (w.COLS + w.HALO)
            seen = pairs_at(w.atoms, first, len(now), w.COLS, CHANNELS, w.SLICE)
            for pair in gl.static_range(w.COLS // 2):
                more = ()
                for tap in gl.static_range(len(now)):
                    one = mma_v2(filters[pair], seen[2 * pair + tap], now[tap])
                    more += (one,)  # type: ignore[assignment]
                now = more
            done += now
    return done


@jit
def _multiply_apart(w, sums, base, left):
    """As `_multiply`, but pixels of x meet none beyond the `left` that y's row has."""
    FILTERS: gl.constexpr = gl.DotOperandLayout(0, w.SUMS, 2)
    CHANNELS: gl.constexpr = gl.DotOperandLayout(1, w.SUMS, 2)
    at = (base + w.TAPS_H - 1) % w.STAGES * w.COLS
    pixel = gl.arange(0, 2 * IMAGES, gl.SliceLayout(0, gl.SliceLayout(2, CHANNELS))) // IMAGES
    done = ()
    for r in gl.static_range(w.TAPS_H):
        slot = (base + r) % w.STAGES
        for phase in gl.static_range(min(w.STRIDE, w.TAPS_W)):
            for tap in gl.static_range((w.TAPS_W - phase + w.STRIDE - 1) // w.STRIDE):
                first = (slot * w.STRIDE + phase) * (w.COLS + w.HALO) + tap
                total = sums[len(done)]
                for pair in range(w.COLS // 2):
                    filters = pair_at(w.of_y, at + 2 * pair, FILTERS, True, w.SLICE)
                    seen = pair_at(w.atoms, first + 2 * pair, CHANNELS, False, w.SLICE)
                    here = (2 * pair + pixel < left)[None, :, None]
                    seen = gl.where(here, seen, gl.zeros_like(seen))
                    total = mma_v2(filters, seen, total)
                done += (total,)  # type: ignore[assignment]
    return done


@jit
def _walk(w, before, APART: gl.constexpr):
    """The sums of all taps over this workgroup's strips, by rows of the filter, and in a row the
    even taps first if the stride is 2. before: rows of x that came to the ring before. APART:
    whether pixels that y lacks meet zeros."""
    rows_in = (w.rows - 1) * w.STRIDE + w.TAPS_H
    first_h, first_w, image = _begin_of(w, 0)
    going = _ask(w, (before, w.rows * 0, w.rows * 0, first_h, first_w, image), w.STAGES)
    sums = ()
    for _ in gl.static_range(w.TAPS_H * w.TAPS_W):
        zeros = gl.zeros((SLAB // w.SLICE, w.SLICE, w.SLICE), gl.float32, w.SUMS)
        sums += (zeros,)  # type: ignore[assignment]
    for strip in range(w.count):
        for row in range(w.rows):
            base = before + strip * rows_in + row * w.STRIDE
            past = base + w.TAPS_H
            new = w.STRIDE
            if row == 0:
                new = w.TAPS_H
            for number in range(past - new, past):
                mbarrier.wait(w.full.index(number % w.STAGES), number // w.STAGES & 1)
            if APART:
                tile_w, _octet, segment = place_of(w.mine + strip * w.apart, w.tiles_w, w.octets)
                left = w.width - tile_w * w.COLS
                if segment * w.rows + row >= w.height:
                    left = left * 0
                sums = _multiply_apart(w, sums, base, left)
            else:
                sums = _multiply(w, sums, base)
            fence_async_shared()  # the copy engine writes where threads have read
            thread_barrier()  # all warps have read the rows that make room
            over = w.STRIDE
            if row + 1 == w.rows:
                over = w.TAPS_H
            going = _ask(w, going, over)
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
    w = Walk(
        x, edge, y, height, width, tiles_w, octets, rows, origin_h, origin_w,
        atoms, of_y, full, slab, mine, apart, count,
        SUMS, COLS, HALO, STRIDE, TAPS_H, TAPS_W, SLICE, STAGES,
    )  # fmt: skip
    sums = _walk(w, rows * 0, False)
    dirt = sums[0] * 0.0  # NaN if a sum is NaN or infinite
    for number in gl.static_range(1, TAPS):
        dirt += sums[number] * 0.0
    dirty = gl.sum(gl.sum(gl.sum(dirt, 2), 1), 0)
    if dirty != dirty:
        sums = _walk(w, count * ((rows - 1) * STRIDE + TAPS_H), True)

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
