"""Depthwise convolutions in all directions on the matrix units, in Gluon (sm_90): a row of each
channel's filter is a band of a matrix.

Idea. On the vector units a product of a pixel and a tap is an instruction of a lane, and a 7×7
filter has 49 for each pixel. The matrix units have no use for one channel's filter as it is. But a
strip of 8 neighbouring pixels of the result sees 16 pixels of each row of the source (up to 9 taps
along the width), and their products with a row of the filter are those with a matrix [pixels seen,
pixels of the strip] that has the row's taps on its diagonals and zeros elsewhere. 16 strips of
several images are the rows of the other operand. So an instruction of 16×8×16 makes 128 sums of one
channel and one row of the filter.

A workgroup has SLAB channels of 16 strips and walks down the rows. Each row of the source comes
once (`x`, and `edge` for the 8 pixels behind the last strip), and is joined at once with all rows
of the filter: the sums of as many rows of the result as the filter has rows are in registers, as
are the bands. A row that is complete leaves through a staging buffer and the copy engine, which
also reads zeros for the padding and writes nothing outside the result. The gradient of the data is
the same with taps in the reverse order.

In the gradient of the weights, sums and bands change places: the product of 16 pixels of x and 8 of
dY, summed over strips and images, has on its diagonals what the taps of a row sum up. Registers
hold these products for all rows of the filter, and as many rows of dY. Diagonals are summed once,
at the end; parts of the strips are added by `conv_few_totals`.

Threads hold neighbouring channels of a pixel, which are read at once; registers of one channel come
from two pixels (a permutation for each register). Pixel k of a strip and pixel k + 8 are neighbours
in the operand, because a thread can have both.

Edges. Bands have zeros, and a pixel that is infinite or NaN would spoil the whole strip. Each
thread remembers whether a sum was not finite; then the workgroup computes all of its strips again,
tap by tap from memory.

Data movement. A row of SLAB channels, 16 strips and 8 pixels on the side moves once from memory to
shared memory, STAGES rows ahead. Segments of the height read TAPS_H - 1 rows of the next one.

On a CPU. Gluon has no interpreter; `depthwise` computes the same there.

What limits it. By counting, memory, instructions and barriers. On an H200 7×7 layers run at 4.30
(forward), 9.77 (data) and 1.85 (weights) times cuDNN's speed. More measurements, counts, and what
is not built: docs/notes/conv-gluon_bands.md.
"""

