"""How the gradients of a declared operation are computed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.errors import BadArgument
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.verdict import Verdict, no


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradients that one computation makes.

    of: the operand, or the operands in the order of the results, that they belong to. Those that a
        call has not are left out: the operation makes no result for them either.
    op: the name of an operation, declared or the library's own; or a function of torch tensors,
        which makes one gradient of the operand's shape.
    operands: names of its arguments by position: operands of the declared operation, outputs among
        them, scalars, ``"grad NAME"`` for the gradient that arrives for output NAME, and
        ``"gradient of NAME"`` for one that an earlier `Gradient` makes.
    keywords: the same of arguments by keyword. Those that a call has not are left out.
    options: further keywords of an operation, with their values.
    passes: options of the declared operation that are passed on, under the same names.
    """

    of: str | tuple[str, ...]
    op: str | Callable[..., Any]
    operands: tuple[str, ...]
    keywords: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    passes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The operands whose gradients it makes."""
        return (self.of,) if isinstance(self.of, str) else tuple(self.of)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of all its arguments."""
        return (*self.operands, *self.keywords.values())


def check(
    name: str,
    gradients: Sequence[Gradient],
    inputs: Sequence[str],
    outputs: Sequence[str],
    others: Sequence[str],
) -> None:
    """Raise `BadArgument` where gradients do not fit an operation.

    name: the operation's.
    inputs: its operands that are read.
    outputs: its outputs that gradients may arrive for.
    others: its further outputs, and its scalars.
    """
    known = [*inputs, *outputs, *others, *map(incoming, outputs)]
    made: set[str] = set()
    for one in gradients:
        known += map(_result, made)
        for of in one.names:
            if of not in inputs or of in made:
                why = "has two gradients" if of in made else "is no operand that is read"
                raise BadArgument(f"operation {name}: gradient of '{of}', which {why}")
            made.add(of)
        for read in one.reads:
            if read not in known:
                raise BadArgument(
                    f"operation {name}: the gradient of {', '.join(one.names)} reads '{read}'; "
                    f"there are {', '.join(known)}"
                )
        if callable(one.op) and (len(one.names) > 1 or one.keywords or one.options):
            raise BadArgument(
                f"operation {name}: a function makes the gradient of one operand, from arguments "
                f"by position, and not of {', '.join(one.names)}"
            )
        for output in outputs:
            if incoming(output) not in one.reads and not {*one.reads} & {*map(_result, made)}:
                raise BadArgument(
                    f"operation {name}: the gradient of {', '.join(one.names)} does not read "
                    f"'{incoming(output)}', so it would be wrong where {output} is used; read it, "
                    f"or declare {output} with differentiable=False"
                )


def backward(
    problem: Any,
    gradients: Sequence[Gradient],
    wanted: Sequence[str],
    absent: Collection[str],
    constant: tuple[str, ...],
    records: Mapping[str, Any],
) -> Backward | Verdict:
    """The backward pass of `problem` for the operands `wanted`.

    absent: operands that the call has not. A gradient is computed without those among its keywords.
    constant: outputs that have no gradient.
    records: options that the call states besides while gradients are recorded.
    """
    computations: list[Computation] = []
    found: dict[str, str] = {}
    packed: dict[str, str] = {}
    lacking = {*absent, *map(incoming, absent)}
    asked = {*wanted}
    for one in reversed(gradients):
        if asked & {*one.names}:
            every = (name for other in gradients for name in other.names)
            asked |= {name for name in every if _result(name) in one.reads}
    for stated in gradients:
        if not asked & {*stated.names}:
            continue
        there = {word: name for word, name in stated.keywords.items() if name not in lacking}
        one = replace(stated, of=tuple(n for n in stated.names if n not in absent), keywords=there)
        made = tuple(map(_result, one.names))
        found |= dict(zip(one.names, made, strict=True))
        for arrived in dict.fromkeys(n for n in one.reads if n.startswith(incoming(""))):
            if arrived not in packed:
                packed[arrived] = f"packed {arrived}"
                computations.append(Computation(packed[arrived], _packed, (arrived,)))
        computations.append(
            Computation(
                made if len(made) > 1 else made[0],
                one.op,
                tuple(packed.get(name, name) for name in one.operands),
                {word: packed.get(name, name) for word, name in one.keywords.items()},
                {**one.options, **{name: getattr(problem, name) for name in one.passes}},
            )
        )
    missing = [name for name in wanted if name not in found]
    if missing:
        return no("gradients", f"{problem.family} states no gradient of {', '.join(missing)}")
    results = {name: found[name] for name in wanted}
    return Backward(tuple(computations), results, records, constant=constant)


def _result(name: str) -> str:
    """The name of the gradient that is made for an operand."""
    return f"gradient of {name}"


def _packed(x: Any) -> Any:
    """A gradient that arrives may have any strides; declared operands are mostly contiguous."""
    return x.contiguous()
