"""The gradient of the weights with warp roles written out, in Gluon (sm_90): the copy engine
gathers pixels in boxes.

Idea. The products are those of `weights`: rows are filters, columns channels of one tap, and a step
sums over a box of pixels of y. The pixels of x that the tap joins with them are a box too, which
begins ``tap · dilation - pad`` pixels further and has the strides as element strides. What is
outside x comes as zeros.

Data movement. The ring and its consumers are GEMM's (`gluon_ring`): one warp fills STAGES slots,
each with a box of y for each group, which has filters of its own, and one box of x that the groups
share. Both have pixels outermost, so wgmma reads both transposed, which it does for 16-bit types.
Each tile of columns reads x and y again, from L2: those of one part of the pixels run at the same
time. As in `gluon_ws`, columns may be several powers of two, and three groups make 192 rows.

Several taps. With SPREAD, a tile's columns are boxes of SPREAD channels, of several taps or of a
tap's several boxes: nine taps of 64 channels are three tiles of 192 columns, and y is read three
times, not nine. Tap follows tap, and then come the next channels. In shared memory columns lie in
slabs of 128 bytes, one behind the other, also if one request brings them all; so each slab can be a
box of its own, and wgmma reads them as one matrix. The last tile may have boxes behind the last,
for which its producer brings another's channels, as copying from outside takes longer; their sums
are stored at channels that there are not, and so nowhere. Filters past the last likewise. The warp
that loads goes from box to box by adding (`following`).

Parts. A gradient has few tiles and long sums. Under ``split`` a tile's boxes are in several parts.
TWO_STAGE: each has sums of its own in a workspace, and `weights.conv_totals` adds them in order, so
results repeat bit for bit. Else, and under ``stream_k``, which shares the boxes of all tiles evenly
among the workgroups, parts meet as in GEMM's `gluon_ws`: each group's sums go through flags and
slots in 16-byte accesses (`gluon_partials`), and the group that has the whole sum stores weights.

Edges. Boxes divide y exactly, which a rule checks: beside a pixel that y does not have, zero, there
may be one of x that is infinite, and their product would be NaN.

On a CPU. Gluon has no interpreter; `weights` computes the same result there.

What limits it. Power in tiles of 128x256, L2 in smaller ones. Measurements:
docs/notes/conv-gluon_weights.md.
"""

from tilewright.ops.conv.kernels.gluon_boxes import (
    all_pieces,
    boxes_before,
    boxes_of,
    following,
    pending,
    pixels_of,
    room,
    rooms,
    spot,
)
from tilewright.ops.conv.kernels.places import apart
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    tma_load,
    tma_store,
    tma_store_wait,
)
from tilewright.ops.device.gluon_partials import add, load, store, within_registers
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
    parts_of,
    width,
    work_of,
)
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.schedule import contributors, next_part, tile_coordinates


@jit
def _all(tiles, splits, steps, SCHEDULER: gl.constexpr):
    """The work of a workgroup: GEMM's `work_of`, where the parts of ``split`` are numbered so that
    those of one share of the pixels are neighbours."""
    ways, share, at, end, part, parts = work_of(tiles, steps, splits, SCHEDULER)
    if SCHEDULER == "split":
        parts = tiles * splits
    return ways, share, at, end, part, parts


@jit
def _next(at, end, part, tiles, splits, steps, SCHEDULER: gl.constexpr):
    """The next part of a workgroup's work: its tile, its number among the tile's parts (under
    ``split``), its boxes from first to past the last, and what is left."""
    number = part * 0
    if SCHEDULER == "split":
        tile = part % tiles
        number = part // tiles
        begin = number * steps // splits
        stop = (number + 1) * steps // splits
        part += gl.num_programs(0)
    else:
        tile, begin, stop, at, part = next_part(at, end, part, splits, steps, SCHEDULER)
    return tile, number, begin, stop, at, part


@constexpr_function
def box_begin(tile_n, number, spread):
    """The first column of a tile that a box brings."""
    return number * spread if spread else before(tile_n, number)


