"""How many arithmetic operations a call makes, for torch's ``FlopCounterMode``.

    import tilewright.torch.flops      # before the counter is made

Importing `tilewright.torch` does it if ``torch.utils.flop_counter`` has been imported. It is not
imported otherwise, for it imports Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from tilewright import ops
from tilewright.torch import fake, gradients, operators
from tilewright.torch.said import Numbers, Said, read


def _register(op: str) -> None:
    """Have the calls of an operation's operators counted, as its problems state their work."""

    def count(*arguments: Any, out_val: Any = None, **keywords: Any) -> int:
        return int(fake.stated(op, *arguments, **keywords).flops)

    operators.operator(op)
    register_flop_formula(getattr(torch.ops.tilewright, op), get_raw=True)(count)


def _of_gradients(
    op: str,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    arriving: Sequence[Any],
    wanted: Sequence[int],
    said: str = "",
    scalars: Numbers | None = None,
    **_: Any,
) -> int:
    """The operations of a backward pass, which is made on tensors without memory to count them."""
    total = 0

    def run(op: str, said: Said, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
        nonlocal total
        total += int(fake.problem(op, said, tensors, numbers).flops)
        return fake.outputs(op, said, tensors, numbers)

    lists = ([_without_memory(x) for x in listed] for listed in (operands, outputs, arriving))
    given, made, arrived = lists
    numbers = fake.hints(scalars or ())
    gradients.of_call(run, op, read(said), given, numbers, wanted, made, arrived)
    return total


def _without_memory(x: Any) -> Any:
    shape, strides = fake.hints(x.shape), fake.hints(x.stride())
    return torch.empty_strided(shape, strides, dtype=x.dtype, device="meta")


for _op in ops.families():
    _register(_op)
register_flop_formula(torch.ops.tilewright.gradients, get_raw=True)(_of_gradients)
