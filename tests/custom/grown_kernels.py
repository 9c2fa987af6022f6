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


def windows(x, problem):
    stride, pad, taps = problem.stride, problem.pad, problem.taps
    wide = x.new_zeros(len(x) + 2 * pad) if hasattr(x, "new_zeros") else [0.0] * (len(x) + 2 * pad)
    for i, value in enumerate(x):
        wide[i + pad] = value
    count = (len(wide) - taps) // stride + 1
    made = x[:0] if count == 0 else x[:1].repeat(count)
    for i in range(count):
        made[i] = sum(wide[i * stride : i * stride + taps])
    return made


@operation(
    "custom_windows",
    operands={"x": In("length"), "y": Out("(length + 2 * pad - taps) // stride + 1")},
    options={"taps": 2},
    numbers={"stride": 1, "pad": 0},
    values={"count": lambda problem, config: (
        (problem.length + 2 * problem.pad - problem.taps) // problem.stride + 1
    )},
    axes={"BLOCK": (16,)},
    grid=lambda problem, config: (-(-problem.length // config.BLOCK) + problem.pad,),
    reference=windows,
    terms=8,
)  # fmt: skip
@triton.jit
def sum_windows(x, y, length, stride, pad, count, taps: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(taps):
        place = at * stride - pad + tap
        total += tl.load(x + place, (place >= 0) & (place < length), 0.0).to(tl.float32)
    tl.store(y + at, total, at < count)
