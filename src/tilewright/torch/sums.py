"""Sums in a backward pass, as a bias's gradient is, by an operation of ours in place of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from tilewright import calls
from tilewright.errors import BadArgument, NoKernelFound
from tilewright.ops.backward import Sum
from tilewright.ready import Launched, Repeatable
from tilewright.torch.said import Numbers, Said

Run = Callable[[str, Said, Sequence[Any], Numbers], Sequence[Any]]

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


class Preparing:
    """What a dispatch mode is that notes the problems of a step: the step then calls what it would
    call on a GPU."""


def being_prepared() -> bool:
    """Whether such a mode is watching."""
    return bool(torch._C._len_torch_dispatch_stack()) and isinstance(
        _get_current_dispatch_mode(), Preparing
    )


def by_operation(one: Sum, x: Any, run: Run, dispatcher: Any = None) -> Any:
    """What the operation makes of `x`, in the shape of its output; None where torch is to sum: of
    tensors that are not on a GPU, or that the operation does not read as they lie.

    run: runs an operation: its name, what the call says, its tensors and numbers → its outputs.
    dispatcher: repeats sums that are like earlier ones, if given.
    """
    made = None if dispatcher is None else dispatcher.repeat(one, (x,), record=False)
    if made is not None:
        return made
    seen = one.read(x) if _ours(x) else None
    if seen is None:
        return None
    try:
        (made,) = run(one.op, Said(options=one.options), (seen,), ())
    except (BadArgument, NoKernelFound):  # more elements than are counted, say
        return None
    if dispatcher is not None:
        launches = (launch_of(one, x, made, 0, -1),)
        dispatcher.remember(one, Repeatable((x,), launches, (made,), 1))
    return made


def launch_of(one: Sum, x: Any, made: Any, of_x: int, of_made: int) -> Launched:
    """The launch of a sum that `by_operation` made.

    of_x, of_made: what the two are views of (`Launched.roots`).
    """
    known = calls.identity(one.op, (), one.options)
    return Launched(known, (one.read(x), made), (of_x, of_made))


def _ours(x: Any) -> bool:
    if not x.numel():
        return False
    return being_prepared() or (x.is_cuda and type(x) in _PLAIN)
