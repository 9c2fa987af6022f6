"""Gradients: an ``autograd.Function`` from what a family states of its backward pass.

It stands outside of the operator in eager calls: a formula registered with the operator costs more
than the launch. Only the gradients asked for are computed, and only the tensors that they read are
saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.autograd import forward_ad

from tilewright import dtypes, ops
from tilewright.errors import BadArgument
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.nouns import Operand, View
from tilewright.torch import autocast, fake
from tilewright.torch.said import NOTHING, Numbers, Said

Run = Callable[[str, Said, Sequence[Any], Numbers], Sequence[Any]]
"""Runs an operation: its name, what the call says, its tensors and numbers → its outputs."""


Described = tuple[tuple[tuple[int, ...], tuple[int, ...], Any, Any, bool], ...]
"""For each input: shape, strides, torch's dtype and device, whether it wants a gradient."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A computation of a backward pass.

    makes: the names of its results.
    op: an operation's name, or a function of tensors.
    said: of an operation, what its call says.
    operands: names of its tensors, or of a function's arguments.
    numbers: names of the scalars that an operation takes.
    """

    makes: tuple[str, ...]
    op: str | Callable[..., Any]
    said: Said
    operands: tuple[str, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """A gradient that is asked for.

    place: of the input that it belongs to.
    made: the name of the computed gradient.
    view: the input.
    dtype: torch's, of the input.
    operand: the operand that the input is.
    """

    place: int
    made: str
    view: View
    dtype: Any
    operand: Operand


@dataclass(frozen=True, slots=True)
class _Plan:
    """The backward pass of calls that look alike.

    op: the operation.
    said: what the recorded call says: what the caller's says, and what the backward pass needs.
    returned: places of the caller's outputs, among those of the recorded call.
    scalars: names of the numbers that the call gives.
    defaults: scalars that it may leave out, with their values.
    inputs: how many there are.
    saved: places, among inputs and then outputs, of the tensors that the backward pass reads.
    operands: the operands that these tensors are.
    arriving: of each of the caller's outputs, the name of its gradient, and its shape.
    steps: in an order in which they can be made.
    results: the gradients asked for.
    differentiable: as in `Backward`.
    constant: of the caller's outputs, the places of those that have no gradient.
    """

    op: str
    said: Said
    returned: tuple[int, ...]
    scalars: tuple[str, ...]
    defaults: Mapping[str, int | float]
    inputs: int
    saved: tuple[int, ...]
    operands: tuple[Operand, ...]
    arriving: tuple[tuple[str, tuple[int, ...]], ...]
    steps: tuple[_Step, ...]
    results: tuple[_Result, ...]
    differentiable: bool
    constant: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Later:
    """A call with symbols, whose backward pass is planned when they have become numbers.

    given: what the caller's call says.
    wanted: places of the inputs that want a gradient.
    said, returned, constant, inputs, saved: as in `_Plan`, by the numbers that are traced; but
        every input is saved.
    """

    op: str
    given: Said
    wanted: tuple[int, ...]
    said: Said
    returned: tuple[int, ...]
    constant: tuple[int, ...]
    inputs: int
    saved: tuple[int, ...]


def refuse_transforms(op: str, tensors: Sequence[Any]) -> None:
    """Raise `BadArgument` inside of a transform of ``torch.func``, and for a tensor with a tangent
    (forward-mode differentiation): neither has a rule here, so derivatives would be lost."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise BadArgument(
            f"{op} has no rule for torch.func (vmap, grad, jvp): call it outside of the "
            "transform; a batch is one more dimension of the operands"
        )
    if forward_ad._current_level >= 0:
        for x in tensors:
            if forward_ad.unpack_dual(x).tangent is not None:  # type: ignore[no-untyped-call]
                raise BadArgument(
                    f"{op} has no forward-mode derivative; pass the primal "
                    "(torch.autograd.forward_ad.unpack_dual(x).primal)"
                )


