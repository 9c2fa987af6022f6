"""Gradients: an ``autograd.Function`` from what a family states of its backward pass.

It stands outside of the operator in eager calls: a formula registered with the operator costs more
than the launch. Only the gradients asked for are computed, and only the tensors that they read are
saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from tilewright import dtypes, ops
from tilewright.errors import BadArgument
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.nouns import Operand, View
from tilewright.torch import fake
from tilewright.torch.said import Numbers, Said

Run = Callable[[str, Said, Sequence[Any], Numbers], list[Any]]
"""Runs an operation: its name, what the call says, its tensors and numbers → its outputs."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is recorded.

    run: how it and the operations of its backward pass are run.
    views: of its tensors, the sizes perhaps symbolic.
    wanted: places of the tensors that want a gradient.
    """

    run: Run
    op: str
    said: Said
    numbers: Numbers
    views: tuple[View, ...]
    wanted: tuple[int, ...]

    def plan(self) -> _Plan:
        """Its backward pass. Raises `BadArgument` where it has none."""
        return _plan(self.op, self.said, tuple(map(fake.concrete, self.views)), self.wanted)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The backward pass of calls that look alike.

    inputs: of each input, its view and the operand that it is.
    outputs: the operands that the outputs are.
    wanted: places of the inputs that want a gradient.
    saved: places, among inputs and then outputs, of the tensors that the backward pass reads.
    scalars: those that a call may leave out, with their values.
    """

    inputs: tuple[tuple[View, Operand], ...]
    outputs: tuple[Operand, ...]
    wanted: tuple[int, ...]
    saved: tuple[int, ...]
    scalars: Mapping[str, int | float]
    backward: Backward

    @property
    def operands(self) -> list[Operand]:
        """Those of the inputs, then those of the outputs."""
        return [*(one for _, one in self.inputs), *self.outputs]


