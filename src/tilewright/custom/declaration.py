"""What a user declares of an operation: its arrays, its kernels, its axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.custom import extents
from tilewright.custom.drawn import Drawn
from tilewright.custom.extents import Size
from tilewright.custom.gradient import Gradient
from tilewright.dtypes import DTYPES
from tilewright.ops import binder
from tilewright.ops.binder import Interface
from tilewright.ops.foreign import Driver
from tilewright.ops.formats import Formats
from tilewright.ops.nouns import Initial, Role
from tilewright.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Array:
    """An operand. Made by `In`, `Out` and `InOut`.

    shape: for each dimension, a number, the name of a size, which is a field of the problem, or
        arithmetic on sizes and on what a call states (``"k // 2"``): its integers, and the flags of
        optional operands, 0 or 1 (``"n * (2 - has_up)"``). A call says a size by a dimension that
        it is alone, or times what the call states and numbers. The first may be ``"*rows"``: any
        number of dimensions, whose product is the size ``rows``.
    dtype: an element type, or the name of a field that says it.
    role: see `Role`.
    optional: a call may leave it out, and passes it by keyword. Sizes that it alone has are 0 where
        it is left out.
    values: those made up for checking and timing (`Drawn`).
    strides: for each dimension, in elements, a number, arithmetic on sizes, or a name of its own: a
        further field of the problem, which kernels take as an ``i64`` and which is the contiguous
        array's where it is left out. None: the operand lies contiguous in memory.
    differentiable: of an output, whether gradients arrive for it.
    when: of an output that is not always there: the option, or the field of an optional operand
        (``"has_bias"``), with which it is; ``"quant=row"`` for one value of an option.
    exact: of an output, whether results must equal the reference: numbers, places, copies. Whole
        numbers are else taken for values that were rounded.
    read: of an operand that is read, whether kernels read its elements, or the field of the problem
        that says so (``"has_dy"``); else a call passes it for its sizes alone.
    folds: whether the first size is the product of any number of dimensions. Not to be stated:
        ``"*rows"`` in a shape says it.
    """

    shape: tuple[Size, ...]
    dtype: str
    role: Role
    optional: bool = False
    values: Drawn = None
    strides: tuple[Size, ...] | None = None
    differentiable: bool = True
    when: str = ""
    exact: bool = False
    read: bool | str = True
    folds: bool = False

    @property
    def by_position(self) -> bool:
        """Whether a call passes it by position."""
        return self.role != "out" and not self.optional


def In(
    *shape: Size,
    dtype: str = "dtype",
    optional: bool = False,
    values: Drawn = None,
    strides: tuple[Size, ...] | None = None,
    read: bool | str = True,
) -> Array:
    """An operand that the kernels read; see `Array`."""
    return _array(shape, dtype, "in", optional, values, strides, read=read)


def Out(
    *shape: Size,
    dtype: str = "dtype",
    strides: tuple[Size, ...] | None = None,
    differentiable: bool = True,
    when: str = "",
    exact: bool = False,
) -> Array:
    """An operand that the kernels write, all of it; see `Array`."""
    return _array(
        shape,
        dtype,
        "out",
        strides=strides,
        differentiable=differentiable,
        when=when,
        exact=exact,
    )


def InOut(
    *shape: Size,
    dtype: str = "dtype",
    values: Drawn = None,
    strides: tuple[Size, ...] | None = None,
) -> Array:
    """An operand that the kernels read, and write to in place; see `Array`."""
    return _array(shape, dtype, "inout", False, values, strides)


def _array(shape: tuple[Size, ...], *said: Any, **more: Any) -> Array:
    """An `Array`, whose shape may begin with ``"*rows"``."""
    first = shape[0] if shape else ""
    if isinstance(first, str) and first.startswith("*"):
        return replace(Array((first[1:], *shape[1:]), *said, **more), folds=True)
    return Array(shape, *said, **more)


DEPENDENT = "DEPENDENT"
"""The constant of kernels that says whether an architecture lets a `dependent` one start early."""

COMPILER: Mapping[str, tuple[str, int]] = {
    "num_warps": ("", 0),
    "num_stages": ("", 0),
    "maxnreg": ("cuda", 0),
    "num_ctas": ("cuda", 1),
    "waves_per_eu": ("hip", 0),
    "matrix_instr_nonkdim": ("hip", 0),
}
"""Axes that the compiler takes, and no kernel: the backend that knows each (all, if none is said),
and the value that leaves it to the compiler, the only one for other backends."""


Shape = Callable[[Any, Any], tuple[int, ...]]
"""From a problem and a config to a shape, or to a grid."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """A temporary: memory that one step writes and a later one reads.

    shape: from the problem and the config.
    dtype: an element type.
    initial: see `Initial`.
    there: whether a config has it.
    """

    shape: Shape
    dtype: str = "fp32"
    initial: Initial = "anything"
    there: Callable[[Any], bool] = lambda config: True


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of an operation.

    name: of the part.
    function: a Triton or Gluon kernel, or its place: ``"module:function"``.
    grid: workgroups, from the problem and the config.
    there: whether a config has the part.
    each_unit: from the config, how many workgroups of the grid's first size there are at most for
        each compute unit, of a kernel whose workgroups take turns; 0 for as many as the grid says.
    dependent: whether its workgroups may start while the last ones of the kernel before it run,
        where an architecture lets them.
    """

    name: str
    function: Any
    grid: Shape
    there: Callable[[Any], bool] = lambda config: True
    each_unit: Callable[[Any], int] = lambda config: 0
    dependent: bool = False

    @property
    def interface(self) -> Interface:
        """The kernel's signature."""
        if isinstance(self.function, str):
            return binder.interface(self.function)
        found = inspect.signature(self.function.fn).parameters.items()
        return Interface(
            "gluon" if "Gluon" in type(self.function).__name__ else "triton",
            {name: "constexpr" in str(one.annotation) for name, one in found},
        )


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that is declared of an operation: see `tilewright.custom.operation`, which says what each
    field means. Where a module states kernels by their places and makes its declaration known with
    `tilewright.custom.declare`, neither stating nor planning it imports Triton.

    module: the module that other processes import to know the operation.
    """

    name: str
    module: str
    operands: Mapping[str, Array]
    parts: tuple[Part, ...]
    axes: Mapping[str, tuple[Any, ...]]
    reference: Callable[..., Any]
    scalars: Mapping[str, tuple[str, int | float | None]] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    options: Mapping[str, bool | int | str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Callable[[Any, Any], int]] = field(default_factory=dict)
    temporaries: Mapping[str, Scratch] = field(default_factory=dict)
    multiples: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ()
    supports: Callable[[Any, Any], bool | str] = lambda problem, config: True
    flops: Callable[[Any], int] = lambda problem: 0
    terms: str | int = 1
    amplifies: float = 1.0
    gradients: tuple[Gradient, ...] | Callable[[Any], Sequence[Gradient] | str] = ()
    records: Mapping[str, bool | int | str] = field(default_factory=dict)
    problems: tuple[Mapping[str, Any], ...] = ()
    dtypes: Mapping[str, str] = field(default_factory=dict)
    moves: Callable[[Any, Any], int] | None = None
    least: Callable[[Any], int] | None = None
    prefers: Callable[[Any, Any], Any] = lambda problem, config: 0
    tolerances: Callable[[Any, Any], Mapping[str, Tolerance]] | None = None
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    refuses: Callable[[Any], str] = lambda problem: ""
    narrows: Callable[[Any], Mapping[str, Sequence[Any]]] = lambda problem: {}
    together: Callable[[Any, Arch], Sequence[Mapping[str, Any]]] | None = None
    functions: Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = field(
        default_factory=dict
    )
    constants: Mapping[str, Callable[[Any], int | str | tuple[str, ...]]] = field(
        default_factory=dict
    )
    drivers: tuple[Driver, ...] = ()
    formats: Formats = field(default_factory=Formats)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes, in the order in which shapes name them."""
        named = (n for one in self.operands.values() for s in one.shape for n in extents.names(s))
        return tuple(name for name in dict.fromkeys(named) if name not in self.stated)

    @property
    def optional_sizes(self) -> tuple[str, ...]:
        """The sizes that optional operands alone have: 0 where a call has none of these."""
        others = (one for one in self.operands.values() if not one.optional)
        needed = {n for one in others for size in one.shape for n in extents.names(size)}
        return tuple(name for name in self.sizes if name not in needed)

    @property
    def integers(self) -> Mapping[str, int]:
        """The integers that a call states by keyword, which arithmetic on sizes may name: numbers,
        and options that are integers; with their defaults."""
        options = {n: value for n, value in self.options.items() if type(value) is int}
        return {**self.numbers, **options}

    @property
    def stated(self) -> frozenset[str]:
        """The names in arithmetic on sizes that are no sizes: integers, and the fields that say
        which optional operands are there."""
        return frozenset((*self.integers, *map(flag, self.optional)))

    @property
    def strides(self) -> Mapping[str, tuple[str, int]]:
        """The strides that are fields of the problem: for each, the operand and the dimension that
        say what it is in a contiguous array."""
        found: dict[str, tuple[str, int]] = {}
        for name, one in self.operands.items():
            for dimension, stride in enumerate(one.strides or ()):
                if extents.is_name(stride) and stride not in (*self.sizes, *self.integers):
                    found.setdefault(str(stride), (name, dimension))
        return found

    @property
    def constant(self) -> tuple[str, ...]:
        """Outputs for which no gradient arrives."""
        return tuple(name for name, one in self.operands.items() if not one.differentiable)

    @property
    def dtype_fields(self) -> tuple[str, ...]:
        """Names of the fields that say an element type."""
        said = (one.dtype for one in self.operands.values())
        return tuple(dict.fromkeys(d for d in said if d not in DTYPES))

    @property
    def stated_dtypes(self) -> Mapping[str, str]:
        """The fields of element types that no operand which every call passes has, so that a call
        may state them by keyword: for each, the type taken where a call does not, or the field
        that says it."""
        passed = {one.dtype for one in self.operands.values() if one.by_position}
        fields = [name for name in self.dtype_fields if name not in passed]
        usual = next((name for name in self.dtype_fields if name in passed), "bf16")
        return {name: self.dtypes.get(name, usual) for name in fields}

    def there(self, name: str, said: Any) -> bool:
        """Whether an operand is there, by the fields of a problem or a config."""
        one = self.operands[name]
        field, _, value = (flag(name) if one.optional else one.when).partition("=")
        return not field or (getattr(said, field) == value if value else bool(getattr(said, field)))

    @property
    def integer_fields(self) -> tuple[str, ...]:
        """The fields of a problem that sizes and strides may name."""
        return (*self.sizes, *self.strides, *self.integers)

    @property
    def optional(self) -> tuple[str, ...]:
        """Names of the operands that a call may leave out."""
        return tuple(name for name, one in self.operands.items() if one.optional)

    def promised(self, config: Any) -> tuple[str, ...]:
        """The sizes and strides that a config's kernels take for multiples of its alignment."""
        return self.multiples(config) if callable(self.multiples) else self.multiples


def flag(name: str) -> str:
    """The field that says whether an optional operand is there."""
    return f"has_{name}"
