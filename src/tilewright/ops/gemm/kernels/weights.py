"""GEMM with operands of 4 bits, or a B of 8 beside an A of 16: converted in registers, multiplied
as fp16 or bf16.

Idea. Weights of 4 bits have a quarter of bf16's bytes, and a product with few rows of A takes as
long as its weights take to arrive. Two elements share a byte, and eight a 32-bit word, but the
matrix units need whole 16-bit elements, neighbours along K in one register. Moving elements between
registers for this costs more than the conversion. But a sum over K may be taken in any order. So
element number e of every word, that is k = e, UNIT + e, 2·UNIT + e, …, becomes one operand of a
separate product, and A's elements are picked in the same way. A K step is UNIT products, each of a
UNIT-th of K, and no element leaves its thread before the matrix units take it.

Conversion. A nibble is shifted and masked into the mantissa of a float, two of a word at once. An
int4, with its sign bit flipped, becomes 128 + 8 + q in bf16 (1024 + 8 + q in fp16), from which 136
(1032) is subtracted. An e2m1's exponent and mantissa become those of an fp16 that is 2^14 times too
small. Both are exact, and so are the products in fp32. 8-bit floats become fp16, or what A is, as
8-bit integers do: a word has four of them, which are converted one by one.

Scales. One scale serves a group of K of a column. In general the products of a group (or of its
part in a K step) are summed from zero, multiplied by the scales in fp32 and added to the
accumulator (see `scale`). This rounds no weight, so a result has only the error of the sum. It
costs a multiply-add for each of TILE_M × TILE_N elements and group: fewer than one for each weight
if TILE_M is less than the group. Scales that are powers of two (e8m0), which come in groups as
short as 32, are multiplied into the elements instead, exactly, in bf16 (ELEMENTWISE). A word lies
within a group, so there is one scale for each word, and a K step may have many groups. Scales are
loaded a step ahead.

Data movement. As in `basic`: ordinary loads, asynchronous copies on sm_80 and later. Words of A and
B run along K, so K is B's contiguous dimension. If rows do not consist of whole words (alignment
under 4), units are two elements and A is read element by element.

Edges. Rows and columns past the end wrap around, and their results are never stored. Words past the
end of K are read as zeros.

What limits it. Instructions, not memory: a weight takes 4 (an e2m1 for bf16 6, with its own scale
9), most of them on integers. On sm_90 `gluon_weights` is 1.2 to 3.6 times as fast for 16-bit A and
serves most cases of decoding; this kernel serves the rest, and every other architecture.
Measurements: docs/notes/gemm-weights.md.
"""

import triton
import triton.language as tl

from tilewright.ops.device.reduce import reduce_split
from tilewright.ops.device.scale import scaled, scales_of_step, size_of
from tilewright.ops.device.schedule import split_range, tile_coordinates
from tilewright.ops.gemm.kernels.basic import write


@triton.constexpr_function
def _word(bits):
    return {8: tl.uint8, 16: tl.uint16, 32: tl.uint32}[bits]


@triton.constexpr_function
def _unsigned(dtype):
    return _word(dtype.primitive_bitwidth)


