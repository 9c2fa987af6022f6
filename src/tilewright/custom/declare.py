"""What a user declares of an operation: its arrays, its kernels, its axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.custom import drawn, extents, gradient
from tilewright.custom.drawn import Drawn
from tilewright.custom.extents import Size
from tilewright.custom.gradient import Gradient
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.binder import Interface
from tilewright.ops.nouns import Initial, Role


@dataclass(frozen=True, slots=True)
class Array:
    """An operand. Made by `In`, `Out` and `InOut`.

    shape: for each dimension, a number, the name of a size, which is a field of the problem, or
        arithmetic on sizes (``"k // 2"``).
    dtype: an element type, or the name of a field that says it.
    role: see `Role`.
    optional: a call may leave it out, and passes it by keyword.
    values: those made up for checking and timing (`Drawn`).
    strides: for each dimension, in elements, a number, arithmetic on sizes, or a name of its own: a
        further field of the problem, which kernels take as an ``i64`` and which is the contiguous
        array's where it is left out. None: the operand lies contiguous in memory.
    differentiable: of an output, whether gradients arrive for it.
    """

    shape: tuple[Size, ...]
    dtype: str
    role: Role
    optional: bool = False
    values: Drawn = None
    strides: tuple[Size, ...] | None = None
    differentiable: bool = True

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
) -> Array:
    """An operand that the kernels read; see `Array`."""
    return Array(shape, dtype, "in", optional, values, strides)


def Out(
    *shape: Size,
    dtype: str = "dtype",
    strides: tuple[Size, ...] | None = None,
    differentiable: bool = True,
) -> Array:
    """An operand that the kernels write, all of it; see `Array`."""
    return Array(shape, dtype, "out", strides=strides, differentiable=differentiable)


def InOut(
    *shape: Size,
    dtype: str = "dtype",
    values: Drawn = None,
    strides: tuple[Size, ...] | None = None,
) -> Array:
    """An operand that the kernels read, and write to in place; see `Array`."""
    return Array(shape, dtype, "inout", False, values, strides)


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
    """

    shape: Shape
    dtype: str = "fp32"
    initial: Initial = "anything"


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of an operation.

    name: of the part.
    function: a Triton or Gluon kernel.
    grid: workgroups, from the problem and the config.
    """

    name: str
    function: Any
    grid: Shape

    @property
    def interface(self) -> Interface:
        """The kernel's signature."""
        found = inspect.signature(self.function.fn).parameters.items()
        return Interface(
            "gluon" if "Gluon" in type(self.function).__name__ else "triton",
            {name: "constexpr" in str(one.annotation) for name, one in found},
        )


