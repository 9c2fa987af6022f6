"""A call as TorchDynamo reads it: one node of the graph.

Everything here is code that dynamo can follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright import calls, dtypes, ops
from tilewright.default import default_dispatcher
from tilewright.errors import BadArgument
from tilewright.torch.operators import NAMESPACE, in_place, operator
from tilewright.torch.said import Options, Said, apart, is_number


def compiled(
    op: str, operands: Sequence[Any], out: Any, stream: Any, keywords: Mapping[str, Any]
) -> Any:
    """The call of an operation by its operator."""
    if stream is not None:
        raise BadArgument(
            f"{op} takes no stream= under torch.compile, which orders the work itself; leave it out"
        )
    known = _scalars(op)
    operators = getattr(getattr(torch.ops, NAMESPACE), op)
    tensors, named, scalars, numbers = list(operands), [], [], []
    options: dict[str, Any] = {}
    for name, value in keywords.items():
        if value is None:
            continue
        if name in known:
            if not isinstance(value, int | float):
                raise BadArgument(
                    f"{name} of {op} is a number: under torch.compile pass it as Python's "
                    "(x.item() in front of the compiled function)"
                )
            scalars.append(name)
            numbers.append(value)
        elif is_number(value) and (dtype := _array_of(op, name)):
            named.append(name)
            tensors.append(torch.full((1,), value, dtype=dtype, device=operands[0].device))
        elif not isinstance(value, torch.Tensor):
            if _kind(op, name) == "operand":
                raise BadArgument(f"{name} of {op} is an operand: pass a tensor")
            options[name] = value
        elif _kind(op, name) == "option":
            raise BadArgument(f"{name} of {op} is an option, which takes no tensor: pass a number")
        else:
            named.append(name)
            tensors.append(value)
    for x in tensors:
        if not isinstance(x, torch.Tensor):
            raise BadArgument(f"{op} takes only tensors as operands under torch.compile")
    places = _written(op, len(operands), tuple(named))
    told, paths, counted = apart(options, is_number)  # dynamo does not say which are symbols
    said = _text(tuple(named), tuple(scalars), told, paths, places)
    numbers += counted
    targets = None if out is None else list(out) if isinstance(out, tuple | list) else [out]
    if places:
        made = in_place(op, tensors, said, numbers or None, places, targets)
        if out is not None:
            return out
        return made[0] if len(made) == 1 else tuple(made) or None
    if out is None:
        made = operators.default(tensors, said, numbers or None)
        return made[0] if len(made) == 1 else tuple(made)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *(targets or ()))):
        raise BadArgument(f"{op} records no gradients with out=; leave it out")
    operators.out(tensors, said, numbers or None, out=targets)
    return out


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _scalars(op: str) -> tuple[str, ...]:
    """Names of the scalars that a call gives. Registers the operators, if they are not yet."""
    return operator(op).scalars


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _array_of(op: str, name: str) -> Any:
    """torch's dtype of the array that a number becomes which is passed for the operand `name`; None
    where it becomes none."""
    stated = ops.family(op).keyword(name)
    if stated is None or stated.kind != "operand" or not stated.number:
        return None
    return getattr(torch, dtypes.dtype(stated.number).torch)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def of_planned_arch(question: Callable[[str], bool]) -> bool:
    """As `tilewright.operation.of_planned_arch`."""
    return question(default_dispatcher().device_for_planning().arch)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kind(op: str, name: str) -> str:
    return calls.kind_of(op, name)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _written(op: str, inputs: int, named: tuple[str, ...]) -> tuple[int, ...]:
    return ops.family(op).written(inputs, named)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text(
    named: tuple[str, ...],
    scalars: tuple[str, ...],
    options: Options,
    numbers: tuple[str, ...],
    written: tuple[int, ...],
) -> str:
    return Said(named, scalars, options, numbers, written).text
