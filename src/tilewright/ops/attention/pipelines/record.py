"""`Pipeline`: everything about an attention kernel that is not in the kernel's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.rates import ATTENTION
from tilewright.ops.binder import Part

Rule = Callable[[AttentionConfig, Arch], "str | None"]
"""Why a config is not legal on an architecture, or None."""

Support = Callable[[AttentionConfig, AttentionProblem], "str | None"]
"""Why a config cannot compute a problem, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """What the estimate knows of a kernel's speed (`rates`).

    share: of the published matrix rate that it reaches when nothing else holds it up. share_8_bit:
        of the rate of 8-bit types.
    serial: share of the shorter of products and softmax that the longer does not hide, where one
        group of warps has them; of several, which hide one another's, a part.
    beside: for how many groups a further workgroup on the compute unit stands there.
    instructions: of the vector units for each score besides its exponential: scaling, maximum,
        subtraction, sum, conversion, moves.
    rescales: whether every step multiplies its sums, by what the maxima grew.
    in_use: stages of the ring that no keys can arrive in while a step works.
    tile_us: of a tile beside its steps: the first scores and the last products hide nothing.
    """

    share: float
    share_8_bit: float
    serial: float
    beside: float = 0.0
    instructions: float = ATTENTION.SCORE_INSTRUCTIONS
    rescales: bool = True
    in_use: int = 1
    tile_us: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One attention kernel: what it is called, needs, accepts and takes. No field has a default, so
    a record that forgets one is a `TypeError` that names the field.

    name: the word in `AttentionConfig.pipeline` and in kernels' names.
    kernel: the kernel, as a part.
    sibling: the pipeline in Triton that computes the same, which the interpreter runs; its own name
        if it is in Triton.
    needs: what an architecture must have, in the words of `Arch.has`.
    features: the words of `features.FEATURES` that its kernel knows. The steps of ``append`` are
        kernels of their own, so every pipeline that reads the cache knows these.
    masks, schedulers, packs, dtypes: legal values of the config's fields; `dtypes` are pairs of
        (dtype, dtype_kv).
    odd_rows, odd_columns: legal tile_q and tile_kv that are no powers of two.
    rules: its own rules of legality, by name. supports: its own rules of support, by name.
    before: kernels that prepare operands for its own.
    shared_memory: bytes of a workgroup; None where the compiler decides.
    resident: workgroups that a compute unit holds, where the kernel is made for so many; None where
        that follows from registers and shared memory.
    registers: 32-bit registers of a thread that the sums and the scores of a tile take at least.
    pace: how fast it is, for the estimate.
    algorithms: fields of the algorithm that the default space has for a problem on an architecture.
    tuned: the further ones that a tuning tries.
    """

    name: str
    kernel: Part
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
    before: tuple[Part, ...]
    shared_memory: Callable[[AttentionConfig, Arch], int] | None
    resident: Callable[[AttentionConfig, Arch], int] | None
    registers: Callable[[AttentionConfig, Arch], int]
    pace: Pace
    algorithms: Callable[[AttentionProblem, Arch], Sequence[Mapping[str, Any]]]
    tuned: Callable[[AttentionProblem, Arch], Sequence[Mapping[str, Any]]]

    @property
    def in_triton(self) -> bool:
        """Whether its kernel is in Triton, not in Gluon."""
        return self.sibling == self.name

    def runs_on(self, arch: Arch) -> bool:
        """Whether an architecture has what the kernel needs."""
        return all(map(arch.has, self.needs))
