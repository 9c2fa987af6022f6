"""GEMM with CDNA's instructions spelt out, in Gluon (gfx90a, gfx942, gfx950, gfx1250).

Built and inspected, never run on a GPU: no AMD GPU was available. The computation of its source was
checked on NumPy (tests/gemm/gluon_stand_in.py), and the compiler's output by reading the listing.

Idea. `basic` lets Triton decide where and when data moves. This kernel decides: which lane loads
which elements, the layout of a tile in shared memory, the matrix instruction, and that loads for a
later step are issued before the products of the current step begin.

Data movement. A buffer load moves 16 bytes a lane. A lane's offsets never change; the tile's
address is in scalar registers. There are two ways into shared memory.

    registers   gfx90a, gfx942, gfx1250. Two buffers in shared memory, a further tile in registers:
                while step i is multiplied, the tile of step i + 1 (loaded during i - 1) is
                written to the other buffer and that of i + 2 is loaded. The loop has two steps,
                so that each buffer is a separate allocation; then one barrier a step is enough.
                An operand whose K is not contiguous is transposed on the way: a lane loads
                several rows of 16 bytes and writes columns, so that its reads are as wide.
    direct      gfx950. Loads go straight into a ring of STAGES slots, which the hardware fills
                in the order of lanes: so the lanes fetch swizzled chunks. One barrier a step. An
                operand whose K is not contiguous is transposed by the reads (ds_read_b64_tr).

Chunks of 16 bytes are permuted by XOR with the row's number, so that neighbouring lanes read from
different banks. Loads run ahead into the next tile of the workgroup, so the pipeline is never
filled again. C is stored from the layout of the accumulators, transposed so that a lane has
neighbours along C's contiguous dimension. fp8 on gfx950 uses the deep instructions, which take
scales; these are ones.

Edges. Every load and store is masked, in M, N and K. A masked lane's offset is outside the buffer's
bounds, and the hardware returns zero without reading.

Schedulers. `tile` and `persistent` are one binary; the grid differs. Under `split_k` a workgroup
has one part of one tile, and nothing to load ahead when that ends (see `reduce`). Workgroups are
renumbered so that neighbouring tiles, and parts, run on one die (of eight, each with an L2, on
MI300X).

On a CPU, `basic` with the same fields computes the same result. The listings' counts beside those
of `basic`, and what was tried: docs/notes/gemm-gluon_cdna.md.
"""

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.gluon_amd_api import (
    AMDMFMALayout,
    AMDWMMALayout,
    buffer_load,
    buffer_load_to_shared,
    buffer_store,
    commit_group,
    constexpr_function,
    gl,
    jit,
    keep_order,
    load_shared_relaxed,
    mfma,
    mfma_scaled,
    reinterpreted,
    wait_group,
    whole_registers,
    wmma,
    wmma_layout,
)
from tilewright.ops.device.reduce import add, load, reduce, store, take_turn
from tilewright.ops.device.schedule import across_dies, split_range, tile_coordinates


@constexpr_function
def chunk(bits):
    """Elements in 16 bytes: the unit that one lane moves."""
    return 128 // bits


@constexpr_function
def matrix_layout(generation, edge, depth, c_row, warps_m, warps_n):
    """The layout of the accumulators: transposed if C is row-major, so that a lane has neighbours
    along C's contiguous dimension."""
    if generation == 5:
        return wmma_layout(c_row, warps_m, warps_n, [edge, edge, depth])
    return AMDMFMALayout(generation, [edge, edge, depth], c_row, [warps_m, warps_n])


@constexpr_function
def is_wmma(mma):
    """Whether these accumulators belong to instructions of the fifth generation."""
    return isinstance(mma, AMDWMMALayout)


@constexpr_function
def lanes(mma):
    """Lanes of a warp with this accumulator layout."""
    return 32 if is_wmma(mma) else 64