from tilewright.ops.device.epilogue import rounded
from tilewright.ops.device.gluon_api import (
    constexpr_function,
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

Walk = bundle(
    "Walk",
    "x edge y atoms others full slab apart strips rows_in rows height tiles_w sets origin_h"
    " origin_w STRIPS IMAGES SLAB WARPS STAGES WITH_Y",
)
"""How a workgroup walks down its strips. x, edge: where rows come from, and atoms, full: the ring
that they come to. y, others: dY and its ring, WITH_Y, in the gradient of the weights; height: of
dY. slab: of channels. apart: how far its strips' numbers are. rows_in: of the source, for `rows` of
a segment. The others: the kernels' arguments."""

Layer = bundle(
    "Layer",
    "source weights result source_strides weight_strides result_strides images channels sizes"
    " full_sizes TAPS_H TAPS_W DATA LARGEST",
)
"""The arrays of a convolution and of its gradient of the data: the kernel's arguments."""


@constexpr_function
def _bits(size, axis, first=1):
    """Bases of the numbers below `size` along an axis, from `first` on."""
    found = []
    while first < size:
        found.append([first * (i == axis) for i in range(4)])
        first *= 2
    return found


@constexpr_function
def strips_in_registers(strips, images, slab, warps, of_lines):
    """How threads hold a row of strips, [strips, pixels of a strip, images, channels].

    A thread has neighbouring channels, which are read at once. of_lines: lines (strips of images)
    are the dimension that products are summed over, else pixels are."""
    each = slab // warps
    channels = _bits(slab, 3)
    inner = len(_bits(each, 3))
    lines = _bits(images, 2) + _bits(strips, 0)
    pixels = _bits(8, 1)
    if of_lines:
        registers, lanes = [lines[0], lines[3]], [lines[1], lines[2], *pixels]
    else:
        registers, lanes = [pixels[2], lines[3]], [pixels[0], pixels[1], *lines[:3]]
    return gl.DistributedLinearLayout(
        channels[:inner] + registers, lanes, channels[inner:], [], [strips, 8, images, slab]
    )


@jit
def _by_channel(w, tile, OF_LINES: gl.constexpr):
    """A row of strips, from an atom on, as [channels, lines, pixels], or [channels, pixels, lines].
    A channel's number here is that in its thread, then its warp's."""
    SHAPE: gl.constexpr = [w.STRIPS, 8, w.IMAGES, w.SLAB]
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(SHAPE, tile.dtype)
    HELD: gl.constexpr = strips_in_registers(w.STRIPS, w.IMAGES, w.SLAB, w.WARPS, OF_LINES)
    found = reinterpreted(tile, tile.dtype, SHAPE, LAYOUT).load(HELD)
    found = found.reshape((w.STRIPS, 8, w.IMAGES, w.WARPS, w.SLAB // w.WARPS))
    return found.permute((4, 3, 0, 2, 1)).reshape((w.SLAB, 16, 8))


@jit
def _pixels_of_lines(w, at, LEFT: gl.constexpr):
    """The pixels that strips see, [channels, lines, pixels]: pixel k of a strip and the one eight
    behind it are neighbours here."""
    near = _by_channel(w, w.atoms.index(at), False)
    far = _by_channel(w, w.atoms.index(at + 1), False)
    found = gl.join(near, far).reshape((w.SLAB, 16, 16))
    return gl.convert_layout(found, LEFT, assert_trivial=True)


@jit
def _lines_of_pixels(w, at, LEFT: gl.constexpr):
    """The pixels that strips see, as [channels, pixels, lines], pixels in their order."""
    near = _by_channel(w, w.atoms.index(at), True).permute((0, 2, 1))
    far = _by_channel(w, w.atoms.index(at + 1), True).permute((0, 2, 1))
    found = gl.join(near, far).permute((0, 3, 1, 2)).reshape((w.SLAB, 16, 16))
    return gl.convert_layout(found, LEFT, assert_trivial=True)


@jit
def _channels(w, LAYOUT: gl.constexpr):
    """The channels along the first of three axes."""
    i = gl.arange(0, w.SLAB, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    return w.slab * w.SLAB + i % w.WARPS * (w.SLAB // w.WARPS) + i // w.WARPS


@jit
def _band(w, layer, RIGHT: gl.constexpr, TAP_H: gl.constexpr):
    """A row of each channel's filter as a band, [channels, pixels seen, pixels of a strip]."""
    strides = layer.weight_strides
    channel = _channels(w, RIGHT)
    k = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, RIGHT)))
    tap = (k // 2 + k % 2 * 8)[None, :, None]
    tap = tap - gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, RIGHT)))[None, None, :]
    there = (tap >= 0) & (tap < layer.TAPS_W) & (channel < layer.channels)[:, None, None]
    if layer.DATA:
        tap = layer.TAPS_W - 1 - tap
    places = (channel * strides[0])[:, None, None] + (TAP_H * strides[3] + tap * strides[4])
    return gl.load(layer.weights + places, mask=there, other=0.0)


@jit
def _strip(w, number):
    """The first pixel of a numbered strip of the result: height, width, image and channel."""
    rest = number // w.tiles_w
    first_w = number % w.tiles_w * (w.STRIPS * 8)
    return rest // w.sets * w.rows, first_w, rest % w.sets * w.IMAGES, w.slab * w.SLAB


@jit
def _slots(slot, phase, STAGES: gl.constexpr):
    """The slot and the phase of the row behind this one."""
    slot += 1
    if slot == STAGES:
        slot *= 0
        phase ^= 1
    return slot, phase


