"""`operation`: the function that runs a family (``tilewright.gemm``) on arrays of any kind.

A call that is only a launch goes straight to the default dispatcher. A call that torch has to know
of (for gradients, ``torch.compile``, a trace) goes through `tilewright.torch`, which is imported
for the first of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from types import NoneType
from typing import Any

from tilewright.calls import plain, scalars_of, spoken
from tilewright.default import default_dispatcher
from tilewright.ready import Launched, Repeatable
from tilewright.signature import docstring, signature


@cache
def operation(op: str) -> Callable[..., Any]:
    """A function that runs one family through the default dispatcher (``tilewright.gemm``).

    It differentiates, and ``torch.compile`` keeps its calls. `Dispatcher.run` does neither.
    Each call returns the same function, so that it can be pickled.
    """

    def call(*operands: Any, out: Any = None, stream: Any = None, **options: Any) -> Any:
        if _compiling():
            from tilewright.torch.compiled import compiled

            return compiled(op, operands, out, stream, options)
        dispatcher = default_dispatcher()
        if out is not None:
            if stream is None and not options and dispatcher.launched(op, operands, out):
                return out
            return dispatcher.run_given(op, operands, out, stream, options)
        split = None
        if stream is None and not _seen():
            cast = _autocast()
            if (options or cast) and scalars_of(op).keys().isdisjoint(options):
                split = dispatcher.split(op, (*operands, (), *options, *options.values()))
            made = None
            if split is not None:
                made = _repeated(dispatcher, split)
            elif not cast:
                said = spoken(op, options, 0)
                given = (*operands, *said.named.values()) if said.named else operands
                made = dispatcher.repeat(said.what, given, said.scalars)
            if made is not None:
                return made
        if _concerns_torch(operands, options):
            from tilewright.torch.eager import eager

            made = eager(op, operands, stream, options)
        else:
            made = dispatcher.run_given(op, operands, None, stream, options)
        if split is not None:
            _remember_split(split, op, operands, options, made)
        return made

    call.__doc__ = docstring(op)
    call.__signature__ = signature(op)  # type: ignore[attr-defined]
    return exported(call, op)


def exported(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`function`, named as ``tilewright.<name>``: `pickle` finds a function by its name."""
    function.__module__, function.__name__, function.__qualname__ = "tilewright", name, name
    return function