def recorded(
    run: Run, op: str, said: Said, tensors: Sequence[Any], numbers: Numbers
) -> Sequence[Any]:
    """Run a call and have torch record its gradients.

    run: how this call and those of its backward pass are run.

    Raises `BadArgument` where the operation has none.
    """
    tensors, described = _described(tensors)
    plan: _Plan | _Later
    said, numbers = said.settled(numbers)
    try:
        if said.numbers:
            raise TypeError
        plan = _plan(op, said, described)
    except TypeError:  # a symbol has no hash
        if not said.numbers and not fake.symbolic(said, map(fake.view, tensors)):
            raise
        plan = _later(op, said, described, numbers)
    outputs: Sequence[Any] = _apply((plan, run, numbers), *tensors)  # type: ignore[no-untyped-call]
    return outputs


def _later(op: str, said: Said, described: Described, numbers: Numbers) -> _Later:
    """Plan by the numbers that are traced, to which the graph is not bound thereby."""
    whole, _ = said.whole(fake.hints(numbers))
    example = _plan(
        op,
        whole,
        tuple(
            (fake.hints(shape), fake.hints(strides), *rest) for shape, strides, *rest in described
        ),
    )
    wanted = tuple(place for place, (*_, wants) in enumerate(described) if wants)
    outputs = tuple(place for place in example.saved if place >= example.inputs)
    more = dict(example.said.options).items() - dict(whole.options).items()
    options = tuple(sorted((dict(said.options) | dict(more)).items()))
    return _Later(
        op,
        said,
        wanted,
        replace(said, options=options),
        example.returned,
        example.constant,
        example.inputs,
        (*range(example.inputs), *outputs),
    )


def _described(tensors: Sequence[Any]) -> tuple[list[Any], Described]:
    """The tensors of a call, and how they look. A tensor with elements that share memory, as those
    of ``expand`` do, is copied if it wants a gradient: each element wants one."""
    found, described = [], []
    for given in tensors:
        x, strides, wants = given, given.stride(), given.requires_grad
        if wants and 0 in strides:
            x = x.contiguous()
            strides = x.stride()
        found.append(x)
        described.append((x.shape, strides, x.dtype, x.device, wants))
    return found, tuple(described)


@lru_cache(maxsize=4096)
def _plan(op: str, said: Said, described: Described) -> _Plan:
    """Plan the backward pass, once for calls that look alike: this takes longer than a launch."""
    family = ops.family(op)
    views = tuple(map(_view, described))
    problem = family.problem_of(fake.call(said, views))
    declared = {one.name: one for one in family.operands(problem)}
    reads = (name for name, one in declared.items() if one.read and name not in said.named)
    names = (*reads, *said.named)
    wanted = [place for place, (*_, wants) in enumerate(described) if wants]
    backward = family.gradients(problem, tuple(names[place] for place in wanted))
    if not isinstance(backward, Backward):
        raise BadArgument(
            f"{backward.reason}; pass x.detach() for the operands that require a gradient, or run "
            "under torch.no_grad()"
        )
    outputs = tuple(one for one in declared.values() if one.role == "out")
    given = said
    if backward.options:
        options = dict(said.options) | dict(backward.options)
        said = replace(said, options=tuple(sorted(options.items())))
        operands = family.operands(family.problem_of(fake.call(said, views)))
        declared = {one.name: one for one in operands}
    made = tuple(name for name, one in declared.items() if one.role == "out")
    everything = (*names, *made)
    read = backward.reads(everything)
    return _Plan(
        op,
        said,
        tuple(made.index(one.name) for one in outputs),
        given.scalars,
        family.scalar_defaults(problem),
        len(names),
        tuple(place for place, name in enumerate(everything) if name in read),
        tuple(declared[name] for name in read),
        tuple((incoming(one.name), one.shape) for one in outputs),
        tuple(map(_step, backward.computations)),
        tuple(
            _Result(
                place,
                backward.gradients[names[place]],
                views[place],
                described[place][2],
                declared[names[place]],
            )
            for place in wanted
        ),
        backward.differentiable,
        tuple(i for i, one in enumerate(outputs) if one.name in backward.constant),
    )


