"""How a backward pass is carried out: step by step, or by the dispatcher as an earlier one was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from tilewright.default import default_dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.backward import Sum, alike
from tilewright.ops.nouns import Operand, View
from tilewright.ready import Launched, Repeatable
from tilewright.torch import autocast, sharding, sums
from tilewright.torch.backward_plan import Laid, Plan, Result, Step, walk
from tilewright.torch.said import Numbers, Said

Run = Callable[[str, Said, Sequence[Any], Numbers], Sequence[Any]]
"""Runs an operation: its name, what the call says, its tensors and numbers → its outputs."""


Named = Mapping[str, int | float]
"""The numbers that a call gives, by name."""


def carry_out(
    plan: Plan, run: Run, numbers: Named, saved: Sequence[Any], arrived: Sequence[Any]
) -> list[Any]:
    """A gradient for each input; None where none is wanted.

    saved: the tensors at `Plan.saved`.
    arrived: the gradients of the outputs.
    """
    values = _values(plan, numbers, saved, sharding.beside(saved, arrived))
    _carry_out_steps(plan.steps, run, values)
    found: list[Any] = [None] * plan.inputs
    for result in plan.results:
        found[result.place] = _finished(result, values[result.made])
    return found


def _values(
    plan: Plan,
    numbers: Named,
    saved: Sequence[Any],
    arrived: Sequence[Any],
    wanted: Collection[str] | None = None,
) -> dict[str, Any]:
    """What steps begin with, by name; of tensors, those that are wanted."""
    values: dict[str, Any] = {**plan.defaults, **numbers}
    for one, x in zip(plan.operands, saved, strict=True):
        if wanted is None or one.name in wanted:
            values[one.name] = _as_operand(x, one)
    for one, x in zip(plan.arriving, arrived, strict=True):
        if wanted is None or one.name in wanted:
            values[one.name] = _arrived(x, one)
    return values


def _carry_out_steps(
    steps: Sequence[Step], run: Run, values: dict[str, Any], dispatcher: Any = None
) -> dict[str, Any]:
    """Add to `values` what steps make. Returns the sums that an operation made, by name, in the
    shapes of its outputs.

    dispatcher: launches them, and repeats those that are like earlier ones, if given.
    """
    summed = {}
    for step in steps:
        given = [values[name] for name in step.operands]
        if not isinstance(step.op, str):
            if isinstance(step.op, Sum) and (dispatcher is not None or sums.being_prepared()):
                made = sums.by_operation(step.op, given[0], run, dispatcher)
                if made is not None:
                    summed[step.makes[0]], values[step.makes[0]] = made, made.reshape(-1)
                    continue
            values[step.makes[0]] = step.op(*given)
            continue
        if dispatcher is not None:
            passed = _passed(step.passed, values)
            made = dispatcher.repeat(step.what, tuple(given), passed, record=False)
            if made is not None:
                values |= zip(step.makes, made if type(made) is tuple else (made,), strict=True)
                continue
        scalars = [values[name] for name in step.numbers]
        made = run(step.op, step.said, given, scalars)
        values |= zip(step.makes, made, strict=True)
    return summed


def _passed(names: tuple[str | None, ...], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of these names; None for None."""
    return tuple([None if name is None else values[name] for name in names]) if names else ()


def _finished(result: Result, made: Any) -> Any:
    """The gradient of an input."""
    # torch converts to fp8 itself, unless the tensor's grad_dtype says not to.
    if made.dtype is not result.dtype and result.dtype.itemsize > 1:
        made = made.to(result.dtype)
    return as_input(made, result.view, result.operand)


def passed(plan: Plan, numbers: Named) -> tuple[Any, ...]:
    """The scalars of all launches of a repeated pass."""
    return _passed(plan.passed, {**plan.defaults, **numbers}) if plan.passed else ()


def repeated(
    plan: Plan, run: Run, numbers: Named, saved: Sequence[Any], arrived: Sequence[Any]
) -> Sequence[Any]:
    """As `carry_out`, by the dispatcher, which queues all launches at once where an earlier pass
    had such tensors."""
    arrays, dispatcher, made = (*saved, *arrived), default_dispatcher(), None
    if plan.apart is not None:
        made = dispatcher.repeat(plan, arrays, passed(plan, numbers))
    outputs = made if type(made) is tuple else (made,)
    whole = made is not None and len(outputs) == len(plan.results)
    if whole and len(outputs) == plan.inputs:
        return outputs
    found: list[Any] = [None] * plan.inputs
    if whole:
        for result, x in zip(plan.results, outputs, strict=True):
            found[result.place] = x
        return found
    if made is None:
        with autocast.off():
            values = _values(plan, numbers, saved, arrived)
            summed = _carry_out_steps(plan.steps, run, values, dispatcher)
            for result in plan.results:
                found[result.place] = _finished(result, values[result.made])
        if plan.apart is None:
            return found
        if call := _repeatable(plan, arrays, values, summed, found):
            dispatcher.remember(plan, call)
        return found
    for place, x in zip(plan.launched, outputs, strict=True):
        found[place] = x
    with autocast.off() if autocast.active() else _AS_IT_IS:
        values = _values(plan, numbers, saved, arrived, plan.read_apart)
        _carry_out_steps(plan.apart or (), run, values, dispatcher)
        for result in plan.rest:
            found[result.place] = _finished(result, values[result.made])
    return found


