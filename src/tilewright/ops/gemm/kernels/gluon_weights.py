"""Few rows of A by 4-bit weights from the copy engine, in Gluon (sm_90).

Idea. As in `weights`, elements are unpacked in registers, and a sum over K may be taken in any
order. Here C is computed transposed, as in `small_m`: B's columns are the rows of a matrix
instruction, and B is the operand that comes from registers. A thread multiplies the elements that
it unpacks, and nothing of B goes back through shared memory. There are two ways:

Up to 16 rows of A, mma.sync. A word of B is eight neighbours along K of one column. Two elements
that share a register of the instruction must be 16 bits apart; after one shift, elements e and e +
4 of a word are. So a thread's words are its own operands, with K in another order. A's elements,
read 16 bytes a thread, are put in the same order by a permutation of bytes.

From 32 rows on, wgmma. It reads A from shared memory itself, so K must be in its order: of every
word a thread needs only one byte. So four neighbours read the same words (one access serves all),
and a permutation puts the two elements of a thread's byte 16 bits apart.

Conversion. As in `weights`, two elements at once: shift (or permute), mask, subtract; 1.5 or 2
instructions for an int4, 2.5 or 3 for an e2m1, which is multiplied by 2^126 (in fp16 2^14).

Scales. The products of a group are summed from zero and added times the scale of their column, in
fp32. Scales are read a step ahead, straight into the threads that multiply by them.

Data movement. A ring of STAGES slots, each with 256 of K: 128 bytes of every column, and A's rows,
loaded by the copy engine. Threads request a later step when they have finished with the previous
one. Few stages and many workgroups to a multiprocessor are best: unpacking needs warps more than it
needs bytes in flight.

Edges. The copy engine reads elements outside as zeros; C is masked.

On a CPU. Gluon has no interpreter; `weights` with the same fields computes the same result there.

What limits it. Few rows: instructions, 2.3 for each weight of a large matrix. From 32 rows: every
workgroup reads all of A from L2. Measured on an H200 against bf16 weights (geometric means of 20
shapes): 1.90 for int4 in groups of 128, 1.45 in groups of 32, 1.20 for MX fp4. More measurements,
and what was tried: docs/notes/gemm-gluon_weights.md.
"""