@dataclass(frozen=True, slots=True)
class Declaration:
    """All that is declared of an operation; see `tilewright.custom.operation`."""

    name: str
    module: str
    operands: Mapping[str, Array]
    parts: tuple[Part, ...]
    axes: Mapping[str, tuple[Any, ...]]
    reference: Callable[..., Any]
    scalars: Mapping[str, tuple[str, int | float | None]] = field(default_factory=dict)
    options: Mapping[str, bool | int | str] = field(default_factory=dict)
    values: Mapping[str, Callable[[Any, Any], int]] = field(default_factory=dict)
    temporaries: Mapping[str, Scratch] = field(default_factory=dict)
    multiples: tuple[str, ...] = ()
    supports: Callable[[Any, Any], bool | str] = lambda problem, config: True
    flops: Callable[[Any], int] = lambda problem: 0
    terms: str | int = 1
    amplifies: float = 1.0
    gradients: tuple[Gradient, ...] = ()
    problems: tuple[Mapping[str, Any], ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes, in the order in which shapes name them."""
        named = (n for one in self.operands.values() for s in one.shape for n in extents.names(s))
        return tuple(dict.fromkeys(named))

    @property
    def strides(self) -> Mapping[str, tuple[str, int]]:
        """The strides that are fields of the problem: for each, the operand and the dimension that
        say what it is in a contiguous array."""
        found: dict[str, tuple[str, int]] = {}
        for name, one in self.operands.items():
            for dimension, stride in enumerate(one.strides or ()):
                if extents.is_name(stride) and stride not in self.sizes:
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
    def optional(self) -> tuple[str, ...]:
        return tuple(name for name, one in self.operands.items() if one.optional)

    def check(self) -> None:
        """Raise `BadArgument` where the parts do not fit together."""
        if not self.name.isidentifier() or not self.name.islower():
            raise BadArgument(f"operation '{self.name}': a name is a lower-case identifier")
        known = self.known()
        for part in self.parts:
            for name, constant in part.interface.parameters.items():
                if name not in known:
                    raise BadArgument(
                        f"operation {self.name}: the kernel's parameter '{name}' is no operand, "
                        f"size, scalar, value, temporary, option or axis; there are "
                        f"{', '.join(known)}"
                    )
                if constant and name in (*self.sizes, *self.strides, *self.values, *self.scalars):
                    raise BadArgument(
                        f"operation {self.name}: '{name}' is known for each problem alone, so it "
                        "cannot be a constexpr; name an axis, or take it at run time"
                    )
                if name in self.axes and not constant:
                    raise BadArgument(f"operation {self.name}: axis '{name}' must be a constexpr")
        if not any(one.role != "in" for one in self.operands.values()):
            raise BadArgument(f"operation {self.name} writes nothing: state an Out or an InOut")
        taken = {name for part in self.parts for name in part.interface.parameters}
        for axis in self.axes:
            if axis not in taken and axis not in COMPILER:
                raise BadArgument(
                    f"operation {self.name}: no kernel has a parameter '{axis}', and the compiler "
                    f"takes {', '.join(COMPILER)}"
                )
        self._check_operands()
        inputs = [name for name, one in self.operands.items() if one.role == "in"]
        outputs = [n for n, one in self.operands.items() if one.role == "out"]
        arriving = [n for n in outputs if n not in self.constant and not self._whole(n)]
        others = [*(n for n in outputs if n not in arriving), *self.scalars]
        gradient.check(self.name, self.gradients, inputs, arriving, others)
        if self.gradients and any(one.role == "inout" for one in self.operands.values()):
            raise BadArgument(
                f"operation {self.name} writes an operand in place, so it can have no gradients"
            )

    def _whole(self, name: str) -> bool:
        """Whether an operand's type is one of whole numbers."""
        said = self.operands[name].dtype
        return said in DTYPES and DTYPES[said].kind == "int"

    def _check_operands(self) -> None:
        """Raise `BadArgument` for sizes, strides and values that mean nothing."""
        alone = {s for o in self.operands.values() if o.role != "out" for s in o.shape}
        for name, one in self.operands.items():
            where = f"operation {self.name}: {name}"
            for size in one.shape:
                for part in extents.names(size):
                    if not extents.is_name(size) and part not in alone:
                        raise BadArgument(
                            f"{where} has size '{size}', and no operand that is read has the size "
                            f"'{part}' by itself, so no call says what it is"
                        )
            if one.strides is not None and len(one.strides) != len(one.shape):
                raise BadArgument(
                    f"{where} has {len(one.shape)} dimensions and {len(one.strides)} strides"
                )
            for stride in one.strides or ():
                for part in extents.names(stride):
                    if not extents.is_name(stride) and part not in self.sizes:
                        raise BadArgument(f"{where} has stride '{stride}': '{part}' is no size")
            drawn.check(where, one.values, self.sizes)

    def known(self) -> Sequence[str]:
        """The names that a kernel's parameters may have."""
        groups = (
            self.sizes,
            self.strides,
            self.scalars,
            self.values,
            self.temporaries,
            self.options,
            self.axes,
        )
        flags = (flag(name) for name in self.optional)
        fields = (*self.dtype_fields, "alignment")
        names = [*self.operands, *(name for group in groups for name in group), *flags, *fields]
        for name in names:
            if names.count(name) > 1:
                raise BadArgument(f"operation {self.name}: '{name}' names two things")
        return names


def flag(name: str) -> str:
    """The field that says whether an optional operand is there."""
    return f"has_{name}"