@constexpr_function
def phases(inner, bits, bank_bytes):
    """The swizzle in shared memory of a tile with `inner` elements in a row: the number of rows
    that share a line of all banks, and the number of chunks to permute. Chunk number c of row r is
    stored at c ^ (r // rows % count) of its row, so that neither the rows that a multiplication
    reads nor a row being written conflict in a bank."""
    return max(1, bank_bytes * 8 // (inner * bits)), min(16, inner // chunk(bits))


@constexpr_function
def loading(rows, depth, bits, warps, lanes, k_inner, patched):
    """The elements of a rows × depth tile that each lane moves: 16 bytes along the dimension that
    is contiguous in memory; a warp covers whole rows of it. If that dimension is not K and the tile
    passes through registers (`patched`), a lane has several chunks along K, so that K is contiguous
    when written."""
    vector = chunk(bits)
    if k_inner:
        across = depth // vector
        return gl.BlockedLayout([1, vector], [lanes // across, across], [warps, 1], [1, 0])
    patch = min(vector, rows * depth // (lanes * warps * vector)) if patched else 1
    across = rows // vector
    return gl.BlockedLayout([vector, patch], [across, lanes // across], [1, warps], [0, 1])


@constexpr_function
def plain(k_inner):
    """A tile in shared memory, in the order of memory."""
    return gl.SwizzledSharedLayout(1, 1, 1, [1, 0] if k_inner else [0, 1])


@constexpr_function
def swizzled(rows, depth, bits, k_inner, bank_bytes):
    """A tile in shared memory, in the order of memory, with swizzled chunks."""
    inner = depth if k_inner else rows
    lines, count = phases(inner, bits, bank_bytes)
    return gl.SwizzledSharedLayout(chunk(bits), lines, count, [1, 0] if k_inner else [0, 1])


@constexpr_function
def turned(rows, depth, bits, bank_bytes):
    """A tile in shared memory with K innermost, for writes whose lanes are rows a chunk apart. The
    chunk's number is then also XORed with row // chunk; otherwise all lanes would conflict in one
    bank."""
    vector = chunk(bits)
    lines, count = phases(depth, bits, bank_bytes)
    bases = [[0, 1 << i] for i in range(depth.bit_length() - 1)]
    for i in range(rows.bit_length() - 1):
        row = 1 << i
        moved = (row // lines ^ row // vector) % count
        bases.append([row, moved * vector])
    return gl.SharedLinearLayout(bases)


@constexpr_function
def k_innermost(rows, depth, bits, k_inner, bank_bytes):
    """A tile in shared memory with K innermost, for any layout in memory."""
    if k_inner:
        return swizzled(rows, depth, bits, True, bank_bytes)
    return turned(rows, depth, bits, bank_bytes)


@jit
def _tile(
    ld, rows_left, k_left, ROWS: gl.constexpr, TILE_K: gl.constexpr,
    K_INNER: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Offsets and mask of a tile, relative to its start."""
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    ks = gl.arange(0, TILE_K, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    if K_INNER:
        offsets = rows * ld + ks
    else:
        offsets = rows + ks * ld
    return offsets, (rows < rows_left) & (ks < k_left)


@jit
def _swizzled_tile(
    base, ld, rows_left, k_left, ROWS: gl.constexpr, TILE_K: gl.constexpr,
    K_INNER: gl.constexpr, LAYOUT: gl.constexpr, BANK_BYTES: gl.constexpr,
):  # fmt: skip
    """Offsets and mask of a tile that is swizzled on its way into shared memory. The hardware fills
    shared memory in the order of lanes, so every lane fetches the chunk that belongs at its
    position."""
    BITS: gl.constexpr = base.dtype.element_ty.primitive_bitwidth
    CHUNK: gl.constexpr = chunk(BITS)
    rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    ks = gl.arange(0, TILE_K, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    if K_INNER:
        K_PHASES: gl.constexpr = phases(TILE_K, BITS, BANK_BYTES)
        first = ((ks // CHUNK) ^ (rows // K_PHASES[0] % K_PHASES[1])) * CHUNK
        offsets = rows * ld + (first + ks % CHUNK)
        mask = (rows < rows_left) & (first < k_left)
    else:
        PHASES: gl.constexpr = phases(ROWS, BITS, BANK_BYTES)
        first = ((rows // CHUNK) ^ (ks // PHASES[0] % PHASES[1])) * CHUNK
        offsets = (first + rows % CHUNK) + ks * ld
        mask = (first < rows_left) & (ks < k_left)
    return offsets, mask


@jit
def _base(x, ld, row, k0, K_INNER: gl.constexpr):
    """The address of the tile at (row, k0) of an operand."""
    if K_INNER:
        base = x + (row * ld + k0)
    else:
        base = x + (k0 * ld + row)
    return base


@jit
def _place(
    tile, m, n, TILE_M: gl.constexpr, TILE_N: gl.constexpr, GROUP_M: gl.constexpr
):  # fmt: skip
    """First row and column of output tile number `tile`, and the rows of M and columns of N left
    from there: none if there is no such tile."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    tiles = tiles_m * tiles_n
    tile_m, tile_n = tile_coordinates(min(tile, tiles - 1), tiles_m, tiles_n, GROUP_M)
    row = tile_m * TILE_M
    col = tile_n * TILE_N
    exists = tile < tiles
    return row, col, gl.where(exists, m - row, 0), gl.where(exists, n - col, 0)


@jit
def _ahead(k0, k_end, here, after):
    """The location of the step that begins at `k0` of this tile (see `_place`). From `k_end` on, it
    is a step of the next tile."""
    inside = k0 < k_end
    return (
        gl.where(inside, k0, k0 - k_end),
        gl.where(inside, here[0], after[0]),
        gl.where(inside, here[1], after[1]),
        gl.where(inside, here[2], after[2]),
        gl.where(inside, here[3], after[3]),
    )


@jit
def _multiply(
    acc, a_tile, b_tile, DOT_A: gl.constexpr, DOT_B: gl.constexpr, FORMAT: gl.constexpr,
    DIRECT: gl.constexpr,
):  # fmt: skip
    """`acc` plus the product of two tiles in shared memory, both with K as second dimension."""
    if DIRECT:
        x = load_shared_relaxed(a_tile, DOT_A)
        y = load_shared_relaxed(b_tile.permute((1, 0)), DOT_B)
    else:
        x = a_tile.load(DOT_A)
        y = b_tile.permute((1, 0)).load(DOT_B)
    if is_wmma(acc.type.layout):
        acc = wmma(x, y, acc)
    elif FORMAT == "":
        acc = mfma(x, y, acc)
    else:  # the deep fp8 instructions take scales; without any they are ones
        acc = mfma_scaled(x, None, FORMAT, y, None, FORMAT, acc)
    return acc


@jit
def _indices(tile, AXIS: gl.constexpr):
    """0, 1, 2… along one axis of a tile, for the lanes that hold it."""
    return gl.arange(0, tile.shape[AXIS], layout=gl.SliceLayout(1 - AXIS, tile.type.layout))


@jit
def _load(x, rows, cols, ld, mask, ROW: gl.constexpr):
    """The elements of an epilogue's operand at these rows and columns; see `epilogue.load`."""
    if rows is None:
        offsets = cols
    elif cols is None:
        offsets = rows
    elif ROW:
        offsets = rows * ld + cols
    else:
        offsets = rows + cols * ld
    return buffer_load(x, offsets, mask=mask)


@jit
def _write(
    c, acc, m, n, row, col, ldc, extra, C_ROW: gl.constexpr, TAKES: gl.constexpr,
    FOLD: gl.constexpr, LARGEST: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Apply the epilogue to a whole sum and write the tile to C. Offsets count from C's beginning:
    offsets from the tile's beginning would be equal for all tiles, and the compiler would keep them
    in registers throughout."""
    acc = apply(
        acc, extra, row, col, m, n, CHAIN, TAKES, C_ROW, True, True,
        _indices, _load,
    )  # fmt: skip
    out = rounded(acc, c.dtype.element_ty, LARGEST)
    rows = (row + _indices(out, 0))[:, None]
    cols = (col // FOLD + _indices(out, 1))[None, :]
    if C_ROW:
        offsets = rows * ldc + cols
    else:
        offsets = rows + cols * ldc
    mask = (rows < m) & (cols < n // FOLD)
    buffer_store(out, c, offsets, mask=mask)


@jit
def _finish(
    c, acc, m, n, row, col, ldc, extra, flags, partials, tile, i, splits,
    C_ROW: gl.constexpr,
    SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr, DONE: gl.constexpr,
    INT_ACC: gl.constexpr, TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    CHAIN: gl.constexpr,
):  # fmt: skip
    """Write a tile's sum to C. If it is part `i` of `splits`, combine it with the others first; the
    workgroup that obtains the whole sum writes it. A partial has C's layout, so that a lane's
    neighbours stay neighbours."""
    if SCHEDULER == "split_k":
        base = tile if REDUCTION == "atomic" else tile * splits
        last = take_turn(flags, splits, base, 1, 0, REDUCTION)
        rows = _indices(acc, 0)[:, None]
        cols = _indices(acc, 1)[None, :]
        if C_ROW:
            within = rows * acc.shape[1] + cols
        else:
            within = rows + cols * acc.shape[0]
        whole, acc = reduce(
            acc, last, flags, partials, within, i, splits, base, 1, 0, REDUCTION,
            store, load, add, DONE,
        )  # fmt: skip
        if whole:
            _write(c, acc, m, n, row, col, ldc, extra, C_ROW, TAKES, FOLD, LARGEST, CHAIN)
    else:
        _write(c, acc, m, n, row, col, ldc, extra, C_ROW, TAKES, FOLD, LARGEST, CHAIN)


@jit
def _read(
    a, b, lda, ldb, at, k, TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, LOAD_A: gl.constexpr, LOAD_B: gl.constexpr,
):  # fmt: skip
    """Start loading the tiles of A and B at `at` into registers."""
    k0, row, col, m_left, n_left = at
    offsets, mask = _tile(lda, m_left, k - k0, TILE_M, TILE_K, A_ROW, LOAD_A)
    a_tile = buffer_load(_base(a, lda, row, k0, A_ROW), offsets, mask=mask)
    offsets, mask = _tile(ldb, n_left, k - k0, TILE_N, TILE_K, not B_ROW, LOAD_B)
    b_tile = buffer_load(_base(b, ldb, col, k0, not B_ROW), offsets, mask=mask)
    return a_tile, b_tile


@jit
def _sum_through_registers(
    a, b, a0, b0, a1, b1, xa, xb, here, after, k, steps, lda, ldb,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    MMA: gl.constexpr, DOT_A: gl.constexpr, DOT_B: gl.constexpr, FORMAT: gl.constexpr,
    LOAD_A: gl.constexpr, LOAD_B: gl.constexpr,
):  # fmt: skip
    """The sum of the tile at `here`. Its first step is in a0 and b0, and its next step is being
    loaded to xa and xb. Also returns these for the tile at `after`."""
    k_end = steps * TILE_K
    acc = gl.zeros((TILE_M, TILE_N), gl.int32 if INT_ACC else gl.float32, MMA)
    # The current step is in buffer 0, the next in registers (xa, xb) or on its way there.
    for pair in range(steps // 2):
        k0 = (2 * pair + 2) * TILE_K
        at = _ahead(k0, k_end, here, after)
        ya, yb = _read(a, b, lda, ldb, at, k, TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B)
        acc = _multiply(acc, a0, b0, DOT_A, DOT_B, FORMAT, False)
        a1.store(whole_registers(xa))
        b1.store(whole_registers(xb))
        at = _ahead(k0 + TILE_K, k_end, here, after)
        xa, xb = _read(a, b, lda, ldb, at, k, TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B)
        acc = _multiply(acc, a1, b1, DOT_A, DOT_B, FORMAT, False)
        a0.store(ya)
        b0.store(yb)
    if steps % 2 == 1:
        at = _ahead(k_end + TILE_K, k_end, here, after)
        ya, yb = _read(a, b, lda, ldb, at, k, TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B)
        acc = _multiply(acc, a0, b0, DOT_A, DOT_B, FORMAT, False)
        a0.store(xa)
        b0.store(xb)
        xa = ya
        xb = yb
    return acc, xa, xb


@jit
def _through_registers(
    a, b, c, m, n, k, lda, ldb, ldc, extra, first, stride, steps, flags, partials, i, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    MMA: gl.constexpr, DOT_A: gl.constexpr, DOT_B: gl.constexpr, FORMAT: gl.constexpr,
    BANK_BYTES: gl.constexpr,
    SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr, DONE: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Tile number `first` and every `stride`-th after it, `steps` of K each; operands pass through
    registers into two buffers."""
    ELEMENT: gl.constexpr = a.dtype.element_ty
    BITS: gl.constexpr = ELEMENT.primitive_bitwidth
    LOAD_A: gl.constexpr = loading(TILE_M, TILE_K, BITS, gl.num_warps(), lanes(MMA), A_ROW, True)
    LOAD_B: gl.constexpr = loading(
        TILE_N, TILE_K, BITS, gl.num_warps(), lanes(MMA), not B_ROW, True
    )
    A: gl.constexpr = k_innermost(TILE_M, TILE_K, BITS, A_ROW, BANK_BYTES)
    B: gl.constexpr = k_innermost(TILE_N, TILE_K, BITS, not B_ROW, BANK_BYTES)
    # Separate allocations instead of one for both tiles: otherwise the compiler does not see that
    # a write to one and reads of the other need no barrier between them.
    a0 = gl.allocate_shared_memory(ELEMENT, [TILE_M, TILE_K], A)
    b0 = gl.allocate_shared_memory(ELEMENT, [TILE_N, TILE_K], B)
    a1 = gl.allocate_shared_memory(ELEMENT, [TILE_M, TILE_K], A)
    b1 = gl.allocate_shared_memory(ELEMENT, [TILE_N, TILE_K], B)
    k_end = steps * TILE_K
    tiles = gl.cdiv(m, TILE_M) * gl.cdiv(n, TILE_N)
    here = _place(first, m, n, TILE_M, TILE_N, GROUP_M)
    at = _ahead(0, k_end, here, here)
    xa, xb = _read(a, b, lda, ldb, at, k, TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B)
    a0.store(xa)
    b0.store(xb)
    at = _ahead(TILE_K, k_end, here, here)
    xa, xb = _read(a, b, lda, ldb, at, k, TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B)
    if SCHEDULER == "split_k":  # no loop: flags come after the last use of a full shared memory
        tile = first
        after = _place(tile + stride, m, n, TILE_M, TILE_N, GROUP_M)
        acc, xa, xb = _sum_through_registers(
            a, b, a0, b0, a1, b1, xa, xb, here, after, k, steps, lda, ldb,
            TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, INT_ACC, MMA, DOT_A, DOT_B, FORMAT,
            LOAD_A, LOAD_B,
        )  # fmt: skip
        _finish(
            c, acc, m, n, here[0], here[1], ldc, extra, flags, partials, tile, i, splits, C_ROW,
            SCHEDULER, REDUCTION, DONE, INT_ACC, TAKES, FOLD, LARGEST, CHAIN,
        )  # fmt: skip
    else:
        for tile in range(first, tiles, stride):
            here = _place(tile, m, n, TILE_M, TILE_N, GROUP_M)
            after = _place(tile + stride, m, n, TILE_M, TILE_N, GROUP_M)
            acc, xa, xb = _sum_through_registers(
                a, b, a0, b0, a1, b1, xa, xb, here, after, k, steps, lda, ldb,
                TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, INT_ACC, MMA, DOT_A, DOT_B, FORMAT,
                LOAD_A, LOAD_B,
            )  # fmt: skip
            _finish(
                c, acc, m, n, here[0], here[1], ldc, extra, flags, partials, tile, i, splits, C_ROW,
                SCHEDULER, REDUCTION, DONE, INT_ACC, TAKES, FOLD, LARGEST, CHAIN,
            )  # fmt: skip


@jit
def _copy(
    a, b, lda, ldb, at, k, a_slot, b_slot,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, LOAD_A: gl.constexpr, LOAD_B: gl.constexpr,
    BANK_BYTES: gl.constexpr,
):  # fmt: skip
    """Start loading the tiles of A and B at `at` into a slot of shared memory."""
    k0, row, col, m_left, n_left = at
    base = _base(a, lda, row, k0, A_ROW)
    offsets, mask = _swizzled_tile(
        base, lda, m_left, k - k0, TILE_M, TILE_K, A_ROW, LOAD_A, BANK_BYTES
    )
    buffer_load_to_shared(a_slot, base, offsets, mask=mask)
    base = _base(b, ldb, col, k0, not B_ROW)
    offsets, mask = _swizzled_tile(
        base, ldb, n_left, k - k0, TILE_N, TILE_K, not B_ROW, LOAD_B, BANK_BYTES
    )
    buffer_load_to_shared(b_slot, base, offsets, mask=mask)
    commit_group()


@jit
def _direct(
    a, b, c, m, n, k, lda, ldb, ldc, extra, first, stride, steps, flags, partials, i, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr, INT_ACC: gl.constexpr,
    MMA: gl.constexpr, DOT_A: gl.constexpr, DOT_B: gl.constexpr, FORMAT: gl.constexpr,
    BANK_BYTES: gl.constexpr, STAGES: gl.constexpr,
    SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr, DONE: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """Tile number `first` and every `stride`-th after it, `steps` of K each; operands go straight
    into a ring of STAGES slots."""
    ELEMENT: gl.constexpr = a.dtype.element_ty
    BITS: gl.constexpr = ELEMENT.primitive_bitwidth
    LOAD_A: gl.constexpr = loading(TILE_M, TILE_K, BITS, gl.num_warps(), lanes(MMA), A_ROW, False)
    LOAD_B: gl.constexpr = loading(
        TILE_N, TILE_K, BITS, gl.num_warps(), lanes(MMA), not B_ROW, False
    )
    A: gl.constexpr = swizzled(TILE_M, TILE_K, BITS, A_ROW, BANK_BYTES)
    B: gl.constexpr = swizzled(TILE_N, TILE_K, BITS, not B_ROW, BANK_BYTES)
    a_ring = gl.allocate_shared_memory(ELEMENT, [STAGES, TILE_M, TILE_K], plain(A_ROW))
    b_ring = gl.allocate_shared_memory(ELEMENT, [STAGES, TILE_N, TILE_K], plain(not B_ROW))
    token = gl.arange(
        0, 64 * gl.num_warps(), layout=gl.BlockedLayout([1], [64], [gl.num_warps()], [0])
    )
    tiles = gl.cdiv(m, TILE_M) * gl.cdiv(n, TILE_N)
    k_end = steps * TILE_K
    here = _place(first, m, n, TILE_M, TILE_N, GROUP_M)
    for stage in gl.static_range(STAGES - 1):
        _copy(
            a, b, lda, ldb, _ahead(stage * TILE_K, k_end, here, here), k,
            a_ring.index(stage), b_ring.index(stage),
            TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B, BANK_BYTES,
        )  # fmt: skip
    read = 0
    fill = STAGES - 1
    for tile in range(first, tiles, stride):
        here = _place(tile, m, n, TILE_M, TILE_N, GROUP_M)
        after = _place(tile + stride, m, n, TILE_M, TILE_N, GROUP_M)
        acc = gl.zeros((TILE_M, TILE_N), gl.int32 if INT_ACC else gl.float32, MMA)
        for k0 in range(0, k_end, TILE_K):
            # The current slot is full. Every warp has finished with the previous slot, which is
            # filled next.
            wait_group(STAGES - 2)
            _copy(
                a, b, lda, ldb, _ahead(k0 + (STAGES - 1) * TILE_K, k_end, here, after), k,
                a_ring.index(fill), b_ring.index(fill),
                TILE_M, TILE_N, TILE_K, A_ROW, B_ROW, LOAD_A, LOAD_B, BANK_BYTES,
            )  # fmt: skip
            token = keep_order(token)
            a_tile = reinterpreted(a_ring.index(read), A)
            b_tile = reinterpreted(b_ring.index(read), B)
            acc = _multiply(acc, a_tile, b_tile, DOT_A, DOT_B, FORMAT, True)
            fill = read
            read = gl.where(read + 1 < STAGES, read + 1, 0)
        _finish(
            c, acc, m, n, here[0], here[1], ldc, extra, flags, partials, tile, i, splits, C_ROW,
            SCHEDULER, REDUCTION, DONE, INT_ACC, TAKES, FOLD, LARGEST, CHAIN,
        )  # fmt: skip
    wait_group(0)


@jit
def gemm_gluon_cdna(
    a, b, c, m, n, k, lda, ldb, ldc, extra, dies, flags, partials, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    A_ROW: gl.constexpr, B_ROW: gl.constexpr, C_ROW: gl.constexpr,
    SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr,
    INT_ACC: gl.constexpr, TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    GENERATION: gl.constexpr, MMA_MN: gl.constexpr, MMA_K: gl.constexpr, K_WIDTH: gl.constexpr,
    FORMAT: gl.constexpr, WARPS_M: gl.constexpr, BANK_BYTES: gl.constexpr,
    DIRECT: gl.constexpr, STAGES: gl.constexpr, DONE: gl.constexpr, CHAIN: gl.constexpr,
):  # fmt: skip
    """C = A·B. A is m × k, B is k × n, C is m × n.

    ld*: strides of the outer dimension in elements.
    *_ROW: whether the matrix is row-major.
    dies: of the GPU, see `across_dies`.
    flags, partials, splits: for scheduler split_k.
    """
    WARPS_N: gl.constexpr = gl.num_warps() // WARPS_M
    MMA: gl.constexpr = matrix_layout(GENERATION, MMA_MN, MMA_K, C_ROW, WARPS_M, WARPS_N)
    DOT_A: gl.constexpr = gl.DotOperandLayout(0, MMA, K_WIDTH)
    DOT_B: gl.constexpr = gl.DotOperandLayout(1, MMA, K_WIDTH)
    first = across_dies(gl.program_id(0), gl.num_programs(0), dies)
    stride = gl.num_programs(0)
    steps = gl.cdiv(k, TILE_K)
    i = first * 0
    if SCHEDULER == "split_k":  # one tile, of a product whose K begins with this part
        i = first % splits
        first = first // splits
        stride = gl.cdiv(m, TILE_M) * gl.cdiv(n, TILE_N)
        k_begin, k_stop = split_range(i, splits, k, TILE_K)
        steps = gl.cdiv(k_stop - k_begin, TILE_K)
        k -= k_begin
        a = _base(a, lda, 0, k_begin, A_ROW)
        b = _base(b, ldb, 0, k_begin, not B_ROW)
    if DIRECT:
        _direct(
            a, b, c, m, n, k, lda, ldb, ldc, extra, first, stride, steps,
            flags, partials, i, splits,
            TILE_M, TILE_N, TILE_K, GROUP_M,
            A_ROW, B_ROW, C_ROW, INT_ACC, MMA, DOT_A, DOT_B, FORMAT, BANK_BYTES, STAGES,
            SCHEDULER, REDUCTION, DONE, TAKES, FOLD, LARGEST, CHAIN,
        )  # fmt: skip
    else:
        _through_registers(
            a, b, c, m, n, k, lda, ldb, ldc, extra, first, stride, steps,
            flags, partials, i, splits,
            TILE_M, TILE_N, TILE_K, GROUP_M,
            A_ROW, B_ROW, C_ROW, INT_ACC, MMA, DOT_A, DOT_B, FORMAT, BANK_BYTES,
            SCHEDULER, REDUCTION, DONE, TAKES, FOLD, LARGEST, CHAIN,
        )  # fmt: skip