from tilewright.ops.device.epilogue import apply, rounded
from tilewright.ops.device.gluon_api import (
    constexpr_function,
    fence_async_shared,
    gl,
    jit,
    mbarrier,
    mma_v2,
    tma_load,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tilewright.ops.device.gluon_ring import turned
from tilewright.ops.device.gluon_store import cut, indices
from tilewright.ops.device.reduce import reduce, take_turn
from tilewright.ops.device.scale import number
from tilewright.ops.device.schedule import split_range, tile_coordinates

WORDS = gl.constexpr(32)
"""Words of a column in a step, with eight elements each: 128 bytes, the span of a swizzle."""

PART = gl.constexpr(64)
"""Elements of K that are unpacked at once: 128 bytes of a row of A."""


@constexpr_function
def _convert(word, at, kind, bf16):
    """PTX that makes 16-bit floats x of the four bits from bit `at` on of each half of `word`; c
    holds `_constant`."""
    type = "bf16x2" if bf16 else "f16x2"
    if kind == "int4":
        return [
            f"shr.u32 x, {word}, {at};",
            f"lop3.b32 x, x, 0x000F000F, {_constant(kind, bf16)}, 0x6A;",
            f"sub.{type} x, x, c;",
        ]
    exponent = 6 if bf16 else 9
    up = exponent - at
    return [
        f"shl.b32 y, {word}, {12 - at};",
        f"shl.b32 x, {word}, {up};" if up >= 0 else f"shr.u32 x, {word}, {-up};",
        f"and.b32 x, x, {0x00070007 << exponent};",
        "lop3.b32 x, y, 0x80008000, x, 0xEA;",
        f"mul.{type} x, x, c;",
    ]


@constexpr_function
def _constant(kind, bf16):
    """For int4 136 (1032): a weight with its sign bit flipped goes into the mantissa of this
    number, which is then subtracted. For e2m1 2^126 (2^14): the factor by which its exponent is
    off."""
    if kind == "int4":
        return "0x43084308" if bf16 else "0x64086408"
    return "0x7E807E80" if bf16 else "0x74007400"


@constexpr_function
def _unpack_word(kind, bf16):
    """PTX that makes 16-bit floats $0 to $7 of the eight elements of word $8."""
    lines = [".reg .b32 x, y, c;", f"mov.b32 c, {_constant(kind, bf16)};"]
    for e in range(4):
        lines += [*_convert("$8", 4 * e, kind, bf16), f"mov.b32 {{${e}, ${e + 4}}}, x;"]
    return "{" + " ".join(lines) + "}"


@constexpr_function
def _unpack_byte(kind, bf16):
    """PTX that makes $0 and $1 of the two elements of one byte of word $2; $3 selects the byte."""
    lines = [".reg .b32 w, x, y, c;", f"mov.b32 c, {_constant(kind, bf16)};"]
    lines += ["shr.u32 y, $2, 4;", "prmt.b32 w, $2, y, $3;", *_convert("w", 0, kind, bf16)]
    lines.append("mov.b32 {$0, $1}, x;")
    return "{" + " ".join(lines) + "}"


@constexpr_function
def _rows(warps, tile, instruction):
    """Bases of warps and registers for `tile` rows over `warps` of `instruction` rows each."""
    of_warps = [[instruction << i, 0] for i in range(warps.bit_length() - 1)]
    of_registers = []
    row = instruction * warps
    while row < tile:
        of_registers.append([row, 0])
        row *= 2
    return of_warps, of_registers


@constexpr_function
def _columns_of_b(tile_n, warps, lanes_at):
    """The layout of a step's words of B in which a thread holds its own operands of mma.sync. Four
    neighbours share a column; bits `lanes_at` and the next of a word's number tell them apart."""
    of_warps, rows = _rows(warps, tile_n, 16)
    words = [[0, 1 << i] for i in range(5) if i not in (lanes_at, lanes_at + 1)]
    lanes = [[0, 1 << lanes_at], [0, 2 << lanes_at], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([*words, [8, 0], *rows], lanes, of_warps, [], [tile_n, 32])


@constexpr_function
def _bytes_of_b(tile_n, warps, words):
    """The layout of [columns, words, bytes] of B in which a thread holds its own operands of wgmma,
    with K in its order: each of four neighbours has one byte of every word."""
    of_warps, rows = _rows(warps, tile_n, 16)
    of_words = [[0, 1 << i, 0] for i in range(words.bit_length() - 1)]
    lanes = [[0, 0, 1], [0, 0, 2], [1, 0, 0], [2, 0, 0], [4, 0, 0]]
    return gl.DistributedLinearLayout(
        [*of_words, [8, 0, 0], *([r, 0, 0] for r, _ in rows)],
        lanes,
        [[r, 0, 0] for r, _ in of_warps],
        [],
        [tile_n, words, 4],
    )


@constexpr_function
def _words_of_b(tile_n, warps, lanes_at, wide):
    """The layout in which a step's words of B are read."""
    if wide:
        return gl.SliceLayout(2, _bytes_of_b(tile_n, warps, 32))
    return _columns_of_b(tile_n, warps, lanes_at)


@constexpr_function
def _mma(tile_m, warps, wide):
    """The layout of the sums, with B's columns in the place of rows."""
    if wide:
        return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, tile_m, 16])
    return gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])


