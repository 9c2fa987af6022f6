"""How a backward pass is planned: what is computed, from what, and in which order. A plan is made
once for calls that look alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from tilewright import calls, dtypes, ops
from tilewright.errors import BadArgument
from tilewright.ops.backward import Backward, Computation, alike, incoming
from tilewright.ops.nouns import Operand, View
from tilewright.torch import fake
from tilewright.torch.activations import ACTIVATIONS
from tilewright.torch.said import NOTHING, Said, of

Taking = Callable[[tuple[Any, ...]], tuple[Any, ...]]
"""Takes some items of a tuple."""

Described = tuple[tuple[tuple[int, ...], tuple[int, ...], Any, Any, bool], ...]
"""For each input: shape, strides, torch's dtype and device, whether it wants a gradient."""


@dataclass(frozen=True, slots=True)
class Step:
    """A computation of a backward pass.

    makes: the names of its results.
    view: as in `Computation`.
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
    view: bool = False


@dataclass(frozen=True, slots=True)
class Laid:
    """A tensor of a call, or a gradient that arrives, and the operand that it is.

    name: what steps call it.
    view: how the tensor lies. A gradient that arrives may lie otherwise.
    operand: how the operand lies, in the same memory.
    same: whether the tensor's dimensions are the operand's. Equal shapes do not say so: a square
        matrix may be the operand's transpose.
    folded: whether both are walked alike, so that a reshape makes one of the other.
    """

    name: str
    view: View
    operand: Operand
    same: bool
    folded: bool


def _laid(name: str, view: View, operand: Operand) -> Laid:
    folded = walk(view) == walk(operand)
    return Laid(name, view, operand, alike(view, operand), folded)


@dataclass(frozen=True, slots=True)
class Result:
    """A gradient that is asked for.

    place: of the input that it belongs to.
    made: the name of the computed gradient.
    launched: the name of the operation's result that it is, or is a view of; empty if it is none.
    view: the input.
    dtype: torch's, of the input.
    operand: the operand that the input is.
    """

    place: int
    made: str
    launched: str
    view: View
    dtype: Any
    operand: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
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
    operands: the saved tensors, and the operands that they are.
    arriving: the gradients of the caller's outputs.
    steps: in an order in which they can be made.
    results: the gradients asked for.
    launched: the places of those that an operation makes, perhaps in another shape.
    rest: the others.
    apart: the steps that make the rest; None where a backward pass cannot be repeated: if an
        operation is one of these steps, or no result is an operation's own.
    read_apart: what these steps read, and the names of the rest.
    passed: `Step.passed` of all steps.
    differentiable: as in `Backward`.
    kept: `Backward.said` of a call whose output is to be kept, so that the backward pass need not
        compute it; or None.
    finish: names of the `ACTIVATIONS` that make this call's output from that one's.
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
    operands: tuple[Laid, ...]
    arriving: tuple[Laid, ...]
    steps: tuple[Step, ...]
    results: tuple[Result, ...]
    launched: tuple[int, ...]
    rest: tuple[Result, ...]
    apart: tuple[Step, ...] | None
    read_apart: frozenset[str]
    passed: tuple[str | None, ...]
    differentiable: bool
    kept: tuple[str, str] | None
    finish: tuple[str, ...]
    constant: tuple[int, ...]


@lru_cache(maxsize=4096)
def plan_of(op: str, said: Said, described: Described) -> Plan:
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
    lie = dict(zip(names, views, strict=True))
    for name, one in zip(made, family.outputs(fake.call(said, views)), strict=True):
        lie[name] = View(tuple(one.shape), tuple(one.strides), one.dtype, 0, "")
    everything = (*names, *made)
    read = backward.reads(everything)
    saved = tuple(place for place, name in enumerate(everything) if name in read)
    steps = tuple(map(_step, backward.computations))
    launches = tuple(step for step in steps if isinstance(step.op, str))
    by_launch = {name: name for step in launches for name in step.makes}
    for step in steps:
        if step.view and step.operands[0] in by_launch:
            by_launch[step.makes[0]] = by_launch[step.operands[0]]
    results = tuple(
        Result(
            place,
            backward.gradients[names[place]],
            by_launch.get(backward.gradients[names[place]], ""),
            views[place],
            described[place][2],
            declared[names[place]],
        )
        for place in wanted
    )
    launched = [result for result in results if result.launched]
    rest = tuple(result for result in results if not result.launched)
    apart = _without_launches(steps, {result.made for result in rest})
    if not launched or len({result.launched for result in launched}) < len(launched):
        apart = None
    # Other operations than activations would be several launches each.
    keeps = bool(backward.kept) and ACTIVATIONS.keys() >= set(backward.ending)
    return Plan(
        op,
        said,
        calls.identity(op, said.named, said.options),
        given.scalars,
        family.scalar_defaults(problem),
        len(names),
        saved,
        taking(saved),
        taking([made.index(one.name) for one in outputs]),
        tuple(_laid(name, lie[name], declared[name]) for name in read),
        tuple(_laid(incoming(one.name), lie[one.name], one) for one in outputs),
        steps,
        results,
        tuple(result.place for result in launched),
        rest,
        apart,
        frozenset(name for step in apart or () for name in step.operands)
        | {result.made for result in rest},
        tuple(name for step in launches for name in step.passed),
        backward.differentiable,
        backward.said if keeps else None,
        backward.ending if keeps else (),
        tuple(i for i, one in enumerate(outputs) if one.name in backward.constant),
    )


def having(said: Said, option: tuple[str, str]) -> Said:
    """What a call says that has another value of an option; without the option if that is empty."""
    name, value = option
    options = tuple(one for one in said.options if one[0] != name)
    if value:
        options = tuple(sorted((*options, option)))
    return replace(said, options=options)


def plan_of_call(op: str, keywords: Mapping[str, Any], described: Described) -> Plan:
    """As `plan_of`. keywords: the call's, which have no scalars."""
    said, _ = of(op, calls.spoken(op, keywords, 0))
    return plan_of(op, said, described)


