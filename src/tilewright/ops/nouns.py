"""The nouns that a family and the rest of Tilewright exchange: operands, what to compile, and what
to launch.

A launch is steps over named operands and named temporaries. Each step runs one kernel of the
config, and the native launcher hands all of them to the driver in one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tilewright.dtypes import dtype
from tilewright.ops.library import Matmul
from tilewright.ops.library_attention import Attention
from tilewright.ops.library_convolution import Convolution


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

    `cluster`: workgroups that reach each other's shared memory (`compile.clusters`). A launch's
    grid then counts clusters.
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
    cluster: int = 1

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules the compiler is sent to: the kernel's, then those of `functions`."""
        called = (name.partition(":")[0] for _, names in self.functions for name in names)
        return tuple(dict.fromkeys((self.module, *called)))

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """(name, type) of what a launch passes: constants and empty tuples are not."""
        return tuple((n, t) for n, t in self.signature if t not in ("constexpr", "()"))


MAIN = "main"
"""The part of a config that has one kernel."""

Role = Literal["in", "out", "inout"]
"""in: a step reads the operand. out: the steps write all of it. inout: the steps read it and write
to it in place."""

Initial = Literal["anything", "zero", "kept_zero"]
"""How a temporary begins. anything: with whatever the memory holds. zero: each launch zeroes it
first. kept_zero: every launch finds it zero and leaves it zero."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """A kernel argument: the address of an operand, or of a temporary, by name."""

    operand: str


@dataclass(frozen=True, slots=True)
class Scalar:
    """A kernel argument known when the plan is made. `type` is Triton's (``i32``, ``fp32``)."""

    type: str
    value: int | float


@dataclass(frozen=True, slots=True)
class Given:
    """A kernel argument that the caller gives at each call, by name: a softmax scale, a dropout
    seed, a length. `type` is Triton's."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A kernel argument: a tiled view of an operand or a temporary (a TMA tensor map on NVIDIA).

    operand: its name.
    dtype: of the view's elements, by Tilewright's name.
    shape, strides: of the view, in elements, outermost dimension first, of 1 to 5 dimensions; the
        last stride is 1.
    block: the tile that one copy moves.
    offset: elements from the operand's first to the view's first.
    element_strides: for each dimension, how many elements of the view a copy goes on for each
        element of the tile; ``()`` is 1 in all. Coordinates count the view's elements. Tensor maps
        only.
    """

    operand: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block: tuple[int, ...]
    offset: int = 0
    element_strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Number:
    """A scalar that a caller gives at each call.

    type: Triton's.
    finite: whether NaN and the infinities mean nothing.
    limits: the least and the most that it may be; None: its type's.
    """

    type: str
    finite: bool = True
    limits: tuple[float, float] | None = None


Argument = Pointer | Scalar | Given | Descriptor


@dataclass(frozen=True, slots=True)
class Temporary:
    """Memory that the steps of a launch use between them, and that no caller sees.

    name: as arguments say it; no operand has the same.
    shape: of a contiguous array.
    dtype: Tilewright's name.
    initial: see `Initial`.
    inside: an output in whose memory it lies: the launch writes the output after it has read the
        temporary for the last time. "": memory of its own.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    initial: Initial = "anything"
    inside: str = ""

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * dtype(self.dtype).bytes


TEMPORARY_ALIGNMENT = 256
"""Bytes that the address of each temporary is a multiple of."""


Theirs = Matmul | Convolution | Attention
"""What a vendor's library computes."""


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a launch, or what a vendor's library computes.

    grid: workgroups in x, y and z; the library chooses its own.
    arguments: the kernel's non-constant arguments, in order; for a library, of a product pointers
        to the first and the second matrix, the result, the workspace if there is one, and
        `Matmul.extra`; of what cuDNN computes those that `runtime.cudnn_graphs` numbers, and the
        workspace.
    part: which of the config's kernels (`Launching.sources`).
    theirs: what a library computes; None for a kernel.
    """

    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    part: str = MAIN
    theirs: Theirs | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """What computes one problem: steps that run one after another on a stream, over the problem's
    operands and temporaries of their own.

    capturable: whether the launch may be captured in a CUDA graph and replayed. It may unless the
    host has to read memory of the device, or a library may do so or load code.
    """

    steps: tuple[Step, ...]
    temporaries: tuple[Temporary, ...] = ()
    capturable: bool = True

    @property
    def workspace_bytes(self) -> int:
        """Bytes that the temporaries take together, beside outputs."""
        end = 0
        for one in (t for t in self.temporaries if not t.inside):
            end += -end % TEMPORARY_ALIGNMENT + one.bytes
        return end


def without_kept_zero(launch: Launch) -> Launch:
    """A launch that zeroes, each time, the temporaries that it would else find zero."""
    each = (
        replace(one, initial="zero") if one.initial == "kept_zero" else one
        for one in launch.temporaries
    )
    return replace(launch, temporaries=tuple(each))


def renamed(launch: Launch, names: Mapping[str, str]) -> Launch:
    """A launch with other names for some operands.

    names: the new name by the old.
    """

    def named(argument: Argument) -> Argument:
        if isinstance(argument, Pointer | Descriptor):
            return replace(argument, operand=names.get(argument.operand, argument.operand))
        return argument

    steps = (replace(step, arguments=tuple(map(named, step.arguments))) for step in launch.steps)
    return replace(launch, steps=tuple(steps))


Values = tuple[float, float] | Callable[[int], Sequence[Any]] | None
"""Values to make up for an operand: between two bounds, evenly spread; by a function, which makes
them (in a list for each dimension) from a seed; None: standard normal, or any integers."""


@dataclass(frozen=True, slots=True)
class Kept:
    """An operand that its owner may lay once as kernels read it, for all calls.

    operand: its place among those that a call passes by position.
    axis: the dimension of it that is to be innermost.
    problem: the call's with the operand so.
    """

    operand: int
    axis: int
    problem: Any


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a problem as it lies in memory.

    name: unique among the problem's operands.
    shape, strides: strides in elements.
    dtype: Tilewright's name.
    role: see `Role`.
    values: those made up for checking and timing.
    pointers: the operand is passed as an array of addresses, one for each element of its first
        dimension (`tilewright.pointers`).
    keyword: a call passes it by keyword, as it does optional operands.
    """

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    role: Role = "in"
    values: Values = None
    pointers: bool = False
    keyword: bool = False

    @property
    def read(self) -> bool:
        """Whether the caller passes values in it."""
        return self.role != "out"

    @property
    def written(self) -> bool:
        """Whether the steps write to it."""
        return self.role != "in"


@dataclass(frozen=True, slots=True)
class View:
    """An array the caller passed.

    shape, strides: strides in elements.
    dtype: Tilewright's name.
    address: of the first element, in bytes.
    device: ``"cpu"``, ``"cuda:0"``.
    pointers: 0; of an array of addresses, the bytes that each address is a multiple of. The
        elements of the first dimension are arrays at these addresses.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    address: int
    device: str
    pointers: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return dtype(self.dtype).bytes


@dataclass(frozen=True, slots=True)
class Call:
    """What a caller passes to an operation.

    inputs: the operands passed by position, in order. An output is never among them.
    named: the operands passed by keyword, which optional operands are.
    outputs: the outputs passed as ``out=``, in the order in which the family states them; None
        where the caller passes none, and has them made.
    options: the other keywords. Scalars given at the call are not among them.
    """

    inputs: tuple[View, ...]
    named: Mapping[str, View] = field(default_factory=dict)
    outputs: tuple[View, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
