"""Operations on the accumulator before it is stored, shared by every GEMM kernel.

Idea. A kernel gets the operations of its epilogue as a compile-time tuple of functions, CHAIN, and
their operands as a run-time tuple of pointers, `extra`. `apply` loads each operand for the current
tile, as fp32, and calls the functions in order. An empty chain leaves nothing in the binary. TAKES
lists the operands of each operation: one letter for each operand (n, m: a vector over columns or
rows; d: a matrix with C's layout; s: a scalar), and a comma between operations. If there is a
matrix, the last element of `extra` is the leading dimension that all matrices share.

A kernel for few rows `hold`s its operands: it loads them before its sums, whose end then does not
wait for memory, and passes them to `apply` in place of the pointers.

Edges. Loads are masked where the kernel's stores are. NaN propagates through every operation.
Accuracy. fp32 throughout, with the target's approximate division and exponential (a few ulp).
"""

import triton
import triton.language as tl


@triton.constexpr_function
def first_operand(takes, i):
    """The place of operation i's first operand among all."""
    return sum(len(of) for of in takes.split(",")[:i])


@triton.constexpr_function
def operand_count(takes, i):
    """How many operands operation i has."""
    return len(takes.split(",")[i])


@triton.constexpr_function
def all_operands(takes):
    """The letters of all operands."""
    return takes.replace(",", "")


@triton.constexpr_function
def operand_kind(takes, j):
    """The letter of operand j."""
    return all_operands(takes)[j]


@triton.jit
def load(x, rows, cols, ld, mask, ROW: tl.constexpr):
    """The elements at these rows and columns of a matrix at `x`. For a vector, `rows` or `cols` is
    None."""
    if rows is None:
        ptrs = x + cols
    elif cols is None:
        ptrs = x + rows
    elif ROW:
        ptrs = x + rows * ld + cols
    else:
        ptrs = x + rows + cols * ld
    return tl.load(ptrs, mask=mask)


@triton.jit
def _load(
    extra, J: tl.constexpr, rows, cols, m, n,
    TAKES: tl.constexpr, ROW: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    LOAD: tl.constexpr,
):  # fmt: skip
    KIND: tl.constexpr = operand_kind(TAKES, J)
    if KIND == "n":
        x = LOAD(extra[J], None, cols, 0, (cols < n) if MASK_N else None, ROW)[None, :]
    elif KIND == "m":
        x = LOAD(extra[J], rows, None, 0, (rows < m) if MASK_M else None, ROW)[:, None]
    elif KIND == "d":
        mask = None
        if MASK_M and MASK_N:
            mask = (rows < m)[:, None] & (cols < n)[None, :]
        elif MASK_M:
            mask = (rows < m)[:, None]
        elif MASK_N:
            mask = (cols < n)[None, :]
        x = LOAD(extra[J], rows[:, None], cols[None, :], extra[len(extra) - 1], mask, ROW)
    else:
        x = tl.load(extra[J])
    return x.to(tl.float32)


@triton.jit
def held(x, rows, cols, ld, mask, ROW: tl.constexpr):
    """The LOAD of operands that are loaded already (`hold`)."""
    return x


@triton.constexpr_function
def may_hold(takes, fold):
    """Whether all operands are vectors that belong to the columns and rows of the sums."""
    return fold == 1 and takes != "" and all(kind in "mn" for kind in all_operands(takes))


@triton.jit
def _hold_one(
    x, rows, cols, m, n, KIND: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr
):  # fmt: skip
    if KIND == "n":
        out = load(x, None, cols, 0, (cols < n) if MASK_N else None, True)
    else:
        out = load(x, rows, None, 0, (rows < m) if MASK_M else None, True)
    return out


@triton.jit
def hold(
    extra, rows, cols, m, n, TAKES: tl.constexpr, FOLD: tl.constexpr,
    MASK_M: tl.constexpr, MASK_N: tl.constexpr,
):  # fmt: skip
    """The operands of an epilogue for `apply`: their elements at these rows and columns, which
    LOAD `held` passes on, if `may_hold`; else their pointers, as they come."""
    held = extra
    if may_hold(TAKES, FOLD):
        held = ()
        for j in tl.static_range(len(all_operands(TAKES))):
            x = _hold_one(extra[j], rows, cols, m, n, operand_kind(TAKES, j), MASK_M, MASK_N)
            held = held + (x,)  # noqa: RUF005 - Triton unpacks no tuples
    return held


@triton.jit
def indices(tile, AXIS: tl.constexpr):
    """0, 1, 2… along one axis of a tile. Gluon has its own version, which respects the tile's
    layout."""
    return tl.arange(0, tile.shape[AXIS])


