"""Torch's own operations, as the problems that they compute.

    problems("addmm", {"self": …, "mat1": …, "mat2": …, "beta": 1, "alpha": 1, "made": (…,)})

A rule takes the arguments of an operation by the names of its schema, with a `View` for each
tensor, and says the calls of Tilewright that compute the same. Layouts, broadcasting and strides
are then read as for any other call, so an operation states the problem that its port would state.
Torch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright import dtypes, ops
from tilewright.aten import attention, convolutions, products
from tilewright.aten.stated import MADE, RECORDED, TF32, Given, Same, Stated
from tilewright.errors import BadArgument

__all__ = [
    "MADE",
    "RECORDED",
    "RULES",
    "TF32",
    "WITH_EPILOGUE",
    "Given",
    "Same",
    "Stated",
    "problems",
]

Rule = Callable[[Given], Stated]

RULES: Mapping[str, Rule] = {**products.RULES, **attention.RULES, **convolutions.RULES}
"""By the name of an operation of aten, without its overload."""

WITH_EPILOGUE = frozenset({*products.RULES, "convolution"})
"""Those whose results an epilogue may change."""


def problems(name: str, given: Given) -> tuple[Any, ...]:
    """The problems that a call of an operation computes, in order.

    name: a key of `RULES`.
    given: the arguments by name, also those with default values, with a `View` for each tensor and
        the results under `MADE`.

    Raises `BadArgument` if no operation here computes the same.
    """
    return tuple(_problem(same) for same in RULES[name](given))


def _problem(same: Same) -> Any:
    """The problem of the first call that can be made."""
    first = None
    for call in same.calls:
        try:
            for view in (*call.inputs, *call.named.values(), *(call.outputs or ())):
                dtypes.dtype(view.dtype)
            return ops.family(same.op).problem_of(call)
        except BadArgument as error:  # noqa: PERF203
            first = first or error
    assert first is not None, "a rule gives one call or more"
    raise first
