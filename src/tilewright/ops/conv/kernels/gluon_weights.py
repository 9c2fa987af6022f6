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

Groups. Rows are the filters of all groups, and a tile's are of one group, which a rule checks.
Boxes of x begin at this group's channels. Columns past these are stored nowhere.

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
from tilewright.ops.device.gluon_bundle import bundle
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
    turned,
    width,
    work_of,
)
from tilewright.ops.device.gluon_roles import specialized
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.schedule import contributors, next_part, tile_coordinates

Work = bundle(
    "Work",
    "x x_rest y made meeting x_boxes x_tiles rest_boxes rest_tiles y_boxes y_tiles c_boxes c_tiles"
    " full empty tiles_m tiles_n all_boxes boxes taps origin by_tap by_pixel splits filters"
    " tap_boxes per_group"
    " TILE_M TILE_N GROUP_M BOX_N BOX_D BOX_H BOX_W NDIM STAGES GROUPS SPREAD TWO_STAGE SCHEDULER"
    " REDUCTION",
)
"""What the warps of a workgroup have in common: the kernel's arguments, and the ring, the staging
buffers and the barriers between them."""


@jit
def _all(w):
    """The work of a workgroup: GEMM's `work_of`, where the parts of ``split`` are numbered so that
    those of one share of the pixels are neighbours."""
    tiles = w.tiles_m * w.tiles_n
    ways, share, at, end, part, parts = work_of(tiles, w.all_boxes, w.splits, w.SCHEDULER)
    if w.SCHEDULER == "split":
        parts = tiles * w.splits
    return ways, share, at, end, part, parts


@jit
def _next(w, at, end, part):
    """The next part of a workgroup's work: its tile, its number among the tile's parts (under
    ``split``), its boxes from first to past the last, and what is left."""
    number = part * 0
    if w.SCHEDULER == "split":
        tiles = w.tiles_m * w.tiles_n
        tile = part % tiles
        number = part // tiles
        begin = number * w.all_boxes // w.splits
        stop = (number + 1) * w.all_boxes // w.splits
        part += gl.num_programs(0)
    else:
        tile, begin, stop, at, part = next_part(
            at, end, part, w.splits, w.all_boxes, w.SCHEDULER
        )  # fmt: skip
    return tile, number, begin, stop, at, part


@constexpr_function
def box_begin(tile_n, number, spread):
    """The first column of a tile that a box brings."""
    return number * spread if spread else before(tile_n, number)


