"""Workgroups of a cluster add up the parts of a tile through each other's shared memory; for
`gluon_ws` under split-K with reduction ``cluster``.

Idea. Each workgroup of a tile sums its part of K. Then each is given a share of the tile's columns.
It sends its sums in the other shares to the workgroups that have these, and adds what they send to
its sums in its own share. So all of them take part in the exchange and in the store, and nothing
goes through memory. The groups of a workgroup exchange their rows with the same groups of the
others.

Data movement. A tile of 128x128 is 64 KB of sums. In a cluster of two, each workgroup sends 32 KB
from registers; the inbox that takes them in is beside the ring in shared memory. 8 bytes a thread,
swizzled so that half a warp writes to all banks.

Order. Sums are added in the order of the parts of K, whoever adds them, so the bits do not depend
on the share that a column falls into.

What limits it. How soon tiles arrive: the exchange itself takes 0.7 to 0.9 µs on an H200.
Measurements, and what was tried: docs/notes/gemm-gluon_exchange.md.
"""

from tilewright.ops.device.gluon_api import constexpr_function, gl, jit, mbarrier
from tilewright.ops.device.gluon_cluster import hear, meet, send
from tilewright.ops.device.gluon_store import cut


@constexpr_function
def in_order(rows, columns):
    """A tile in shared memory in the order of wgmma's registers: 16 bytes of a thread, a pair of
    columns and the pair eight rows below, and behind them those of the next thread."""

    def bits(axis, first, size):
        powers = (1 << bit for bit in range(first.bit_length() - 1, size.bit_length() - 1))
        return [[power, 0] if axis == 0 else [0, power] for power in powers]

    thread = [[0, 1], [8, 0]]
    lanes = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
    return gl.SharedLinearLayout(
        offset_bases=[*thread, *lanes, *bits(1, 8, columns), *bits(0, 16, rows)]
    )


@jit
def mail(
    ROWS: gl.constexpr, TILE_N: gl.constexpr, INT_ACC: gl.constexpr, GROUPS: gl.constexpr,
    CLUSTER: gl.constexpr,
):  # fmt: skip
    """Shared memory for what the others send, CLUSTER - 1 tiles for each group, and each group's
    barrier, at which every other workgroup arrives once. Nothing outside a cluster."""
    inbox = ()
    told = ()
    if CLUSTER > 1:
        ACC: gl.constexpr = gl.int32 if INT_ACC else gl.float32
        COLUMNS: gl.constexpr = TILE_N // CLUSTER
        inbox = gl.allocate_shared_memory(
            ACC, [GROUPS * (CLUSTER - 1), ROWS, COLUMNS], in_order(ROWS, COLUMNS)
        )
        told = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
        for group in gl.static_range(GROUPS):
            mbarrier.init(told.index(group), count=1)
        for group in gl.static_range(GROUPS):
            mbarrier.expect(told.index(group), 4 * ROWS * COLUMNS * (CLUSTER - 1))
    return inbox, told


@jit
def chosen(tiles, i, COUNT: gl.constexpr):
    """Tile number `i` of a tuple."""
    found = tiles[0]
    for number in gl.static_range(1, COUNT):
        found = gl.where(i == number, tiles[number], found)
    return found


@jit
def exchange(acc, sharing, rank, GROUP: gl.constexpr):
    """The sums of all workgroups in the columns that are this one's share.

    sharing: has the inbox and the groups' barriers (`mail`), and the number of workgroups, CLUSTER.
    """
    CLUSTER: gl.constexpr = sharing.CLUSTER
    FIRST: gl.constexpr = GROUP * (CLUSTER - 1)
    told = sharing.told.index(GROUP)
    shares = cut(acc, CLUSTER)
    meet()
    for step in gl.static_range(1, CLUSTER):
        other = (rank + step) % CLUSTER
        share = chosen(shares, other, CLUSTER)
        send(sharing.inbox.index(FIRST + step - 1), share, told, other)
    mine = chosen(shares, rank, CLUSTER)
    hear(told, 0)
    if CLUSTER == 2:
        total = mine + sharing.inbox.index(FIRST).load(mine.type.layout)
    else:
        total = gl.zeros_like(mine)
        for part in gl.static_range(CLUSTER):
            step = (rank - part + CLUSTER) % CLUSTER  # by which it was sent
            theirs = sharing.inbox.index(FIRST + gl.maximum(step, 1) - 1).load(mine.type.layout)
            total += gl.where(step == 0, mine, theirs)
    return total
