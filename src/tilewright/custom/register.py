"""`operation` and `declare`: from a declaration to a registered family."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tilewright import ops
from tilewright.arch.model import Arch
from tilewright.custom import fitting
from tilewright.custom.declaration import Array, Declaration, Part, Scratch, Shape
from tilewright.custom.family import CustomFamily
from tilewright.custom.gradient import Gradient
from tilewright.errors import BadArgument
from tilewright.ops.foreign import Driver
from tilewright.ops.formats import Formats
from tilewright.ops.nouns import MAIN
from tilewright.tolerance import Tolerance

F = TypeVar("F")


def kernel(
    name: str,
    function: Any,
    grid: Shape,
    there: Callable[[Any], bool] = lambda config: True,
    each_unit: Callable[[Any], int] = lambda config: 0,
    dependent: bool = False,
) -> Part:
    """One of several kernels of an operation.

    name: of the part.
    function: a Triton or Gluon kernel, or its place (``"module:function"``); None for the decorated
        one.
    grid: workgroups, from the problem and the config.
    there: whether a config has the part.
    each_unit: from the config, how many workgroups of the grid's first size there are at most for
        each compute unit, of a kernel whose workgroups take turns; 0 for as many as the grid says.
    dependent: whether its workgroups may start while the last ones of the kernel before it run,
        where an architecture lets them (programmatic dependent launch). Where its constant
        ``DEPENDENT`` is true, each of them calls ``gdc_wait`` before it touches what that kernel
        writes, or writes anything; and that kernel may call ``gdc_launch_dependents`` for it.
    """
    return Part(name, function, grid, there, each_unit, dependent)


USUAL_AXES: Mapping[str, tuple[int, ...]] = {"num_warps": (4,), "num_stages": (2,)}
"""Axes that every operation has, and their values where a declaration does not state them."""


def declare(declared: Declaration) -> None:
    """Register an operation that a `Declaration` states. Its kernels are stated by their places.

    Raises `BadArgument` where the declaration does not fit its kernels.
    """
    declared = replace(declared, axes={**USUAL_AXES, **declared.axes})
    fitting.check(declared)
    ops.register(CustomFamily(declared), declared.module)


def operation(
    name: str,
    *,
    operands: Mapping[str, Array],
    axes: Mapping[str, Sequence[Any]],
    reference: Callable[..., Any],
    grid: Shape | None = None,
    parts: Sequence[Part] = (),
    scalars: Mapping[str, tuple[str, int | float | None]] | None = None,
    limits: Mapping[str, tuple[float, float]] | None = None,
    options: Mapping[str, bool | int | str] | None = None,
    numbers: Mapping[str, int] | None = None,
    values: Mapping[str, Callable[[Any, Any], int]] | None = None,
    temporaries: Mapping[str, Scratch] | None = None,
    multiples: Sequence[str] | Callable[[Any], tuple[str, ...]] = (),
    supports: Callable[[Any, Any], bool | str] = lambda problem, config: True,
    flops: Callable[[Any], int] = lambda problem: 0,
    terms: str | int = 1,
    amplifies: float = 1.0,
    gradients: Sequence[Gradient] | Callable[[Any], Sequence[Gradient] | str] = (),
    records: Mapping[str, bool | int | str] | None = None,
    problems: Sequence[Mapping[str, Any]] = (),
    dtypes: Mapping[str, str] | None = None,
    moves: Callable[[Any, Any], int] | None = None,
    least: Callable[[Any], int] | None = None,
    prefers: Callable[[Any, Any], Any] = lambda problem, config: 0,
    tolerances: Callable[[Any, Any], Mapping[str, Tolerance]] | None = None,
    choices: Mapping[str, tuple[Any, ...]] | None = None,
    refuses: Callable[[Any], str] = lambda problem: "",
    narrows: Callable[[Any], Mapping[str, Sequence[Any]]] = lambda problem: {},
    together: Callable[[Any, Arch], Sequence[Mapping[str, Any]]] | None = None,
    functions: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] | None = None,
    constants: Mapping[str, Callable[[Any], int | str | tuple[str, ...]]] | None = None,
    drivers: Sequence[Driver] = (),
    formats: Formats | None = None,
) -> Callable[[F], F]:
    """Register a kernel of your own as the operation `name`; a decorator of the kernel, which it
    leaves as it is. The kernel's parameters are operands, sizes, numbers, scalars, values,
    temporaries, options and axes, by name; constexprs among them are axes and options.

    operands: by name, in the order of a call: `In`, `Out`, `InOut`.
    axes: constexprs to choose from, and options of the compiler, each with its values:
        ``num_warps``, ``num_stages``; for NVIDIA ``maxnreg`` and ``num_ctas``, for AMD
        ``waves_per_eu`` and ``matrix_instr_nonkdim`` (0, of ``num_ctas`` 1: as the compiler likes).
    reference: what is right: from the inputs (and ``problem``, if it has a parameter of this name)
        as float64 arrays, NumPy's or torch's, whole numbers as int64, to the output, of several a
        tuple in order.
    grid: workgroups, from the problem and the config.
    parts: instead of `grid`, several kernels (`kernel`), run one after another.
    scalars: numbers that each call gives by keyword: their Triton type, and their default or None.
    limits: the least and the most that a scalar may be, where these are not its type's.
    options: what changes the result, with its default; a call gives it by keyword. Kernels are
        compiled for each value.
    numbers: integers from 0 that change the result, with their defaults, as strides and paddings; a
        call gives them by keyword, and kernels take them at run time (an ``i32``). Sizes may name
        them, and options that are integers: ``Out("(length + 2 * pad - taps) // stride + 1")``.
    values: further integers that kernels take, from the problem and the config.
    temporaries: memory between the parts (`Scratch`).
    multiples: sizes and strides that kernels may take for multiples of 16 elements, or of 8, 4 or
        2 where a problem has no more, so that lanes load several at once from aligned addresses; or
        a function that says them for a config.
    supports: True, or why a config cannot compute a problem.
    flops: arithmetic operations of a problem, which the estimate counts at the peak of its
        element type.
    terms: how many terms the longest sum has: a size's name or a number; with `amplifies`, by how
        much later arithmetic can raise an error, it says how far results may be off.
    gradients: how gradients of operands are computed (`Gradient`); or a function that says it for a
        problem, or why that has none.
    records: options that a call states while torch records its gradients, with their values, so
        that it writes what the gradients read. The caller is not given the outputs that are there
        for it alone.
    problems: sizes, and other fields where they differ from the usual, of problems that
        ``tilewright sweep`` and ``tune`` measure when they are given the name alone.
    dtypes: of fields of element types that only outputs and optional operands have, which a call
        states by keyword (``out_dtype="fp16"``): the type, or the field that says it, where a call
        does not. By default it is that of the first operand whose type is a field. Of the fields of
        other operands: the type of a problem that does not state it, ``bf16`` by default.
    moves: bytes that a config's kernels move through memory, where this is more than each operand
        once.
    least: the fewest bytes that a problem moves, where this is not each operand once: as where some
        rows of a table are read, and which ones is in another operand.
    prefers: of kernels with equal estimates, the one with the lowest value comes first.
    tolerances: how far results may be from the reference, by operand, where `terms` and `amplifies`
        do not say it; from the problem and the config.
    choices: the values that an option may have, by option; any of its type where none are listed.
    refuses: why a problem's fields do not fit together, in a few words; "" where they do.
    narrows: the values of axes that a problem is to be served with, where they are fewer than all:
        planning then looks at fewer configs. What it leaves out, `supports` refuses too.
    together: for a problem on an architecture, values of axes that go together, each a mapping from
        the same axes: planning and tuning look at these instead of all combinations of these axes.
    functions: other functions that call the operation, by the name that each has in
        ``tilewright``: each is made from the function of the operation.
    constants: further constexprs of kernels, from a config: a number, text, or a tuple of Triton
        functions that the kernel calls, by their places (``"module:function"``).
    drivers: command lines of other libraries' programs that state problems (`Driver`), as in
        ``tilewright run NAME ck="-m=64 -n=4096"``.
    formats: the sweep documents of CK Tile Engine that are read (`Formats`).

    Raises `BadArgument` where the declaration does not fit the kernel.
    """

    def register(function: F) -> F:
        if (grid is None) == (not parts):
            raise BadArgument(f"operation {name}: state either a grid, or parts with a grid each")
        one = (Part(MAIN, function, grid),) if grid is not None else parts
        found = tuple(replace(p, function=function) if p.function is None else p for p in one)
        module = _module_of(
            next((p.function for p in found if not isinstance(p.function, str)), function)
        )
        declare(
            Declaration(
                name=name,
                module=module,
                operands=dict(operands),
                parts=found,
                axes={axis: tuple(listed) for axis, listed in axes.items()},
                reference=reference,
                scalars=dict(scalars or {}),
                limits=dict(limits or {}),
                options=dict(options or {}),
                numbers=dict(numbers or {}),
                values=dict(values or {}),
                temporaries=dict(temporaries or {}),
                multiples=multiples if callable(multiples) else tuple(multiples),
                supports=supports,
                flops=flops,
                terms=terms,
                amplifies=amplifies,
                gradients=gradients if callable(gradients) else tuple(gradients),
                records=dict(records or {}),
                problems=tuple(map(dict, problems)),
                dtypes=dict(dtypes or {}),
                moves=moves,
                least=least,
                prefers=prefers,
                tolerances=tolerances,
                choices=dict(choices or {}),
                refuses=refuses,
                narrows=narrows,
                together=together,
                functions=dict(functions or {}),
                constants=dict(constants or {}),
                drivers=tuple(drivers),
                formats=formats or Formats(),
            )
        )
        return function

    return register


def _module_of(function: Any) -> str:
    """The module that other processes import to find a kernel. A script that is run is imported by
    its file's name; its folder is on the path that other processes inherit."""
    module: str = function.fn.__module__
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    stem = Path(main.__file__ or "").stem if getattr(main, "__file__", None) else ""
    if main.__spec__ is not None:
        stem = main.__spec__.name
    sys.modules.setdefault(stem, main)  # or this process would import it once more
    return stem