@jit
def _ask_next(w, going):
    """Ask for the next row of this workgroup, if there is one. Returns the one behind it.

    going: the strip's number, the row in it, its slot, and the strip's first pixel. Behind a
    segment's last row dY is zero."""
    OF_X: gl.constexpr = w.x.block_type.nbytes + w.edge.block_type.nbytes
    BYTES: gl.constexpr = OF_X + w.y.block_type.nbytes * w.WITH_Y
    strip, row, slot, place = going
    if strip < w.strips:
        ready = w.full.index(slot)
        mbarrier.expect(ready, BYTES)
        first_h, first_w, image, channel = place
        of_h = first_h + row + w.origin_h
        of_w = first_w + w.origin_w
        at = slot * (w.STRIPS + 1)
        tma_load(w.x, (of_h, of_w, image, channel), ready, _box(w.atoms, at, w.x))
        of_w += w.STRIPS * 8
        to = _box(w.atoms, at + w.STRIPS, w.edge)
        tma_load(w.edge, (of_h, of_w, image, channel), ready, to)
        if w.WITH_Y:
            of_y = first_h + row
            if row >= w.rows:
                of_y = w.height  # outside
            tma_load(w.y, (of_y, first_w, image, channel), ready, _box(w.others, slot, w.y))
    slot += 1
    if slot == w.STAGES:
        slot *= 0
    row += 1
    if row == w.rows_in:
        row *= 0
        strip += w.apart
        place = _strip(w, strip)
    return strip, row, slot, place


@jit
def _box(atoms, at, view):
    """The atoms from number `at` on, as one copy of `view` moves them."""
    return reinterpreted(atoms.index(at), view.dtype, view.block_type.shape, view.layout)


@jit
def _zeros(COUNT: gl.constexpr, like):
    found = ()
    for _ in gl.static_range(COUNT):
        found = found + (gl.zeros_like(like),)  # type: ignore[assignment]
    return found


@jit
def written(token):
    """Wait until what this thread had the copy engine store is in memory."""
    return gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.b32 $0, $1;",
        "=r,r", [token], gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@jit
def _tap_by_tap(w, layer, place, PRODUCTS: gl.constexpr):
    """A strip again, without a band's zeros."""
    source_strides = layer.source_strides
    weight_strides = layer.weight_strides
    result_strides = layer.result_strides
    channel = _channels(w, PRODUCTS)[:, None, None]
    line = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, PRODUCTS)))[None, :, None]
    pixel_w = gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, PRODUCTS)))[None, None, :]
    pixel_w = place[1] + line // w.IMAGES * 8 + pixel_w
    image = place[2] + line % w.IMAGES
    here = (channel < layer.channels) & (image < layer.images)
    for row in range(w.rows):
        h = place[0] + row
        total = gl.zeros((w.SLAB, 16, 8), gl.float32, PRODUCTS)
        for r in range(layer.TAPS_H):
            for s in range(layer.TAPS_W):
                at_h = h + r + w.origin_h
                at_w = pixel_w + s + w.origin_w
                seen = here & (at_h >= 0) & (at_h < layer.sizes[0])
                seen = seen & (at_w >= 0) & (at_w < layer.sizes[1])
                places = image * source_strides[0] + at_h * source_strides[3]
                places = channel + (places + at_w * source_strides[4])
                pixel = gl.load(layer.source + places, mask=seen, other=0.0)
                tap = r * weight_strides[3] + s * weight_strides[4]
                if layer.DATA:
                    tap = (layer.TAPS_H - 1 - r) * weight_strides[3]
                    tap += (layer.TAPS_W - 1 - s) * weight_strides[4]
                factor = gl.load(
                    layer.weights + (channel * weight_strides[0] + tap),
                    mask=channel < layer.channels, other=0.0,
                )  # fmt: skip
                total += pixel.to(gl.float32) * factor.to(gl.float32)
        there = here & (h < layer.full_sizes[0]) & (pixel_w < layer.full_sizes[1])
        places = image * result_strides[0] + h * result_strides[3]
        places = channel + (places + pixel_w * result_strides[4])
        gl.store(
            layer.result + places, rounded(total, layer.result.dtype.element_ty, layer.LARGEST),
            mask=there,
        )  # fmt: skip


