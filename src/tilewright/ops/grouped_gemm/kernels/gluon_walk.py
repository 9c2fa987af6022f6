"""Which tile of which group a role computes, in Gluon; shared by the grouped kernels for sm_90. See
`walk`.

Before the roles part, four warps add up the groups' tiles in shared memory. The warps that load
look up tiles there, and tell the others (`gluon_post`).
"""

from tilewright.ops.device.gluon_api import gl, jit, reinterpreted
from tilewright.ops.device.gluon_bundle import bundle
from tilewright.ops.device.schedule import tile_coordinates
from tilewright.ops.grouped_gemm.kernels.walk import COLUMNS, MAX_GROUPS, clear_rest, group_rows

MAX_GROUPS_SPLIT = gl.constexpr(512)
"""Most groups of kernels that store in small pieces, so that large tiles have another stage: the
table leaves room for it."""

PART = gl.constexpr(128)
"""Groups that a role examines together: few enough for the producer's registers."""

Walk = bundle(
    "Walk",
    "table ends m k groups lead tiles tiles_n FORM TILE_M TILE_N TILE_K GROUP_M",
)
"""The groups (see `walk`), and how they are cut into `tiles`; `ends` has the number of tiles up to
each group's end."""


@jit
def _tile_ends(
    table, ends, m, groups, lead, tiles_n, FORM: gl.constexpr, TILE_M: gl.constexpr,
    GROUPS: gl.constexpr,
):  # fmt: skip
    """Write into `ends`, for each group, the number of its tiles and all tiles before; returns the
    total. As `walk.tile_ends`."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([GROUPS // 128], [32], [4], [0])
    group = gl.arange(0, GROUPS, LAYOUT)
    _, rows = group_rows(table, gl.minimum(group, groups - 1), m, lead, FORM == "masked")
    tiles = (rows + TILE_M - 1) // TILE_M * tiles_n
    tiles = gl.where(group < groups, tiles, 0)
    ends.store(gl.associative_scan(tiles, 0, _plus))
    return gl.sum(tiles, 0)


@jit
def cleared(c, ldc, table, m, groups, lead, columns, MASKED: gl.constexpr):
    """As `walk.cleared`."""
    OF_GROUPS: gl.constexpr = gl.BlockedLayout([MAX_GROUPS // 128], [32], [4], [0])
    OF_COLUMNS: gl.constexpr = gl.BlockedLayout([COLUMNS // 128], [32], [4], [0])
    group = gl.minimum(gl.arange(0, MAX_GROUPS, OF_GROUPS), groups - 1)
    begin, size = group_rows(table, group, m, lead, MASKED)
    column = gl.arange(0, COLUMNS, OF_COLUMNS)
    clear_rest(
        c, ldc, 1, table, m, groups, lead, gl.max(begin + size, 0), column, columns, MASKED
    )  # fmt: skip


@jit
def _plus(x, y):
    return x + y


@jit
def _find(tile, ends, groups, WARPS: gl.constexpr):
    """The group of a tile, and the number of that group's first tile."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([PART // (32 * WARPS)], [32], [WARPS], [0])
    counts = gl.zeros([PART], gl.int32, LAYOUT)
    latest = gl.zeros([PART], gl.int32, LAYOUT)
    for part in range(gl.cdiv(groups, PART)):
        part_ends = ends.index(part).load(LAYOUT)
        before = part_ends <= tile
        counts += before.to(gl.int32)
        latest = gl.where(before, part_ends, latest)
    return gl.sum(counts, 0), gl.max(latest, 0)


@jit
def place(w, tile, WARPS: gl.constexpr):
    """For a tile: its group, that group's first row and number of rows, and the tile's position
    among the group's tiles."""
    group, first = _find(tile, w.ends, w.groups, WARPS)
    group = gl.minimum(group, w.groups - 1)
    begin, rows = group_rows(w.table, group, w.m, w.lead, w.FORM == "masked")
    tiles_m = (rows + w.TILE_M - 1) // w.TILE_M
    tile_m, tile_n = tile_coordinates(tile - first, tiles_m, w.tiles_n, w.GROUP_M)
    return group, begin, rows, tile_m, tile_n


@jit
def walked(
    table, m, n, k, groups, lead, FORM: gl.constexpr, TILE_M: gl.constexpr, TILE_N: gl.constexpr,
    TILE_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """The walk of a kernel; its roles see `ends` after the next fence."""
    GROUPS: gl.constexpr = MAX_GROUPS_SPLIT if SPLIT else MAX_GROUPS
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ends = gl.allocate_shared_memory(gl.int32, [GROUPS // PART, PART], PLAIN)
    tiles_n = gl.cdiv(n, TILE_N)
    whole = reinterpreted(ends, gl.int32, [GROUPS], PLAIN)
    tiles = _tile_ends(table, whole, m, groups, lead, tiles_n, FORM, TILE_M, GROUPS)
    return Walk(
        table, ends, m, k, groups, lead, tiles, tiles_n, FORM, TILE_M, TILE_N, TILE_K, GROUP_M
    )


@jit
def tiles_of(matrix, COUNT: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """Shared memory for COUNT tiles, as matrices, each as large as one copy of `matrix` moves."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, COLUMNS], matrix.dtype)
    return gl.allocate_shared_memory(matrix.dtype, [COUNT, ROWS, COLUMNS], LAYOUT)
