"""Calls with gradients: a ``jax.custom_vjp`` from what a family states of its backward pass.

Where that would compute an activation's input anew, the forward pass with gradients keeps it: the
product writes it, and XLA applies the activation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from tilewright import dtypes, ops
from tilewright.errors import BadArgument
from tilewright.jax.primitive import launch, stated_of
from tilewright.jax.stated import Stated
from tilewright.jax.tensors import Tensor, order_of
from tilewright.ops.backward import Backward, Computation, alike, incoming
from tilewright.ops.nouns import Operand, View


def differentiable(stated: Stated, bases: Sequence[Any]) -> tuple[Tensor, ...]:
    """Make a call, of which JAX may ask gradients.

    bases: the row-major array of each operand.
    """
    orders = [order_of(one.shape, one.strides) for one in stated.outputs]
    return tuple(map(Tensor, _with_gradients(stated)(*bases), orders))


@lru_cache(maxsize=4096)
def _with_gradients(stated: Stated) -> Any:
    """The function of the operands' row-major arrays that makes this call."""

    def made(*bases: Any) -> tuple[Any, ...]:
        return tuple(x.base for x in launch(stated, bases))

    def forward(*given: Any) -> tuple[Any, Any]:
        bases = [x.value for x in given]
        wanted = tuple(x.perturbed for x in given)
        if not any(wanted):  # as jvp asks with tangents of zero, say
            return made(*bases), ((), {})
        backward, recorded = _backward(stated, wanted)
        if backward.kept:
            outputs, saved = _kept(stated, backward, bases)
        else:
            written = [x.base for x in _run(backward)(recorded, bases)]
            of = dict(zip(recorded.names, (*bases, *written), strict=True))
            saved = {name: of[name] for name in backward.reads(recorded.names)}
            outputs = tuple(of[name] for name in stated.names[len(bases) :])
        # A tree without arrays says which operands want a gradient.
        return outputs, (tuple(() if one else None for one in wanted), saved)

    def backward(residual: Any, arrived: Any) -> tuple[Any, ...]:
        flags, saved = residual
        wanted = tuple(one is not None for one in flags)
        if not any(wanted):
            return (None,) * len(stated.views)
        return _gradients(stated, wanted, saved, arrived)

    call: Any = jax.custom_vjp(made)
    call.defvjp(forward, backward, symbolic_zeros=True)
    return call


def _run(backward: Backward) -> Callable[[Stated, Sequence[Any]], tuple[Tensor, ...]]:
    """What makes the calls of a recorded call: a backward pass may be differentiated in turn."""
    return differentiable if backward.differentiable else launch


@lru_cache(maxsize=4096)
def _backward(stated: Stated, wanted: tuple[bool, ...]) -> tuple[Backward, Stated]:
    """The backward pass, and the call that writes what it reads. Raises `BadArgument`."""
    names = [name for name, one in zip(stated.names, wanted, strict=False) if one]
    found = ops.family(stated.op).gradients(stated.problem, tuple(names))
    if not isinstance(found, Backward):
        raise BadArgument(f"{found.reason}; use jax.lax.stop_gradient for such operands")
    options = dict(stated.options) | dict(found.options)
    return found, replace(stated, options=tuple(sorted(options.items())))


