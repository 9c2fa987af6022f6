"""Forward, and the gradient of the data, with warp roles written out, in Gluon (sm_90): the copy
engine gathers pixels in boxes.

Idea. The products are those of `gather`: rows are pixels of the result, and a step multiplies the
pixels of the source that one tap joins with the rows by that tap's weights. A group's rows are a
box of pixels of the result, so many images by so many pixels along each dimension. Then the pixels
that a tap joins with them are a box of the source too, and one request to the copy engine brings
them. The box begins ``tap · dilation - pad`` pixels from that of the result; it may begin before
the image. What is outside comes as zeros: the padding. Forward strides are element strides.

The gradient of the data is the same walk in each residue class of the strides (see `geometry`),
over a view of the class's pixels. A class without a tap has no step, and stores what the epilogue
makes of zero. A launch has one class; or, where all meet as many taps, all of them (CLASSES), each
with its tensor map: tiles of all classes that read the same pixels of y run together.

Data movement. The ring, its consumers and their wgmma are GEMM's (`gluon_ring`): a warp with 24
registers a thread fills STAGES slots, each with a box for each group that reads it and a tile of
one tap's weights. Steps of one tap go through all channels before the next tap, so a box is read
from L2 once for each tap. The ring runs on from tile to tile. Weights lie as filters hold them,
channels of x innermost. Results leave in pieces through two staging buffers for each group, and the
copy engine writes no pixel outside the image.

Turns. With TURNS, two groups take whole tiles in turn, and one multiplies while the other stores
(see GEMM's `gluon_pingpong`). A group's turn comes after all of the other's operands have arrived,
so it cannot take a slot's earlier phase for its own. Without TURNS, one or two groups share a
tile's weights, each with a box of its own.

Odd tiles. Columns are a power of two, or several: 160 are accumulators of 128 and 32, each with a
copy of its own weights (see GEMM's `gluon_ws`). All leave in pieces as wide as the narrowest, 32 at
most. With three groups, which then share a tile's weights, a tile has 192 rows.

Edges. A box that reaches beyond the image is multiplied whole. `boxes.best` takes the boxes with
the fewest such pixels. Channels past the last are zeros in both operands. Of groups of channels the
producer alone knows, as offsets in the tensor maps. Tiles and steps divide a group's channels,
which a rule checks: past its last are the next group's.

On a CPU. Gluon has no interpreter; `gather` computes the same result there.

What limits it. Power, and for tiles of 64 rows L2. On an H200 it has 1.073 of cuDNN's speed forward
and 1.048 for data over ten layers (geometric means; more: docs/notes/conv-gluon_ws.md).
"""

from tilewright.ops.conv.kernels.finish import chained
from tilewright.ops.conv.kernels.gluon_boxes import (
    all_pieces,
    pending,
    pixels_of,
    room,
    rooms,
    spot,
)
from tilewright.ops.conv.kernels.places import apart, inside, offset
from tilewright.ops.device.epilogue import rounded
from tilewright.ops.device.gluon_api import (
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    tma_load,
    tma_store,
    tma_store_wait,
)
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.gluon_ring import (
    OF_THREE_REGISTERS,
    OF_TWO_REGISTERS,
    PRODUCER_REGISTERS,
    Ring,
    accumulators,
    awaited,
    barriers,
    before,
    multiply,
    turned,
    width,
)
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.gluon_store import indices
from tilewright.ops.device.schedule import tile_coordinates

Work = bundle(
    "Work",
    "source weights made weights_rest"
    " a_boxes a_tiles b_boxes b_tiles rest_boxes rest_tiles c_boxes c_tiles full empty turns"
    " extra made_strides begin images channels_in channels_out per_group tiles_m tiles_n boxes"
    " walked taps first_tap taps_apart origin by_tap by_pixel made_rest of_classes"
    " TILE_N TILE_K GROUP_M BOX_N BOX_D BOX_H BOX_W NDIM DATA INT_ACC TAKES LARGEST STAGES READERS"
    " TURNS CHAIN CLASSES",
)
"""What the warps of a workgroup have in common: the kernel's arguments, and the ring, the staging
buffers and the barriers between them."""


@jit
def _class_of(w, tile_n):
    """The class of a tile's column by number, and the column among those of its class."""
    number = tile_n * 0
    if w.CLASSES > 1:
        each = w.tiles_n // w.CLASSES
        number = tile_n // each
        tile_n = tile_n % each
    return number, tile_n


