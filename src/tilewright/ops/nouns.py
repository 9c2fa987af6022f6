"""The nouns that a family and the rest of Tilewright exchange: what to compile, what to launch,
operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class KernelSource:
    """What the compiler needs to build one config: a Triton function and its specialisation.

    `signature` has every argument in order as (name, Triton type); compile-time constants are
    ``"constexpr"`` there and have their value in `constants`. `divisibility` are (argument,
    bytes or count) promises the caller of the kernel keeps; `pointer_range_32` names pointers
    to less than 2 GiB (AMD buffer instructions). `options` go to the compiler (`num_warps`…).
    `language` says which compiler front end reads the function; a descriptor's type is written
    ``tensordesc<bf16[128, 64]>`` in both, and lies in shared memory as Gluon lays it by default.

    Arguments called ``x.0``, ``x.1``… are the elements of the tuple argument ``x``; one that has
    none is ``x`` of type ``"()"``. `functions` are constants that are tuples of Triton functions,
    each as ``"module:function"``.
    """

    module: str
    function: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool | str], ...]
    divisibility: tuple[tuple[str, int], ...] = ()
    pointer_range_32: tuple[str, ...] = ()
    options: tuple[tuple[str, int | bool | str], ...] = ()
    language: Literal["triton", "gluon"] = "triton"
    functions: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules the compiler is sent to: the kernel's, then those of `functions`."""
        called = (name.partition(":")[0] for _, names in self.functions for name in names)
        return tuple(dict.fromkeys((self.module, *called)))

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of what a launch passes: constants and empty tuples are not."""
        return tuple((n, t) for n, t in self.signature if t not in ("constexpr", "()"))


@dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel argument: the address of operand number `operand`, or of the workspace."""

    operand: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A kernel argument known when the plan is made. `type` is Triton's (``i32``, ``i64``)."""

    type: str
    value: int


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel argument: a tiled view of an operand (a TMA tensor map on NVIDIA).

    `shape` and `strides` in elements, outermost dimension first, last stride 1; `block` is the
    tile one copy moves; `dtype` is Tilewright's name.
    """

    operand: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]


Argument = Pointer | Scalar | Descriptor
WORKSPACE = -1
"""The operand number of the dispatcher's workspace."""

FLAG_BYTES = 65536
"""A workspace begins with this many bytes of flags that are zero between launches: every kernel
finds them zero and leaves them zero. What follows may hold anything; see `Launch`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch for one problem: grid, the kernel's non-constant arguments in order,
    and bytes of workspace (flags included; and whether what follows them is zero between
    launches too: the kernel finds it so and leaves it so). `capturable`: whether it may be captured
    in a CUDA graph and replayed, which it may unless the host has to read memory of the device. All
    launches so far may: they follow from a problem, which says where operands lie and not what they
    hold (a grouped GEMM's kernel reads the groups' sizes itself)."""

    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    workspace_bytes: int = 0
    zero_workspace: bool = False
    capturable: bool = True


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a problem as it lies in memory: shape, strides in elements, dtype name.

    `values`: between which two its values lie, evenly spread, when they are made up, or a
    function that makes them (in a list for each dimension) from a seed; without, they are
    standard normal, or any integers. `pointers`: it is passed as an array of the addresses of
    what its first dimension counts (`tilewright.pointers`).
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    is_output: bool = False
    values: tuple[float, float] | Callable[[int], Sequence[Any]] | None = None
    pointers: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """An array the caller passed: like `Operand`, with the address of its first element in
    bytes, and where it lives (``"cpu"``, ``"cuda:0"``).

    `pointers`: 0, or bytes that the addresses in it are multiples of, if it is an array of
    pointers; what its first dimension counts are arrays at these addresses.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: int
    device: str
    pointers: int = 0
