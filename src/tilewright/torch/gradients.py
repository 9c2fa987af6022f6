"""Gradients: an ``autograd.Function`` from what a family states of its backward pass.

Where a backward pass would compute an activation's input anew, the call ends there and torch's own
activation follows, which keeps its input.

It stands outside of the operator in eager calls: a formula registered with the operator costs more
than the launch. Only the gradients asked for are computed, and only the tensors that they read are
saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.autograd import forward_ad

from tilewright import calls
from tilewright.default import default_dispatcher
from tilewright.errors import BadArgument
from tilewright.torch import autocast, fake, nodes
from tilewright.torch.activations import ACTIVATIONS
from tilewright.torch.backward_pass import Named, Run, carry_out, passed, repeated
from tilewright.torch.backward_plan import Described, Plan, Taking, having, plan_of, taking
from tilewright.torch.said import Numbers, Said


@dataclass(frozen=True, slots=True)
class _Later:
    """A call with symbols, whose backward pass is planned when they have become numbers.

    given: what the caller's call says.
    wanted: places of the inputs that want a gradient.
    said, returned, constant, inputs, keep: as in `Plan`, by the numbers that are traced; but every
        input is saved.
    """

    op: str
    given: Said
    wanted: tuple[int, ...]
    said: Said
    returned: Taking
    constant: tuple[int, ...]
    inputs: int
    keep: Taking


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
    run: Run,
    op: str,
    said: Said,
    tensors: Sequence[Any],
    numbers: Numbers,
    what: Any = None,
) -> Sequence[Any]:
    """Run a call and have torch record its gradients.

    run: how this call and those of its backward pass are run.
    what: if `run` is the dispatcher's, what this tells the calls apart by (`Spoken.what`): later
        calls like this one are repeated.

    Raises `BadArgument` where the operation has none.
    """
    given = tensors
    tensors, described = _described(tensors)
    said, numbers = said.settled(numbers)
    try:
        if said.numbers:
            raise TypeError
        plan = plan_of(op, said, described)
    except TypeError:  # a symbol has no hash
        if not said.numbers and not fake.symbolic(said, map(fake.view, tensors)):
            raise
        later, finish = _later(op, said, described, numbers)
        function = partial(_apply, _Call(later, run, False))
        return _finishing(finish, function, numbers, None, *tensors)
    finish = plan.finish
    if plan.kept is not None:
        plan = plan_of(op, having(said, plan.kept), described)
    call = _Call(plan, run, what is not None)
    function = partial(_apply, call)
    whole = partial(_finishing, finish, function) if finish else function
    by_name: Named = dict(zip(plan.scalars, numbers, strict=True))
    outputs: Sequence[Any] = whole(by_name, None, *tensors)
    if what is not None and all(x is y for x, y in zip(given, tensors, strict=True)):
        arrays, dispatcher = tuple(tensors), default_dispatcher()
        if arrays and arrays[0].is_cuda:
            nodes.begun(dispatcher)
        function = _in_cpp(call, plan) or function
        whole = partial(_finishing, finish, function) if finish else function
        dispatcher.record(what, arrays, plan.what, arrays, whole)
    return outputs


_MOST_OUTPUTS = 64


def _in_cpp(call: _Call, plan: Plan) -> Any:
    """What records calls like this one in C++ once they are repeated; None where Python does: with
    outputs that have no gradient."""
    if plan.constant:
        return None
    returned = plan.returned(tuple(range(_MOST_OUTPUTS)))
    places = [result.place for result in plan.results]
    return nodes.recording(call, plan.inputs, plan.saved, returned, places, _carried_out, _learnt)


def _carried_out(
    call: _Call, scalars: Scalars, saved: Sequence[Any], arrived: Sequence[Any]
) -> Sequence[Any]:
    """A gradient for each input, or None."""
    return _backward(call, _by_name(call.plan.op, scalars), saved, arrived)


def _learnt(
    call: _Call, scalars: Scalars, saved: tuple[Any, ...], arrived: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """How a backward pass on such tensors may be repeated; None if it may not."""
    plan = call.plan
    found = default_dispatcher().recipe_of(plan, (*saved, *arrived))
    if found is None or isinstance(plan, _Later):
        return None
    return (*found, passed(plan, _by_name(plan.op, scalars)))


Scalars = tuple[int | float | None, ...]
"""Those that an operation knows, in order, None for each that is left out; or none at all."""


def _by_name(op: str, scalars: Scalars) -> Named:
    if not scalars:
        return _NO_NUMBERS
    known = zip(calls.scalars_of(op), scalars, strict=True)
    return {name: number for name, number in known if number is not None}


def _finishing(
    finish: Sequence[str],
    function: Callable[..., Any],
    numbers: Any,
    outputs: tuple[Any, ...] | None,
    *tensors: Any,
) -> tuple[Any, ...]:
    """What `function` records, and torch's activations behind it, which keep their input."""
    found = function(numbers, outputs, *tensors)
    made: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
    for name in finish:
        made = (ACTIVATIONS[name](*made),)
    return made