@jit
def _along(residue, stride, dilation, before, phase, inverse):
    """Of the class with this residue along a dimension: the first tap, and the source's pixel of
    the first pixel and this tap. As `places.walk`; strides have no divisor in common with dilations
    where all classes meet as many taps."""
    first = (residue + phase) % stride * inverse % stride
    return first, (residue + before - first * dilation) // stride


@jit
def _walk_of(w, number):
    """The first taps of a class, and the source's pixel of its first pixel and these."""
    first, origin = w.first_tap, w.origin
    if w.CLASSES > 1:
        residues, _, stride, dilation, before, phase, inverse = w.of_classes
        _, r_d, r_h, r_w = apart(number, residues, w.NDIM)
        first_w, to_w = _along(r_w, stride[2], dilation[2], before[2], phase[2], inverse[2])
        first_d, first_h, to_d, to_h = first[0], first[1], origin[0], origin[1]
        if w.NDIM > 1:
            first_h, to_h = _along(r_h, stride[1], dilation[1], before[1], phase[1], inverse[1])
        if w.NDIM > 2:
            first_d, to_d = _along(r_d, stride[0], dilation[0], before[0], phase[0], inverse[0])
        first = (first_d, first_h, first_w)
        origin = (to_d, to_h, to_w)
    return first, origin


