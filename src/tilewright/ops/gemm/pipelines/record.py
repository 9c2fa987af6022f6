"""`Pipeline`: everything about a GEMM kernel that is not in the kernel's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.binder import Catalogue, Value, interface
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    INDEX_BITS,
    MAX_TILE,
    REDUCTIONS,
    SCHEDULERS,
    SHARING,
    STORES,
    GemmConfig,
)
from tilewright.ops.gemm.pipelines import common

Rule = Callable[[GemmConfig, Arch], "str | None"]
"""Returns why a config is not legal on an architecture, or None."""

OwnRule = Literal["combination", "warpgroups", "small_m", "cdna", "scales", "packed"]
"""The rules of `rules.LEGALITY` that a record may extend."""

OwnWord = Literal["scheduler", "reduction", "epilogue"]
"""The fields of a config about which a rule of a record's own may speak."""

Trait = Literal[
    "b_in_words",
    "shuffled_b",
    "packed",
    "swaps",
    "zero_k",
    "few_rows",
    "transposed",
    "dot",
    "takes_turns",
    "walks_parts",
    "fills_ring",
    "ends_inside",
    "loads_apart",
    "b_in_registers",
    "widens",
]
"""What a kernel may do with its operands, and how it may compute:

b_in_words: its descriptor of B counts 32-bit words of packed elements.
shuffled_b: it reads a shuffled B, and nothing else (layout ``rsr``).
packed: it reads 4-bit operands.
swaps: A and B may be exchanged (`GemmConfig.swap_ab`).
zero_k: it takes K = 0.
few_rows: it computes one row of tiles, on a grid of (tiles, parts of K).
transposed: B's columns take the place of rows in the matrix instruction.
dot: it multiplies by ``tl.dot``.
takes_turns: groups of four warps compute tiles of their own in turn.
walks_parts: a workgroup walks several parts of tiles under split-K.
fills_ring: K must have as many steps as the ring has stages.
ends_inside: the last tile along an axis may begin earlier, and then ends with the matrix
    (`device/schedule.begin_of`).
loads_apart: warps of their own load, so that those that multiply do nothing else.
b_in_registers: B is in registers before the matrix units read it.
widens: it takes a B in 8 bits beside an A in 16.
"""

