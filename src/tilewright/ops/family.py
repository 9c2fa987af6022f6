"""What an operation family gives to the rest of Tilewright, and nothing more.

A family is a folder under `ops/` whose package defines ``FAMILY``, an object with the methods
of `Family`. Everything outside works through this protocol and never names a family.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tilewright.arch.model import Arch, Device
from tilewright.verdict import Verdict

if TYPE_CHECKING:
    import numpy as np


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


@dataclass(frozen=True, slots=True)
class KernelSource:
    """What the compiler needs to build one config: a Triton function and its specialisation.

    `signature` has every argument in order as (name, Triton type); compile-time constants are
    ``"constexpr"`` there and have their value in `constants`. `divisibility` are (argument,
    bytes or count) promises the caller of the kernel keeps; `pointer_range_32` names pointers
    to less than 2 GiB (AMD buffer instructions). `options` go to the compiler (`num_warps`…).
    """

    module: str
    function: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int | bool | str], ...]
    divisibility: tuple[tuple[str, int], ...] = ()
    pointer_range_32: tuple[str, ...] = ()
    options: tuple[tuple[str, int | bool | str], ...] = ()


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


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch for one problem: grid, the kernel's non-constant arguments in order,
    and bytes of workspace (and whether it must be zero at the start)."""

    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    workspace_bytes: int = 0
    zero_workspace: bool = False


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far an output may be from the reference, element by element:
    ``|out - ref| <= relative * |ref| + scaled * rms(ref)``."""

    relative: float
    scaled: float


class Family(Protocol):
    """One operation family."""

    name: str
    problem_type: type[Any]
    config_type: type[Any]

    # --- names and data -----------------------------------------------------------------
    def parse_name(self, name: str) -> Any:
        """The config whose name this is. Raises `UnknownName`."""

    def config_from_dict(self, fields: Mapping[str, Any]) -> Any:
        """A config from all its fields. Raises `BadArgument` for unknown or missing ones."""

    def parse_problem(self, fields: Mapping[str, str]) -> Any:
        """A problem from words, as on a command line (``m=4096 dtype=bf16``)."""

    # --- spaces and legality ------------------------------------------------------------
    def axes(self) -> Mapping[str, Any]:
        """Every config field that a space may vary, with its default (None: required)."""

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        """What ``"*"`` means for an axis on an architecture."""

    def judge(self, config: Any, arch: Arch) -> Verdict:
        """May this config be built for this architecture?"""

    def supports(self, config: Any, problem: Any, arch: Arch) -> Verdict:
        """Can this config, built for this architecture, compute this problem?"""

    def default_space(self, arch: Arch) -> Any:
        """The `KernelSpace` dispatched from when the user declares none."""

    # --- building and launching ---------------------------------------------------------
    def source(self, config: Any, arch: Arch) -> KernelSource:
        """What to compile."""

    def launch(self, config: Any, problem: Any, device: Device) -> Launch:
        """How to launch it."""

    # --- operands -----------------------------------------------------------------------
    def problem_of(self, operands: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The problem that these operands (inputs, then output if given) state."""

    def output_like(self, problem: Any) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        """Shape, strides and dtype of the output to allocate."""

    # --- checking -----------------------------------------------------------------------
    def random_inputs(self, problem: Any, rng: np.random.Generator) -> list[np.ndarray]:
        """Fresh inputs with the problem's shapes, strides and dtypes."""

    def reference(self, problem: Any, inputs: Sequence[Any]) -> Any:
        """The result in higher precision from the rounded inputs (NumPy or torch in and out)."""

    def tolerance(self, problem: Any, config: Any) -> Tolerance:
        """The one table."""

    def rank(self, problem: Any, configs: Iterable[Any], device: Device) -> list[Any]:
        """Configs best first by a stated, cheap heuristic (no measurement)."""
