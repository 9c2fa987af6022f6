"""Whether what is declared of an operation fits together."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.custom import drawn, extents, gradient
from tilewright.custom.declaration import COMPILER, DEPENDENT, Declaration, flag
from tilewright.custom.gradient import Gradient
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument


def check(d: Declaration) -> None:
    """Raise `BadArgument` where the parts do not fit together."""
    if not d.name.isidentifier() or not d.name.islower():
        raise BadArgument(f"operation '{d.name}': a name is a lower-case identifier")
    known = _known(d)
    for part in d.parts:
        for name, constant in part.interface.parameters.items():
            if name not in known:
                raise BadArgument(
                    f"operation {d.name}: the kernel's parameter '{name}' is no operand, "
                    f"size, number, scalar, value, temporary, option or axis; there are "
                    f"{', '.join(known)}"
                )
            run_time = (d.sizes, d.strides, d.numbers, d.values, d.scalars)
            if constant and any(name in group for group in run_time):
                raise BadArgument(
                    f"operation {d.name}: '{name}' is known for each problem alone, so it "
                    "cannot be a constexpr; name an axis, or take it at run time"
                )
            if name in d.axes and not constant:
                raise BadArgument(f"operation {d.name}: axis '{name}' must be a constexpr")
    if not any(one.role != "in" for one in d.operands.values()):
        raise BadArgument(f"operation {d.name} writes nothing: state an Out or an InOut")
    taken = {name for part in d.parts for name in part.interface.parameters}
    for axis in d.axes:
        if axis not in taken and axis not in COMPILER:
            raise BadArgument(
                f"operation {d.name}: no kernel has a parameter '{axis}', and the compiler "
                f"takes {', '.join(COMPILER)}"
            )
    passed = {*d.dtype_fields} - {*d.stated_dtypes}
    for name, usual in d.dtypes.items():
        others = passed if name in d.stated_dtypes else ()
        if name not in d.dtype_fields or usual not in (*others, *DTYPES):
            raise BadArgument(
                f"operation {d.name}: dtypes= gives '{name}' the type '{usual}'; a field is given "
                "a dtype, and one that no operand passed by every call has may be given the field "
                "of such an operand"
            )
    _check_operands(d)
    if not callable(d.gradients):
        check_gradients(d, d.gradients)
    for name in d.limits:
        if name not in d.scalars:
            raise BadArgument(f"operation {d.name}: limits= names '{name}', which is no scalar")
    for name in d.records:
        if name not in d.options:
            raise BadArgument(f"operation {d.name}: records= names '{name}', which is no option")
    if d.gradients and any(one.role == "inout" for one in d.operands.values()):
        raise BadArgument(
            f"operation {d.name} writes an operand in place, so it can have no gradients"
        )


def check_gradients(d: Declaration, gradients: Sequence[Gradient]) -> None:
    """Raise `BadArgument` where gradients do not fit the operation."""
    inputs = [name for name, one in d.operands.items() if one.role == "in"]
    outputs = [n for n, one in d.operands.items() if one.role == "out"]
    arriving = [n for n in outputs if n not in d.constant and not _whole(d, n)]
    others = [*(n for n in outputs if n not in arriving), *d.scalars]
    gradient.check(d.name, gradients, inputs, arriving, others)


def _whole(d: Declaration, name: str) -> bool:
    """Whether an operand's type is one of whole numbers."""
    said = d.operands[name].dtype
    return said in DTYPES and DTYPES[said].kind == "int"


def _check_operands(d: Declaration) -> None:
    """Raise `BadArgument` for sizes, strides and values that mean nothing."""
    read = [one for one in d.operands.values() if one.role != "out"]
    alone = {extents.said(size, d.stated)[0] for one in read for size in one.shape}
    alone |= d.stated
    for name, one in d.operands.items():
        where = f"operation {d.name}: {name}"
        for size in one.shape:
            for part in extents.names(size):
                if not extents.is_name(size) and part not in alone:
                    raise BadArgument(
                        f"{where} has size '{size}', and no operand that is read has the size "
                        f"'{part}' by itself or times a number, so no call says what it is"
                    )
        if one.strides is not None and len(one.strides) != len(one.shape):
            raise BadArgument(
                f"{where} has {len(one.shape)} dimensions and {len(one.strides)} strides"
            )
        if one.when and one.when.partition("=")[0] not in (
            *d.options,
            *map(flag, d.optional),
        ):
            raise BadArgument(
                f"{where} is there when '{one.when}' is, which is no option and no optional "
                "operand's field"
            )
        if isinstance(one.read, str) and one.read not in (
            *d.options,
            *map(flag, d.optional),
        ):
            raise BadArgument(
                f"{where} is read where '{one.read}' is, which is no option and no optional "
                "operand's field"
            )
        for stride in one.strides or ():
            for part in extents.names(stride):
                if not extents.is_name(stride) and part not in (*d.sizes, *d.integers):
                    raise BadArgument(f"{where} has stride '{stride}': '{part}' is no size")
        drawn.check(where, one.values, (*d.sizes, *d.integers))


def _known(d: Declaration) -> Sequence[str]:
    """The names that a kernel's parameters may have."""
    groups = (
        d.sizes,
        d.strides,
        d.numbers,
        d.scalars,
        d.values,
        d.temporaries,
        d.options,
        d.axes,
        d.constants,
    )
    flags = (flag(name) for name in d.optional)
    fields = (*d.dtype_fields, "alignment", DEPENDENT)
    names = [*d.operands, *(name for group in groups for name in group), *flags, *fields]
    for name in names:
        if names.count(name) > 1:
            raise BadArgument(f"operation {d.name}: '{name}' names two things")
    return names
