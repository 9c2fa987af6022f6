"""Which part of the product a workgroup computes; shared by every GEMM kernel.

    tile        one workgroup for each tile of C
    persistent  as many workgroups as compute units; each walks tiles with that stride
    split_k     `splits` workgroups for each tile, each with a part of K
    stream_k    as many workgroups as compute units. The K steps of the first `splits` tiles are
                laid end to end and cut into equal shares; the other tiles run as in `persistent`
                (the hybrid of Osama et al., "Stream-K: Work-centric Parallel Decomposition for
                Dense Matrix-Matrix Multiplication on the GPU", PPoPP 2023, arXiv:2301.03598).
                The shared tiles come first, so that their sums are combined while the others are
                computed. If there are two workgroups or more for each shared tile, a share does
                not cross tiles: each tile gets equally many workgroups, and workgroups with the
                same part of K read A and B together, once from memory and then from L2. Shares
                that cross tiles begin everywhere in K, and no two workgroups read the same data
                at the same time

The last row (and column) of tiles may reach beyond the matrix. Where the copy engine loads tiles,
it begins earlier instead (`begin_of`) and ends with the matrix, because padding rows (rows past the
matrix) cost more than real rows (docs/notes/device-schedule.md). It then shares rows with the tile
before, and both write the same values there.

Tiles are numbered so that `GROUP_M` rows of tiles are walked column by column: workgroups that run
together then share rows of A and columns of B in L2 (the "grouped ordering" of the Triton
matrix-multiplication tutorial; CK Tile calls it the tile partitioner).
"""

import triton
import triton.language as tl

MOST_WAYS = tl.constexpr(16)
"""Most workgroups for one stream-K tile if shares do not cross tiles. With more, combining the sum
takes longer than they save."""


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
    """The axes, of m and n, along which the last tile may begin earlier. An axis along which an
    operand is contiguous is excluded, because nothing was measured there. So is C's contiguous axis
    if the epilogue has a matrix, whose loads are wider if the tile's start is known. stream-K is
    excluded entirely: it cuts each tile elsewhere, so the sums of two overlapping tiles differ in
    their last bits, and C would depend on which tile comes last."""
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
    """First row (or column, by AXIS) of the tiles in row number `tile`; INSIDE comes from
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
    """The tile that contains step `at`, and the part of its K, in elements, up to step `end`."""
    tile = at // steps
    begin = tile * steps
    return tile, (at - begin) * TILE_K, min((min(end, begin + steps) - begin) * TILE_K, k)


@triton.jit
def across_dies(program, programs, dies):
    """`program` renumbered so that neighbours run on one die of a GPU with `dies` dies, each with
    its own L2: the hardware distributes programs to dies in turn."""
    die = program % dies
    return die * (programs // dies) + min(die, programs % dies) + program // dies


@triton.jit
def shared_steps(tiles, steps):
    """For stream-K with `tiles` shared tiles of `steps` K steps each. Returns the number of ways
    each tile is cut (1 if shares cross tiles), the steps of a share that crosses tiles, and this
    workgroup's first step and the step past its last, counting the steps of all shared tiles laid
    end to end."""
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
    """For a stream-K tile: its first workgroup, its number of workgroups, and 1 if the first one's
    share began in an earlier tile (so that this is its second partial), else 0."""
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
    """The next work of a persistent workgroup: a tile and its K steps from `begin` to `stop`, and
    the new values of `at` and `part`. `at` to `end` are its remaining shared steps under stream-K.
    `part` is the number of its next tile (or split of a tile); the following ones are a fixed
    stride apart."""
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