def _view(described: tuple[Any, ...]) -> View:
    """An input as if its memory began at address 0: an alignment decides no gradient."""
    shape, strides, kind, device, _ = described
    return View(tuple(shape), strides, dtypes.of_dtype(kind).name, 0, str(device))


def _step(one: Computation) -> _Step:
    makes = (one.makes,) if isinstance(one.makes, str) else one.makes
    if not isinstance(one.op, str):
        return _Step(makes, one.op, NOTHING, one.operands, ())
    known = ops.family(one.op).scalars
    scalars = tuple(name for name in one.keywords if name in known)
    named = tuple(name for name in one.keywords if name not in known)
    said = Said(named, scalars, tuple(sorted(one.options.items())))
    operands = (*one.operands, *(one.keywords[name] for name in named))
    return _Step(makes, one.op, said, operands, tuple(one.keywords[name] for name in scalars))


class _Recorded(torch.autograd.Function):
    """The call, and its backward pass, which is one operator where there are symbols."""

    @staticmethod
    def forward(
        ctx: Any, call: tuple[_Plan | _Later, Run, Numbers], *tensors: Any
    ) -> tuple[Any, ...]:
        plan, run, numbers = call
        outputs = run(plan.op, plan.said, tensors, numbers)
        everything = (*tensors, *outputs)
        ctx.plan, ctx.run, ctx.numbers = plan, run, numbers
        ctx.save_for_backward(*[everything[place] for place in plan.saved])
        returned = tuple([outputs[place] for place in plan.returned])
        if plan.constant:
            ctx.mark_non_differentiable(*[returned[place] for place in plan.constant])
        return returned

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> tuple[Any, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors
        if isinstance(plan, _Later):
            if torch.is_grad_enabled():
                raise _no_graph(plan.op)
            return (None, *_by_operator(plan, saved, arrived, ctx.numbers))
        run = ctx.run
        if torch.is_grad_enabled():  # a graph of this pass is asked for
            _refuse_graph(plan)
            run = partial(_recorded_if_wanted, run)
        with autocast.off():  # its operands are of the dtypes that the call had
            found = _carry_out(plan, run, ctx.numbers, saved, arrived)
        return (None, *found)


_apply = super(torch.autograd.Function, _Recorded).apply
"""`_Recorded.apply` without what torch's own puts around it for transforms of ``torch.func``, which
are refused: that takes a fifth of the time of a recorded call."""


def _refuse_graph(plan: _Plan) -> None:
    """Raise `BadArgument` if a backward pass cannot be differentiated. An error in the second pass
    would come too late: torch leaves a step out where no path leads to an input that is asked for.
    """
    if not plan.differentiable:
        raise _no_graph(plan.op)


def _no_graph(op: str) -> BadArgument:
    return BadArgument(
        f"{op} has no second derivative, which create_graph=True asks for (as do hvp and "
        "gradient penalties): leave create_graph out, or compute this part of the model with "
        "torch's own operations"
    )


def _by_operator(
    plan: _Later, saved: Sequence[Any], arrived: Sequence[Any], numbers: Numbers
) -> list[Any]:
    """A gradient for each input, by the operator ``tilewright::gradients``; None where none is
    wanted."""
    operands, read = saved[: plan.inputs], saved[plan.inputs :]
    made = torch.ops.tilewright.gradients(
        plan.op, operands, read, arrived, plan.wanted, plan.given.text, list(numbers) or None
    )
    of = dict(zip(plan.wanted, made, strict=True))
    return [of.get(place) for place in range(plan.inputs)]


def of_call(
    run: Run,
    op: str,
    said: Said,
    operands: Sequence[Any],
    numbers: Numbers,
    wanted: Sequence[int],
    read: Sequence[Any],
    arrived: Sequence[Any],
) -> list[Any]:
    """The gradients that a call's operands at the places `wanted` want, which lie as ``empty_like``
    has it and share no memory.

    read: the outputs that the backward pass reads.
    arrived: the gradients of the caller's outputs.
    """
    whole, scalars = said.whole(numbers)
    described = tuple(
        (tuple(x.shape), x.stride(), x.dtype, x.device, place in wanted)
        for place, x in enumerate(operands)
    )
    plan = _plan(op, whole, described)
    places = (*range(plan.inputs), *(place for place in plan.saved if place >= plan.inputs))
    everything = dict(zip(places, (*operands, *read), strict=True))
    with torch.no_grad():
        found = _carry_out(plan, run, scalars, [everything[p] for p in plan.saved], arrived)
    seen = {x.untyped_storage().data_ptr() for x in (*operands, *read, *arrived)}
    gradients = []
    for place in wanted:
        made = _lying_as(operands[place], found[place], seen)
        seen.add(made.untyped_storage().data_ptr())
        gradients.append(made)
    return gradients


def _lying_as(x: Any, gradient: Any, seen: Collection[int]) -> Any:
    """A gradient of `x` with the strides that ``empty_like`` gives, and in a storage that is not
    among those `seen`."""
    like = torch.empty_like(x, device="meta")
    apart = gradient.untyped_storage().data_ptr() not in seen
    if apart and gradient.dtype is x.dtype and gradient.stride() == like.stride():
        return gradient
    return torch.empty_like(x).copy_(gradient)


def _recorded_if_wanted(
    run: Run, op: str, said: Said, tensors: Sequence[Any], numbers: Numbers
) -> Sequence[Any]:
    """A call of a backward pass that is itself to be differentiated."""
    if any(x.requires_grad for x in tensors):
        return recorded(run, op, said, tensors, numbers)
    return run(op, said, tensors, numbers)


def _carry_out(
    plan: _Plan, run: Run, numbers: Numbers, saved: Sequence[Any], arrived: Sequence[Any]
) -> list[Any]:
    """A gradient for each input; None where none is wanted.

    saved: the tensors at `_Plan.saved`.
    arrived: the gradients of the outputs.
    """
    values: dict[str, Any] = dict(plan.defaults)
    if plan.scalars:
        values |= zip(plan.scalars, numbers, strict=True)
    for one, x in zip(plan.operands, saved, strict=True):
        values[one.name] = _as_operand(x, one)
    for (name, shape), x in zip(plan.arriving, arrived, strict=True):
        values[name] = x if x.shape == shape else x.reshape(shape)
    for step in plan.steps:
        given = [values[name] for name in step.operands]
        if isinstance(step.op, str):
            scalars = [values[name] for name in step.numbers]
            made = run(step.op, step.said, given, scalars)
            values |= zip(step.makes, made, strict=True)
        else:
            values[step.makes[0]] = step.op(*given)
    found: list[Any] = [None] * plan.inputs
    for result in plan.results:
        made = values[result.made]
        # torch converts to fp8 itself, unless the tensor's grad_dtype says not to.
        if made.dtype is not result.dtype and result.dtype.itemsize > 1:
            made = made.to(result.dtype)
        found[result.place] = as_input(made, result.view, result.operand)
    return found


def _as_operand(x: Any, one: Operand) -> Any:
    """A tensor of a call with the shape of its operand, which the family may have folded."""
    if x.shape == one.shape:
        return x
    return x.as_strided(one.shape, one.strides, x.storage_offset())


def as_input(gradient: Any, view: View, one: Operand) -> Any:
    """A gradient of the operand's shape, or of as many elements as the input, with the shape that
    the input has."""
    if gradient.shape == view.shape:
        return gradient
    if gradient.shape != one.shape:  # summed over what the family had broadcast
        return gradient.reshape(view.shape)
    shared = [
        i for i, (n, s) in enumerate(zip(one.shape, one.strides, strict=True)) if n > 1 and s == 0
    ]
    if shared:  # each element is read several times, so its gradients add up
        gradient = gradient.sum(shared, keepdim=True)
        one = replace(one, shape=tuple(gradient.shape))
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
