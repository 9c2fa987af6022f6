"""Kernels of a function under JAX, built before its first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax

from tilewright import default
from tilewright.arch.model import Device
from tilewright.compile import Progress, Store
from tilewright.jax.primitive import call_p
from tilewright.preparing import Preparation


def prepare(
    function: Callable[..., Any],
    *args: Any,
    device: Device | str | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> Preparation:
    """Build the kernels that a function's calls of Tilewright will need, side by side. Nothing is
    computed or launched: the function is traced.

    function: such as ``jax.value_and_grad(loss)``, whose backward pass is then prepared too.
    args, keywords: its arguments, or ``jax.ShapeDtypeStruct`` in place of arrays.
    device, store, progress: as of `tilewright.prepare`.

    Raises as `tilewright.prepare` does.
    """
    traced = jax.make_jaxpr(function)(*args, **keywords)
    problems = list(dict.fromkeys(_problems(traced.jaxpr)))
    return default.prepare(problems, device=device, store=store, progress=progress)


def _problems(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        if equation.primitive is call_p:
            yield equation.params["stated"].problem
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)  # of a closed one
                if hasattr(inner, "eqns"):
                    yield from _problems(inner)
