"""Which part of the product a workgroup computes: shared by every GEMM kernel.

    tile        one workgroup for each tile of C
    persistent  as many workgroups as compute units, each walking every so-many-th tile
    split_k     `splits` workgroups for each tile, each with a part of K
    stream_k    as many workgroups as compute units; the K steps of the first `splits` tiles laid
                end to end and cut into equal shares, the rest of the tiles as in `persistent`
                (the hybrid of Osama et al., "Stream-K: Work-centric Parallel Decomposition for
                Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023, arXiv:2301.03598).
                The shared tiles come first, so that their sums are put together while the
                others are computed. If there are two workgroups or more for each of them, a
                share does not cross tiles: as many workgroups take each tile, and those with
                the same part of K read A and B together, once from memory and then from L2.
                Shares that follow each other without regard to tiles begin everywhere in K,
                and no two workgroups read the same at the same time

The last row (and column) of tiles may reach beyond the matrix. Where the copy engine loads them, it
begins further up instead (`begin_of`), so that it ends where the matrix does, and shares rows with
the one before, for which both write the same. Rows that lie outside cost more than those that are
there; of M×11264×7168 in bf16 on an H200, in µs (benchmarks/gemm_last_rows.py):

    M                                                  65      80     112     128     208
    gluon_ws 64x64x128, with rows outside           102.6    95.1    59.0    54.0   146.8
                        without                      51.0    51.5    53.2    54.2    87.6
    tma 64x64x128, with                             113.5   101.6    73.7    71.4   152.5
                   without                           67.7    67.8    68.5    70.4   102.0

Columns of B, where few workgroups of many have some outside, make no difference: five widths that
end within a tile of 128, with 64 to 256 rows, took 0.98 to 1.01 of the time they take where they
lie. They are columns of A's if the kernel has A and B swapped.

Tiles are numbered so that `GROUP_M` rows of tiles are walked column by column: workgroups that
run together then share rows of A and columns of B in L2 (the "grouped ordering" of the Triton
matrix-multiplication tutorial; CK Tile calls it the tile partitioner).
"""

import triton
import triton.language as tl

MOST_WAYS = tl.constexpr(16)
"""Workgroups for one stream-K tile, if shares do not cross tiles: of more, the sum takes longer
than they save."""


@triton.jit
def tile_coordinates(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of output tile number `tile` among tiles_m × tiles_n."""
    tiles_in_group = GROUP_M * tiles_n
    first_m = (tile // tiles_in_group) * GROUP_M
    group_m = min(tiles_m - first_m, GROUP_M)
    within = tile % tiles_in_group
    return first_m + within % group_m, within // group_m


@triton.constexpr_function
def axes_inside(a_row, b_row, c_row, scheduler, takes):
    """Along which of m and n the last tile may begin further up. Not where an operand is contiguous
    that way, of which nothing was measured; nor along C's contiguous axis with a matrix in the
    epilogue, whose loads are wider if it is known where tiles begin; nor for stream-K, which cuts
    each tile elsewhere: two tiles' sums differ in their last bits, and which of them came last
    would say what is in C."""
    if scheduler == "stream_k":
        return ""
    matrix = "d" in takes
    rows = "m" if a_row and (c_row or not matrix) else ""
    return rows + ("n" if not b_row and not (c_row and matrix) else "")


@triton.constexpr_function
def _has(axes, axis):
    return axis in axes


@triton.jit
def begin_of(tile, size, TILE: tl.constexpr, AXIS: tl.constexpr, INSIDE: tl.constexpr):
    """First row (column, as AXIS says) of the tiles in row number `tile`; INSIDE as of
    `axes_inside`."""
    begin = tile * TILE
    if _has(INSIDE, AXIS):
        begin = min(begin, max(size - TILE, 0))
    return begin


@triton.jit
def split_range(i, splits, k, TILE_K: tl.constexpr):
    """The part of K, in elements, that split number `i` of `splits` sums."""
    steps = tl.cdiv(k, TILE_K)
    return i * steps // splits * TILE_K, min((i + 1) * steps // splits * TILE_K, k)


@triton.jit
def stream_segment(at, end, steps, k, TILE_K: tl.constexpr):
    """The tile that step `at` belongs to, and the part of its K, in elements, up to step `end`."""
    tile = at // steps
    begin = tile * steps
    return tile, (at - begin) * TILE_K, min((min(end, begin + steps) - begin) * TILE_K, k)


@triton.jit
def across_dies(program, programs, dies):
    """`program` renumbered so that neighbours run on one die of a GPU made of `dies`, each with an
    L2 of its own: the hardware deals programs out to dies in turn."""
    die = program % dies
    return die * (programs // dies) + min(die, programs % dies) + program // dies


@triton.jit
def shared_steps(tiles, steps):
    """Of stream-K, whose first `tiles` tiles are shared, of `steps` K steps each: how many ways
    a tile is cut (1 if shares cross tiles), the steps of a share that crosses tiles, and of all
    tiles' steps laid end to end the first and past the last of this workgroup."""
    programs = tl.num_programs(0)
    program = tl.program_id(0)
    ways = max(min(min(programs // max(tiles, 1), steps), MOST_WAYS), 1)
    share = tl.cdiv(tiles * steps, programs)
    first = program * share
    past = first + share
    if ways > 1:
        begin = program // ways * steps
        first = begin + program % ways * steps // ways
        past = begin + (program % ways + 1) * steps // ways
    return ways, share, min(first, tiles * steps), min(past, tiles * steps)


@triton.jit
def contributors(tile, steps, ways, share):
    """Of a stream-K tile: its first workgroup, how many it has, and 1 if the first one's share
    began in an earlier tile (so that this is its second partial), else 0."""
    begin = tile * steps
    earliest = begin // share
    count = (begin + steps - 1) // share - earliest + 1
    shift = tl.where(earliest * share < begin, 1, 0)
    if ways > 1:
        earliest = tile * ways
        count = ways
        shift = tile * 0
    return earliest, count, shift


@triton.jit
def next_part(at, end, part, splits, steps, SCHEDULER: tl.constexpr):
    """What a persistent workgroup does next: a tile and its K steps from `begin` to `stop`; and
    where `at` and `part` then stand. Of stream-K's shared steps it has those from `at` to `end`
    to do; of the parts (tiles, or splits of tiles) number `part` and every so-many-th on."""
    if SCHEDULER == "split_k":
        tile = part // splits
        i = part % splits
        begin = i * steps // splits
        stop = (i + 1) * steps // splits
        part += tl.num_programs(0)
    elif SCHEDULER == "stream_k":
        if at < end:
            tile = at // steps
            begin = at - tile * steps
            stop = min(steps, begin + end - at)
            at += stop - begin
        else:
            tile = part
            begin = steps * 0
            stop = steps
            part += tl.num_programs(0)
    else:
        tile = part
        begin = steps * 0
        stop = steps
        part += tl.num_programs(0)
    return tile, begin, stop, at, part