@jit
def _columns_at(
    column, offset: gl.constexpr, all_taps, TILE_N: gl.constexpr, SPREAD: gl.constexpr
):  # fmt: skip
    """The tap and the channel of a tile's column number `offset`, where `column` numbers tiles.
    With SPREAD, boxes of so many channels of one tap are side by side, tap by tap; those behind the
    last box have channels that there are not."""
    if SPREAD:
        box = column * (TILE_N // SPREAD) + offset // SPREAD
        tap = box % all_taps
        channel = box // all_taps * SPREAD + offset % SPREAD
    else:
        tap = column % all_taps
        channel = column // all_taps * TILE_N + offset
    return tap, channel


@jit
def _fill(
    x, x_rest, y, x_boxes, rest_boxes, y_boxes, full, empty, tiles_m, tiles_n, all_boxes, boxes,
    taps, origin, by_tap, by_pixel, splits, filters, tap_boxes,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, GROUP_M: gl.constexpr, BOX_N: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr, NDIM: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, SPREAD: gl.constexpr, SCHEDULER: gl.constexpr,
):  # fmt: skip
    """The producer: loads every box of every part of this workgroup into the ring."""
    OF_X: gl.constexpr = x.block_type.nbytes * boxes_of(TILE_N, 0, SPREAD) // width(TILE_N, 0)
    BYTES: gl.constexpr = GROUPS * y.block_type.nbytes + OF_X * TILE_N
    ROWS: gl.constexpr = TILE_M // GROUPS
    all_taps = taps[0] * taps[1] * taps[2]
    # A group whose filters are all past the last multiplies those of the last: rows outside y take
    # longer to come than rows inside, and its sums are not stored.
    last = (filters - 1) // ROWS * ROWS
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    tiles = tiles_m * tiles_n
    _, _, at, end, part, parts = _all(tiles, splits, all_boxes, SCHEDULER)
    while (at < end) | (part < parts):
        tile, _, begin, stop, at, part = _next(at, end, part, tiles, splits, all_boxes, SCHEDULER)
        tile_m, column = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M
        to_d = ()
        to_h = ()
        to_w = ()
        channels = ()
        for i in gl.static_range(boxes_before(TILE_N, parts_of(TILE_N), SPREAD)):
            tap, channel = _columns_at(
                column, box_begin(TILE_N, i, SPREAD), all_taps, TILE_N, SPREAD
            )
            if SPREAD:  # behind the last box comes one again, whose sums are not stored
                channel = min(channel, (tap_boxes - 1) * SPREAD)
            _, tap_d, tap_h, tap_w = apart(tap, taps, NDIM)
            to_d += (origin[0] + tap_d * by_tap[0],)  # type: ignore[assignment]
            to_h += (origin[1] + tap_h * by_tap[1],)  # type: ignore[assignment]
            to_w += (origin[2] + tap_w * by_tap[2],)  # type: ignore[assignment]
            channels += (channel,)  # type: ignore[assignment]
        image, d, h, w = pixels_of(begin, boxes, NDIM, BOX_N, BOX_D, BOX_H, BOX_W)
        for _ in range(begin, stop):
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(ready, BYTES)
            for group in gl.static_range(GROUPS):
                of = spot(image, d, h, w, min(row + group * ROWS, last), NDIM)
                tma_load(y, of, ready, y_boxes.index(stage * GROUPS + group))
            for own in gl.static_range(parts_of(TILE_N)):
                for j in gl.static_range(boxes_of(TILE_N, own, SPREAD)):
                    of = spot(
                        image,
                        d * by_pixel[0] + to_d[boxes_before(TILE_N, own, SPREAD) + j],
                        h * by_pixel[1] + to_h[boxes_before(TILE_N, own, SPREAD) + j],
                        w * by_pixel[2] + to_w[boxes_before(TILE_N, own, SPREAD) + j],
                        channels[boxes_before(TILE_N, own, SPREAD) + j],
                        NDIM,
                    )
                    slot = stage * boxes_of(TILE_N, own, SPREAD) + j
                    if own == 0:
                        tma_load(x, of, ready, x_boxes.index(slot))
                    else:
                        tma_load(x_rest[own - 1], of, ready, rest_boxes[own - 1].index(slot))
            image, d, h, w = following(image, d, h, w, boxes, NDIM, BOX_N, BOX_D, BOX_H, BOX_W)
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@jit
def _store(
    made, acc, rest, c_boxes, c_tiles, part, row, column, all_taps, TILE_N: gl.constexpr,
    SPREAD: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A group's sums on their way to memory, in pieces through two staging buffers."""
    PIECE: gl.constexpr = made.block_type.shape[3]
    pieces = all_pieces(acc, rest, TILE_N, PIECE)
    for i in gl.static_range(len(pieces)):
        slot = 2 * GROUP + i % 2
        tma_store_wait(pending(len(pieces), i))  # the store before has left this buffer
        c_tiles.index(slot).store(pieces[i].to(made.dtype))
        fence_async_shared()
        tap, channel = _columns_at(column, i * PIECE, all_taps, TILE_N, SPREAD)
        tma_store(made, (part, row, tap, channel), c_boxes.index(slot))


@jit
def _multiply(
    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty, tiles_m, tiles_n,
    all_boxes, taps, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, GROUP_M: gl.constexpr, STAGES: gl.constexpr,
    GROUPS: gl.constexpr, SPREAD: gl.constexpr, TWO_STAGE: gl.constexpr, SCHEDULER: gl.constexpr,
    REDUCTION: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A consumer, warp group number GROUP: its filters of every part of this workgroup."""
    ROWS: gl.constexpr = TILE_M // GROUPS
    ring = Ring(y_tiles, x_tiles, rest_tiles, full, empty, False, True, STAGES, GROUPS)
    all_taps = taps[0] * taps[1] * taps[2]
    stage = 0
    phase = 0
    MEETS: gl.constexpr = SCHEDULER != "persistent" and not TWO_STAGE
    tiles = tiles_m * tiles_n
    ways, share, at, end, part, parts = _all(tiles, splits, all_boxes, SCHEDULER)
    while (at < end) | (part < parts):
        tile, number, begin, stop, at, part = _next(
            at, end, part, tiles, splits, all_boxes, SCHEDULER
        )
        tile_m, column = tile_coordinates(tile, tiles_m, tiles_n, GROUP_M)
        if MEETS:
            shared = stop - begin < all_boxes
            i = number
            count = splits
            base = tile * splits
            stride = 1
            shift = number * 0
            if SCHEDULER == "stream_k":
                # Where no tile is shared, a share has no step.
                earliest, count, shift = contributors(tile, all_boxes, ways, max(share, 1))
                i = gl.program_id(0) - earliest
                base = 2 * earliest
                stride = 2
            if REDUCTION == "atomic":
                base = tile
            # Each group has its own slots and flags, as if its rows were a tile.
            base = base * GROUPS + GROUP
            stride = stride * GROUPS
            shift = shift * GROUPS
            # The answer arrives together with the first operands.
            last = shared
            if shared:
                last = take_turn(meeting[0], count, base, stride, shift, REDUCTION)
        acc, rest = accumulators(y_tiles, ROWS, TILE_N, False)
        acc, rest, used, stage, phase = multiply(
            ring, acc, rest, begin, stop, stage, phase, GROUP
        )  # fmt: skip
        acc, rest = awaited(acc, rest, 0)
        mbarrier.arrive(empty.index(used), count=1)
        row = tile_m * TILE_M + GROUP * ROWS
        if MEETS:
            whole = stop - begin == all_boxes
            if shared:
                LAYOUT: gl.constexpr = acc.type.layout
                within = within_registers(ROWS, TILE_N, LAYOUT)
                whole, acc = reduce(
                    acc, last, meeting[0], meeting[1], within, i, count, base, stride, shift,
                    REDUCTION, store, load, add,
                )  # fmt: skip
            if whole:
                _store(
                    made, acc, rest, c_boxes, c_tiles, 0, row, column, all_taps, TILE_N, SPREAD,
                    GROUP,
                )  # fmt: skip
        else:
            _store(
                made, acc, rest, c_boxes, c_tiles, number, row, column, all_taps, TILE_N, SPREAD,
                GROUP,
            )  # fmt: skip
    tma_store_wait(0)


@jit
def conv_gluon_weights(
    x, y, made, x_rest, meeting, tiles_m, tiles_n, all_boxes, boxes, taps, origin, by_tap, by_pixel,
    splits, filters, tap_boxes,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    BOX_N: gl.constexpr, BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
    NDIM: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, SPREAD: gl.constexpr,
    TWO_STAGE: gl.constexpr, SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr,
):  # fmt: skip
    """The gradient, or parts of it, multiplied by one to three warp groups.

    x, y: tensor descriptors with channels innermost.
    made: a tensor descriptor of [parts, filters, taps, channels]; one part but under TWO_STAGE.
    x_rest: descriptors of x for each accumulator of a tile behind the first.
    meeting: flags and partial sums, for parts that meet; else ().
    tiles_m, tiles_n: tiles of filters, and of taps' channels.
    filters, tap_boxes: how many there are, and with SPREAD boxes of a tap's channels.
    all_boxes, boxes: of y, in all and along its dimensions, of TILE_K pixels each.
    """
    ROWS: gl.constexpr = TILE_M // GROUPS
    x_boxes, x_tiles = room(x, STAGES, TILE_K, width(TILE_N, 0), boxes_of(TILE_N, 0, SPREAD))
    rest_boxes, rest_tiles = rooms(x_rest, STAGES, TILE_N, TILE_K, True, SPREAD)
    y_boxes, y_tiles = room(y, STAGES * GROUPS, TILE_K, ROWS)
    c_boxes, c_tiles = room(made, 2 * GROUPS, ROWS, made.block_type.shape[3])
    full, empty = barriers(STAGES, GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    # Arguments are written out for each group, as in GEMM's kernels.
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (
                    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty,
                    tiles_m, tiles_n, all_boxes, taps, splits, TILE_M, TILE_N, GROUP_M, STAGES,
                    GROUPS, SPREAD, TWO_STAGE, SCHEDULER, REDUCTION, 0,
                )),
                (_fill, (
                    x, x_rest, y, x_boxes, rest_boxes, y_boxes, full, empty, tiles_m, tiles_n,
                    all_boxes, boxes, taps, origin, by_tap, by_pixel, splits, filters, tap_boxes,
                    TILE_M, TILE_N, GROUP_M, BOX_N, BOX_D, BOX_H, BOX_W, NDIM, STAGES, GROUPS,
                    SPREAD, SCHEDULER,
                )),
            ],
            [1],
            [PRODUCER_REGISTERS],
        )  # fmt: skip
    elif GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (
                    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty,
                    tiles_m, tiles_n, all_boxes, taps, splits, TILE_M, TILE_N, GROUP_M, STAGES,
                    GROUPS, SPREAD, TWO_STAGE, SCHEDULER, REDUCTION, 0,
                )),
                (_multiply, (
                    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty,
                    tiles_m, tiles_n, all_boxes, taps, splits, TILE_M, TILE_N, GROUP_M, STAGES,
                    GROUPS, SPREAD, TWO_STAGE, SCHEDULER, REDUCTION, 1,
                )),
                (_fill, (
                    x, x_rest, y, x_boxes, rest_boxes, y_boxes, full, empty, tiles_m, tiles_n,
                    all_boxes, boxes, taps, origin, by_tap, by_pixel, splits, filters, tap_boxes,
                    TILE_M, TILE_N, GROUP_M, BOX_N, BOX_D, BOX_H, BOX_W, NDIM, STAGES, GROUPS,
                    SPREAD, SCHEDULER,
                )),
            ],
            [4, 1],
            [OF_TWO_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (
                    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty,
                    tiles_m, tiles_n, all_boxes, taps, splits, TILE_M, TILE_N, GROUP_M, STAGES,
                    GROUPS, SPREAD, TWO_STAGE, SCHEDULER, REDUCTION, 0,
                )),
                (_multiply, (
                    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty,
                    tiles_m, tiles_n, all_boxes, taps, splits, TILE_M, TILE_N, GROUP_M, STAGES,
                    GROUPS, SPREAD, TWO_STAGE, SCHEDULER, REDUCTION, 1,
                )),
                (_multiply, (
                    made, meeting, x_tiles, rest_tiles, y_tiles, c_boxes, c_tiles, full, empty,
                    tiles_m, tiles_n, all_boxes, taps, splits, TILE_M, TILE_N, GROUP_M, STAGES,
                    GROUPS, SPREAD, TWO_STAGE, SCHEDULER, REDUCTION, 2,
                )),
                (_fill, (
                    x, x_rest, y, x_boxes, rest_boxes, y_boxes, full, empty, tiles_m, tiles_n,
                    all_boxes, boxes, taps, origin, by_tap, by_pixel, splits, filters, tap_boxes,
                    TILE_M, TILE_N, GROUP_M, BOX_N, BOX_D, BOX_H, BOX_W, NDIM, STAGES, GROUPS,
                    SPREAD, SCHEDULER,
                )),
            ],
            [4, 4, 1],
            [OF_THREE_REGISTERS, OF_THREE_REGISTERS, PRODUCER_REGISTERS],
        )  # fmt: skip