def _later(
    op: str, said: Said, described: Described, numbers: Numbers
) -> tuple[_Later, tuple[str, ...]]:
    """Plan by the numbers that are traced, to which the graph is not bound thereby; and the
    activations that follow (`Plan.finish`)."""
    whole, _ = said.whole(fake.hints(numbers))
    looks = tuple(
        (fake.hints(shape), fake.hints(strides), *rest) for shape, strides, *rest in described
    )
    example = plan_of(op, whole, looks)
    finish = example.finish
    if example.kept is not None:
        said, whole = (having(one, example.kept) for one in (said, whole))
        example = plan_of(op, whole, looks)
    wanted = tuple(place for place, (*_, wants) in enumerate(described) if wants)
    outputs = tuple(place for place in example.saved if place >= example.inputs)
    more = dict(example.said.options).items() - dict(whole.options).items()
    options = tuple(sorted((dict(said.options) | dict(more)).items()))
    later = _Later(
        op,
        said,
        wanted,
        replace(said, options=options),
        example.returned,
        example.constant,
        example.inputs,
        taking((*range(example.inputs), *outputs)),
    )
    return later, finish


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


@dataclass(frozen=True, slots=True)
class _Call:
    """How calls that look alike are recorded.

    run: runs the call, and those of its backward pass.
    by_dispatcher: whether that is the dispatcher, which may repeat calls.
    """

    plan: Plan | _Later
    run: Run
    by_dispatcher: bool


class _Recorded(torch.autograd.Function):
    """The call, and its backward pass, which is one operator where there are symbols."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, numbers: Any, outputs: tuple[Any, ...] | None, *tensors: Any
    ) -> tuple[Any, ...]:
        """outputs: all of them, of a call that the dispatcher has repeated.
        numbers: of such a call, its `Scalars`. Else those of the call: by name; in their order
            where some are symbols.
        """
        plan = call.plan
        if outputs is None:
            given = numbers if isinstance(plan, _Later) else [*numbers.values()]
            outputs = tuple(call.run(plan.op, plan.said, tensors, given))
        else:
            numbers = _by_name(plan.op, numbers)
        ctx.recorded = call, numbers
        ctx.save_for_backward(*plan.keep((*tensors, *outputs)))
        returned = plan.returned(outputs)
        if plan.constant:
            ctx.mark_non_differentiable(*[returned[place] for place in plan.constant])
        return returned

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> tuple[Any, ...]:
        (call, numbers), saved = ctx.recorded, ctx.saved_tensors
        return _NO_GRADIENTS + tuple(_backward(call, numbers, saved, arrived))


def _backward(
    call: _Call, numbers: Any, saved: Sequence[Any], arrived: Sequence[Any]
) -> Sequence[Any]:
    """A gradient for each input; None where none is wanted."""
    plan, run = call.plan, call.run
    if any(map(_is_legacy, arrived)) or any(map(_is_wrapped, arrived)):
        raise BadArgument(
            f"the gradient of {plan.op} has no rule for torch.func (vmap, is_grads_batched=True, "
            "jacobian with vectorize=True): ask for one gradient after the other"
        )
    if isinstance(plan, _Later):
        if torch.is_grad_enabled():
            raise _no_graph(plan.op)
        return _by_operator(plan, saved, arrived, numbers)
    numbers = numbers or _NO_NUMBERS
    if torch.is_grad_enabled():  # a graph of this pass is asked for
        _refuse_graph(plan)
        again = partial(_recorded_if_wanted, run)
        with autocast.off():  # its operands are of the dtypes that the call had
            return carry_out(plan, again, numbers, saved, arrived)
    if call.by_dispatcher:
        return repeated(plan, run, numbers, saved, arrived)
    with autocast.off():
        return carry_out(plan, run, numbers, saved, arrived)


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_legacy = torch._C._functorch.is_legacy_batchedtensor  # of is_grads_batched=True

_NO_GRADIENTS = (None, None, None)
"""Of the arguments of `_Recorded.forward` that are no tensors."""
_NO_NUMBERS: Named = {}

_apply = super(torch.autograd.Function, _Recorded).apply
"""`_Recorded.apply` without what torch's own puts around it for transforms of ``torch.func``, which
are refused: that takes a fifth of the time of a recorded call."""


def _refuse_graph(plan: Plan) -> None:
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
    plan = plan_of(op, whole, described)
    places = (*range(plan.inputs), *(place for place in plan.saved if place >= plan.inputs))
    everything = dict(zip(places, (*operands, *read), strict=True))
    with torch.no_grad():
        by_name = dict(zip(plan.scalars, scalars, strict=True))
        found = carry_out(plan, run, by_name, [everything[p] for p in plan.saved], arrived)
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
