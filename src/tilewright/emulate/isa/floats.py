"""Vector instructions on floating-point numbers of 16 and 32 bits.

What the manuals call accurate to one unit in the last place (reciprocal, square root, exponential,
logarithm) is rounded correctly here, which is within it; those of fp32 flush denormal inputs and
results whatever the mode. NaN payloads are not those of the hardware.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import (
    Reader,
    destination,
    part_destination,
    scalar_destination,
    scalar_source,
    source,
    word,
)
from tilewright.emulate.isa.elementwise import elementwise
from tilewright.emulate.isa.modes import limited_f16
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.rounding import flushed, fma16, fma32
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.target import Target
from tilewright.listing.text import Instruction


def minimum(a: Array, b: Array) -> Array:
    """The smaller number: a number rather than a NaN, -0 rather than +0."""
    return _ordered(np.fmin(a, b), a, b, np.bitwise_or)


def maximum(a: Array, b: Array) -> Array:
    """The larger number: a number rather than a NaN, +0 rather than -0."""
    return _ordered(np.fmax(a, b), a, b, np.bitwise_and)


def minimum_or_nan(a: Array, b: Array) -> Array:
    """The smaller number, -0 rather than +0; NaN if either is."""
    return _ordered(np.minimum(a, b), a, b, np.bitwise_or)


def maximum_or_nan(a: Array, b: Array) -> Array:
    """The larger number, +0 rather than -0; NaN if either is."""
    return _ordered(np.maximum(a, b), a, b, np.bitwise_and)


def _ordered(chosen: Array, a: Array, b: Array, zero: Callable[[Array, Array], Array]) -> Array:
    """`chosen`, but where both are zero, a zero whose bits `zero` makes of theirs."""
    zeros = (a == 0) & (b == 0)
    if not zeros.any():
        return chosen
    code = np.dtype(f"u{a.dtype.itemsize}")
    return np.where(zeros, zero(a.view(code), b.view(code)).view(a.dtype), chosen)


def _quiet_first(choose: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """In IEEE mode: a signalling NaN gives NaN."""

    def chosen(a: Array, b: Array) -> Array:
        signalling = _signalling(a) | _signalling(b)
        return np.where(signalling, a.dtype.type(np.nan), choose(a, b))

    return chosen


def _signalling(x: Array) -> Array:
    if x.dtype == np.float32:
        quiet = (x.view(np.uint32) & np.uint32(0x400000)) != 0
    else:
        quiet = (x.view(np.uint16) & np.uint16(0x200)) != 0
    found: Array = np.isnan(x) & ~quiet
    return found


@means("v_min_f32", "v_min_num_f32", "v_max_f32", "v_max_num_f32")
def _extreme_32(ins: Instruction, context: Context) -> Executor:
    return _extreme(ins, context, "f32")


@means("v_min_f16", "v_min_num_f16", "v_max_f16", "v_max_num_f16")
def _extreme_16(ins: Instruction, context: Context) -> Executor:
    return _extreme(ins, context, "f16")


def extreme(base: str, target: Target) -> Callable[[Array, Array], Array]:
    """What a minimum or a maximum gives: CDNA3 ISA, V_MIN_F32 and V_MAX_F32. gfx12's ``_num`` has
    no IEEE mode."""
    choose: Callable[[Array, Array], Array] = minimum if "min" in base else maximum
    return _quiet_first(choose) if target.ieee and "num" not in base else choose


def _extreme(ins: Instruction, context: Context, kind: str) -> Executor:
    choose = extreme(ins.base, context.target)
    a, b = (source(ins, i, kind, context.target) for i in (1, 2))
    write = destination(ins, 0, kind, context.target)
    return lambda waves: write(waves, choose(a(waves), b(waves)))


def med3(a: Array, b: Array, c: Array) -> Array:
    """The middle of three; the smallest number if any is NaN."""
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    middle = maximum(minimum(a, b), minimum(maximum(a, b), c))
    return np.where(nan, minimum(minimum(a, b), c), middle)


def _approximate(exact: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """A function of fp32 that is computed in float64 and flushes denormals."""

    def function(x: Array) -> Array:
        given = flushed(x.view(np.uint32)).view(np.float32).astype(np.float64)
        return flushed(exact(given).astype(np.float32).view(np.uint32)).view(np.float32)

    return function


def _of_half(exact: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: exact(x.astype(np.float64)).astype(np.float16)


def _ldexp(x: Array, exponent: Array) -> Array:
    """x × 2**exponent. float64 holds it exactly for every exponent that does not give 0 or inf."""
    wide: Array = np.ldexp(x.astype(np.float64), np.clip(exponent, -500, 500))
    return wide.astype(np.float32)


_1, _2, _3 = "f32 <- f32", "f32 <- f32 f32", "f32 <- f32 f32 f32"

elementwise("v_add_f32", _2, lambda a, b: a + b)
elementwise("v_sub_f32", _2, lambda a, b: a - b)
elementwise("v_subrev_f32", _2, lambda a, b: b - a)
elementwise("v_mul_f32", _2, lambda a, b: a * b)
elementwise("v_fma_f32 v_fmaak_f32 v_fmamk_f32", _3, fma32)
elementwise("v_fmac_f32", _3, fma32, accumulates=True)
elementwise("v_med3_f32 v_med3_num_f32", _3, med3)
elementwise("v_min3_f32 v_min3_num_f32", _3, lambda a, b, c: minimum(minimum(a, b), c))
elementwise("v_max3_f32 v_max3_num_f32", _3, lambda a, b, c: maximum(maximum(a, b), c))
elementwise("v_maxmin_f32 v_maxmin_num_f32", _3, lambda a, b, c: minimum(maximum(a, b), c))
elementwise("v_minmax_f32 v_minmax_num_f32", _3, lambda a, b, c: maximum(minimum(a, b), c))
elementwise("v_minimum_f32", _2, minimum_or_nan)
elementwise("v_maximum_f32", _2, maximum_or_nan)
elementwise("v_minimum3_f32", _3, lambda a, b, c: minimum_or_nan(minimum_or_nan(a, b), c))
elementwise("v_maximum3_f32", _3, lambda a, b, c: maximum_or_nan(maximum_or_nan(a, b), c))
elementwise("v_ldexp_f32", "f32 <- f32 i32", _ldexp)
elementwise("v_rndne_f32", _1, np.rint)
elementwise("v_trunc_f32", _1, np.trunc)
elementwise("v_floor_f32", _1, np.floor)
elementwise("v_ceil_f32", _1, np.ceil)

APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "rcp": lambda x: 1 / x,
    "rsq": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "exp": np.exp2,
    "log": np.log2,
}
"""The approximate functions, to base 2, on float64."""

for _name, _exact in APPROXIMATE.items():
    elementwise(f"v_{_name}_f32", _1, _approximate(_exact))
elementwise("v_rcp_iflag_f32", _1, _approximate(APPROXIMATE["rcp"]))


@means(*(f"v_s_{name}_f32" for name in APPROXIMATE))
def _scalar_approximate(ins: Instruction, context: Context) -> Executor:
    """The vector unit's function of a scalar register (gfx12)."""
    function = _approximate(APPROXIMATE[ins.base.split("_")[2]])
    read, write = scalar_source(ins, 1, "f32"), scalar_destination(ins, 0, "f32")
    return lambda waves: write(waves, function(read(waves)))


