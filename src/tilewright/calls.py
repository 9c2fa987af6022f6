"""The arguments of a call: operands by position and by keyword, outputs, scalars and options.

Arrays that no kernel may be launched on are refused here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import NoneType
from typing import Any

from tilewright import arrays, checks, dtypes, ops, parameters
from tilewright.errors import BadArgument, WrongDevice, shown
from tilewright.number_array import LARGEST, of_number
from tilewright.ops.keywords import Keyword
from tilewright.ops.nouns import Call, Number, Operand, View
from tilewright.pointer_array import Pointers
from tilewright.runtime.bound import Bound

_WORDS = frozenset({str, int, float, bool, NoneType})


def plain(words: Sequence[Any]) -> bool:
    """Whether words say the same whenever they are equal: none is an array, or anything else that
    may change."""
    if _WORDS.issuperset(map(type, words)):
        return True
    for word in words:
        kind = type(word)
        if kind not in _WORDS and (kind is not tuple or not _WORDS.issuperset(map(type, word))):
            return False
    return True


@dataclass(frozen=True, slots=True)
class Spoken:
    """The keywords of a call, sorted.

    what: the call's identity apart from its arrays: the operation, or a kernel's name, and all
    options; None if an option is not hashable (no family has such an option).
    named: operands passed by keyword.
    scalars: the values of `Launching.scalars`, in order; None for each that is left out.
    options: the others.
    numbers: operands for which a number is passed, with the dtype of the array that it becomes
        (`with_arrays`). They are not among `named`, and `what` is None.
    """

    what: Any
    named: dict[str, Any]
    scalars: tuple[int | float | None, ...]
    options: dict[str, Any]
    numbers: Mapping[str, str] = field(default_factory=dict)


def spoken(what: str, keywords: Mapping[str, Any], outputs: int) -> Spoken:
    """The keywords of a call. A keyword of None counts as left out. Numbers of other libraries are
    numbers (see `checks.plain`).

    what: an operation or a kernel's name.
    outputs: number of outputs passed; 0 for none.

    Raises `BadArgument` for an operand that is not an array, an option that is one, and a scalar
    that is not a number or that its type does not hold.
    """
    if not keywords:
        return _nothing_spoken(what, outputs)
    words: list[Word] = []
    others = {}
    for name, value in keywords.items():
        kind = type(value)
        if kind in _WORDS:
            words.append((name, value, kind if value or kind is not float else str(value)))
        elif kind is tuple and _WORDS.issuperset(kinds := (*map(type, value),)):
            words.append((name, value, kinds))
        else:
            others[name] = value
    if not others:
        return _with_words(what, outputs, tuple(words), ())
    for value in others.values():
        if not _is_array(value):
            return _sorted(what, keywords, outputs)
    said = _with_words(what, outputs, tuple(words), tuple(others))
    if said.what is None:
        return _sorted(what, keywords, outputs)
    return Spoken(said.what, others, said.scalars, said.options)


Word = tuple[str, Any, Any]
"""A keyword that is no array, its value, and what tells it from values that are equal: its type,
the types of its parts, or the text of a zero (True is 1, and 0.0 is -0.0)."""


def identity(what: str, named: Sequence[str], options: Iterable[tuple[str, Any]]) -> Any:
    """`Spoken.what` of a call without outputs that passes these arrays and options by keyword, in
    this order."""
    return _sorted(what, dict(options), 0, named).what


@lru_cache(maxsize=4096)
def _with_words(what: str, outputs: int, words: tuple[Word, ...], named: tuple[str, ...]) -> Spoken:
    """Calls whose keywords differ in arrays alone say the same again and again. `Spoken.what` is
    None if the arrays themselves have to be seen: one is passed for something else than an operand,
    or a number for an operand."""
    known = scalars_of(what)
    given = {name: value for name, value, _ in words if name in known}
    if given:  # they differ from call to call, as seeds do; the other words rarely do
        said = _with_words(what, outputs, tuple([w for w in words if w[0] not in known]), named)
        return Spoken(said.what, said.named, _scalars(known, given), said.options, said.numbers)
    if any(kind_of(what, name) not in ("operand", "") for name in named):
        return Spoken(None, {}, (), {})
    return _sorted(what, {name: value for name, value, _ in words}, outputs, named)


def _sorted(
    what: str, keywords: Mapping[str, Any], outputs: int, arrays: Sequence[str] = ()
) -> Spoken:
    """arrays: names of operands passed by keyword that are not among `keywords`."""
    family = _family(what)
    known = family.scalars
    named: dict[str, Any] = {}
    options: dict[str, Any] = {}
    numbers: dict[str, str] = {}
    for name, value in keywords.items():
        if name in known or value is None:
            continue
        stated = family.keyword(name)
        if stated is None:
            where, own = (
                (named, value) if _is_array(value) else (options, checks.plain(name, value))
            )
            where[name] = own
        elif stated.kind == "option":
            options[name] = _option(stated, name, value)
        elif _is_array(value):
            named[name] = value
        else:
            numbers[name] = _dtype_of_number(stated, name, value)
    scalars = _scalars(known, keywords)
    if numbers:
        return Spoken(None, named, scalars, options, numbers)
    key: Any = what
    if named or arrays or options or outputs > 1:
        key = (what, outputs, *named, *arrays, *options.items())
        try:
            hash(key)
        except TypeError:
            key = None
    return Spoken(key, named, scalars, options)


@cache
def _nothing_spoken(what: str, outputs: int) -> Spoken:
    key = (what, outputs) if outputs > 1 else what
    return Spoken(key, {}, (None,) * len(scalars_of(what)), {})


@cache
def scalars_of(what: str) -> Mapping[str, Number]:
    """The scalars that a call gives, by name, for an operation or for a kernel's name."""
    found: Mapping[str, Number] = _family(what).scalars
    return found


