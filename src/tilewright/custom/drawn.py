"""The values that are made up for a declared operand, to check and time kernels with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tilewright.custom import extents
from tilewright.errors import BadArgument, shown
from tilewright.ops.nouns import Values

Bound = int | float | str
Drawn = tuple[Bound, Bound] | Callable[..., Any] | None
"""None: standard normal; of whole numbers, any. Two bounds: evenly between them; of whole numbers,
from the first up to and without the second. A bound is a number or a size (``"vocabulary"``,
``"k // 2"``). A function: an array (or a list for each dimension) of the operand's shape, from
``problem`` and ``rng`` (NumPy's generator), as far as it has parameters of these names."""

_ARGUMENTS = ("problem", "rng")


@dataclass(frozen=True, slots=True)
class _Draw:
    """A declared function with its problem: makes the values from a seed."""

    function: Callable[..., Any]
    problem: Any

    def __call__(self, seed: int) -> Any:
        import numpy as np

        given = {"problem": self.problem, "rng": np.random.default_rng(seed)}
        takes = inspect.signature(self.function).parameters
        return self.function(**{name: given[name] for name in takes})


def check(where: str, values: Any, sizes: Collection[str]) -> None:
    """Raise `BadArgument`, which begins with `where`, for values of no form that `Drawn` has."""
    if values is None:
        return
    if callable(values):
        for name in inspect.signature(values).parameters:
            if name not in _ARGUMENTS:
                raise BadArgument(
                    f"{where}: the function of values= takes '{name}'; it may take "
                    f"{' and '.join(_ARGUMENTS)}"
                )
        return
    if not (isinstance(values, tuple) and len(values) == 2):
        raise BadArgument(
            f"{where}: values={shown(str(values))} is neither two bounds nor a function"
        )
    for bound in values:
        if isinstance(bound, bool) or not isinstance(bound, int | float | str):
            raise BadArgument(f"{where}: {shown(str(bound))} is no bound of values=")
        for name in extents.names(bound) if isinstance(bound, str) else ():
            if name not in sizes:
                raise BadArgument(f"{where}: values= names '{name}', which is no size")


def of(values: Drawn, problem: Any) -> Values:
    """The values of an operand of `problem`."""
    if values is None:
        return None
    if callable(values):
        return _Draw(values, problem)
    low, high = (_bound(one, problem) for one in values)
    return low, high


def _bound(bound: Bound, problem: Any) -> int | float:
    if not isinstance(bound, str):
        return bound
    return extents.value(bound, {name: getattr(problem, name) for name in extents.names(bound)})