_AS_IT_IS = nullcontext()


def _repeatable(
    plan: Plan,
    arrays: tuple[Any, ...],
    values: Mapping[str, Any],
    summed: Mapping[str, Any],
    found: Sequence[Any],
) -> Repeatable | None:
    """A backward pass as the dispatcher repeats it, with its sums where an operation makes all the
    rest; None if a launch reads what a function of several tensors made.

    arrays: the tensors that the pass begins with.
    values: these and what its steps made, by name.
    summed: of these, the sums that an operation made.
    found: the gradients.
    """
    whole = all(
        result.made in summed and found[result.place].dtype is summed[result.made].dtype
        for result in plan.rest
    )
    launched = [one for one in plan.results if whole or one.place in plan.launched]
    made = [found[result.place] for result in launched]
    roots = {one.launched or one.made: -1 - place for place, one in enumerate(launched)}
    names = tuple(one.name for one in (*plan.operands, *plan.arriving))
    roots |= {name: place for place, name in enumerate(names)}
    launches = []
    for step in plan.steps:
        if not isinstance(step.op, str):
            of = roots.get(step.operands[0])
            if isinstance(step.op, Sum) and whole and step.makes[0] in summed:
                if of is None:
                    return None
                x, total = values[step.operands[0]], summed[step.makes[0]]
                launches.append(sums.launch_of(step.op, x, total, of, roots[step.makes[0]]))
            elif len(step.operands) == 1 and of is not None:
                roots[step.makes[0]] = of  # a view of it; else a copy
            continue
        for name in step.makes:
            if name not in roots:
                made.append(values[name])
                roots[name] = -len(made)
        read = (*step.operands, *step.makes)
        if not roots.keys() >= set(read):
            return None
        operands = tuple([values[name] for name in read])
        launches.append(Launched(step.what, operands, tuple([roots[name] for name in read])))
    return Repeatable(arrays, tuple(launches), tuple(made), len(launched))


def _as_operand(x: Any, one: Laid) -> Any:
    """A tensor of a call as its operand, which the family may have folded or turned."""
    if one.same:
        return x
    view, operand = one.view, one.operand
    if sharding.is_sharded(x):
        return _sharded_as_operand(x, one)
    if x.stride() != view.strides:  # a gradient, or what a hook for saved tensors has kept
        made = torch.empty_strided(view.shape, view.strides, dtype=x.dtype, device=x.device)
        x = made.copy_(x)
    return x.as_strided(operand.shape, operand.strides, x.storage_offset())


def _sharded_as_operand(x: Any, one: Laid) -> Any:
    """`_as_operand` of a ``DTensor``, whose memory is in parts. Raises `BadArgument`."""
    if one.folded:
        return x.reshape(one.operand.shape)
    order = _order(one.operand, one.view)
    if order is None:
        raise BadArgument(
            f"operand {one.name} is a DTensor, and its gradient's call reads it in another shape "
            "than it has; pass x.contiguous(), or matrices"
        )
    return x.permute(order)


def _arrived(x: Any, one: Laid) -> Any:
    """The gradient of an output with the shape of its operand."""
    if one.same or not one.folded:
        return _as_operand(x, one)
    return x.reshape(one.operand.shape)


def as_input(gradient: Any, view: View, one: Operand) -> Any:
    """A gradient of the operand's shape, or of as many elements as the input, with the shape that
    the input has."""
    if gradient.shape == view.shape and (gradient.shape != one.shape or alike(view, one)):
        return gradient
    if gradient.shape != one.shape:  # summed over what the family had broadcast
        return gradient.reshape(view.shape)
    shared = [
        i for i, (n, s) in enumerate(zip(one.shape, one.strides, strict=True)) if n > 1 and s == 0
    ]
    if shared:  # each element is read several times, so its gradients add up
        gradient = gradient.sum(shared, keepdim=True)
        one = replace(one, shape=tuple(gradient.shape))
    if walk(view) == walk(one):
        return gradient.reshape(view.shape)
    order = _order(view, one)
    if order is not None:
        return gradient.permute(order)
    whole = torch.empty_strided(
        view.shape, view.strides, dtype=gradient.dtype, device=gradient.device
    )
    whole.as_strided(one.shape, one.strides).copy_(gradient.reshape(one.shape))
    return whole


def _order(view: View | Operand, one: View | Operand) -> list[int] | None:
    """The operand's dimensions in the order that the input has them; None if they are others."""
    left = [*zip(one.shape, one.strides, strict=True)]
    order = []
    for size, stride in zip(view.shape, view.strides, strict=True):
        like = (i for i, (n, s) in enumerate(left) if n == size and (n == 1 or s == stride))
        place = next((i for i in like if i not in order), None)
        if place is None:
            return None
        order.append(place)
    return order if len(order) == len(left) else None
