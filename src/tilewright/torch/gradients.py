"""Gradients: an ``autograd.Function`` from what a family states of its backward pass.

It stands outside of the operator in eager calls: a formula registered with the operator costs more
than the launch. Only the gradients asked for are computed, and only the tensors that they read are
saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import torch
from torch.autograd import forward_ad

from tilewright import calls, dtypes, ops
from tilewright.default import default_dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.nouns import Operand, View
from tilewright.ready import Launched, Repeatable
from tilewright.torch import autocast, fake
from tilewright.torch.said import NOTHING, Numbers, Said

Run = Callable[[str, Said, Sequence[Any], Numbers], Sequence[Any]]
"""Runs an operation: its name, what the call says, its tensors and numbers → its outputs."""


Taking = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Takes some items of a tuple."""

Described = tuple[tuple[tuple[int, ...], tuple[int, ...], Any, Any, bool], ...]
"""For each input: shape, strides, torch's dtype and device, whether it wants a gradient."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A computation of a backward pass.

    makes: the names of its results.
    op: an operation's name, or a function of tensors.
    said: of an operation, what its call says.
    what: of an operation, what the dispatcher tells its calls apart by.
    operands: names of its tensors, or of a function's arguments.
    numbers: names of the scalars that an operation takes.
    passed: of every scalar that it knows, the name of its value; None for one that is left out.
    """

    makes: tuple[str, ...]
    op: str | Callable[..., Any]
    said: Said
    what: Any
    operands: tuple[str, ...]
    numbers: tuple[str, ...]
    passed: tuple[str | None, ...]


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


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The backward pass of calls that look alike. One equals itself alone, so that it has a cheap
    hash.

    op: the operation.
    said: what the recorded call says: what the caller's says, and what the backward pass needs.
    what: what the dispatcher tells it apart by.
    scalars: names of the numbers that the call gives.
    defaults: scalars that it may leave out, with their values.
    inputs: how many there are.
    saved: places, among inputs and then outputs, of the tensors that the backward pass reads.
    keep: takes these of all inputs and outputs.
    returned: takes the caller's outputs, of those of the recorded call.
    operands: the operands that the saved tensors are.
    arriving: of each of the caller's outputs, the name of its gradient, and its shape.
    steps: in an order in which they can be made.
    results: the gradients asked for.
    launched: the places of those that an operation makes.
    rest: the others.
    apart: the steps that make the rest; None where a backward pass cannot be repeated: if an
        operation is one of these steps, or no result is an operation's own.
    read_apart: what these steps read, and the names of the rest.
    passed: `_Step.passed` of all steps.
    differentiable: as in `Backward`.
    constant: of the caller's outputs, the places of those that have no gradient.
    """

    op: str
    said: Said
    what: Any
    scalars: tuple[str, ...]
    defaults: Mapping[str, int | float]
    inputs: int
    saved: tuple[int, ...]
    keep: Taking
    returned: Taking
    operands: tuple[Operand, ...]
    arriving: tuple[tuple[str, tuple[int, ...]], ...]
    steps: tuple[_Step, ...]
    results: tuple[_Result, ...]
    launched: tuple[int, ...]
    rest: tuple[_Result, ...]
    apart: tuple[_Step, ...] | None
    read_apart: frozenset[str]
    passed: tuple[str | None, ...]
    differentiable: bool
    constant: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Later:
    """A call with symbols, whose backward pass is planned when they have become numbers.

    given: what the caller's call says.
    wanted: places of the inputs that want a gradient.
    said, returned, constant, inputs, keep: as in `_Plan`, by the numbers that are traced; but every
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
        plan = _plan(op, said, described)
    except TypeError:  # a symbol has no hash
        if not said.numbers and not fake.symbolic(said, map(fake.view, tensors)):
            raise
        later = _Call(_later(op, said, described, numbers), run, False)
        return _apply(later, numbers, None, *tensors)  # type: ignore[no-any-return, no-untyped-call]
    call = _Call(plan, run, what is not None)
    by_name: Named = dict(zip(plan.scalars, numbers, strict=True))
    outputs: Sequence[Any] = _apply(call, by_name, None, *tensors)  # type: ignore[no-untyped-call]
    if what is not None and all(x is y for x, y in zip(given, tensors, strict=True)):
        arrays = tuple(tensors)
        default_dispatcher().record(what, arrays, plan.what, arrays, partial(_apply, call))
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
        _taking((*range(example.inputs), *outputs)),
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
    saved = tuple(place for place, name in enumerate(everything) if name in read)
    steps = tuple(map(_step, backward.computations))
    results = tuple(
        _Result(
            place,
            backward.gradients[names[place]],
            views[place],
            described[place][2],
            declared[names[place]],
        )
        for place in wanted
    )
    launches = tuple(step for step in steps if isinstance(step.op, str))
    by_launch = {name for step in launches for name in step.makes}
    launched = [result for result in results if result.made in by_launch]
    rest = tuple(result for result in results if result.made not in by_launch)
    apart = _without_launches(steps, {result.made for result in rest})
    if not launched or len({result.made for result in launched}) < len(launched):
        apart = None
    return _Plan(
        op,
        said,
        calls.identity(op, said.named, said.options),
        given.scalars,
        family.scalar_defaults(problem),
        len(names),
        saved,
        _taking(saved),
        _taking([made.index(one.name) for one in outputs]),
        tuple(declared[name] for name in read),
        tuple((incoming(one.name), one.shape) for one in outputs),
        steps,
        results,
        tuple(result.place for result in launched),
        rest,
        apart,
        frozenset(name for step in apart or () for name in step.operands)
        | {result.made for result in rest},
        tuple(name for step in launches for name in step.passed),
        backward.differentiable,
        tuple(i for i, one in enumerate(outputs) if one.name in backward.constant),
    )


