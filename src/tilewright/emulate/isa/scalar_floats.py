"""Scalar instructions on floating-point numbers, which gfx12 has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import scalar_destination, scalar_source, set_condition
from tilewright.emulate.isa.compare import FLOAT
from tilewright.emulate.isa.convert import to_i32, to_u32
from tilewright.emulate.isa.floats import maximum, minimum
from tilewright.emulate.isa.modes import limited_f16
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.isa.rounding import fma32
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

Function = Callable[..., Array]

TABLE: dict[str, tuple[str, Function]] = {
    "s_add_f32": ("f32 <- f32 f32", lambda a, b: a + b),
    "s_sub_f32": ("f32 <- f32 f32", lambda a, b: a - b),
    "s_mul_f32": ("f32 <- f32 f32", lambda a, b: a * b),
    "s_min_num_f32": ("f32 <- f32 f32", minimum),
    "s_max_num_f32": ("f32 <- f32 f32", maximum),
    "s_fmaak_f32": ("f32 <- f32 f32 f32", fma32),
    "s_fmamk_f32": ("f32 <- f32 f32 f32", fma32),
    "s_ceil_f32": ("f32 <- f32", np.ceil),
    "s_floor_f32": ("f32 <- f32", np.floor),
    "s_trunc_f32": ("f32 <- f32", np.trunc),
    "s_rndne_f32": ("f32 <- f32", np.rint),
    "s_cvt_f32_i32": ("f32 <- i32", lambda a: a.astype(np.float32)),
    "s_cvt_f32_u32": ("f32 <- u32", lambda a: a.astype(np.float32)),
    "s_cvt_i32_f32": ("i32 <- f32", to_i32),
    "s_cvt_u32_f32": ("u32 <- f32", to_u32),
    "s_cvt_f32_f16": ("f32 <- f16", lambda a: a.astype(np.float32)),
}
"""Kinds of the result and the sources, and the function. SCC stays."""


@means(*TABLE)
def _general(ins: Instruction, context: Context) -> Executor:
    kinds, function = TABLE[ins.base]
    result, _, rest = kinds.partition(" <- ")
    reads = rest.split()
    _check(ins, context, len(reads))
    sources = [scalar_source(ins, 1 + i, kind) for i, kind in enumerate(reads)]
    write = scalar_destination(ins, 0, result)
    return lambda waves: write(waves, function(*(each(waves) for each in sources)))


def _check(ins: Instruction, context: Context, count: int) -> None:
    if len(ins.operands) != count + 1:
        raise ValueError(f"it has {len(ins.operands)} operands instead of {count + 1}")
    if not context.target.denormals_32:
        raise ValueError("fp32 denormals are flushed")


@means("s_fmac_f32")
def _accumulate(ins: Instruction, context: Context) -> Executor:
    _check(ins, context, 2)
    a, b, c = (scalar_source(ins, i, "f32") for i in (1, 2, 0))
    write = scalar_destination(ins, 0, "f32")
    return lambda waves: write(waves, fma32(a(waves), b(waves), c(waves)))


@means("s_cvt_f16_f32")
def _to_f16(ins: Instruction, context: Context) -> Executor:
    """The upper half of the register becomes zero."""
    _check(ins, context, 1)
    read, write = scalar_source(ins, 1, "f32"), scalar_destination(ins, 0, "f16")

    def execute(waves: Waves) -> None:
        x = read(waves)[:, None]
        write(waves, limited_f16(waves, x.astype(np.float16), x)[:, 0])

    return execute


@means(*(f"s_cmp_{name}_f32" for name in FLOAT))
def _compare(ins: Instruction, context: Context) -> Executor:
    _check(ins, context, 1)
    a, b = scalar_source(ins, 0, "f32"), scalar_source(ins, 1, "f32")
    asked = FLOAT[ins.base.split("_")[2]]
    return lambda waves: set_condition(waves, asked(a(waves), b(waves)))
