"""What the arrays and the keywords of a call say of its problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tilewright import checks
from tilewright.custom import extents, kinds
from tilewright.custom.declaration import Array, Declaration, flag
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.nouns import Call, Operand, View
from tilewright.wording import many


def fields(d: Declaration, call: Call) -> tuple[dict[str, Any], int]:
    """The fields of the problem that a call states, and what its addresses are multiples of.

    Raises `BadArgument` for arrays that do not fit the declaration or one another, and for keywords
    that it has not.
    """
    passed = _views(d, call)
    views = {name: _fold(d, name, view) for name, view in passed.items()}
    found = _flags(d, call) | _integers(d, call)
    for name, view in views.items():
        _read(d, name, view, found)
    for name, view in views.items():
        _compare(d, name, view, found, passed[name].shape)
    _read_dtypes(d, call, found)
    known = (*d.options, *d.numbers, *d.stated_dtypes)
    for name, value in call.options.items():
        if name not in known:
            others = (*known, *d.optional, *d.scalars)
            raise BadArgument(
                f"{d.name} has no option '{name}'{nearest(name, others)}; it has "
                f"{', '.join(others) or 'none'}"
            )
        if name not in d.stated_dtypes:
            found[name] = value
    _refuse_unsaid(d, found)
    numbers = {name: found.setdefault(name, 0) for name in d.integer_fields}
    for name, view in views.items():
        _check_strides(d, name, view, numbers)
    return found, math.gcd(*(view.address for view in views.values()), kinds.ADDRESSES)


def outputs(
    d: Declaration, call: Call, operand: Callable[[str, Array, Any], Operand]
) -> tuple[Operand, ...]:
    """The outputs to make for a call that passes none. Sizes may be symbols.

    operand: makes an operand of a problem, or of what has the same fields.
    """
    whole = _views(d, call)
    found = _flags(d, call) | _integers(d, call)
    for name, view in whole.items():
        _read(d, name, _fold(d, name, view), found)
    _refuse_unsaid(d, found)
    _read_dtypes(d, call, found)
    said = _present(d, call)
    vars(said).update(dict.fromkeys(d.strides, 0), **found)
    ahead = _folded(d, whole.items())
    targets = ((name, d.operands[name]) for name in _targets(d, said))
    return tuple(_unfolded(operand(name, one, said), one, ahead) for name, one in targets)


# --- which arrays there are ---------------------------------------------------------------------


def _present(d: Declaration, call: Call) -> SimpleNamespace:
    """The fields that say which operands are there: options, and of optional operands."""
    stated = {name: call.options.get(name, value) for name, value in d.options.items()}
    return SimpleNamespace(**_flags(d, call), **stated)


def _flags(d: Declaration, call: Call) -> dict[str, Any]:
    """Which optional operands a call has."""
    return {flag(name): name in call.named for name in d.optional}


def _targets(d: Declaration, said: Any) -> list[str]:
    """The outputs that there are, in order."""
    return [n for n, one in d.operands.items() if one.role == "out" and d.there(n, said)]


def _by_keyword(d: Declaration) -> str:
    return f"; by keyword it takes {', '.join(d.optional)}" if d.optional else ""


def _views(d: Declaration, call: Call) -> dict[str, View]:
    """The arrays of a call, by name. Raises `BadArgument` for a wrong number."""
    first = [name for name, one in d.operands.items() if one.by_position]
    targets = _targets(d, _present(d, call))
    for name in call.named:
        if name not in d.optional:
            raise BadArgument(
                f"{d.name} has no operand '{name}' to pass by keyword{nearest(name, d.optional)}"
                f"{_by_keyword(d)}"
            )
    if len(call.inputs) != len(first):
        raise BadArgument(
            f"{d.name} takes {many(len(first), 'operand')} ({', '.join(first)}) by "
            f"position and was given {len(call.inputs)}; pass outputs as out={_by_keyword(d)}"
        )
    views = dict(zip(first, call.inputs, strict=True)) | dict(call.named)
    if call.outputs is not None and len(call.outputs) == len(targets):
        views |= zip(targets, call.outputs, strict=True)
    return views


# --- several dimensions as one ------------------------------------------------------------------


def _fold(d: Declaration, name: str, view: View) -> View:
    """A view with its first dimensions as one, if the operand folds them. Raises `BadArgument`
    where they do not lie evenly in memory."""
    one = d.operands[name]
    more = len(view.shape) - len(one.shape)
    if not one.folds or more == 0 or more < -1:
        return view
    first = more + 1
    apart = kinds.packed(view.shape[:first])
    rows = view.strides[first - 1] if first else math.prod(view.shape)
    ahead = zip(view.shape[:first], view.strides[:first], apart, strict=True)
    if 0 not in view.shape and any(n > 1 and s != p * rows for n, s, p in ahead):
        raise BadArgument(
            f"the first {first} dimensions of {name} of {d.name} are taken as one, and do "
            f"not lie evenly: strides {view.strides}; pass a contiguous copy"
        )
    return replace(
        view,
        shape=(math.prod(view.shape[:first]), *view.shape[first:]),
        strides=(rows, *view.strides[first:]),
    )


def _folded(d: Declaration, views: Iterable[tuple[str, View]]) -> dict[str, tuple[int, ...]]:
    """The dimensions whose product a size is, for the sizes of operands that fold them."""
    found: dict[str, tuple[int, ...]] = {}
    for name, view in views:
        one = d.operands[name]
        if one.folds:
            ahead = view.shape[: len(view.shape) - len(one.shape) + 1]
            found.setdefault(str(one.shape[0]), ahead)
    return found


def _unfolded(operand: Operand, one: Array, ahead: Mapping[str, tuple[int, ...]]) -> Operand:
    """An output that is to be made, with the dimensions that the call's operands have."""
    first = ahead.get(str(one.shape[0])) if one.folds else None
    if first is None or len(first) == 1:
        return operand
    shape = (*first, *operand.shape[1:])
    strides = (n * operand.strides[0] for n in kinds.packed(first))
    return replace(operand, shape=shape, strides=(*strides, *operand.strides[1:]))


