"""What the parameters of a declared operation's kernels are, and its kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.arch.model import Arch
from tilewright.custom import kinds
from tilewright.custom.declaration import (
    COMPILER,
    DEPENDENT,
    Declaration,
    Part,
    Scratch,
    flag,
)
from tilewright.ops import binder
from tilewright.ops.binder import Array, Catalogue, Constant, Context, Given, Numbers, Value


def catalogue(d: Declaration) -> Catalogue:
    """The meanings of all names that a kernel's parameters may have."""
    options = (*d.dtype_fields, *map(flag, d.optional), *d.options, "alignment", *d.axes)
    return {
        **{name: _array(d, name) for name in d.operands},
        **{name: _scratch(one) for name, one in d.temporaries.items()},
        **{name: Given(kind) for name, (kind, _) in d.scalars.items()},
        **{name: _field(name, "i64", d) for name in d.strides},
        **{name: _field(name, "i32", d) for name in (*d.sizes, *d.numbers)},
        **{name: Numbers("i32", _value(value)) for name, value in d.values.items()},
        **{name: _constant(name) for name in options},
        **{name: _worked_out(value) for name, value in d.constants.items()},
        DEPENDENT: lambda c, arch: arch.has("pdl"),
    }


def _aligned(c: Any) -> int:
    return kinds.ADDRESSES if c.alignment > 1 else 1


def _array(d: Declaration, name: str) -> Array:
    return Array(d.operands[name].dtype, there=lambda c: d.there(name, c), aligned=_aligned)


def _scratch(one: Scratch) -> Array:
    return Array(
        one.dtype,
        aligned=_aligned,
        shape=lambda x: tuple(one.shape(x.problem, x.config)),
        initial=lambda _: one.initial,
        there=one.there,
    )


def _field(name: str, kind: str, d: Declaration) -> Numbers:
    def multiples(c: Any) -> int:
        return int(c.alignment) if name in d.promised(c) else 1

    return Numbers(kind, lambda x: getattr(x.problem, name), multiples=multiples)


def _value(value: Callable[[Any, Any], int]) -> Callable[[Context], int]:
    return lambda x: value(x.problem, x.config)


def _constant(name: str) -> Constant:
    return lambda c, _: getattr(c, name)


def _worked_out(value: Callable[[Any], Value | tuple[str, ...]]) -> Constant:
    return lambda c, _: value(c)


def parts(d: Declaration) -> tuple[binder.Part, ...]:
    """The kernels, in the order in which they run."""

    def options(part: Part, c: Any, arch: Arch) -> tuple[tuple[str, Value], ...]:
        known = [axis for axis in COMPILER if axis in d.axes]
        mine = [axis for axis in known if COMPILER[axis][0] in ("", arch.backend)]
        said = ((axis, getattr(c, axis)) for axis in mine)
        early = (("launch_pdl", True),) if part.dependent and arch.has("pdl") else ()
        return *((axis, value) for axis, value in said if value != COMPILER[axis][1]), *early

    def made(part: Part) -> binder.Part:
        def grid(x: Context) -> tuple[int, int, int]:
            across, down, deep = (*part.grid(x.problem, x.config), 1, 1)[:3]
            most = part.each_unit(x.config) * x.device.compute_units
            return min(across, most or across), down, deep

        by_place = isinstance(part.function, str)
        return binder.Part(
            name=part.name,
            kernel=part.function if by_place else f"{d.module}:{part.function.fn.__name__}",
            grid=grid,
            options=partial(options, part),
            there=part.there,
            signature=None if by_place else part.interface,
        )

    return tuple(map(made, d.parts))
