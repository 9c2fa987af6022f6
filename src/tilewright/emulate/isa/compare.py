"""Comparisons and selections."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.access import (
    destination,
    lane_mask,
    mask_reader,
    mask_writer,
    put_lane_mask,
    source,
)
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import operand
from tilewright.listing.text import Instruction

Predicate = Callable[[Array, Array], Array]


def _not(predicate: Predicate) -> Predicate:
    return lambda a, b: ~predicate(a, b)


def _unordered(a: Array, b: Array) -> Array:
    found: Array = np.isnan(a) | np.isnan(b)
    return found


INTEGER: dict[str, Predicate] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "ne": np.not_equal,
    "ge": np.greater_equal,
}
"""What is asked of integers."""

FLOAT: dict[str, Predicate] = {
    "lt": np.less,
    "eq": np.equal,
    "le": np.less_equal,
    "gt": np.greater,
    "lg": lambda a, b: (a < b) | (a > b),
    "ge": np.greater_equal,
    "o": _not(_unordered),
    "u": _unordered,
    "nge": _not(np.greater_equal),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": _not(np.greater),
    "nle": _not(np.less_equal),
    "neq": np.not_equal,
    "nlt": _not(np.less),
}
"""What is asked of floats; those that begin with n are true of NaN."""

_PREDICATES = {
    **{("f16", name): each for name, each in FLOAT.items()},
    **{("f32", name): each for name, each in FLOAT.items()},
    **{
        (kind, name): each
        for kind in ("i16", "u16", "i32", "u32", "i64", "u64")
        for name, each in INTEGER.items()
    },
}


@means(*(f"v_cmp_{name}_{kind}" for kind, name in _PREDICATES))
def _compare(ins: Instruction, context: Context) -> Executor:
    """A bit for each lane; 0 of inactive lanes."""
    _, _, name, kind = ins.base.split("_")
    predicate = _PREDICATES[kind, name]
    a, b = (source(ins, i, kind, context.target) for i in (1, 2))
    if "dpp" in ins.encoding or len(ins.operands) != 3:
        raise ValueError("a comparison across lanes")
    write = put_lane_mask(ins, 0, context.target)
    return lambda waves: write(waves, np.broadcast_to(predicate(a(waves), b(waves)), _shape(waves)))


def _shape(waves: Waves) -> tuple[int, int]:
    return waves.count, waves.lanes


@means(*(f"v_cmpx_{name}_{kind}" for kind, name in _PREDICATES))
def _compare_and_mask(ins: Instruction, context: Context) -> Executor:
    """The result becomes EXEC. From gfx10 on nothing else is written; before, a mask is too."""
    _, _, name, kind = ins.base.split("_")
    predicate, target = _PREDICATES[kind, name], context.target
    named = 1 if target.cdna else 0
    if len(ins.operands) != named + 2 or "dpp" in ins.encoding:
        raise ValueError(f"it has {len(ins.operands)} operands")
    a, b = (source(ins, named + i, kind, target, i) for i in (0, 1))
    write = put_lane_mask(ins, 0, target) if named else None

    def execute(waves: Waves) -> None:
        found = np.broadcast_to(predicate(a(waves), b(waves)), _shape(waves)) & waves.active
        if write is not None:
            write(waves, found)
        waves.activate(found)

    return execute


@means("v_cndmask_b32", "v_cndmask_b16")
def _select(ins: Instruction, context: Context) -> Executor:
    """The second source where the mask's bit is set; VCC where the text names no mask."""
    target = context.target
    kind = "b32" if ins.base.endswith("32") else "u16"
    if len(ins.operands) == 3:
        chosen = mask_reader(operand("vcc" if target.lanes == 64 else "vcc_lo"), target)
    else:
        chosen = lane_mask(ins, 3, target)
    a, b = (source(ins, i, kind, target) for i in (1, 2))
    write = destination(ins, 0, kind, target, sources=2)
    return lambda waves: write(waves, np.where(chosen(waves), b(waves), a(waves)))


_CLASSES: tuple[Callable[[Array], Array], ...] = (
    lambda x: np.isnan(x) & ~_quiet(x),
    lambda x: np.isnan(x) & _quiet(x),
    lambda x: np.isneginf(x),
    lambda x: np.signbit(x) & _normal(x),
    lambda x: np.signbit(x) & _denormal(x),
    lambda x: np.signbit(x) & (x == 0),
    lambda x: ~np.signbit(x) & (x == 0),
    lambda x: ~np.signbit(x) & _denormal(x),
    lambda x: ~np.signbit(x) & _normal(x),
    lambda x: np.isposinf(x),
)
"""The classes of `v_cmp_class_f32` in the order of their bits."""


_TINY = np.finfo(np.float32).tiny


def _quiet(x: Array) -> Array:
    found: Array = (x.view(np.uint32) & np.uint32(0x400000)) != 0
    return found


def _denormal(x: Array) -> Array:
    found: Array = (np.abs(x) < _TINY) & (x != 0)
    return found


def _normal(x: Array) -> Array:
    found: Array = np.isfinite(x) & (np.abs(x) >= _TINY)
    return found


@means("v_cmp_class_f32")
def _class(ins: Instruction, context: Context) -> Executor:
    """Whether the number is of one of the classes whose bits the second source sets."""
    x = source(ins, 1, "f32", context.target)
    asked = source(ins, 2, "u32", context.target)
    if "dpp" in ins.encoding or len(ins.operands) != 3:
        raise ValueError("a comparison across lanes")
    write = mask_writer(ins.operands[0], context.target)

    def execute(waves: Waves) -> None:
        value, wanted = x(waves), asked(waves)
        found: Array = np.zeros(_shape(waves), bool)
        for bit, is_class in enumerate(_CLASSES):
            found = found | (
                ((wanted >> np.uint32(bit)) & np.uint32(1)).astype(bool) & is_class(value)
            )
        write(waves, found)

    return execute