@jit
def _pixels_of_class(w, number):
    """Where a class's first pixel lies, and how many pixels the class has along each dimension."""
    begin, walked = w.begin, w.walked
    if w.CLASSES > 1:
        residues, full, stride, _, _, _, _ = w.of_classes
        _, r_d, r_h, r_w = apart(number, residues, w.NDIM)
        begin += r_w * (w.made_strides[4] // stride[2])
        sizes_d, sizes_h = walked[0], walked[1]
        if w.NDIM > 1:
            begin += r_h * (w.made_strides[3] // stride[1])
            sizes_h = gl.cdiv(full[1] - r_h, stride[1])
        if w.NDIM > 2:
            begin += r_d * (w.made_strides[2] // stride[0])
            sizes_d = gl.cdiv(full[0] - r_d, stride[0])
        walked = (sizes_d, sizes_h, gl.cdiv(full[2] - r_w, stride[2]))
    return begin, walked


@jit
def _made_of(w, number):
    """The tensor map of a class."""
    made = w.made
    for i in gl.static_range(len(w.made_rest)):
        if number == i + 1:
            made = w.made_rest[i]
    return made


@jit
def _of_group(w, col):
    """The first channel of the source that the group of a column reads, and the column among those
    of its group."""
    first = col * 0
    if len(w.per_group):
        first = col // w.per_group[0] * w.channels_in
        col = col % w.per_group[0]
    return first, col


@jit
def _weights_at(w, col, of_group, tap_d, tap_h, tap_w, first_k, k0):
    """Where a tap's weights of columns from `col`, which is `of_group` among its group's, and
    products from `k0` of the group's on begin. A filter has the channels of its group alone."""
    if w.DATA:
        of = spot(first_k + k0, tap_d, tap_h, tap_w, of_group, w.NDIM)
    else:
        of = spot(col, tap_d, tap_h, tap_w, k0, w.NDIM)
    return of


@jit
def _fill(w):
    """The producer: loads every step of every tile of this workgroup into the ring."""
    OF_B: gl.constexpr = w.weights.block_type.nbytes // width(w.TILE_N, 0) * w.TILE_N
    BYTES: gl.constexpr = w.READERS * w.source.block_type.nbytes + OF_B
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    for tile in range(gl.program_id(0), w.tiles_m * w.tiles_n, gl.num_programs(0)):
        tile_m, tile_n = tile_coordinates(tile, w.tiles_m, w.tiles_n, w.GROUP_M)
        number, tile_n = _class_of(w, tile_n)
        first_tap, origin = _walk_of(w, number)
        col = tile_n * w.TILE_N
        first_k, of_group = _of_group(w, col)
        box = tile_m * w.READERS
        pixels = ()
        for r in gl.static_range(w.READERS):
            pixels += (pixels_of(w, box + r),)  # type: ignore[assignment]
        for i_d in range(w.taps[0]):
            tap_d = first_tap[0] + i_d * w.taps_apart[0]
            to_d = origin[0] + i_d * w.by_tap[0]
            for i_h in range(w.taps[1]):
                tap_h = first_tap[1] + i_h * w.taps_apart[1]
                to_h = origin[1] + i_h * w.by_tap[1]
                for i_w in range(w.taps[2]):
                    tap_w = first_tap[2] + i_w * w.taps_apart[2]
                    to_w = origin[2] + i_w * w.by_tap[2]
                    for k0 in range(0, w.channels_in, w.TILE_K):
                        ready = w.full.index(stage)
                        mbarrier.wait(w.empty.index(stage), phase)
                        mbarrier.expect(ready, BYTES)
                        for r in gl.static_range(w.READERS):
                            image, at_d, at_h, at_w = pixels[r]  # type: ignore[var-annotated]
                            at = spot(
                                image, at_d * w.by_pixel[0] + to_d, at_h * w.by_pixel[1] + to_h,
                                at_w * w.by_pixel[2] + to_w, first_k + k0, w.NDIM,
                            )  # fmt: skip
                            tma_load(w.source, at, ready, w.a_boxes.index(stage * w.READERS + r))
                        of = _weights_at(w, col, of_group, tap_d, tap_h, tap_w, first_k, k0)
                        tma_load(w.weights, of, ready, w.b_boxes.index(stage))
                        for i in gl.static_range(len(w.weights_rest)):
                            on = before(w.TILE_N, i + 1)
                            of = _weights_at(
                                w, col + on, of_group + on, tap_d, tap_h, tap_w, first_k, k0
                            )
                            tma_load(w.weights_rest[i], of, ready, w.rest_boxes[i].index(stage))
                        stage, phase = turned(stage, phase, w.STAGES)


@jit
def _store_piece(
    w, made, begin, walked, piece, slot, image, at_d, at_h, at_w, col, PENDING: gl.constexpr,
):  # fmt: skip
    """The epilogue of one piece of a box's sums, and its way to memory through staging buffer
    `slot`, after all stores but the last PENDING have left theirs. made, begin, walked: of the
    class."""
    row = indices(piece, 0)
    channels = col + indices(piece, 1)
    here = channels < w.channels_out
    i_w = at_w + row % w.BOX_W
    i_h = at_h + row // w.BOX_W % w.BOX_H
    i_d = at_d + row // (w.BOX_W * w.BOX_H) % w.BOX_D
    i_n = image + row // (w.BOX_W * w.BOX_H * w.BOX_D)
    there = (i_n < w.images) & inside(i_d, i_h, i_w, walked, w.NDIM)
    places = begin + i_n * w.made_strides[0] + offset(i_d, i_h, i_w, w.made_strides, w.NDIM)
    places = places[:, None] + channels[None, :]
    out = chained(
        piece, w.extra, places, channels, there[:, None] & here[None, :], here, w.CHAIN, w.TAKES
    )
    tma_store_wait(PENDING)
    w.c_tiles.index(slot).store(rounded(out, w.made.dtype, w.LARGEST))
    fence_async_shared()
    tma_store(made, spot(image, at_d, at_h, at_w, col, w.NDIM), w.c_boxes.index(slot))


@jit
def _multiply(w, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its box of every tile of this workgroup; with TURNS,
    every second tile."""
    WALKERS: gl.constexpr = 2 if w.TURNS else 1
    OWN: gl.constexpr = 0 if w.TURNS else GROUP
    ring = Ring(
        w.a_tiles, w.b_tiles, w.rest_tiles, w.full, w.empty, True, w.DATA, w.STAGES, w.READERS
    )
    steps = w.taps[0] * w.taps[1] * w.taps[2] * gl.cdiv(w.channels_in, w.TILE_K)
    first = gl.program_id(0)
    done = steps * 0
    if w.TURNS:
        first += GROUP * gl.num_programs(0)
        done += GROUP * steps
    turn = 1 - GROUP  # nobody has arrived at the barriers yet: the first group goes ahead
    for tile in range(first, w.tiles_m * w.tiles_n, WALKERS * gl.num_programs(0)):
        tile_m, tile_n = tile_coordinates(tile, w.tiles_m, w.tiles_n, w.GROUP_M)
        number, tile_n = _class_of(w, tile_n)
        acc, rest = accumulators(w.a_tiles, w.a_tiles.shape[1], w.TILE_N, w.INT_ACC)
        if w.TURNS:
            mbarrier.wait(w.turns.index(GROUP), turn)
            turn ^= 1
        acc, rest, used, _, _ = multiply(
            ring, acc, rest, steps * 0, steps, done % w.STAGES, done // w.STAGES & 1, OWN
        )
        if w.TURNS:
            mbarrier.arrive(w.turns.index(1 - GROUP), count=1)
        done += WALKERS * steps
        acc, rest = awaited(acc, rest, 0)
        mbarrier.arrive(w.empty.index(used), count=1, pred=steps > 0)
        image, at_d, at_h, at_w = pixels_of(w, tile_m * w.READERS + OWN)
        made = _made_of(w, number)
        begin, walked = _pixels_of_class(w, number)
        pieces = all_pieces(acc, rest, w.TILE_N, w.made.block_type.shape[w.NDIM + 1])
        for i in gl.static_range(len(pieces)):
            col = tile_n * w.TILE_N + i * pieces[0].shape[1]
            _store_piece(
                w, made, begin, walked, pieces[i], 2 * GROUP + i % 2, image, at_d, at_h, at_w, col,
                pending(len(pieces), i),
            )  # fmt: skip
    tma_store_wait(0)


@jit
def conv_gluon_ws(
    source, weights, made, weights_rest, extra, made_strides, begin, images, channels_in,
    channels_out, per_group, tiles_m, boxes, walked, taps, first_tap, taps_apart, origin, by_tap,
    by_pixel, made_rest, residues, full, stride, dilation, before, phase, inverse,
    TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr, BOX_N: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr, NDIM: gl.constexpr,
    DATA: gl.constexpr, INT_ACC: gl.constexpr, TAKES: gl.constexpr, LARGEST: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, TURNS: gl.constexpr, CHAIN: gl.constexpr,
    CLASSES: gl.constexpr,
):  # fmt: skip
    """The result, a class of its pixels, or all classes, multiplied by GROUPS warp groups.

    source, weights, made: tensor descriptors with channels innermost; `made` of the class's pixels.
    weights_rest: descriptors of the weights for each accumulator of a tile behind the first.
    channels_in, channels_out: of a group of the source, and of the whole result.
    per_group: of a kernel for groups, the columns of a group; else ().
    made_strides, begin: of the class's pixels, in elements, for the epilogue's arrays.
    made_rest: descriptors of the pixels of each class behind the first. What is said of a class
        (begin, boxes, walked, first_tap, origin) is said of the first then. residues: classes along
        each dimension.
    The others: the catalogue (`boxed`).
    """
    ROWS: gl.constexpr = BOX_N * BOX_D * BOX_H * BOX_W
    READERS: gl.constexpr = 1 if TURNS else GROUPS
    tiles_n = gl.cdiv(channels_out, TILE_N) * CLASSES
    of_classes = ()
    if CLASSES > 1:
        of_classes = (residues, full, stride, dilation, before, phase, inverse)  # type: ignore[assignment]
    a_boxes, a_tiles = room(source, STAGES * READERS, ROWS, TILE_K)
    if DATA:
        b_boxes, b_tiles = room(weights, STAGES, TILE_K, width(TILE_N, 0))
    else:
        b_boxes, b_tiles = room(weights, STAGES, width(TILE_N, 0), TILE_K)
    rest_boxes, rest_tiles = rooms(weights_rest, STAGES, TILE_N, TILE_K, DATA)
    c_boxes, c_tiles = room(made, 2 * GROUPS, ROWS, made.block_type.shape[NDIM + 1])
    full, empty = barriers(STAGES, READERS)
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(2):
        mbarrier.init(turns.index(group), count=1)
    fence_async_shared()  # the copy engine sees the barriers too
    w = Work(
        source, weights, made, weights_rest,
        a_boxes, a_tiles, b_boxes, b_tiles, rest_boxes, rest_tiles, c_boxes, c_tiles, full, empty,
        turns, extra, made_strides, begin, images, channels_in, channels_out, per_group, tiles_m,
        tiles_n, boxes, walked, taps, first_tap, taps_apart, origin, by_tap, by_pixel, made_rest,
        of_classes,
        TILE_N, TILE_K, GROUP_M, BOX_N, BOX_D, BOX_H, BOX_W, NDIM, DATA, INT_ACC, TAKES, LARGEST,
        STAGES, READERS, TURNS, CHAIN, CLASSES,
    )  # fmt: skip
    specialized(
        _multiply, (w,), _fill, (w,), GROUPS,
        OF_THREE_REGISTERS if GROUPS == 3 else OF_TWO_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