def function(op: str, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """A function of a family (``tilewright.conv2d``), which `make` makes from its operation. A call
    like an earlier one is launched without its Python code."""
    whole = make(operation(op))

    @wraps(whole)
    def call(*given: Any, **named: Any) -> Any:
        if _compiling() or _seen():
            return whole(*given, **named)
        dispatcher = default_dispatcher()
        split = dispatcher.split(name, (*given, (), *named, *named.values()) if named else given)
        if split is None:
            return whole(*given, **named)
        made = _repeated(dispatcher, split)
        if made is not None:
            return made
        runs: list[tuple[Sequence[Any], Mapping[str, Any], Any]] = []

        def run(*operands: Any, **keywords: Any) -> Any:
            made = operation(op)(*operands, **keywords)
            runs.append((operands, keywords, made))
            return made

        found = make(run)(*given, **named)
        if len(runs) == 1 and runs[0][2] is found:
            _remember_split(split, op, *runs[0])
        return found

    return exported(call, name)


Split = tuple[Any, tuple[Any, ...]]
"""See `Dispatcher.split`."""


def _repeated(dispatcher: Any, split: Split) -> Any:
    """What a call like an earlier one returns; None if there was none."""
    what, arrays = split
    if not _autocast():
        return dispatcher.repeat(what, arrays)
    from tilewright.torch import autocast

    converted = autocast.as_before(what, arrays)
    return None if converted is None else dispatcher.repeat(what, converted)


def _remember_split(
    split: Split, op: str, operands: Sequence[Any], keywords: Mapping[str, Any], made: Any
) -> None:
    """Let calls like one that was just made be repeated.

    split: of the call that was made.
    op, operands, keywords: the operation that it called, and how.
    made: what that returned, and it too.
    """
    what, arrays = split
    if made is None or [*map(id, operands)] != [*map(id, arrays[: len(operands)])]:
        return  # a function passes on other tensors than its own, or in another order
    if _autocast():
        from tilewright.torch import autocast

        said = spoken(op, keywords, 0)
        tensors = (*operands, *said.named.values())
        if [*map(id, tensors)] != [*map(id, arrays)]:
            return
        autocast.remember(what, op, len(operands), tuple(said.named), said.options)
        arrays = autocast.as_before(what, arrays) or ()
        operands = arrays[: len(operands)]
        keywords = {**keywords, **dict(zip(said.named, arrays[len(operands) :], strict=True))}
    outputs = made if isinstance(made, tuple) else (made,)
    names = [
        next((name for name, value in keywords.items() if value is x), "")
        for x in arrays[len(operands) :]
    ]
    remember(what, arrays, names, op, operands, keywords, outputs, outputs)


def is_compiling() -> bool:
    """Whether TorchDynamo is reading this code."""
    return _compiling()


def of_planned_arch(question: Callable[[str], bool]) -> bool:
    """What is so of the architecture that calls are planned for, by its name: a constant of a graph
    that torch compiles."""
    if _compiling():
        from tilewright.torch.compiled import of_planned_arch as constant

        return bool(constant(question))
    return question(default_dispatcher().device_for_planning().arch)


def is_watched() -> bool:
    """Whether a mode or a tracer is watching, derivatives are taken forward, or autocast is on."""
    return _watched()


def alike(*words: Any) -> tuple[Any, ...] | None:
    """The words, to be what `again` takes; None if they do not say the same whenever they are
    equal, or under ``torch.compile``, which keeps no such calls."""
    return None if _compiling() or not plain(words) else words


def scalars(op: str, **given: Any) -> tuple[Any, ...]:
    """The scalars of a call of an operation, in its order."""
    return spoken(op, given, 0).scalars


def again(what: Any, given: tuple[Any, ...], scalars: tuple[int | float | None, ...] = ()) -> Any:
    """Launch a call of a function that stands on an operation as an earlier one was launched that
    it has `remember`ed, without the Python code in between. Returns the output that is made, a
    tuple unless there is one; None if nothing was launched: there was no such call, or torch may
    have to know of this one.

    what: everything that decides the call besides `given` and `scalars`; None for a call that is
        not to be repeated.
    given: torch tensors, or None for one that is not there.
    scalars: `Launching.scalars` of the operation; none, if all are left out.
    """
    if what is None or _compiling() or _watched():
        return None
    return default_dispatcher().repeat(what, given, scalars)


def recorded_as(what: Any, given: tuple[Any, ...]) -> Any:
    """The key of a call whose gradients torch records. It has `what`, and of each tensor the shape,
    strides, dtype, device, and whether it wants a gradient. None where tensors are no plain ones on
    a GPU, and where torch may have to know of the call otherwise."""
    return None if _compiling() or _watched() else default_dispatcher().signature(what, given)


def remember(
    what: Any,
    given: tuple[Any, ...],
    names: Sequence[str],
    op: str,
    operands: Sequence[Any],
    keywords: Mapping[str, Any],
    outputs: Sequence[Any],
    returned: Sequence[Any],
) -> None:
    """Let `again` launch calls like one that was just made.

    what, given: as `again` takes them. Operands are views of them; shapes, strides and dtypes of
        `given` decide which.
    names: of the arrays in `given` behind those of `operands`: the operation's keywords, and
        ``out``.
    op, operands, keywords: the operation that was called, and how.
    outputs: its outputs, passed or made.
    returned: of each output, what is returned for it, perhaps in another shape; None if it was
        passed.
    """
    if what is None or _compiling():
        return
    said = spoken(op, keywords, 0)
    places = {name: place for place, name in enumerate(names, len(operands))}
    if not places.keys() >= said.named.keys():
        return
    made = [x for x in returned if x is not None]
    number = iter(range(-1, -1 - len(made), -1))
    roots = (
        *range(len(operands)),
        *(places[name] for name in said.named),
        *(places["out"] if x is None else next(number) for x in returned),
    )
    arrays = (*operands, *said.named.values())
    launched = Launched(said.what, (*arrays, *outputs), roots)
    dispatcher = default_dispatcher()
    dispatcher.remember(what, Repeatable(given, (launched,), tuple(made), len(made)))
    if len(made) == len(outputs) and all(x is y for x, y in zip(outputs, made, strict=True)):
        dispatcher.record_alike(what, given, said.what, arrays)


def remember_steps(what: Any, call: Repeatable) -> None:
    """Let `again` launch calls like one of several launches that was just made. Not where a mode or
    a tracer has seen it, which may have put other arrays in the place of its own."""
    if what is not None and not _compiling() and not _watched():
        default_dispatcher().remember(what, call)


def _look_for_torch() -> bool:
    """`_compiling` until torch has been imported, which may happen at any time."""
    global _autocast, _compiling, _concerns_torch, _seen, _watched
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_dynamo_compiling():  # dynamo is reading: there is nothing to keep
        return True
    _compiling = torch.compiler.is_dynamo_compiling
    _autocast = torch._C._is_any_autocast_enabled
    _seen, _watched, _concerns_torch = _watch(torch)
    return False


def _watch(
    torch: Any,
) -> tuple[
    Callable[[], bool], Callable[[], bool], Callable[[Sequence[Any], Mapping[str, Any]], bool]
]:
    """`_seen`, `_watched` and `_concerns_torch`, once torch is imported.

    The private names are the cheapest that know of dispatch modes (``FakeTensorMode``), of
    ``torch.jit.trace``, of forward-mode differentiation, of autocast and of torch's profiler.
    """
    tensors = frozenset({torch.Tensor, torch.nn.Parameter})
    others = frozenset({str, int, float, bool, tuple, NoneType})
    grad_enabled = torch.is_grad_enabled
    modes, tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
    forward_ad, autocast = torch.autograd.forward_ad, torch._C._is_any_autocast_enabled
    profiler = torch.autograd.profiler

    def seen() -> bool:
        return (
            modes() > 0
            or tracing() is not None
            or forward_ad._current_level >= 0
            or profiler._is_profiler_enabled
        )

    def watched() -> bool:
        return autocast() or seen()

    def concerns_torch(operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
        for x in operands:
            if type(x) not in tensors or (x.requires_grad and grad_enabled()):
                return True
        for x in options.values() if options else ():
            kind = type(x)
            if kind not in others and (kind not in tensors or (x.requires_grad and grad_enabled())):
                return True
        return watched()

    return seen, watched, concerns_torch


def _yes() -> bool:
    return True


def _no(operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return False


_compiling: Callable[[], bool] = _look_for_torch
"""Whether TorchDynamo is reading this code. It takes torch's function, which does nothing, for
True; a call of the public ``torch.compiler.is_compiling`` costs ten times as much."""

_autocast: Callable[[], bool] = _yes
"""Whether autocast is on. Without torch: as of `_watched`."""

_seen: Callable[[], bool] = _yes
"""As `_watched`, but for autocast."""

_watched: Callable[[], bool] = _yes
"""Whether a mode or a tracer is watching, derivatives are taken forward, or autocast is on. The
launcher sees the other reasons that torch may have to know of a call (`_concerns_torch`). Without
torch: always, for there is nothing to repeat."""

_concerns_torch: Callable[[Sequence[Any], Mapping[str, Any]], bool] = _no
"""Whether torch may have to know of a call: it wants gradients, an operand is no plain tensor, a
mode or a tracer is watching, derivatives are taken forward, or autocast is on. Without torch:
never."""

_look_for_torch()  # so that dynamo finds here what stays here, if torch has been imported