def _without_launches(steps: Sequence[_Step], wanted: Collection[str]) -> tuple[_Step, ...] | None:
    """The steps that make the results `wanted`; None if one of them is an operation's."""
    needed, found = set(wanted), []
    for step in reversed(steps):
        if needed.intersection(step.makes):
            if isinstance(step.op, str):
                return None
            needed.update(step.operands)
            found.append(step)
    return tuple(reversed(found))


def _taking(places: Sequence[int]) -> Taking:
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _view(described: tuple[Any, ...]) -> View:
    """An input as if its memory began at address 0: an alignment decides no gradient."""
    shape, strides, kind, device, _ = described
    return View(tuple(shape), strides, dtypes.of_dtype(kind).name, 0, str(device))


def _step(one: Computation) -> _Step:
    makes = (one.makes,) if isinstance(one.makes, str) else one.makes
    if not isinstance(one.op, str):
        return _Step(makes, one.op, NOTHING, None, one.operands, (), ())
    known = ops.family(one.op).scalars
    scalars = tuple(name for name in one.keywords if name in known)
    named = tuple(name for name in one.keywords if name not in known)
    said = Said(named, scalars, tuple(sorted(one.options.items())))
    operands = (*one.operands, *(one.keywords[name] for name in named))
    what, numbers = calls.identity(one.op, named, said.options), [one.keywords[n] for n in scalars]
    passed = [one.keywords.get(name) for name in calls.scalars_of(one.op)]
    return _Step(makes, one.op, said, what, operands, tuple(numbers), tuple(passed))


@dataclass(frozen=True, slots=True)
class _Call:
    """How calls that look alike are recorded.

    run: runs the call, and those of its backward pass.
    by_dispatcher: whether that is the dispatcher, which may repeat calls.
    """

    plan: _Plan | _Later
    run: Run
    by_dispatcher: bool