def kind_of(what: str, name: str) -> str:
    """Whether a keyword is an ``operand``, an ``option`` or a ``scalar``; "" if the family does not
    say, so that an array is an operand and anything else an option.

    what: an operation or a kernel's name.
    """
    if name in scalars_of(what):
        return "scalar"
    stated = _family(what).keyword(name)
    return "" if stated is None else stated.kind


def _family(what: str) -> Any:
    return ops.family(_name_of(what))


@cache
def _name_of(what: str) -> str:
    """The family of an operation or of a kernel's name."""
    return what if what in ops.families() else ops.family_of(what).name


def _option(stated: Keyword, name: str, value: Any) -> Any:
    """The value of an option. Raises `BadArgument` for an array."""
    if stated.type == "dtype":
        return dtypes.named(value)
    own = checks.plain(name, value)
    if _is_array(own):
        what = stated.meaning or f"of type {stated.type}"
        raise BadArgument(f"{name} is an option, {what}; it takes no array")
    return own


def _dtype_of_number(stated: Keyword, name: str, value: Any) -> str:
    """The dtype of the array that a number becomes, passed for an operand. Raises `BadArgument` for
    anything else, and where a number says too little."""
    own = checks.plain(name, value)
    if type(own) not in (int, float):
        raise BadArgument(
            f"{name} is an operand: pass an array (a torch tensor, a NumPy array, or an object "
            f"with __dlpack__), not {shown(value)}"
        )
    if not stated.number:
        raise BadArgument(
            f"{name} is an operand, for which the number {shown(value)} says too little: pass an "
            "array"
        )
    return stated.number


def with_arrays(
    said: Spoken, keywords: Mapping[str, Any], operands: Iterable[Any]
) -> dict[str, Any]:
    """The keywords of a call with an array of one element in place of each number that is passed
    for an operand. Such an array is kept, so that no later call copies the number to the GPU again.

    said: the keywords, sorted. operands: those passed by position.
    """
    like = next((x for x in (*operands, *said.named.values()) if _is_array(x)), None)
    found = dict(keywords)
    for name, dtype in said.numbers.items():
        number = checks.plain(name, keywords[name])
        found[name] = of_number(name, number, dtype, like)
    return found


