"""What an operation family gives to the rest of Tilewright, and nothing more.

A family is a folder under `ops/` whose package defines ``FAMILY``, an object with the methods
of `Family`. Everything outside works through this protocol and never names a family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from tilewright.arch.model import Arch, Device
from tilewright.ops.estimate import Estimate
from tilewright.ops.foreign import Reader
from tilewright.tolerance import Tolerance
from tilewright.verdict import Verdict


class Problem(Protocol):
    """What to compute. Frozen and hashable; checks itself when made (`BadArgument`)."""

    family: ClassVar[str]

    @property
    def flops(self) -> int:
        """Arithmetic operations of the result; a multiply-add counts as two."""

    @property
    def min_bytes(self) -> int:
        """Fewest bytes to move: each input read once, each output written once."""


class KernelConfig(Protocol):
    """How to compute it: a signature and an algorithm. Frozen and hashable."""

    family: ClassVar[str]

    @property
    def name(self) -> str:
        """The kernel's name; `Family.parse_name` is its exact inverse."""

    @property
    def pipeline(self) -> str:
        """How operands reach the matrix units: one of `Arch.pipelines`."""


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


class Family(Protocol):
    """One operation family. Implementations are stateless."""

    name: str
    problem_type: type[Any]
    config_type: type[Any]
    reads_unnamed: bool
    """Whether a sweep document that names no family is this one's; true of exactly one family."""
    variants: tuple[str, ...]
    """CK Tile Engine's folders of documents of this family."""
    helpers: ClassVar[Mapping[str, Callable[..., Any]]]
    """Functions that prepare operands, by the name they have at the top level."""

    # --- names and data -----------------------------------------------------------------
    def parse_name(self, name: str) -> Any:
        """The config whose name this is. Raises `UnknownName`."""

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> Any:
        """A problem from words, as on a command line (``m=4096 dtype=fp8``); `arch` gives
        ``fp8`` and ``bf8`` their meaning. Raises `BadArgument`."""

    def rows(self, problem: Any) -> int | None:
        """How many rows (M) the result has; None where the problem has no one M."""

    def with_rows(self, problem: Any, m: int) -> Any:
        """The same problem with `m` rows; what lay packed in memory lies packed again. Raises
        `BadArgument` where it has no one M, or its strides no room for so many."""

    # --- spaces and legality ------------------------------------------------------------
    def axes(self) -> Mapping[str, Any]:
        """Every axis a space may have, in order, with the value taken where it is left out."""

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        """What ``"*"`` means for an axis on an architecture."""

    def make_config(self, fields: Mapping[str, Any], arch: Arch) -> Any:
        """The config with these values of all axes. Raises `BadArgument` if they contradict
        each other."""

    def read_sweep(
        self,
        document: Mapping[str, Any],
        arch: Arch,
        signature: Mapping[str, str] | None = None,
    ) -> tuple[Any, list[str]]:
        """A `KernelSpace` from a sweep document in CK Tile Engine's form, and a note for each
        part of it that has no counterpart here. `signature` gives axes the document leaves to
        its caller (dtypes, layout). Raises `BadFile`, and `BadArgument` for the signature."""

    def foreign(self, titles: frozenset[str]) -> Reader | None:
        """What reads the lines of another library's table with these columns, where it states
        problems of this family in its own way; None for any other table."""

    def default_space(self, problem: Any, arch: Arch) -> Any:
        """The `KernelSpace` to dispatch problems like this one from when the user declares
        none."""

    def tuning_spaces(self, problem: Any, arch: Arch) -> Sequence[Any]:
        """The `KernelSpace`s that a tuning of this problem chooses from: the default space, and
        what may be best and is too much to choose from without measuring."""

    def judge(self, config: Any, arch: Arch) -> Verdict:
        """May this config be built for this architecture?"""

    def supports(self, config: Any, problem: Any, arch: Arch) -> Verdict:
        """Can this config, built for this architecture, compute this problem?"""

    def repeats(self, config: Any) -> Verdict:
        """Does it give the same bits for the same operands in every run?"""

    def keeps_rows(self, config: Any) -> Verdict:
        """Does a row of the result have the same bits however many rows there are?"""

    # --- building and launching ---------------------------------------------------------
    def source(self, config: Any, arch: Arch) -> KernelSource:
        """What to compile."""

    def interpreted(self, config: Any) -> Any:
        """The config whose kernel Triton's interpreter runs in place of `config`'s: itself, or,
        for a kernel in Gluon (which has no interpreter), its Triton sibling, which computes the
        same result."""

    def launch(self, config: Any, problem: Any, device: Device) -> Launch:
        """How to launch it."""

    # --- operands -----------------------------------------------------------------------
    def operands(self, problem: Any) -> tuple[Operand, ...]:
        """The problem's operands, inputs first, the one output last."""

    def problem_of(
        self,
        inputs: Sequence[View],
        out: View | None,
        options: Mapping[str, Any],
        config: Any = None,
    ) -> Any:
        """The problem that a call's operands state.

        inputs: the operands the kernel reads, in order. out: the output, None where the caller
        gives none; it is never counted among the inputs, so one input too many is an error and
        not an output. config: how to read operands that can be read in more than one way.

        Raises `BadArgument` for a wrong number of inputs, for operands that do not fit together
        and for operands that no kernel can read."""

    def output(self, inputs: Sequence[View], options: Mapping[str, Any]) -> Operand:
        """The output to make for a call with these inputs, where the caller gives none."""

    def options(self, problem: Any) -> dict[str, Any]:
        """The call's keyword options that, with the operands, state `problem`."""

    # --- choosing and checking ----------------------------------------------------------
    def rank(
        self, problem: Any, configs: Iterable[Any], device: Device
    ) -> list[tuple[Any, Estimate]]:
        """Configs with their estimates, best first (no measurement)."""

    def estimate(self, config: Any, problem: Any, device: Device) -> Estimate:
        """How long `config` should take for `problem` on `device`, and of what that is made."""

    def reference(self, problem: Any, inputs: Sequence[Any]) -> Any:
        """The result in the arithmetic of `inputs`, which are float64 arrays (NumPy or torch)
        made from the rounded operands; `arrays.poison_of` the output where nothing is to be
        written."""

    def tolerance(self, problem: Any, config: Any) -> Tolerance:
        """How far this config's output may be from the reference. Of None, the vendor's library:
        as far as a kernel's that adds each sum up in one part, which is nearest to it."""

    def vendor(
        self, problem: Any
    ) -> tuple[str, Callable[[Sequence[Any], Any], Callable[[], Any]]] | None:
        """The name of torch's call that computes `problem` by the vendor's library, and what makes
        it of the inputs and the output on a GPU (the call returns the result, in whichever
        memory); None where there is none."""