Grid = Literal["whole", "few bits"]
"""The grids of the default space: for operands of whole elements of one width, and for 4-bit
operands, the MX formats and a B that is narrower than A (see `spaces`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the estimate takes a pipeline to reach (see `rates` for where the figures come from).

    share: of the published matrix rate, when nothing else holds the kernel up.
    scaled: factor on `share` with block scales.
    converted: factor on `share` where the matrix units have no instruction for block-scaled
    operands and the compiler converts 8-bit ones.
    unpacked: instructions for each weight of a tile beside its products, by the dtype of a B that
    the kernel converts; {} if it takes none. Those of 4 bits are from the times in
    benchmarks/results/gemm_weights_h200.json, which the estimate meets within a fifth up to 16
    rows; those of 8 bits are counted in code for sm_90, beside int4's or bf16's, and not timed.
    """

    share: float
    scaled: float = 1.0
    converted: float = 1.0
    unpacked: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One GEMM kernel: its name, what it needs of an architecture, which configs it accepts, and
    how it is chosen. Its parameters are in its signature, which `takes` reads.

    A record says what its kernel has beyond the usual. The usual values of a config are the
    narrowest: a record that forgets one has fewer configs, not wrong ones. Raises `BadArgument` for
    a word that a field does not have, and for fields that contradict each other.

    The kernel:

    name: the word in `GemmConfig.pipeline` and in kernels' names.
    kernel: where it is, as ``"module:function"``.
    sibling: of a kernel in Gluon, the pipeline in Triton that computes the same.
    needs: what an architecture must have, in the words of `Arch.has`.

    The fields of a config that it accepts:

    schedulers, reductions, stores, alignments, index_bits, batchings: the legal values.
    `reductions` leaves out ``none``.
    padding: the legal values of pad_m, pad_n and pad_k.
    odd_rows, odd_columns, odd_warps: legal tile_m, tile_n and num_warps that are no powers of two.
    largest_k: the largest tile_k (times the parts of K that warps share out; see `small_m`).
    rules: the kernel's own rules, by the rule of `rules.LEGALITY` that they extend.
    own_words: for ``scheduler``, ``reduction`` or ``epilogue``, the rule among `rules` that says in
    words of its own what the kernel lacks; for those left out, ``combination`` says it.

    How it computes, each a function of the config, or of the config and the architecture:

    traits: what else holds of it (`Trait`).
    operand_dtype: the operand dtype of its matrix instructions, as `Arch.dtypes` lists it.
    summed_k: elements of K whose products are summed before anything else is done with them.
    several_blocks: whether a step of K may have several blocks of scales.
    meetings: pieces of a tile whose partial sums meet on their own, each with its flags.
    shared_memory: bytes of shared memory; the compiler may add a little.
    accumulators: registers of a thread that hold sums.

    What the compiler is told (see `catalogue`):

    boxes: rows, columns and K of A and B that one copy moves, and columns of C; None for a kernel
    that reads through pointers. Of a kernel that takes ``b_rest``: of a tile's first accumulator.
    own: the meanings of constants that are this kernel's alone.
    options: the compiler's options.

    How it is chosen:

    rates: what the estimate takes it to reach (`estimate`); None if it is estimated as a kernel
    that unpacks (`estimate_few`).
    grids: the grids of the default space whose axes list it.
    worth_having: by grid, whether a config of this pipeline is the best for somebody; also of the
    configs that the default space lists one by one.
    """

    name: str
    kernel: str
    sibling: str = ""
    needs: tuple[str, ...] = ()

    schedulers: tuple[str, ...]
    reductions: tuple[str, ...] = ()
    stores: tuple[str, ...] = ("direct",)
    padding: tuple[bool, ...] = (True,)
    alignments: tuple[int, ...] = (16,)
    index_bits: tuple[int, ...] = (32,)
    batchings: tuple[str, ...] = ("none",)
    odd_rows: tuple[int, ...] = ()
    odd_columns: tuple[int, ...] = ()
    odd_warps: tuple[int, ...] = ()
    largest_k: int = MAX_TILE
    rules: Mapping[OwnRule, Rule] = field(default_factory=dict)
    own_words: Mapping[OwnWord, OwnRule] = field(default_factory=dict)

    traits: tuple[Trait, ...] = ()
    operand_dtype: Callable[[GemmConfig], str] = common.operand_dtype
    summed_k: Callable[[GemmConfig], int] = common.whole_step
    several_blocks: Callable[[GemmConfig], bool] = common.never
    meetings: Callable[[GemmConfig], int] = common.once
    shared_memory: Callable[[GemmConfig, Arch], int]
    accumulators: Callable[[GemmConfig, Arch], int] = common.accumulators

    boxes: Callable[[GemmConfig], tuple[int, int, int, int]] | None = None
    own: Catalogue = field(default_factory=dict)
    options: Callable[[GemmConfig, Arch], tuple[tuple[str, Value], ...]] = common.triton_options

    rates: Rates | None
    grids: tuple[Grid, ...] = ()
    worth_having: Mapping[Grid, Callable[[GemmConfig], bool]]

    def __post_init__(self) -> None:
        shares = bool({*self.schedulers} & {*SHARING})
        listed: tuple[tuple[str, Sequence[object], Sequence[object], bool], ...] = (
            ("schedulers", self.schedulers, SCHEDULERS, True),
            ("reductions", self.reductions, REDUCTIONS[1:], shares),
            ("stores", self.stores, STORES, True),
            ("padding", self.padding, (False, True), True),
            ("alignments", self.alignments, ALIGNMENTS, True),
            ("index_bits", self.index_bits, INDEX_BITS, True),
            ("batchings", self.batchings, BATCHINGS, True),
            ("rules", tuple(self.rules), get_args(OwnRule), False),
            ("own_words", tuple(self.own_words), get_args(OwnWord), False),
            ("own_words", tuple(self.own_words.values()), tuple(self.rules), False),
            ("traits", self.traits, get_args(Trait), False),
            ("grids", self.grids, tuple(self.worth_having), False),
            ("worth_having", tuple(self.worth_having), get_args(Grid), True),
        )
        for name, values, known, needed in listed:
            for value in values:
                if value not in known:
                    words = ", ".join(map(str, known))
                    raise self._wrong(name, f"{value!r} is not one of {words}")
            if needed and not values:
                raise self._wrong(name, "is empty")
        if self.reductions and not shares:
            raise self._wrong("reductions", "belong to schedulers that share tiles; it has none")

    def _wrong(self, name: str, why: str) -> BadArgument:
        return BadArgument(f"pipeline {self.name}: {name}: {why}")

    @property
    def in_triton(self) -> bool:
        """Whether its kernel is in Triton, not in Gluon."""
        return not self.sibling

    @property
    def interpreted(self) -> str:
        """The pipeline in Triton that computes the same, which the interpreter runs."""
        return self.sibling or self.name

    @property
    def reads(self) -> Literal["pointers", "descriptors"]:
        """How it reaches A and B."""
        return "descriptors" if self.boxes else "pointers"

    @property
    def writes(self) -> Literal["pointers", "descriptors"]:
        """How it reaches C."""
        return "pointers" if self.takes("ldc") else "descriptors"

    def takes(self, parameter: str) -> bool:
        """Whether the kernel has a parameter of this name."""
        return parameter in interface(self.kernel).parameters

    def has(self, trait: Trait) -> bool:
        """Whether `trait` holds of the kernel."""
        return trait in self.traits

    def runs_on(self, arch: Arch) -> bool:
        """Whether `arch` has everything that the kernel needs."""
        return all(arch.has(word) for word in self.needs)
