"""Operations of a user's own, as other processes import them: one with an option, an optional
operand and an inout; one of two kernels with a temporary."""

import triton
import triton.language as tl

from tilewright.custom import In, InOut, Out, Scratch, kernel, operation


def axpy(x, y, bias, alpha, problem):
    """y = alpha · x + y, its sign turned if asked, with a bias for each column."""
    result = alpha * x + y
    if problem.negate:
        result = -result
    return result if bias is None else result + bias


@operation(
    "custom_axpy",
    operands={
        "x": In("rows", 64),
        "y": InOut("rows", 64),
        "bias": In(64, dtype="fp32", optional=True),
    },
    scalars={"alpha": ("fp32", None)},
    options={"negate": False},
    axes={"ROWS": (4, 8)},
    grid=lambda problem, config: (-(-problem.rows // config.ROWS),),
    reference=axpy,
    amplifies=4.0,
)
@triton.jit
def add_scaled(
    x, y, bias, rows, alpha, ROWS: tl.constexpr, negate: tl.constexpr, has_bias: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, 64)[None, :]
    inside = (row < rows) & (column < 64)
    at = row * 64 + column
    result = alpha * tl.load(x + at, inside, 0.0).to(tl.float32)
    result += tl.load(y + at, inside, 0.0).to(tl.float32)
    if negate:
        result = -result
    if has_bias:
        result += tl.load(bias + column)
    tl.store(y + at, result.to(y.dtype.element_ty), inside)


@triton.jit
def partial(x, sums, length, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(x + at, at < length, 0.0).to(tl.float32)))


def total(x):
    return x.sum().reshape(1)


@operation(
    "custom_total",
    operands={"x": In("length"), "out": Out(1, dtype="fp32")},
    axes={"BLOCK": (64, 256)},
    parts=(
        kernel("partial", partial, lambda p, c: (-(-p.length // c.BLOCK),)),
        kernel("finish", None, lambda p, c: (1,)),
    ),
    values={"blocks": lambda p, c: -(-p.length // c.BLOCK)},
    temporaries={"sums": Scratch(lambda p, c: (-(-p.length // c.BLOCK),))},
    reference=total,
    terms="length",
)
@triton.jit
def finish(sums, out, blocks, BLOCK: tl.constexpr):
    acc = 0.0
    for i in range(blocks):
        acc += tl.load(sums + i)
    tl.store(out, acc)