def _kept(
    stated: Stated, backward: Backward, bases: Sequence[Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The output of a call, made from what its backward pass keeps; and all that this reads."""
    operands = {one.name: one for one in ops.family(stated.op).operands(stated.problem)}
    inputs = zip(stated.names, bases, stated.views, strict=False)
    values = {name: _as_operand(base, view, operands[name]) for name, base, view in inputs}
    steps = {step.makes: step for step in backward.computations}
    for step in (steps[backward.kept], *backward.finish):
        _carry_out(step, values, _run(backward))
    name, (output,) = stated.names[-1], stated.outputs
    made = _as_input(values[name], _view(output), operands[name])
    of = dict(zip(stated.names, (*bases, made), strict=True))
    rest = tuple(step for step in backward.computations if step.makes != backward.kept)
    read = replace(backward, computations=rest).reads(stated.names)
    saved = {name: of[name] for name in read}
    return (made,), saved | {backward.kept: values[backward.kept]}


def _gradients(
    stated: Stated, wanted: tuple[bool, ...], saved: Mapping[str, Any], arrived: Sequence[Any]
) -> tuple[Any, ...]:
    """The gradient of each operand's row-major array; None where none is wanted."""
    backward, recorded = _backward(stated, wanted)
    views, names = stated.views, stated.names
    operands = {one.name: one for one in ops.family(stated.op).operands(recorded.problem)}
    lying = dict(zip(recorded.names, (*views, *map(_view, recorded.outputs)), strict=True))
    values: dict[str, Any] = {
        **ops.family(stated.op).scalar_defaults(stated.problem),
        **dict(stated.scalars),
    }
    for name, x in saved.items():
        kept = name == backward.kept
        values[name] = x if kept else _as_operand(x, lying[name], operands[name])
    for name, one, gradient in zip(names[len(views) :], stated.outputs, arrived, strict=True):
        values[incoming(name)] = _arrived(gradient, one, operands[name])
    run = _run(backward)
    for step in backward.computations:
        if step.makes != backward.kept:
            _carry_out(step, values, run)
    found: list[Any] = [None] * len(views)
    for place, (view, wants) in enumerate(zip(views, wanted, strict=True)):
        if wants:
            name = names[place]
            made = values[backward.gradients[name]]
            found[place] = _as_input(made, view, operands[name])
    return tuple(found)


def _carry_out(step: Computation, values: dict[str, Any], run: Any) -> None:
    """Add to `values` what a computation makes."""
    makes = (step.makes,) if isinstance(step.makes, str) else step.makes
    if not isinstance(step.op, str):
        values[makes[0]] = step.op(*(values[name] for name in step.operands))
        return
    known = ops.family(step.op).scalars
    named = [name for name in step.keywords if name not in known]
    tensors = [values[name] for name in (*step.operands, *(step.keywords[n] for n in named))]
    scalars = {name: values[key] for name, key in step.keywords.items() if name in known}
    stated = stated_of(step.op, tensors, named, dict(step.options), scalars)
    values |= zip(makes, run(stated, [x.base for x in tensors]), strict=True)


def _view(one: Operand) -> View:
    return View(one.shape, one.strides, one.dtype, 0, "cpu")


def _as_operand(base: Any, view: View, one: Operand) -> Tensor:
    """An array of a call with the shape of its operand, which the family may have folded."""
    x = Tensor(base, order_of(view.shape, view.strides))
    return x if alike(view, one) else x.as_strided(one.shape, one.strides)


def _arrived(gradient: Any, made: Operand, one: Operand) -> Tensor:
    """The gradient of an output, with the shape of its operand."""
    order = order_of(made.shape, made.strides)
    if isinstance(gradient, SymbolicZero):
        gradient = jnp.zeros(gradient.aval.shape, gradient.aval.dtype)
    x = Tensor(gradient, order)
    return x if alike(made, one) else x.as_strided(one.shape, one.strides)


def _as_input(gradient: Tensor, view: View, one: Operand) -> Any:
    """The gradient of an operand's row-major array."""
    gradient = gradient.to(dtypes.numpy_dtype(dtypes.dtype(view.dtype)))
    order = order_of(view.shape, view.strides)
    if gradient.shape == view.shape and (gradient.shape != one.shape or alike(view, one)):
        return gradient.laid_out(order)
    if gradient.shape != one.shape:  # summed over what the family had broadcast
        return gradient.reshape(view.shape).laid_out(order)
    shared = tuple(
        i for i, (n, s) in enumerate(zip(one.shape, one.strides, strict=True)) if n > 1 and not s
    )
    if shared:  # each element is read several times, so its gradients add up
        gradient = gradient.sum(shared, keepdim=True)
    whole = gradient.laid_out(order_of(gradient.shape, one.strides)).reshape(-1)
    return whole.reshape(np.array(view.shape)[list(order)].tolist())