@triton.jit
def _element(words, E: tl.constexpr, FORMAT: tl.constexpr, DTYPE: tl.constexpr):
    """Element E of each word, as DTYPE (fp16 or bf16). FORMAT: ``int4``, ``e2m1``, or a Triton
    type."""
    if FORMAT == "int4" or FORMAT == "e2m1":
        # After one shift, nibbles E and E + 4 of a 32-bit word are in its two 16-bit halves.
        pairs = words.to(tl.uint32)
        HALF: tl.constexpr = 16 * (E // 4)
        AT: tl.constexpr = 4 * (E % 4)
        if FORMAT == "int4":
            if tl.bfloat16 == DTYPE:
                bits = ((pairs >> AT) & 0x000F000F) ^ 0x43084308
                half = (bits >> HALF).to(tl.uint16).to(tl.bfloat16, bitcast=True)
                out = half - tl.full((), 136.0, tl.bfloat16)
            else:
                bits = ((pairs >> AT) & 0x000F000F) ^ 0x64086408
                half = (bits >> HALF).to(tl.uint16).to(tl.float16, bitcast=True)
                out = half - tl.full((), 1032.0, tl.float16)
        else:
            magnitude = pairs << (9 - AT) if AT < 9 else pairs >> (AT - 9)
            bits = (magnitude & 0x0E000E00) | ((pairs << (12 - AT)) & 0x80008000)
            half = (bits >> HALF).to(tl.uint16).to(tl.float16, bitcast=True)
            out = (half * tl.full((), 16384.0, tl.float16)).to(DTYPE)
    else:
        KIND: tl.constexpr = _unsigned(FORMAT)
        SHIFT: tl.constexpr = E * FORMAT.primitive_bitwidth
        out = (words >> SHIFT).to(KIND).to(FORMAT, bitcast=True).to(DTYPE)
    return out


@triton.jit
def _powers(codes):
    """The bf16 values of e8m0 codes: 2^(code - 127), and NaN for 255."""
    # The byte is bf16's exponent, except that 0 and 255 have another meaning there.
    bits = codes.to(tl.uint16) << 7
    bits = tl.where(codes == 0, 0x0040, tl.where(codes == 255, 0x7FC0, bits))
    return bits.to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def accumulate(
    a, b, scales, zeros, rows, cols, tile_m, tile_n, m, n, k, lda, ldb, k_begin, k_end,
    APART: tl.constexpr, ZEROS: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
    A_ROW: tl.constexpr, MASK_K: tl.constexpr, SCALES: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, DTYPE: tl.constexpr,
    ELEMENTWISE: tl.constexpr, PART: tl.constexpr, UNIT: tl.constexpr,
    A_WORDS: tl.constexpr, A_WORD: tl.constexpr, B_WORD: tl.constexpr,
):  # fmt: skip
    """A tile's sum over K from `k_begin` (a multiple of TILE_K) to `k_end`, with the rows `rows` of
    A and the columns `cols` of B, which lie inside. APART: in any order. ZEROS: B's elements are
    less the zero points `zeros`, of which there is one beside each of B's scales."""
    # A K step consists of parts, each within a group. A word of A has one element if K is not A's
    # contiguous dimension.
    PER_WORD: tl.constexpr = UNIT // A_WORDS
    UNITS: tl.constexpr = PART // UNIT
    units = tl.arange(0, UNITS)
    first = k_begin // UNIT + units
    if A_ROW:
        a_rows = (a + rows[:, None] * lda).to(tl.pointer_type(_word(A_WORD)))
        a_ptrs = a_rows + first[None, :] * A_WORDS
        a_next = 1
        a_step = UNITS * A_WORDS
    else:
        a_columns = a.to(tl.pointer_type(_word(A_WORD))) + rows[:, None]
        a_ptrs = a_columns + first[None, :] * (UNIT * lda)
        a_next = lda
        a_step = PART * lda
    b_columns = (b + cols[None, :] * ldb).to(tl.pointer_type(_word(B_WORD)))
    b_ptrs = b_columns + first[:, None]
    A_K: tl.constexpr = size_of(SCALES, 0, 1) if ELEMENTWISE else 0
    B_K: tl.constexpr = size_of(SCALES, 1, 0) if ELEMENTWISE else 0
    FIRST: tl.constexpr = 3 if A_K > 0 else 0
    if A_K > 0:
        sa_ptrs = scales[0] + (rows // size_of(SCALES, 0, 0))[:, None] * scales[1]
    if B_K > 0:
        B_COLS: tl.constexpr = size_of(SCALES, 1, 1)
        sb_ptrs = scales[FIRST] + (cols // B_COLS)[None, :] * scales[FIRST + 2]

    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    row = tile_m * TILE_M
    col = tile_n * TILE_N
    SUMS: tl.constexpr = SCALES != "" and not ELEMENTWISE
    # Scales are loaded a step ahead, so only the next step waits for them.
    at = tl.minimum(k_begin + units * UNIT, k - 1)
    if SUMS:
        coming = scales_of_step(
            scales, row, col, rows, cols, k_begin, m, n, APART, TILE_M, TILE_N, SCALES
        )
    if ZEROS:
        zero_ptrs = zeros[0] + cols // size_of(SCALES, 1, 1) * zeros[2]
        coming_zero = tl.load(zero_ptrs + k_begin // size_of(SCALES, 1, 0) * zeros[1])
    if A_K > 0:
        a_codes = tl.load(sa_ptrs + (at // A_K * scales[2])[None, :])
    if B_K > 0:
        b_codes = tl.load(sb_ptrs + (at // B_K * scales[FIRST + 1])[:, None])
    for k0 in range(k_begin, k_end, TILE_K):
        for part in tl.static_range(TILE_K // PART):
            k1 = k0 + part * PART
            at = tl.minimum(k1 + PART + units * UNIT, k - 1)
            if SUMS:
                factors = coming
                after = tl.minimum(k1 + PART, k - 1)
                coming = scales_of_step(
                    scales, row, col, rows, cols, after, m, n, APART, TILE_M, TILE_N, SCALES
                )
            if ZEROS:
                zero = coming_zero.to(DTYPE)[None, :]
                after = tl.minimum(k1 + PART, k - 1)
                coming_zero = tl.load(zero_ptrs + after // size_of(SCALES, 1, 0) * zeros[1])
            if A_K > 0:
                a_powers = _powers(a_codes)
                a_codes = tl.load(sa_ptrs + (at // A_K * scales[2])[None, :])
            if B_K > 0:
                b_powers = _powers(b_codes)
                b_codes = tl.load(sb_ptrs + (at // B_K * scales[FIRST + 1])[:, None])
            in_k = units < (k - k1) // UNIT
            if MASK_K:
                b_words = tl.load(b_ptrs, mask=in_k[:, None], other=0)
            else:
                b_words = tl.load(b_ptrs)
            if ELEMENTWISE:
                partial = acc
            else:
                partial = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
            for word in tl.static_range(A_WORDS):
                if MASK_K:
                    a_words = tl.load(a_ptrs + word * a_next, mask=in_k[None, :], other=0)
                else:
                    a_words = tl.load(a_ptrs + word * a_next)
                for e in tl.static_range(PER_WORD):
                    left = _element(a_words, e, A_FORMAT, DTYPE)
                    right = _element(b_words, word * PER_WORD + e, B_FORMAT, DTYPE)
                    if ZEROS:
                        right = right - zero
                    if A_K > 0:
                        left = left * a_powers
                    if B_K > 0:
                        right = right * b_powers
                    partial = tl.dot(left, right, partial)
            if ELEMENTWISE:
                acc = partial
            elif SUMS:
                acc += scaled(partial, factors[0], factors[1], SCALES)
            else:
                acc += partial
            a_ptrs += a_step
            b_ptrs += UNITS
    return acc


@triton.jit
def gemm_weights(
    a, b, c, m, n, k, lda, ldb, ldc, extra, scales, flags, partials, splits,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_ROW: tl.constexpr, C_ROW: tl.constexpr,
    SCHEDULER: tl.constexpr, REDUCTION: tl.constexpr,
    TAKES: tl.constexpr, FOLD: tl.constexpr, LARGEST: tl.constexpr, SCALES: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr, MASK_K: tl.constexpr,
    A_FORMAT: tl.constexpr, B_FORMAT: tl.constexpr, BF16: tl.constexpr, ELEMENTWISE: tl.constexpr,
    PART: tl.constexpr, UNIT: tl.constexpr,
    A_WORDS: tl.constexpr, A_WORD: tl.constexpr, B_WORD: tl.constexpr,
    DONE: tl.constexpr, CHAIN: tl.constexpr,
):  # fmt: skip
    """C = A·B with B, and perhaps A, of 4-bit elements: bytes with K contiguous, and `ld*` counted
    in bytes; or B of 8 bits beside A of 16. Arguments as in `basic`, and:

    A_FORMAT, B_FORMAT: their formats; ``""``: an operand has whole elements.
    BF16: multiply as bf16, else as fp16.
    ELEMENTWISE: multiply scales, all of them e8m0, into the elements.
    PART: otherwise a K step consists of parts of this many elements, each within a group.
    UNIT: elements of a unit. A part consists of units; a unit is one word of B and A_WORDS words of
        A.
    B_WORD, A_WORD: bits of these words.
    """
    ELEMENT: tl.constexpr = a.dtype.element_ty
    FORMAT: tl.constexpr = ELEMENT if A_FORMAT == "" else A_FORMAT
    OF_B: tl.constexpr = b.dtype.element_ty if B_FORMAT == "" else B_FORMAT
    DTYPE: tl.constexpr = tl.bfloat16 if BF16 else tl.float16
    tiles_m = tl.cdiv(m, TILE_M)
    tiles_n = tl.cdiv(n, TILE_N)
    program = tl.program_id(0)
    whole = True
    if SCHEDULER == "split_k":
        tile_m, tile_n = tile_coordinates(program // splits, tiles_m, tiles_n, GROUP_M)
        k_begin, k_end = split_range(program % splits, splits, k, TILE_K)
    else:
        tile_m, tile_n = tile_coordinates(program, tiles_m, tiles_n, GROUP_M)
        k_begin = 0
        k_end = k
    rows = (tile_m * TILE_M + tl.arange(0, TILE_M)) % m
    cols = (tile_n * TILE_N + tl.arange(0, TILE_N)) % n
    acc = accumulate(
        a, b, scales, (), rows, cols, tile_m, tile_n, m, n, k, lda, ldb, k_begin, k_end, False,
        False,
        TILE_M, TILE_N, TILE_K, A_ROW, MASK_K, SCALES, FORMAT, OF_B, DTYPE, ELEMENTWISE,
        PART, UNIT, A_WORDS, A_WORD, B_WORD,
    )  # fmt: skip
    if SCHEDULER == "split_k":
        whole, acc = reduce_split(
            acc, flags, partials, program // splits, program % splits, splits,
            TILE_M, TILE_N, REDUCTION, DONE,
        )  # fmt: skip
    if whole:
        write(
            c, acc, m, n, ldc, extra, tile_m, tile_n, TILE_M, TILE_N,
            C_ROW, TAKES, FOLD, LARGEST, MASK_M, MASK_N, CHAIN,
        )  # fmt: skip
