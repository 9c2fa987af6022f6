"""What torch wants to know of a call without running it: its outputs' shapes, strides and dtypes.

A call is checked here as a real one is. With symbolic sizes (``dynamic=True``) it is checked by
the sizes of the tensors that are traced, and the family computes the outputs with symbols; a family
that cannot has the sizes specialised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilewright import dtypes, ops
from tilewright.errors import BadArgument, WrongDevice
from tilewright.ops.nouns import Call, Operand, View
from tilewright.torch.said import Numbers, Said, exchanged, holds_symbol, is_symbol, read


def outputs(op: str, said: Said, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
    """Empty tensors like the outputs of a call. Raises `BadArgument`, `WrongDevice`."""
    family = ops.family(op)
    views = tuple(map(view, tensors))
    said, _ = said.whole(numbers)
    place = _place(views)
    made: Sequence[Operand] | None = None
    if symbolic(said, views):
        _check_example(op, said, views)
        try:
            made = family.outputs(call(said, views))
        except (TypeError, BadArgument):  # a symbol has no hash, is no index and no whole number
            views, said = tuple(map(concrete, views)), _with_options(said, _specialised)
    if made is None:
        _check(op, said, views, None)
        made = family.outputs(call(said, views))
    return [
        torch.empty_strided(
            one.shape,
            one.strides,
            dtype=getattr(torch, dtypes.dtype(one.dtype).torch),
            device=place,
        )
        for one in made
    ]


def check(
    op: str, said: Said, tensors: Sequence[Any], numbers: Numbers, out: Sequence[Any]
) -> None:
    """Check a call that passes its outputs. Raises `BadArgument`, `WrongDevice`."""
    views, targets = tuple(map(view, tensors)), tuple(map(view, out))
    said, _ = said.whole(numbers)
    _place((*views, *targets))
    if symbolic(said, (*views, *targets)):
        _check_example(op, said, views, targets)
    else:
        _check(op, said, views, targets)


def problem(
    op: str,
    said: Said,
    tensors: Sequence[Any],
    numbers: Numbers,
    out: Sequence[Any] | None = None,
) -> Any:
    """The problem that a call states; of symbols, with the numbers that are traced."""
    views = [example(view(x)) for x in tensors]
    targets = None if out is None else tuple(example(view(x)) for x in out)
    whole, _ = said.whole(hints(numbers))
    return ops.family(op).problem_of(call(whole, views, targets))


def stated(
    op: str,
    operands: Sequence[Any],
    said: str = "",
    scalars: Numbers | None = None,
    *,
    out: Sequence[Any] | None = None,
    written: Sequence[Any] = (),
) -> Any:
    """`problem` of a call of an operator that launches, by its arguments (see `operators`)."""
    what = read(said)
    if written:
        operands, out = what.together(operands, written[0]), written[1:]
    return problem(op, what, operands, scalars or (), out)


def view(x: Any) -> View:
    """A tensor as if its memory began at address 0."""
    address = x.storage_offset() * x.element_size()
    return View(tuple(x.shape), x.stride(), dtypes.of(x).name, address, str(x.device))


def concrete(v: View) -> View:
    """A view whose sizes are integers. torch compiles anew for others."""
    numbers = [tuple(map(int, numbers)) for numbers in (v.shape, v.strides)]
    return View(numbers[0], numbers[1], v.dtype, int(v.address), v.device)


def _example(v: View) -> View:
    """A view with the sizes of the tensors that are being traced, to which the graph is not bound
    thereby. Raises `_Unknown`."""
    shape, strides = (tuple(map(_hint, numbers)) for numbers in (v.shape, v.strides))
    return View(shape, strides, v.dtype, _hint(v.address), v.device)


class _Unknown(Exception):
    """A size depends on data, so that nothing is known of it."""


def _hint(value: Any) -> Any:
    """The number that a symbol has in what is being traced; any other value itself."""
    if not is_symbol(value):
        return value
    hint = value.node.hint
    if hint is None:
        raise _Unknown
    return hint


def hints(numbers: Iterable[Any]) -> tuple[Any, ...]:
    """`stand_in` of each number."""
    return tuple(map(stand_in, numbers))


def stand_in(value: Any) -> Any:
    """The number that a symbol has in what is being traced, or some number if nothing is known of
    it; any other value itself."""
    if not is_symbol(value) or value.node.hint is not None:
        return _hint(value)
    expression = value.node.expr
    return value.node.pytype(expression.subs(dict.fromkeys(expression.free_symbols, _STAND_IN)))


_STAND_IN = 64


def _specialised(value: Any) -> Any:
    """The number that a symbol has, to which the graph is then bound; any other value itself."""
    return value.node.pytype(value) if is_symbol(value) else value


def _with_options(said: Said, change: Callable[[Any], Any]) -> Said:
    """`said` with numbers of its options changed."""
    return replace(
        said, options=tuple((name, exchanged(value, change)) for name, value in said.options)
    )


def example(v: View) -> View:
    """A view with the numbers that its symbols have in what is being traced (`stand_in`)."""
    return View(hints(v.shape), hints(v.strides), v.dtype, stand_in(v.address), v.device)


def call(said: Said, views: Sequence[View], out: tuple[View, ...] | None = None) -> Call:
    """The call that has these tensors. No numbers are given apart (`Said.whole`)."""
    inputs = tuple(said.positional(views))
    named = dict(zip(said.named, views[len(inputs) :], strict=True))
    return Call(inputs, named, out, dict(said.options))


def _check(op: str, said: Said, views: Sequence[View], out: tuple[View, ...] | None) -> None:
    family = ops.family(op)
    problem = family.problem_of(call(said, views, out))
    by_position = [o for o in family.operands(problem) if o.read and o.name not in said.named]
    for place, one in enumerate(by_position):
        if one.role == "inout" and place not in said.written:
            raise BadArgument(
                f"{op} writes to {one.name} in place, which torch cannot see by this operator; "
                f"call {op}.update, or tilewright.{op}"
            )


def _check_example(
    op: str, said: Said, views: Sequence[View], out: Sequence[View] | None = None
) -> None:
    """`_check` of a call with symbolic sizes, by the sizes of the tensors that are being traced."""
    try:
        inputs = tuple(map(_example, views))
        targets = None if out is None else tuple(map(_example, out))
        said = _with_options(said, _hint)
    except _Unknown:
        return
    _check(op, said, inputs, targets)


def _place(views: Iterable[View]) -> str:
    places = sorted({v.device for v in views})
    if len(places) > 1:
        raise WrongDevice(f"operands are on {', '.join(places)}; move them together")
    return places[0] if places else "cpu"


def symbolic(said: Said, views: Iterable[View]) -> bool:
    """Whether an option, a size, a stride or an offset is a symbol."""
    numbers = (n for v in views for n in (*v.shape, *v.strides, v.address))
    return any(map(is_symbol, numbers)) or any(holds_symbol(value) for _, value in said.options)