@constexpr_function
def _rows_of_a(tile_m, warps, lanes_at):
    """The matching layout of a step of A: eight elements for each word of B, and every warp holds
    all of A."""
    _, rows = _rows(1, tile_m, 8)
    lanes_at += 3
    elements = [[0, 1 << i] for i in range(6) if i not in (lanes_at, lanes_at + 1)]
    lanes = [[0, 1 << lanes_at], [0, 2 << lanes_at], [1, 0], [2, 0], [4, 0]]
    warp = [[0, 0] for _ in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout([*elements, *rows], lanes, warp, [], [tile_m, 64])


@jit
def _operands_of_b(words, FORMAT: gl.constexpr, DTYPE: gl.constexpr, SUMS: gl.constexpr):
    """A part's words of B as SUMS operands of products, each [columns, K in its own order]."""
    N: gl.constexpr = words.shape[0]
    e0, e1, e2, e3, e4, e5, e6, e7 = gl.inline_asm_elementwise(
        _unpack_word(FORMAT, gl.bfloat16 == DTYPE),
        "=h,=h,=h,=h,=h,=h,=h,=h,r",
        [words],
        dtype=[gl.int16, gl.int16, gl.int16, gl.int16, gl.int16, gl.int16, gl.int16, gl.int16],
        is_pure=True,
        pack=1,
    )
    even = gl.join(gl.join(e0, e4), gl.join(e2, e6))
    odd = gl.join(gl.join(e1, e5), gl.join(e3, e7))
    x = gl.join(even, odd).to(
        DTYPE, bitcast=True
    )  # first the halves, then bits 1 and 0 of the element
    x = x.reshape((N, SUMS, 4, 2 // SUMS, 2, 2, 2)).permute((0, 1, 5, 6, 3, 2, 4))
    return cut(x.reshape((N, PART)), SUMS)


@jit
def _operands_of_a(x, SUMS: gl.constexpr):
    """The matching operands of A, with K in the same order."""
    M: gl.constexpr = x.shape[0]
    x = x.reshape((M, SUMS, 4, 2 // SUMS, 2, 2, 2)).permute((0, 1, 5, 6, 3, 2, 4))
    return cut(x.reshape((M, PART)), SUMS)


@jit
def _operand_of_bytes(
    words, FORMAT: gl.constexpr, DTYPE: gl.constexpr, WARPS: gl.constexpr, LEFT: gl.constexpr
):  # fmt: skip
    """A part's words of B as one operand, with K in its order."""
    N: gl.constexpr = words.shape[0]
    BYTES: gl.constexpr = _bytes_of_b(N, WARPS, 8)
    words = gl.convert_layout(words, gl.SliceLayout(2, BYTES), assert_trivial=True)
    t = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, BYTES)))
    # Selects among the bytes of a word and, behind them, of the word shifted down: t twice, 4 + t
    # twice.
    pick = t * 0x1111 + 0x4400
    low, high = gl.inline_asm_elementwise(
        _unpack_byte(FORMAT, gl.bfloat16 == DTYPE),
        "=h,=h,r,r",
        [words[:, :, None], pick[None, :][:, None, :]],
        dtype=[gl.int16, gl.int16],
        is_pure=True,
        pack=1,
    )
    x = gl.join(low, high).to(DTYPE, bitcast=True).reshape((N, PART))
    return gl.convert_layout(x, LEFT, assert_trivial=True)


@jit
def _scales(scales, cols, group, n, COUNT: gl.constexpr, FIRST: gl.constexpr, groups):
    """Scales of COUNT groups from `group` on, for the columns `cols`."""
    at = gl.minimum(group + FIRST, groups - 1)
    x = (number(gl.load(scales[0] + at * scales[1] + cols * scales[2], mask=cols < n, other=0)),)
    if FIRST + 1 < COUNT:
        x = x + _scales(scales, cols, group, n, COUNT, FIRST + 1, groups)
    return x


@jit
def _ask(a, b, a_tiles, b_tiles, full, stage, row, col, k0, more):
    """Request the step at `k0`."""
    # The compiler puts a barrier before this, so all warps have finished with the slot.
    ready = full.index(stage)
    mbarrier.expect(ready, a.block_type.nbytes + b.block_type.nbytes, pred=more)
    tma_load(a, [row, k0], ready, a_tiles.index(stage), pred=more)
    tma_load(b, [col, k0 // 8], ready, b_tiles.index(stage), pred=more)


@jit
def gemm_gluon_weights(
    a, b, c, m, n, k, ldc, extra, scales, flags, partials, splits,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    C_ROW: gl.constexpr, SCHEDULER: gl.constexpr, REDUCTION: gl.constexpr,
    TAKES: gl.constexpr, FOLD: gl.constexpr, LARGEST: gl.constexpr,
    B_FORMAT: gl.constexpr, GROUP: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr,
    CHAIN: gl.constexpr,
):  # fmt: skip
    """C = A·B. Arguments as in `basic`, except:

    a, b: tensor descriptors of A, row-major, and of B as words of eight elements along K, [columns,
        words].
    c: a pointer.
    B_FORMAT: ``int4`` or ``e2m1``.
    GROUP: elements of a column that a scale serves; 0 without scales.
    scales: a pointer and the strides along K and along columns.
    WIDE: multiply by wgmma.
    """
    WARPS: gl.constexpr = gl.num_warps()
    MMA: gl.constexpr = _mma(TILE_M, WARPS, WIDE)
    LANES_AT: gl.constexpr = 0 if GROUP == 32 else 1
    B_LAYOUT: gl.constexpr = _words_of_b(TILE_N, WARPS, LANES_AT, WIDE)
    A_LAYOUT: gl.constexpr = _rows_of_a(TILE_M, WARPS, LANES_AT)
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    GROUPS: gl.constexpr = 1 if GROUP == 0 or GROUP > TILE_K else TILE_K // GROUP
    SPAN: gl.constexpr = min(GROUP, TILE_K)
    SUMS: gl.constexpr = 2 if GROUP == 32 else 1
    DTYPE: gl.constexpr = a.dtype

    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, TILE_N)
    program = gl.program_id(0)
    if SCHEDULER == "split_k":
        tile_m, tile_n = tile_coordinates(program // splits, tiles_m, tiles_n, GROUP_M)
        k_begin, k_end = split_range(program % splits, splits, k, TILE_K)
    else:
        tile_m, tile_n = tile_coordinates(program, tiles_m, tiles_n, GROUP_M)
        k_begin = 0
        k_end = k
    row = tile_m * TILE_M
    col = tile_n * TILE_N

    a_tiles = gl.allocate_shared_memory(DTYPE, [STAGES, TILE_M, TILE_K], a.layout)
    b_tiles = gl.allocate_shared_memory(b.dtype, [STAGES, TILE_N, WORDS], b.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    fence_async_shared()
    for stage in gl.static_range(STAGES - 1):
        k0 = k_begin + stage * TILE_K
        _ask(a, b, a_tiles, b_tiles, full, stage, row, col, k0, k0 < k_end)

    cols = col + gl.arange(0, TILE_N, gl.SliceLayout(1, MMA))
    acc = gl.zeros((TILE_N, TILE_M), gl.float32, MMA)
    if GROUP > 0:
        groups = gl.cdiv(k, GROUP)
        coming = _scales(scales, cols, k_begin // GROUP, n, GROUPS, 0, groups)
    stage = 0
    free = STAGES - 1
    phase = 0
    for k0 in range(k_begin, k_end, TILE_K):
        ahead = k0 + (STAGES - 1) * TILE_K
        _ask(a, b, a_tiles, b_tiles, full, free, row, col, ahead, ahead < k_end)
        if GROUP > 0:
            factors = coming
            coming = _scales(scales, cols, (k0 + TILE_K) // GROUP, n, GROUPS, 0, groups)
        mbarrier.wait(full.index(stage), phase)
        words = cut(b_tiles.index(stage).load(B_LAYOUT), TILE_K // PART)
        for i in gl.static_range(TILE_K // PART):
            rows = a_tiles.index(stage).slice(i * PART, PART, 1)
            if WIDE:
                left = _operand_of_bytes(words[i], B_FORMAT, DTYPE, WARPS, LEFT)
                right = rows.permute((1, 0))
                if GROUP == 0:
                    acc = warpgroup_mma(left, right, acc, is_async=True)
                else:
                    if i * PART % SPAN == 0:
                        part = gl.zeros((TILE_N, TILE_M), gl.float32, MMA)
                    part = warpgroup_mma(left, right, part, is_async=True)
                    if (i + 1) * PART % SPAN == 0:
                        part = warpgroup_mma_wait(0, deps=(part,))
                        acc += part * factors[i * PART // SPAN][:, None]
            else:
                lefts = _operands_of_b(words[i], B_FORMAT, DTYPE, SUMS)
                rights = _operands_of_a(rows.load(A_LAYOUT), SUMS)
                for j in gl.static_range(SUMS):
                    left = gl.convert_layout(lefts[j], LEFT, assert_trivial=True)
                    right = gl.convert_layout(rights[j].permute((1, 0)), RIGHT, assert_trivial=True)
                    if GROUP == 0:
                        acc = mma_v2(left, right, acc)
                    else:
                        if i * PART % SPAN == 0:
                            part = gl.zeros((TILE_N, TILE_M), gl.float32, MMA)
                        part = mma_v2(left, right, part)
                        if (i + 1) * PART % SPAN == 0:
                            acc += part * factors[(i * PART + j * 32) // SPAN][:, None]
        if WIDE and GROUP == 0:
            acc = warpgroup_mma_wait(0, deps=(acc,))
        free = stage
        stage, phase = turned(stage, phase, STAGES)

    whole = True
    if SCHEDULER == "split_k":
        of_n = gl.arange(0, TILE_N, gl.SliceLayout(1, MMA))
        of_m = gl.arange(0, TILE_M, gl.SliceLayout(0, MMA))
        within = of_n[:, None] * TILE_M + of_m[None, :]
        tile = program // splits
        base = tile * splits
        last = take_turn(flags, splits, base, 1, 0, REDUCTION)
        whole, acc = reduce(
            acc, last, flags, partials, within, program % splits, splits, base, 1, 0, REDUCTION
        )
    if whole:
        ALONG: gl.constexpr = TILE_N // 4 if TILE_N < 128 else 32
        OUT: gl.constexpr = gl.BlockedLayout([1, 4], [32 // ALONG, ALONG], [WARPS, 1], [1, 0])
        out = gl.convert_layout(acc.permute((1, 0)), OUT)
        out = apply(out, extra, row, col, m, n, CHAIN, TAKES, C_ROW, True, True, indices)
        out = rounded(out, c.dtype.element_ty, LARGEST)
        offs_m = row + indices(out, 0)
        offs_n = tile_n * (TILE_N // FOLD) + indices(out, 1)
        if C_ROW:
            ptrs = c + offs_m[:, None] * ldc + offs_n[None, :]
        else:
            ptrs = c + offs_m[:, None] + offs_n[None, :] * ldc
        gl.store(ptrs, out, mask=(offs_m < m)[:, None] & (offs_n < n // FOLD)[None, :])
