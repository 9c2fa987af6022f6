"""What torch wants to know of a call without running it: its outputs' shapes, strides and dtypes.

A call is checked here as a real one is. With symbolic sizes (``dynamic=True``) it is checked by
the sizes of the tensors that are traced, and the family computes the outputs with symbols; a family
that cannot has the sizes specialised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tilewright import dtypes, ops
from tilewright.errors import BadArgument, WrongDevice
from tilewright.ops.nouns import Call, Operand, View
from tilewright.torch.said import Said


def outputs(op: str, said: Said, tensors: Sequence[Any]) -> list[Any]:
    """Empty tensors like the outputs of a call. Raises `BadArgument`, `WrongDevice`."""
    family = ops.family(op)
    views = tuple(map(view, tensors))
    place = _place(views)
    made: Sequence[Operand] | None = None
    if symbolic(views):
        _check_example(op, said, views)
        try:
            made = family.outputs(call(said, views))
        except TypeError:  # a symbol has no hash, and is no index
            views = tuple(map(concrete, views))
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


def check(op: str, said: Said, tensors: Sequence[Any], out: Sequence[Any]) -> None:
    """Check a call that passes its outputs. Raises `BadArgument`, `WrongDevice`."""
    views, targets = tuple(map(view, tensors)), tuple(map(view, out))
    _place((*views, *targets))
    if symbolic((*views, *targets)):
        _check_example(op, said, views, targets)
    else:
        _check(op, said, views, targets)


def view(x: Any) -> View:
    """A tensor as if its memory began at address 0."""
    address = x.storage_offset() * x.element_size()
    return View(tuple(x.shape), x.stride(), dtypes.of(x).name, address, str(x.device))


def concrete(v: View) -> View:
    """A view whose sizes are integers. torch compiles anew for others."""
    numbers = [tuple(map(int, numbers)) for numbers in (v.shape, v.strides)]
    return View(numbers[0], numbers[1], v.dtype, int(v.address), v.device)


def _example(v: View) -> View | None:
    """A view with the sizes of the tensors that are being traced, to which the graph is not bound
    thereby; None where a size depends on data, so that nothing is known of it."""
    symbols: list[Any] = [*v.shape, *v.strides, v.address]
    numbers = [n.node.hint if isinstance(n, torch.SymInt) else n for n in symbols]
    if None in numbers:
        return None
    rank = len(v.shape)
    return View(tuple(numbers[:rank]), tuple(numbers[rank:-1]), v.dtype, numbers[-1], v.device)


def call(said: Said, views: Sequence[View], out: tuple[View, ...] | None = None) -> Call:
    """The call that has these tensors."""
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
    inputs = [one for one in map(_example, views) if one is not None]
    targets = None if out is None else tuple(one for one in map(_example, out) if one is not None)
    if len(inputs) == len(views) and len(targets or ()) == len(out or ()):
        _check(op, said, inputs, targets)


def _place(views: Iterable[View]) -> str:
    places = sorted({v.device for v in views})
    if len(places) > 1:
        raise WrongDevice(f"operands are on {', '.join(places)}; move them together")
    return places[0] if places else "cpu"


def symbolic(views: Iterable[View]) -> bool:
    """Whether a size, a stride or an offset is a symbol."""
    numbers = (n for v in views for n in (*v.shape, *v.strides, v.address))
    return any(isinstance(n, torch.SymInt) for n in numbers)