class _Recorded(torch.autograd.Function):
    """The call, and its backward pass, which is one operator where there are symbols."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, numbers: Any, outputs: tuple[Any, ...] | None, *tensors: Any
    ) -> tuple[Any, ...]:
        """outputs: all of them, of a call that the dispatcher has repeated.
        numbers: of such a call, those that the operation knows, in order, None for each that is
        left out; or none. Else those of the call: by name; in their order where some are symbols.
        """
        plan = call.plan
        if outputs is None:
            given = numbers if isinstance(plan, _Later) else [*numbers.values()]
            outputs = tuple(call.run(plan.op, plan.said, tensors, given))
        elif numbers:
            known = zip(calls.scalars_of(plan.op), numbers, strict=True)
            numbers = {name: number for name, number in known if number is not None}
        ctx.recorded = call, numbers
        ctx.save_for_backward(*plan.keep((*tensors, *outputs)))
        returned = plan.returned(outputs)
        if plan.constant:
            ctx.mark_non_differentiable(*[returned[place] for place in plan.constant])
        return returned

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> tuple[Any, ...]:
        (call, numbers), saved = ctx.recorded, ctx.saved_tensors
        plan, run = call.plan, call.run
        if isinstance(plan, _Later):
            if torch.is_grad_enabled():
                raise _no_graph(plan.op)
            return _NO_GRADIENTS + tuple(_by_operator(plan, saved, arrived, numbers))
        numbers = numbers or _NO_NUMBERS
        found: Sequence[Any]
        if torch.is_grad_enabled():  # a graph of this pass is asked for
            _refuse_graph(plan)
            again = partial(_recorded_if_wanted, run)
            with autocast.off():  # its operands are of the dtypes that the call had
                found = _carry_out(plan, again, numbers, saved, arrived)
        elif call.by_dispatcher:
            found = _repeated(plan, run, numbers, saved, arrived)
        else:
            with autocast.off():
                found = _carry_out(plan, run, numbers, saved, arrived)
        return _NO_GRADIENTS + tuple(found)


_NO_GRADIENTS = (None, None, None)
"""Of the arguments of `_Recorded.forward` that are no tensors."""
_NO_NUMBERS: Mapping[str, Any] = {}

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
        by_name = dict(zip(plan.scalars, scalars, strict=True))
        found = _carry_out(plan, run, by_name, [everything[p] for p in plan.saved], arrived)
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


Named = Mapping[str, int | float]
"""The numbers that a call gives, by name."""


def _carry_out(
    plan: _Plan, run: Run, numbers: Named, saved: Sequence[Any], arrived: Sequence[Any]
) -> list[Any]:
    """A gradient for each input; None where none is wanted.

    saved: the tensors at `_Plan.saved`.
    arrived: the gradients of the outputs.
    """
    values = _values(plan, numbers, saved, arrived)
    _carry_out_steps(plan.steps, run, values)
    found: list[Any] = [None] * plan.inputs
    for result in plan.results:
        found[result.place] = _finished(result, values[result.made])
    return found


def _values(
    plan: _Plan,
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
    for (name, shape), x in zip(plan.arriving, arrived, strict=True):
        if wanted is None or name in wanted:
            values[name] = x if x.shape == shape else x.reshape(shape)
    return values


def _carry_out_steps(
    steps: Sequence[_Step], run: Run, values: dict[str, Any], dispatcher: Any = None
) -> None:
    """Add to `values` what steps make.

    dispatcher: repeats those that are like earlier ones, if given.
    """
    for step in steps:
        given = [values[name] for name in step.operands]
        if not isinstance(step.op, str):
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


def _passed(names: tuple[str | None, ...], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of these names; None for None."""
    return tuple([None if name is None else values[name] for name in names]) if names else ()


def _finished(result: _Result, made: Any) -> Any:
    """The gradient of an input."""
    # torch converts to fp8 itself, unless the tensor's grad_dtype says not to.
    if made.dtype is not result.dtype and result.dtype.itemsize > 1:
        made = made.to(result.dtype)
    return as_input(made, result.view, result.operand)


def _repeated(
    plan: _Plan, run: Run, numbers: Named, saved: Sequence[Any], arrived: Sequence[Any]
) -> Sequence[Any]:
    """As `_carry_out`, by the dispatcher, which queues all launches at once where an earlier pass
    had such tensors."""
    arrays, dispatcher, made = (*saved, *arrived), default_dispatcher(), None
    if plan.apart is not None:
        passed = _passed(plan.passed, {**plan.defaults, **numbers}) if plan.passed else ()
        made = dispatcher.repeat(plan, arrays, passed)
    if made is not None and len(plan.launched) == plan.inputs:
        return made if type(made) is tuple else (made,)
    found: list[Any] = [None] * plan.inputs
    if made is None:
        with autocast.off():
            values = _values(plan, numbers, saved, arrived)
            _carry_out_steps(plan.steps, run, values, dispatcher)
            for result in plan.results:
                found[result.place] = _finished(result, values[result.made])
        if plan.apart is None:
            return found
        if call := _repeatable(plan, arrays, values, found):
            dispatcher.remember(plan, call)
        return found
    for place, x in zip(plan.launched, made if type(made) is tuple else (made,), strict=True):
        found[place] = x
    if plan.rest:
        with autocast.off() if autocast.active() else _AS_IT_IS:
            values = _values(plan, numbers, saved, arrived, plan.read_apart)
            _carry_out_steps(plan.apart or (), run, values)
            for result in plan.rest:
                found[result.place] = _finished(result, values[result.made])
    return found


_AS_IT_IS = nullcontext()


def _repeatable(
    plan: _Plan, arrays: tuple[Any, ...], values: Mapping[str, Any], found: Sequence[Any]
) -> Repeatable | None:
    """A backward pass as the dispatcher repeats it; None if a launch reads what a function of
    several tensors made.

    arrays: the tensors that the pass begins with.
    values: these and what its steps made, by name.
    found: the gradients.
    """
    launched = [result for result in plan.results if result.place in plan.launched]
    made = [found[result.place] for result in launched]
    roots = {result.made: -1 - place for place, result in enumerate(launched)}
    names = (*(one.name for one in plan.operands), *(name for name, _ in plan.arriving))
    roots |= {name: place for place, name in enumerate(names)}
    launches = []
    for step in plan.steps:
        if not isinstance(step.op, str):
            if len(step.operands) == 1 and step.operands[0] in roots:
                roots[step.makes[0]] = roots[step.operands[0]]  # a view of it; else a copy
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