def recorded(run: Run, op: str, said: Said, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
    """Run a call and have torch record its gradients.

    run: how this call and those of its backward pass are run.

    Raises `BadArgument` where the operation has none.
    """
    wanted = tuple(place for place, x in enumerate(tensors) if x.requires_grad)
    tensors = [
        x.contiguous() if place in wanted and _repeats(x) else x for place, x in enumerate(tensors)
    ]
    call = _Call(run, op, said, numbers, tuple(map(fake.view, tensors)), wanted)
    outputs: tuple[Any, ...] = _Recorded.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return list(outputs)


def _repeats(x: Any) -> bool:
    """Whether elements share memory, as those of ``expand`` do, which want a gradient each."""
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


@lru_cache(maxsize=1024)
def _plan(op: str, said: Said, views: tuple[View, ...], wanted: tuple[int, ...]) -> _Plan:
    family = ops.family(op)
    problem = family.problem_of(fake.call(said, views))
    declared = {one.name: one for one in family.operands(problem)}
    reads = (name for name, one in declared.items() if one.read and name not in said.named)
    names = (*reads, *said.named)
    outputs = tuple(one for one in declared.values() if one.role == "out")
    backward = family.gradients(problem, tuple(names[place] for place in wanted))
    if not isinstance(backward, Backward):
        raise BadArgument(
            f"{backward.reason}; pass x.detach() for the operands that require a gradient, or run "
            "under torch.no_grad()"
        )
    everything = (*names, *(one.name for one in outputs))
    read = backward.reads(everything)
    saved = tuple(place for place, name in enumerate(everything) if name in read)
    inputs = tuple(zip(views, (declared[name] for name in names), strict=True))
    defaults = family.scalar_defaults(problem)
    return _Plan(inputs, outputs, wanted, saved, defaults, backward)


class _Recorded(torch.autograd.Function):
    """The call, and its backward pass.

    Symbolic sizes stay symbols in the forward pass, which then saves all tensors; the backward pass
    specialises them.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Any) -> tuple[Any, ...]:
        saved = None if fake.symbolic(call.views) else call.plan().saved
        outputs = tuple(call.run(call.op, call.said, tensors, call.numbers))
        everything = (*tensors, *outputs)
        ctx.call = call
        ctx.places = tuple(range(len(everything))) if saved is None else saved
        ctx.save_for_backward(*(everything[place] for place in ctx.places))
        return outputs

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> tuple[Any, ...]:
        call: _Call = ctx.call
        with torch.no_grad():
            saved = dict(zip(ctx.places, ctx.saved_tensors, strict=True))
            found = _carry_out(call, saved, arrived)
        if torch.is_grad_enabled():
            found = _only_once(call.op, found)
        return (None, *found)


def _only_once(op: str, found: list[Any]) -> list[Any]:
    """The gradients, which cannot be differentiated: to do so raises an error.

    torch's `once_differentiable` raises none where the incoming gradient is a constant.
    """
    made = [x.detach().requires_grad_() for x in found if x is not None]
    refuse = torch._C._functions.DelayedError(
        f"{op} has no second derivative: its backward pass is not differentiable", len(made)
    )
    refusing = iter(refuse(*made))
    return [None if x is None else next(refusing) for x in found]


def _carry_out(call: _Call, saved: Mapping[int, Any], arrived: Sequence[Any]) -> list[Any]:
    """A gradient for each input; None where none is wanted."""
    plan = call.plan()
    operands = plan.operands
    values: dict[str, Any] = dict(plan.scalars)
    values |= zip(call.said.scalars, call.numbers, strict=True)
    for place in plan.saved:
        one = operands[place]
        values[one.name] = _as_operand(saved[place], one)
    for one, x in zip(plan.outputs, arrived, strict=True):
        values[incoming(one.name)] = x.reshape(one.shape)
    for step in plan.backward.computations:
        given = [values[name] for name in step.operands]
        if isinstance(step.op, str):
            values[step.makes] = _run_step(call.run, step, given, values)
        else:
            values[step.makes] = step.op(*given)
    found: list[Any] = [None] * len(plan.inputs)
    for place in plan.wanted:
        view, one = plan.inputs[place]
        found[place] = as_input(values[plan.backward.gradients[one.name]], view, one)
    return found


def _run_step(run: Run, step: Computation, given: list[Any], values: Mapping[str, Any]) -> Any:
    """The result of a step that is an operation: its first output."""
    assert isinstance(step.op, str)
    scalars = [name for name in step.keywords if name in ops.family(step.op).scalars]
    named = [name for name in step.keywords if name not in scalars]
    said = Said(tuple(named), tuple(scalars), tuple(sorted(step.options.items())))
    tensors = [*given, *(values[step.keywords[name]] for name in named)]
    numbers = [values[step.keywords[name]] for name in scalars]
    return run(step.op, said, tensors, numbers)[0]


def _as_operand(x: Any, one: Operand) -> Any:
    """A tensor of a call with the shape of its operand, which the family may have folded."""
    if tuple(x.shape) == one.shape:
        return x
    return x.as_strided(one.shape, one.strides, x.storage_offset())


def as_input(gradient: Any, view: View, one: Operand) -> Any:
    """A gradient of the operand's shape with the shape and dtype that the input has."""
    gradient = gradient.to(getattr(torch, dtypes.dtype(view.dtype).torch))
    if tuple(gradient.shape) == view.shape:
        return gradient
    if _walk(view.shape, view.strides) == _walk(one.shape, one.strides):
        return gradient.reshape(view.shape)
    whole = torch.empty_strided(
        view.shape, view.strides, dtype=gradient.dtype, device=gradient.device
    )
    whole.as_strided(one.shape, one.strides).copy_(gradient.reshape(one.shape))
    return whole


def _walk(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """How memory is walked, row by row: dimensions that join are joined, those of size 1 dropped.
    Two tensors that are walked alike have their elements in the same order."""
    walk: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if walk and walk[-1][1] == size * stride:
            walk[-1] = (walk[-1][0] * size, stride)
        else:
            walk.append((size, stride))
    return walk
