"""Operations of a user's own, as other processes import them: rows picked by number, with
gradients, strides, sizes worked out from others, and options of the compiler."""

import triton
import triton.language as tl

from tilewright.custom import Gradient, In, Out, operation


def pick(table, at, scale):
    return table[at] * scale


def scatter(table, at, d_y):
    """The gradient of `table`, by torch."""
    return d_y.new_zeros(table.shape).index_add_(0, at, d_y)


@operation(
    "custom_pick",
    operands={
        "table": In("many", "width", strides=("apart", 1)),
        "at": In("count", dtype="int64", values=(0, "many")),
        "scale": In("count // 2", dtype="fp32"),
        "y": Out("count", "width"),
        "seen": Out("count", dtype="int64"),
    },
    axes={"BLOCK": (32, 64), "maxnreg": (0, 64), "waves_per_eu": (0, 2)},
    grid=lambda problem, config: (problem.count,),
    supports=lambda problem, config: problem.width <= config.BLOCK or "BLOCK is too small",
    reference=lambda table, at, problem: (table[at], at),
    flops=lambda problem: problem.count * problem.width,
    gradients=(Gradient("table", scatter, ("table", "at", "grad y")),),
    problems=({"many": 5, "width": 20, "count": 4, "dtype": "fp32"},),
)
@triton.jit
def pick_rows(table, at, scale, y, seen, width, apart, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    place = tl.load(at + row)
    values = tl.load(table + place * apart + column, column < width, 0.0)
    tl.store(y + row * width + column, values, column < width)
    tl.store(seen + row, place)


def half(d_y):
    return d_y * 0.5


@operation(
    "custom_half",
    operands={"x": In("length"), "y": Out("length")},
    axes={"BLOCK": (64,)},
    grid=lambda problem, config: (-(-problem.length // config.BLOCK),),
    reference=lambda x: x * 0.5,
    gradients=(Gradient("x", "custom_half", ("grad y",)),),
)
@triton.jit
def halve(x, y, length, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, at < length) * 0.5, at < length)