@triton.jit
def _step(
    acc, extra, row, col, m, n, STEP: tl.constexpr, WIDTH: tl.constexpr,
    CHAIN: tl.constexpr, TAKES: tl.constexpr,
    ROW: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    INDICES: tl.constexpr, LOAD: tl.constexpr,
):  # fmt: skip
    FOLD: tl.constexpr = WIDTH // acc.shape[1]
    J: tl.constexpr = first_operand(TAKES, STEP)
    rows = row + INDICES(acc, 0)
    cols = col // FOLD + INDICES(acc, 1)
    n_now = n // FOLD
    if operand_count(TAKES, STEP) == 0:
        out = CHAIN[STEP](acc)
    elif operand_count(TAKES, STEP) == 1:
        x = _load(extra, J, rows, cols, m, n_now, TAKES, ROW, MASK_M, MASK_N, LOAD)
        out = CHAIN[STEP](acc, x)
    else:
        first = _load(extra, J, rows, cols, m, n_now, TAKES, ROW, MASK_M, MASK_N, LOAD)
        second = _load(extra, J + 1, rows, cols, m, n_now, TAKES, ROW, MASK_M, MASK_N, LOAD)
        out = CHAIN[STEP](acc, first, second)
    return out


@triton.jit
def apply(
    acc, extra, row, col, m, n, CHAIN: tl.constexpr, TAKES: tl.constexpr,
    ROW: tl.constexpr, MASK_M: tl.constexpr, MASK_N: tl.constexpr,
    INDICES: tl.constexpr = indices, LOAD: tl.constexpr = load,
):  # fmt: skip
    """`acc`, the tile of an m × n product at (row, col), after the operations of CHAIN. Gluon
    passes its own INDICES, and its own LOAD if its loads differ."""
    out = acc
    if len(CHAIN) > 0:
        WIDTH: tl.constexpr = acc.shape[1]
        out = acc.to(tl.float32)
        for i in tl.static_range(len(CHAIN)):
            out = _step(
                out, extra, row, col, m, n, i, WIDTH, CHAIN, TAKES, ROW, MASK_M, MASK_N,
                INDICES, LOAD,
            )  # fmt: skip
    return out


@triton.jit
def rounded(acc, DTYPE: tl.constexpr, LARGEST: tl.constexpr):
    """`acc` in the dtype in which it is stored. Unless LARGEST is 0, values saturate there,
    infinity too; NaN stays NaN. Floats that are stored as int8 also saturate, ties go to even, and
    NaN becomes 0."""
    out = acc
    if DTYPE.is_int8() and acc.dtype.is_fp32():
        # Between 2^23 and 2^24 all floats are whole numbers, so the addition rounds, and the low
        # bits are the result. The selects prevent the sum from fusing with a product.
        out = tl.where(out > 127.0, 127.0, tl.where(out < -128.0, -128.0, out))
        out = tl.where(out == out, out, 0.0) + 12582912.0
        out = out.to(tl.int32, bitcast=True)
    if LARGEST != 0:
        top = LARGEST * 1.0
        out = tl.where(out > top, top, tl.where(out < -top, -top, out))
    return out.to(DTYPE)


# --- the operations ---------------------------------------------------------------------------


@triton.jit
def plus(acc, x):
    return acc + x


@triton.jit
def times(acc, x):
    return acc * x


@triton.jit
def relu(acc):
    return tl.where(acc < 0, 0.0, acc)


@triton.jit
def gelu(acc):
    # x·Φ(x) is max(x, 0) minus the tail |x|·Φ(-|x|), which is 0 long before |x| is 30. The tail
    # uses formula 7.1.28 of Abramowitz and Stegun, "Handbook of Mathematical Functions", with √½ in
    # the coefficients. Its error is at most 7e-7. It needs no exponential and half the instructions
    # of an exact erf, during which matrix units idle.
    x = tl.minimum(tl.abs(acc), 30.0)
    p = 4.889063711743802e-05 + x * 5.38297490493278e-06
    p = 0.0032776263542473316 + x * (3.8003574445610866e-05 + x * p)
    p = 1.0 + x * (0.04986734688282013 + x * (0.02114100567996502 + x * p))
    p = p * p
    p = p * p
    p = p * p
    return relu(acc) - (0.5 * x) / (p * p)


@triton.jit
def gelu_tanh(acc):
    # 1 + tanh(z) is 2 / (1 + exp(-2z)), which overflows to the correct limit on both sides. z is
    # √(2/π)·(x + 0.044715·x³), and the exponential has base 2, so that constants combine.
    z = acc * (-2.302208198 - 0.1029432396 * (acc * acc))
    return acc / (1.0 + tl.exp2(z))


@triton.jit
def silu(acc):
    return acc / (1.0 + tl.exp(-acc))


@triton.jit
def clamp(acc, low, high):
    return tl.where(acc < low, low, tl.where(acc > high, high, acc))


@triton.jit
def swiglu(acc):
    gate, up = tl.split(tl.reshape(acc, (acc.shape[0], acc.shape[1] // 2, 2)))
    return silu(gate) * up