def _scalars(
    known: Mapping[str, Number], given: Mapping[str, Any]
) -> tuple[int | float | None, ...]:
    return tuple([_scalar(one, name, given.get(name)) for name, one in known.items()])


def _scalar(one: Number, name: str, value: Any) -> int | float | None:
    """A scalar as the launcher takes it. Raises `BadArgument`."""
    kind = type(value)
    if one.limits is not None and value is not None:
        checks.number(name, checks.plain(name, value), *one.limits)
    if value is None or (kind is float and one.type == "fp32" and -LARGEST <= value <= LARGEST):
        return value  # type: ignore[no-any-return]
    value = checks.plain(name, value)
    if one.type.startswith("fp"):
        if type(value) not in (int, float):
            raise BadArgument(f"{name} = {shown(value)} is not a number")
        if one.finite:
            checks.finite(name, value)
        try:
            parameters.pack(one.type, value)
        except BadArgument as error:
            raise BadArgument(f"{name} = {shown(value)} is too large for {one.type}") from error
    elif one.type != "i1" or type(value) is not bool:
        least, most = parameters.limits(one.type)
        if type(value) is not int or not least <= value <= most:
            raise BadArgument(
                f"{name} = {shown(value)} is not a whole number from {least} to {most}"
            )
    return value  # type: ignore[no-any-return]