# --- sizes, strides and types -------------------------------------------------------------------


def _integers(d: Declaration, call: Call) -> dict[str, Any]:
    """The integers that sizes may name, as a call states them. Raises `BadArgument`."""
    found = {name: call.options.get(name, value) for name, value in d.integers.items()}
    for name, value in found.items():
        checks.whole(name, value, 0 if name in d.numbers else -checks.MOST_WHOLE)
    return found


def _read(d: Declaration, name: str, view: View, found: dict[str, Any]) -> None:
    """What an array says of the problem: sizes, strides and an element type, added to `found`."""
    one = d.operands[name]
    if len(view.shape) != len(one.shape):
        wanted = ", ".join(map(str, one.shape))
        raise BadArgument(f"{name} of {d.name} has shape {view.shape}; it is [{wanted}]")
    for size, extent in zip(one.shape, view.shape, strict=True):
        said, by = extents.said(size, d.stated)
        if said and said not in found:
            found[said] = extent // max(1, extents.value(by, found))
    for stride, extent, apart in zip(
        one.strides or (), view.shape, view.strides, strict=bool(one.strides)
    ):
        if stride in d.strides and extent > 1:
            if apart == 0 and 0 not in view.shape:
                raise BadArgument(
                    f"elements of {name} of {d.name} share memory: strides {view.strides}; "
                    "pass a contiguous copy"
                )
            found.setdefault(str(stride), apart)
    dtype = one.dtype if one.dtype in DTYPES else found.setdefault(one.dtype, view.dtype)
    if view.dtype != dtype:
        raise BadArgument(f"{name} of {d.name} is {view.dtype}; it must be {dtype}")


def _read_dtypes(d: Declaration, call: Call, found: dict[str, Any]) -> None:
    """Add the element types to `found` that no operand of a call has."""
    for name, usual in d.stated_dtypes.items():
        stated = call.options.get(name)
        if stated is not None and found.setdefault(name, stated) != stated:
            raise BadArgument(
                f"{d.name} was given {name} = {stated} and an operand of {found[name]}"
            )
        found.setdefault(name, found.get(usual, usual))


def _refuse_unsaid(d: Declaration, found: dict[str, Any]) -> None:
    """Raise `BadArgument` for sizes that no array of a call says, and has to."""
    for name in d.optional_sizes:
        found.setdefault(name, 0)
    missing = [size for size in d.sizes if size not in found]
    if missing:
        raise BadArgument(f"the operands of this {d.name} do not say {', '.join(missing)}")


def _compare(
    d: Declaration, name: str, view: View, found: Mapping[str, Any], passed: tuple[int, ...]
) -> None:
    """Raise `BadArgument` where an array has another shape than the sizes that were found. passed:
    its shape before dimensions were folded."""
    one = d.operands[name]
    for size, extent in zip(one.shape, view.shape, strict=True):
        if any(part not in found for part in extents.names(size)):
            continue  # said by an output that is not passed
        wanted = extents.value(size, found)
        if extent != wanted:
            said = "*" * one.folds + ", ".join(map(str, one.shape))
            raise BadArgument(
                f"{name} of {d.name} has shape {passed}; it is [{said}], where {size} is {wanted}"
            )


def _check_strides(d: Declaration, name: str, view: View, numbers: Mapping[str, int]) -> None:
    """Raise `BadArgument` where an array has other strides than those declared."""
    one = d.operands[name]
    if 0 in view.shape:
        return
    if one.strides is None:
        wanted = kinds.packed(view.shape)
    else:
        wanted = tuple(extents.value(stride, numbers) for stride in one.strides)
    apart = zip(view.shape, view.strides, wanted, strict=True)
    if any(n > 1 and s != p for n, s, p in apart):
        declared = ", ".join(map(str, one.strides or ()))
        said = f", where ({declared}) is declared" if declared else ""
        raise BadArgument(
            f"{name} of {d.name} has strides {view.strides}{said}; pass a contiguous copy"
        )