def _without_launches(steps: Sequence[Step], wanted: Collection[str]) -> tuple[Step, ...] | None:
    """The steps that make the results `wanted`; None if one of them is an operation's."""
    needed, found = set(wanted), []
    for step in reversed(steps):
        if needed.intersection(step.makes):
            if isinstance(step.op, str):
                return None
            needed.update(step.operands)
            found.append(step)
    return tuple(reversed(found))


def walk(of: View | Operand) -> list[tuple[int, int]]:
    """How memory is walked, row by row: dimensions that join are joined, those of size 1 dropped.
    Two tensors that are walked alike have their elements in the same order."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(of.shape, of.strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


def taking(places: Sequence[int]) -> Taking:
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def _view(described: tuple[Any, ...]) -> View:
    """An input as if its memory began at address 0: an alignment decides no gradient."""
    shape, strides, kind, device, _ = described
    return View(tuple(shape), strides, dtypes.of_dtype(kind).name, 0, str(device))


def _step(one: Computation) -> Step:
    makes = (one.makes,) if isinstance(one.makes, str) else one.makes
    if not isinstance(one.op, str):
        return Step(makes, one.op, NOTHING, None, one.operands, (), (), one.view)
    known = ops.family(one.op).scalars
    scalars = tuple(name for name in one.keywords if name in known)
    named = tuple(name for name in one.keywords if name not in known)
    said = Said(named, scalars, tuple(sorted(one.options.items())))
    operands = (*one.operands, *(one.keywords[name] for name in named))
    what, numbers = calls.identity(one.op, named, said.options), [one.keywords[n] for n in scalars]
    passed = [one.keywords.get(name) for name in calls.scalars_of(one.op)]
    return Step(makes, one.op, said, what, operands, tuple(numbers), tuple(passed))