def _is_array(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or isinstance(value, Pointers)


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of a call, inputs first, with the problem that they state.

    problem: the problem of the call.
    names: the operand that each array is.
    all: the arrays.
    views: a view of each array.
    bound: name, role and bytes of each array.
    outputs: the arrays that are outputs, passed or made.
    """

    problem: Any
    names: tuple[str, ...]
    all: tuple[Any, ...]
    views: tuple[View, ...]
    bound: tuple[Bound, ...]
    outputs: tuple[Any, ...]

    @property
    def inputs(self) -> tuple[Any, ...]:
        return self.all[: len(self.all) - len(self.outputs)]

    @property
    def target_views(self) -> tuple[View, ...]:
        """The views of the outputs."""
        return self.views[len(self.views) - len(self.outputs) :]

    @property
    def by_name(self) -> dict[str, Any]:
        return dict(zip(self.names, self.all, strict=True))

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.bound if one.role != "in")

    def note_writes(self) -> None:
        """See `arrays.note_writes`."""
        arrays.note_writes(self.by_name[name] for name in self.written)


def read(
    family: Any,
    config: Any,
    operands: Sequence[Any],
    said: Spoken,
    outputs: Sequence[Any] | None,
) -> Arrays:
    """The arrays of a call. Outputs that are not passed are made.

    config: the kernel that reads the arrays, if the call names one.

    Raises `BadArgument` and `WrongDevice`.
    """
    given = [arrays.adopt(x, f"operand {i}") for i, x in enumerate(operands, 1)]
    named = {name: arrays.adopt(x, name) for name, x in said.named.items()}
    outs = None if outputs is None else [arrays.adopt(x, "out") for x in outputs]
    inputs = tuple(map(arrays.view, given))
    keyword = {name: arrays.view(x) for name, x in named.items()}
    targets = None if outs is None else tuple(map(arrays.view, outs))
    places = {view.device for view in (*inputs, *keyword.values(), *(targets or ()))}
    if len(places) > 1:
        raise WrongDevice(f"operands are on {', '.join(sorted(places))}; move them together")
    call = Call(inputs, keyword, targets, dict(said.options))
    try:
        problem = family.problem_of(call, config)
    except TypeError as error:
        for name, value in call.options.items():
            if isinstance(value, dict | set):
                raise BadArgument(f"{name} = {shown(value)} is no option's value") from error
        raise
    declared = family.operands(problem)
    if outs is None:
        place = next(iter(places), "cpu")
        like = next(iter((*given, *named.values())), None)
        outs = [arrays.empty(one, place, like) for one in family.outputs(call)]
        targets = tuple(map(arrays.view, outs))
    assert targets is not None
    names = operand_names(family.name, declared, len(inputs), tuple(named), len(outs))
    roles = {one.name: one.role for one in declared}
    views = (*inputs, *keyword.values(), *targets)
    bound = tuple(
        Bound(name, roles[name], high - low)
        for name, (low, high) in zip(names, map(arrays.span, views), strict=True)
    )
    everything = (*given, *named.values(), *outs)
    refuse_gradients((*given, *named.values()), outs)
    refuse_overlap(views, bound)
    return Arrays(problem, names, everything, views, bound, tuple(outs))


def operand_names(
    op: str, declared: Sequence[Operand], inputs: int, named: tuple[str, ...], outputs: int
) -> tuple[str, ...]:
    """The operand that each array of a call is. Raises `BadArgument` for a wrong number of
    arrays."""
    reads = [one.name for one in declared if one.read]
    targets = [one.name for one in declared if one.role == "out"]
    by_position = [name for name in reads if name not in named]
    for name in named:
        if name not in reads:
            raise BadArgument(f"this {op} reads no operand '{name}'; it reads {', '.join(reads)}")
    if len(by_position) != inputs:
        raise BadArgument(
            f"{op} takes {len(by_position)} operands by position ({', '.join(by_position)}) and "
            f"was given {inputs}; pass outputs as out="
        )
    if len(targets) != outputs:
        raise BadArgument(
            f"{op} has {len(targets)} outputs ({', '.join(targets)}) but out= has {outputs}; pass "
            "a tuple of all of them, in this order"
        )
    return (*by_position, *named, *targets)


def positional(problem: Any, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call of `problem`, by position and by keyword.

    inputs: operands and scalars, by name.
    """
    family = ops.family(problem.family)
    first = [one.name for one in family.operands(problem) if one.read and not one.keyword]
    keywords = {name: x for name, x in inputs.items() if name not in first}
    return [inputs[name] for name in first], {**family.options(problem), **keywords}


def scalar_values(
    family: Any, problem: Any, given: Sequence[int | float | None]
) -> dict[str, int | float]:
    """The scalars of a call, by name. Raises `BadArgument` if one is missing."""
    defaults = family.scalar_defaults(problem)
    values = {}
    for name, value in zip(family.scalars, given, strict=True):
        if value is None and name not in defaults:
            raise BadArgument(f"{family.name} needs {name}=, a number, at each call")
        values[name] = defaults[name] if value is None else value
    return values


def refuse_overlap(views: Sequence[View], bound: Sequence[Bound]) -> None:
    """Raise `BadArgument` if a written operand shares memory with another operand."""
    for i, one in enumerate(bound):
        if one.role == "in":
            continue
        for j, other in enumerate(bound):
            if i != j and arrays.overlap(views[i], views[j]):
                raise BadArgument(
                    f"{_called(one)} shares memory with {_called(other)}, which the kernel also "
                    f"{'reads' if other.role == 'in' else 'writes'}"
                )


def _called(one: Bound) -> str:
    return f"out ({one.name})" if one.role == "out" else f"operand {one.name}"


def refuse_gradients(operands: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Raise `BadArgument` if torch should record a gradient of one of `operands`, or of one of
    `outputs`, which were passed."""
    if _recording(operands):
        raise BadArgument(
            "an operand requires a gradient, which a dispatcher does not record: call the "
            "operation itself (tilewright.<operation>) without out= and stream=, or pass "
            "x.detach(), or run under torch.no_grad()"
        )
    if _recording(outputs):
        raise BadArgument(
            "out= requires a gradient, which a call that writes to it does not record: leave it "
            "out, or pass out.detach(), or run under torch.no_grad()"
        )


def _recording(tensors: Sequence[Any]) -> bool:
    """Whether torch should record a gradient of one of them."""
    for x in tensors:
        if getattr(x, "requires_grad", False):
            import torch

            return torch.is_grad_enabled()
    return False