_HALVES: dict[str, tuple[int, Callable[..., Array]]] = {
    "v_add_f16": (2, lambda a, b: a + b),
    "v_sub_f16": (2, lambda a, b: a - b),
    "v_subrev_f16": (2, lambda a, b: b - a),
    "v_mul_f16": (2, lambda a, b: a * b),
    "v_fma_f16": (3, fma16),
    **{f"v_{name}_f16": (1, _of_half(exact)) for name, exact in APPROXIMATE.items()},
}


@means(*_HALVES)
def _half(ins: Instruction, context: Context) -> Executor:
    count, function = _HALVES[ins.base]
    if len(ins.operands) != count + 1:
        raise ValueError(f"it has {len(ins.operands)} operands")
    sources = [source(ins, 1 + i, "f16", context.target) for i in range(count)]
    write = destination(ins, 0, "f16", context.target)

    def execute(waves: Waves) -> None:
        given = [each(waves) for each in sources]
        write(waves, limited_f16(waves, function(*given), *given))

    return execute


def _mixed_source(ins: Instruction, index: int, kind: str) -> Reader:
    """A source of a mixed-precision FMA as fp32: ``op_sel_hi`` says that it is of 16 bits, of
    `kind`, and then ``op_sel`` which half of the register."""
    op, number = ins.operands[index], index - 1
    half = (*ins.modifiers.bits("op_sel_hi", (0, 0, 0)), 0, 0, 0)[number]
    high = (*ins.modifiers.bits("op_sel", (0, 0, 0)), 0, 0, 0)[number]
    if high and not half:
        raise ValueError(f"{op.text} is fp32, and a half of it is selected")
    read = word(op, kind if half else "f32")

    def value(waves: Waves) -> Array:
        x = read(waves)
        if half:
            x = x >> np.uint32(16) if high else x & np.uint32(0xFFFF)
            if kind == "bf16":
                x = (x << np.uint32(16)).view(np.float32)
            else:
                x = x.astype(np.uint16).view(np.float16).astype(np.float32)
        else:
            x = x.view(np.float32)
        x = np.abs(x) if op.absolute else x
        return -x if op.negate else x

    return value


@means("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16")
@means("v_fma_mix_f32_bf16", generations=["gfx1250"])
def _mixed(ins: Instruction, context: Context) -> Executor:
    """CDNA3 ISA, V_FMA_MIX_F32: sources of either precision, one rounding in fp32, and another to
    fp16 where the result is a half. The other half of the register stays. V_FMA_MIX_F32_BF16 is the
    same of bf16 sources."""
    if not context.target.denormals_32:
        raise ValueError("fp32 denormals are flushed")
    kind = "bf16" if ins.base.endswith("bf16") else "f16"
    a, b, c = (_mixed_source(ins, i, kind) for i in (1, 2, 3))
    if "mix_f32" in ins.base:
        write = destination(ins, 0, "f32", context.target)
        return lambda waves: write(waves, fma32(a(waves), b(waves), c(waves)))
    write = part_destination(ins, 16 if "hi" in ins.base else 0, 16)

    def execute(waves: Waves) -> None:
        given = a(waves), b(waves), c(waves)
        half = limited_f16(waves, fma32(*given).astype(np.float16), *given)
        write(waves, half.view(np.uint16).astype(np.uint32))

    return execute
