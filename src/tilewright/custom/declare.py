"""What a user declares of an operation: its arrays, its kernels, its axes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Initial, Role, Values

Size = str | int


@dataclass(frozen=True, slots=True)
class Array:
    """An operand, which lies contiguous in memory. Made by `In`, `Out` and `InOut`.

    shape: for each dimension, a number, or the name of a size: a field of the problem.
    dtype: an element type, or the name of a field that says it.
    role: see `Role`.
    optional: a call may leave it out, and passes it by keyword.
    values: those made up for checking and timing (`Operand.values`).
    """

    shape: tuple[Size, ...]
    dtype: str
    role: Role
    optional: bool = False
    values: Values = None

    @property
    def by_position(self) -> bool:
        """Whether a call passes it by position."""
        return self.role != "out" and not self.optional


def In(*shape: Size, dtype: str = "dtype", optional: bool = False, values: Values = None) -> Array:
    """An operand that the kernels read; see `Array`."""
    return Array(shape, dtype, "in", optional, values)


def Out(*shape: Size, dtype: str = "dtype") -> Array:
    """An operand that the kernels write, all of it."""
    return Array(shape, dtype, "out")


def InOut(*shape: Size, dtype: str = "dtype", values: Values = None) -> Array:
    """An operand that the kernels read, and write to in place."""
    return Array(shape, dtype, "inout", False, values)


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
    def parameters(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.function.fn).parameters)

    @property
    def constants(self) -> tuple[str, ...]:
        """Names of the parameters that are known when the kernel is compiled."""
        found = inspect.signature(self.function.fn).parameters.items()
        return tuple(name for name, one in found if "constexpr" in str(one.annotation))

    @property
    def is_gluon(self) -> bool:
        return "Gluon" in type(self.function).__name__


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

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes, in the order in which shapes name them."""
        named = (s for one in self.operands.values() for s in one.shape if isinstance(s, str))
        return tuple(dict.fromkeys(named))

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
            for name in part.parameters:
                if name not in known:
                    raise BadArgument(
                        f"operation {self.name}: the kernel's parameter '{name}' is no operand, "
                        f"size, scalar, value, temporary, option or axis; there are "
                        f"{', '.join(known)}"
                    )
            for name in part.constants:
                if name in (*self.sizes, *self.values, *self.scalars):
                    raise BadArgument(
                        f"operation {self.name}: '{name}' is known for each problem alone, so it "
                        "cannot be a constexpr; name an axis, or take it at run time"
                    )
            for name in part.parameters:
                if name in self.axes and name not in part.constants:
                    raise BadArgument(f"operation {self.name}: axis '{name}' must be a constexpr")
        if not any(one.role != "in" for one in self.operands.values()):
            raise BadArgument(f"operation {self.name} writes nothing: state an Out or an InOut")

    def known(self) -> Sequence[str]:
        """The names that a kernel's parameters may have."""
        groups = (self.sizes, self.scalars, self.values, self.temporaries, self.options, self.axes)
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
