"""`Pipeline`: everything about an attention kernel that is not in the kernel's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.arch.model import Arch, Device
from tilewright.ops.attention import rates
from tilewright.ops.attention.arguments import Value
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.parts import Part
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.nouns import Temporary

Rule = Callable[[AttentionConfig, Arch], "str | None"]
"""Why a config is not legal on an architecture, or None."""

Support = Callable[[AttentionConfig, AttentionProblem], "str | None"]
"""Why a config cannot compute a problem, or None."""

Box = tuple[int, ...]
"""The tile that one copy of a descriptor moves, outermost dimension first."""


@dataclass(frozen=True, slots=True)
class Described:
    """A descriptor's view of an operand: shape and strides in elements. operand: the operand or
    temporary, if the argument has another name."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    operand: str = ""


@dataclass(frozen=True, slots=True)
class Before:
    """A kernel in Triton that stands before a pipeline's own, and what it writes."""

    part: Part
    grid: Callable[[AttentionConfig, AttentionProblem], tuple[int, int, int]]
    temporary: Callable[[AttentionConfig, AttentionProblem], Temporary]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the estimate knows of a kernel's speed (`rates`).

    share: of the published matrix rate that it reaches when nothing else holds it up. share_8_bit:
        of the rate of 8-bit types.
    serial: share of the shorter of products and softmax that the longer does not hide, where one
        group of warps has them; of several, which hide one another's, a part.
    instructions: of the vector units for each score besides its exponential: scaling, maximum,
        subtraction, sum, conversion, moves.
    rescales: whether every step multiplies its sums, by what the maxima grew.
    in_use: stages of the ring that no keys can arrive in while a step works.
    tile_us: of a tile beside its steps: the first scores and the last products hide nothing.
    """

    share: float
    share_8_bit: float
    serial: float
    instructions: float = rates.SCORE_INSTRUCTIONS
    rescales: bool = True
    in_use: int = 1
    tile_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One attention kernel: what it is called, needs, accepts and takes. No field has a default, so
    a record that forgets one is a `TypeError` that names the field.

    name: the word in `AttentionConfig.pipeline` and in kernels' names.
    module, function: where the kernel is.
    language: the compiler's front end.
    sibling: the pipeline in Triton that computes the same, which the interpreter runs; its own name
        if it is in Triton.
    needs: what an architecture must have, in the words of `Arch.has`.
    features: the words of `features.FEATURES` that its kernel knows. The steps of ``append`` are
        kernels of their own, so every pipeline that reads the cache knows these.
    masks, schedulers, packs, dtypes: legal values of the config's fields; `dtypes` are pairs of
        (dtype, dtype_kv).
    odd_rows, odd_columns: legal tile_q and tile_kv that are no powers of two.
    rules: its own rules of legality, by name. supports: its own rules of support, by name.
    boxes: for each operand that it reaches by a descriptor, the box; {} for pointers alone.
    views: the descriptors' views, for the same operands.
    before: kernels that prepare operands for its own.
    arguments, constants: names in the catalogue (`arguments`), in the kernel's order.
    own_constants: constants of its own, by name.
    options: for the compiler.
    grid: workgroups in x, y and z, for a problem and a number of splits.
    counter: whether it takes tiles from a counter, a temporary that begins and ends at zero.
    shared_memory: bytes of a workgroup; None where the compiler decides.
    registers: 32-bit registers of a thread that the sums and the scores of a tile take at least.
    pace: how fast it is, for the estimate.
    algorithms: fields of the algorithm that the default space has for a problem on an architecture.
    tuned: the further ones that a tuning tries.
    """

    name: str
    module: str
    function: str
    language: Literal["triton", "gluon"]
    sibling: str
    needs: tuple[str, ...]
    features: frozenset[str]
    masks: tuple[str, ...]
    schedulers: tuple[str, ...]
    packs: tuple[bool, ...]
    dtypes: tuple[tuple[str, str], ...]
    odd_rows: tuple[int, ...]
    odd_columns: tuple[int, ...]
    rules: Mapping[str, Rule]
    supports: Mapping[str, Support]
    boxes: Callable[[AttentionConfig], Mapping[str, Box]]
    views: Callable[[AttentionConfig, AttentionProblem], Mapping[str, Described]]
    before: tuple[Before, ...]
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    own_constants: Mapping[str, Callable[[AttentionConfig, Arch], Value]]
    options: Callable[[AttentionConfig, Arch], tuple[tuple[str, Value], ...]]
    grid: Callable[[AttentionConfig, AttentionProblem, Device, int], tuple[int, int, int]]
    counter: bool
    shared_memory: Callable[[AttentionConfig, Arch], int] | None
    registers: Callable[[AttentionConfig, Arch], int]
    pace: Pace
    algorithms: Callable[[AttentionProblem, Arch], Sequence[Mapping[str, Any]]]
    tuned: Callable[[AttentionProblem, Arch], Sequence[Mapping[str, Any]]]

    def runs_on(self, arch: Arch) -> bool:
        """Whether an architecture has what the kernel needs."""
        return all(map(arch.has, self.needs))