@jit
def _columns_at(w, all_taps, column, offset: gl.constexpr):
    """The tap and the channel of a tile's column number `offset`, where `column` numbers tiles.
    With SPREAD, boxes of so many channels of one tap are side by side, tap by tap; those behind the
    last box have channels that there are not."""
    if w.SPREAD:
        box = column * (w.TILE_N // w.SPREAD) + offset // w.SPREAD
        tap = box % all_taps
        channel = box // all_taps * w.SPREAD + offset % w.SPREAD
    else:
        tap = column % all_taps
        channel = column // all_taps * w.TILE_N + offset
    return tap, channel


@jit
def _fill(w):
    """The producer: loads every box of every part of this workgroup into the ring."""
    SPREAD: gl.constexpr = w.SPREAD
    OF_X: gl.constexpr = w.x.block_type.nbytes * boxes_of(w.TILE_N, 0, SPREAD) // width(w.TILE_N, 0)
    BYTES: gl.constexpr = w.GROUPS * w.y.block_type.nbytes + OF_X * w.TILE_N
    ROWS: gl.constexpr = w.TILE_M // w.GROUPS
    all_taps = w.taps[0] * w.taps[1] * w.taps[2]
    # A group whose filters are all past the last multiplies those of the last: rows outside y take
    # longer to come than rows inside, and its sums are not stored.
    last = (w.filters - 1) // ROWS * ROWS
    stage = 0
    phase = 1  # in an unused ring every slot counts as released
    _, _, at, end, part, parts = _all(w)
    while (at < end) | (part < parts):
        tile, _, begin, stop, at, part = _next(w, at, end, part)
        tile_m, column = tile_coordinates(tile, w.tiles_m, w.tiles_n, w.GROUP_M)
        row = tile_m * w.TILE_M
        to_d = ()
        to_h = ()
        to_w = ()
        channels = ()
        for i in gl.static_range(boxes_before(w.TILE_N, parts_of(w.TILE_N), SPREAD)):
            tap, channel = _columns_at(w, all_taps, column, box_begin(w.TILE_N, i, SPREAD))
            if SPREAD:  # behind the last box comes one again, whose sums are not stored
                channel = min(channel, (w.tap_boxes - 1) * SPREAD)
            if len(w.per_group):
                channel += row // w.per_group[0] * w.per_group[1]
            _, tap_d, tap_h, tap_w = apart(tap, w.taps, w.NDIM)
            to_d += (w.origin[0] + tap_d * w.by_tap[0],)  # type: ignore[assignment]
            to_h += (w.origin[1] + tap_h * w.by_tap[1],)  # type: ignore[assignment]
            to_w += (w.origin[2] + tap_w * w.by_tap[2],)  # type: ignore[assignment]
            channels += (channel,)  # type: ignore[assignment]
        image, at_d, at_h, at_w = pixels_of(w, begin)
        for _ in range(begin, stop):
            ready = w.full.index(stage)
            mbarrier.wait(w.empty.index(stage), phase)
            mbarrier.expect(ready, BYTES)
            for group in gl.static_range(w.GROUPS):
                of = spot(image, at_d, at_h, at_w, min(row + group * ROWS, last), w.NDIM)
                tma_load(w.y, of, ready, w.y_boxes.index(stage * w.GROUPS + group))
            for own in gl.static_range(parts_of(w.TILE_N)):
                for j in gl.static_range(boxes_of(w.TILE_N, own, SPREAD)):
                    of = spot(
                        image,
                        at_d * w.by_pixel[0] + to_d[boxes_before(w.TILE_N, own, SPREAD) + j],
                        at_h * w.by_pixel[1] + to_h[boxes_before(w.TILE_N, own, SPREAD) + j],
                        at_w * w.by_pixel[2] + to_w[boxes_before(w.TILE_N, own, SPREAD) + j],
                        channels[boxes_before(w.TILE_N, own, SPREAD) + j],
                        w.NDIM,
                    )
                    slot = stage * boxes_of(w.TILE_N, own, SPREAD) + j
                    if own == 0:
                        tma_load(w.x, of, ready, w.x_boxes.index(slot))
                    else:
                        tma_load(w.x_rest[own - 1], of, ready, w.rest_boxes[own - 1].index(slot))
            image, at_d, at_h, at_w = following(w, image, at_d, at_h, at_w)
            stage, phase = turned(stage, phase, w.STAGES)


@jit
def _store(w, all_taps, acc, rest, part, row, column, GROUP: gl.constexpr):
    """A group's sums on their way to memory, in pieces through two staging buffers."""
    PIECE: gl.constexpr = w.made.block_type.shape[3]
    pieces = all_pieces(acc, rest, w.TILE_N, PIECE)
    for i in gl.static_range(len(pieces)):
        slot = 2 * GROUP + i % 2
        tma_store_wait(pending(len(pieces), i))  # the store before has left this buffer
        w.c_tiles.index(slot).store(pieces[i].to(w.made.dtype))
        fence_async_shared()
        tap, channel = _columns_at(w, all_taps, column, i * PIECE)
        tma_store(w.made, (part, row, tap, channel), w.c_boxes.index(slot))


@jit
def _multiply(w, GROUP: gl.constexpr):
    """A consumer, warp group number GROUP: its filters of every part of this workgroup."""
    ROWS: gl.constexpr = w.TILE_M // w.GROUPS
    MEETS: gl.constexpr = w.SCHEDULER != "persistent" and not w.TWO_STAGE
    ring = Ring(
        w.y_tiles, w.x_tiles, w.rest_tiles, w.full, w.empty, False, True, w.STAGES, w.GROUPS
    )
    all_taps = w.taps[0] * w.taps[1] * w.taps[2]
    stage = 0
    phase = 0
    ways, share, at, end, part, parts = _all(w)
    while (at < end) | (part < parts):
        tile, number, begin, stop, at, part = _next(w, at, end, part)
        tile_m, column = tile_coordinates(tile, w.tiles_m, w.tiles_n, w.GROUP_M)
        if MEETS:
            shared = stop - begin < w.all_boxes
            i = number
            count = w.splits
            base = tile * w.splits
            stride = 1
            shift = number * 0
            if w.SCHEDULER == "stream_k":
                # Where no tile is shared, a share has no step.
                earliest, count, shift = contributors(tile, w.all_boxes, ways, max(share, 1))
                i = gl.program_id(0) - earliest
                base = 2 * earliest
                stride = 2
            if w.REDUCTION == "atomic":
                base = tile
            # Each group has its own slots and flags, as if its rows were a tile.
            base = base * w.GROUPS + GROUP
            stride = stride * w.GROUPS
            shift = shift * w.GROUPS
            # The answer arrives together with the first operands.
            last = shared
            if shared:
                last = take_turn(w.meeting[0], count, base, stride, shift, w.REDUCTION)
        acc, rest = accumulators(w.y_tiles, ROWS, w.TILE_N, False)
        acc, rest, used, stage, phase = multiply(
            ring, acc, rest, begin, stop, stage, phase, GROUP
        )  # fmt: skip
        acc, rest = awaited(acc, rest, 0)
        mbarrier.arrive(w.empty.index(used), count=1)
        row = tile_m * w.TILE_M + GROUP * ROWS
        if MEETS:
            whole = stop - begin == w.all_boxes
            if shared:
                LAYOUT: gl.constexpr = acc.type.layout
                within = within_registers(ROWS, w.TILE_N, LAYOUT)
                whole, acc = reduce(
                    acc, last, w.meeting[0], w.meeting[1], within, i, count, base, stride, shift,
                    w.REDUCTION, store, load, add,
                )  # fmt: skip
            if whole:
                _store(w, all_taps, acc, rest, 0, row, column, GROUP)
        else:
            _store(w, all_taps, acc, rest, number, row, column, GROUP)
    tma_store_wait(0)


@jit
def conv_gluon_weights(
    x, y, made, x_rest, meeting, tiles_m, tiles_n, all_boxes, boxes, taps, origin, by_tap, by_pixel,
    splits, filters, tap_boxes, per_group,
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
    per_group: of a kernel for groups, the filters and the channels of each; else ().
    all_boxes, boxes: of y, in all and along its dimensions, of TILE_K pixels each.
    """
    ROWS: gl.constexpr = TILE_M // GROUPS
    x_boxes, x_tiles = room(x, STAGES, TILE_K, width(TILE_N, 0), boxes_of(TILE_N, 0, SPREAD))
    rest_boxes, rest_tiles = rooms(x_rest, STAGES, TILE_N, TILE_K, True, SPREAD)
    y_boxes, y_tiles = room(y, STAGES * GROUPS, TILE_K, ROWS)
    c_boxes, c_tiles = room(made, 2 * GROUPS, ROWS, made.block_type.shape[3])
    full, empty = barriers(STAGES, GROUPS)
    fence_async_shared()  # the copy engine sees the barriers too
    w = Work(
        x, x_rest, y, made, meeting, x_boxes, x_tiles, rest_boxes, rest_tiles, y_boxes, y_tiles,
        c_boxes, c_tiles, full, empty, tiles_m, tiles_n, all_boxes, boxes, taps, origin, by_tap,
        by_pixel, splits, filters, tap_boxes, per_group,
        TILE_M, TILE_N, GROUP_M, BOX_N, BOX_D, BOX_H, BOX_W, NDIM, STAGES, GROUPS, SPREAD,
        TWO_STAGE, SCHEDULER, REDUCTION,
    )  # fmt: skip
    specialized(
        _multiply, (w,), _fill, (w,), GROUPS,
        OF_THREE_REGISTERS if GROUPS == 3 else OF_TWO_REGISTERS, PRODUCER_REGISTERS,
    )  # fmt: skip
