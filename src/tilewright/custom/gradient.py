"""How the gradients of a declared operation are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import BadArgument
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.verdict import Verdict, no


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradients that one computation makes.

    of: the operand, or the operands in the order of the results, that they belong to.
    op: the name of an operation, declared or the library's own; or a function of torch tensors,
        which makes one gradient of the operand's shape.
    operands: names of its arguments by position: operands of the declared operation, outputs among
        them, scalars, and ``"grad NAME"`` for the gradient that arrives for output NAME.
    keywords: the same of arguments by keyword.
    options: further keywords of an operation, with their values.
    """

    of: str | tuple[str, ...]
    op: str | Callable[..., Any]
    operands: tuple[str, ...]
    keywords: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

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
            if incoming(output) not in one.reads:
                raise BadArgument(
                    f"operation {name}: the gradient of {', '.join(one.names)} does not read "
                    f"'{incoming(output)}', so it would be wrong where {output} is used; read it, "
                    f"or declare {output} with differentiable=False"
                )


def backward(
    op: str, gradients: Sequence[Gradient], wanted: Sequence[str], constant: tuple[str, ...]
) -> Backward | Verdict:
    """The backward pass for the operands `wanted`, of operation `op`.

    constant: outputs that have no gradient.
    """
    computations: list[Computation] = []
    found: dict[str, str] = {}
    packed: dict[str, str] = {}
    for one in gradients:
        if not set(one.names) & set(wanted):
            continue
        made = tuple(f"gradient of {name}" for name in one.names)
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
                one.options,
            )
        )
    missing = [name for name in wanted if name not in found]
    if missing:
        return no("gradients", f"{op} states no gradient of {', '.join(missing)}")
    return Backward(tuple(computations), {name: found[name] for name in wanted}, constant=constant)


def _packed(x: Any) -> Any:
    """A gradient that arrives may have any strides; declared operands are mostly contiguous."""
    return x.contiguous()