@jit
def conv_gluon_bands(
    x, edge, made, source, weights, result, source_strides, weight_strides, result_strides, images,
    channels, sizes, full_sizes, slabs, tiles_w, sets, strips, rows, origin_h, origin_w,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, STRIPS: gl.constexpr, IMAGES: gl.constexpr,
    SLAB: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr, DATA: gl.constexpr,
    LARGEST: gl.constexpr,
):  # fmt: skip
    """This workgroup's part of the result: one slab of channels of its sets of images, tiles of
    the width, and segments of the height.

    x, edge, made: tensor descriptors of [height, width, image, channel]; `edge` of the pixels
        behind those of a row of strips. source, weights, result: the same arrays, and the weights.
    images, channels: of the result. sizes, full_sizes: height and width of the source and of the
        result. slabs, tiles_w, sets: that cover the channels, the width and the images. strips: of
        a slab. rows: of a segment. origin_h, origin_w: the first pixel that pixel 0 sees.
    """
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, PRODUCTS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, PRODUCTS, 2)
    ATOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([8, IMAGES, SLAB], x.dtype)
    ROW: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STRIPS, 8, IMAGES, SLAB], x.dtype)
    atoms = gl.allocate_shared_memory(x.dtype, [STAGES * (STRIPS + 1), 8, IMAGES, SLAB], ATOM)
    staging = gl.allocate_shared_memory(made.dtype, [2, STRIPS, 8, IMAGES, SLAB], ROW)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    slab = gl.program_id(0) % slabs
    mine = gl.program_id(0) // slabs
    apart = gl.num_programs(0) // slabs
    rows_in = rows + TAPS_H - 1
    fence_async_shared()  # the copy engine sees the barriers too
    thread_barrier()
    w = Walk(
        x, edge, x, atoms, atoms, full, slab, apart, strips, rows_in, rows, rows, tiles_w, sets,
        origin_h, origin_w, STRIPS, IMAGES, SLAB, WARPS, STAGES, False,
    )  # fmt: skip
    layer = Layer(
        source, weights, result, source_strides, weight_strides, result_strides, images, channels,
        sizes, full_sizes, TAPS_H, TAPS_W, DATA, LARGEST,
    )  # fmt: skip
    going = (mine, rows * 0, rows * 0, _strip(w, mine))
    for _ in range(STAGES):
        going = _ask_next(w, going)
    none = gl.zeros((SLAB, 16, 8), gl.float32, PRODUCTS)
    bands = _zeros(0, none)
    for r in gl.static_range(TAPS_H):
        bands = bands + (_band(w, layer, RIGHT, TAPS_H - 1 - r if DATA else r),)

    slot = rows * 0
    phase = rows * 0
    turn = rows * 0
    odd = gl.sum(none.reshape((SLAB // WARPS, WARPS, 16, 8)), 0)
    for strip in range(mine, strips, apart):
        place = _strip(w, strip)
        sums = _zeros(TAPS_H, none)
        for first in range(0, rows_in, TAPS_H):
            for u in gl.static_range(TAPS_H):
                if first + u < rows_in:
                    mbarrier.wait(full.index(slot), phase)
                    pixels = _pixels_of_lines(w, slot * (STRIPS + 1), LEFT)
                    slot, phase = _slots(slot, phase, STAGES)
                    tma_store_wait(1)  # the row before the last has left its buffer
                    thread_barrier()  # and all warps have read this one
                    going = _ask_next(w, going)
                    more = _zeros(0, none)
                    for i in gl.static_range(TAPS_H):  # rows of the result, by number % TAPS_H
                        before = none if i == u else sums[i]
                        band = bands[(u - i + TAPS_H) % TAPS_H]
                        more = more + (mma_v2(pixels, band, before),)
                    sums = more
                    row = first + u - (TAPS_H - 1)
                    if row >= 0:
                        out = sums[(u + 1) % TAPS_H]
                        # NaN where a sum is not finite.
                        odd += gl.sum((out * 0.0).reshape((SLAB // WARPS, WARPS, 16, 8)), 0)
                        kept = rounded(out, made.dtype, LARGEST)
                        kept = kept.reshape((SLAB // WARPS, WARPS, STRIPS, IMAGES, 8))
                        kept = kept.permute((2, 4, 3, 1, 0)).reshape((STRIPS, 8, IMAGES, SLAB))
                        turn ^= 1
                        buffer = staging.index(turn)
                        buffer.store(kept)
                        fence_async_shared()
                        tma_store(
                            made, (place[0] + row, place[1], place[2], place[3]),
                            reinterpreted(buffer, made.dtype, made.block_type.shape, made.layout),
                        )  # fmt: skip
    tma_store_wait(0)
    found = gl.sum(gl.sum(gl.sum(odd, 2), 1), 0)
    if found != found:
        written(rows)
        thread_barrier()
        for strip in range(mine, strips, apart):
            _tap_by_tap(w, layer, _strip(w, strip), PRODUCTS)


@jit
def conv_gluon_bands_weights(
    x, edge, y, partials, channels, height, slabs, tiles_w, sets, strips, rows, origin_h, origin_w,
    TAPS_H: gl.constexpr, TAPS_W: gl.constexpr, STRIPS: gl.constexpr, IMAGES: gl.constexpr,
    SLAB: gl.constexpr, WARPS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """All taps of a slab of channels, from a part of the strips. The arguments are those of
    `conv_gluon_bands`; height: of dY."""
    PRODUCTS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, PRODUCTS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, PRODUCTS, 2)
    ATOM: gl.constexpr = gl.NVMMASharedLayout.get_default_for([8, IMAGES, SLAB], x.dtype)
    ROW: gl.constexpr = gl.NVMMASharedLayout.get_default_for([STRIPS, 8, IMAGES, SLAB], x.dtype)
    atoms = gl.allocate_shared_memory(x.dtype, [STAGES * (STRIPS + 1), 8, IMAGES, SLAB], ATOM)
    others = gl.allocate_shared_memory(y.dtype, [STAGES, STRIPS, 8, IMAGES, SLAB], ROW)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    slab = gl.program_id(0) % slabs
    mine = gl.program_id(0) // slabs
    apart = gl.num_programs(0) // slabs
    rows_in = rows + TAPS_H - 1
    fence_async_shared()  # the copy engine sees the barriers too
    thread_barrier()
    w = Walk(
        x, edge, y, atoms, others, full, slab, apart, strips, rows_in, rows, height, tiles_w, sets,
        origin_h, origin_w, STRIPS, IMAGES, SLAB, WARPS, STAGES, True,
    )  # fmt: skip
    going = (mine, rows * 0, rows * 0, _strip(w, mine))
    for _ in range(STAGES):
        going = _ask_next(w, going)
    sums = _zeros(TAPS_H, gl.zeros((SLAB, 16, 8), gl.float32, PRODUCTS))
    slot = rows * 0
    phase = rows * 0
    for _ in range(mine, strips, apart):
        rows_y = _zeros(TAPS_H, gl.zeros((SLAB, 16, 8), y.dtype, RIGHT))
        for first in range(0, rows_in, TAPS_H):
            for u in gl.static_range(TAPS_H):
                if first + u < rows_in:
                    mbarrier.wait(full.index(slot), phase)
                    pixels = _lines_of_pixels(w, slot * (STRIPS + 1), LEFT)
                    newest = _by_channel(w, others.index(slot), True)
                    newest = gl.convert_layout(newest, RIGHT, assert_trivial=True)
                    slot, phase = _slots(slot, phase, STAGES)
                    thread_barrier()  # all warps have read the rows
                    going = _ask_next(w, going)
                    kept = _zeros(0, sums[0])
                    for i in gl.static_range(TAPS_H):  # rows of dY, by number % TAPS_H
                        kept = kept + (newest if i == u else rows_y[i],)
                    rows_y = kept
                    more = _zeros(0, sums[0])
                    for r in gl.static_range(TAPS_H):
                        more = more + (mma_v2(pixels, rows_y[(u - r + TAPS_H) % TAPS_H], sums[r]),)
                    sums = more
    pixel = gl.arange(0, 16, gl.SliceLayout(0, gl.SliceLayout(2, PRODUCTS)))[None, :, None]
    pixel = pixel - gl.arange(0, 8, gl.SliceLayout(0, gl.SliceLayout(1, PRODUCTS)))[None, None, :]
    channel = _channels(w, PRODUCTS)
    places = (mine * channels + channel) * (TAPS_H * TAPS_W)
    for s in range(TAPS_W):
        for r in gl.static_range(TAPS_H):
            # Diagonal s: products of a pixel of dY and the pixel of x that is s further.
            total = gl.sum(gl.sum(gl.where(pixel == s, sums[r], 0.0), 2), 1)
            gl.store(partials + (places + (r * TAPS_W + s)), total, mask=channel < channels)
