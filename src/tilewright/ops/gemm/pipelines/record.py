"""`Pipeline`: everything about a GEMM kernel that is not in the kernel's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tilewright.arch.model import Arch
from tilewright.errors import BadArgument
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    INDEX_BITS,
    REDUCTIONS,
    SCHEDULERS,
    SHARING,
    STORES,
    GemmConfig,
)
from tilewright.ops.gemm.pipelines.constants import SHARED, Constant, Value

Rule = Callable[[GemmConfig, Arch], "str | None"]
"""Returns why a config is not legal on an architecture, or None."""

OWN_RULES = ("combination", "warpgroups", "small_m", "cdna", "scales", "packed")
"""The rules of `rules.LEGALITY` that a record may extend."""

ARGUMENTS = ("rest", "pre_a", "pre_b", "extra", "scales", "dies", "batch", "sharing")
"""What a kernel may take behind its matrices, sizes and leading dimensions, in this order: the
descriptors of B and of C for the columns behind a tile's first accumulator; the operands of
`pre_a`, of `pre_b` and of the epilogue; the block scales; the number of dies with an L2 each; the
batch; and, for schedulers that share tiles, flags, partial sums and the number of parts.
"""

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
    "loads_apart",
    "b_in_registers",
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
loads_apart: warps of their own load, so that those that multiply do nothing else.
b_in_registers: B is in registers before the matrix units read it.
"""

TRAITS: tuple[Trait, ...] = get_args(Trait)

GRIDS = ("whole", "few bits")
"""The grids of the default space: for operands of whole elements, and for 4-bit operands and the MX
formats (see `spaces`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the estimate takes a pipeline to reach (see `rates` for where the figures come from).

    share: of the published matrix rate, when nothing else holds the kernel up.
    scaled: factor on `share` with block scales.
    converted: factor on `share` where the matrix units have no instruction for block-scaled
    operands and the compiler converts 8-bit ones.
    unpacked: instructions for each 4-bit weight of a tile beside its products, by the dtype of B;
    {} if it takes none. From the times in benchmarks/results/gemm_weights_h200.json, which the
    estimate meets within a fifth up to 16 rows.
    """

    share: float
    scaled: float
    converted: float
    unpacked: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One GEMM kernel: what it is called, needs, accepts, takes and is told. No field has a
    default, so a record that forgets one is a `TypeError` that names the field.

    The kernel:

    name: the word in `GemmConfig.pipeline` and in kernels' names.
    module, function: where the kernel is.
    language: the compiler's front end, ``triton`` or ``gluon``.
    sibling: the pipeline in Triton that computes the same, which the interpreter runs; the
    pipeline's own name if it is in Triton.
    needs: what an architecture must have, in the words of `Arch.has`.

    The fields of a config that it accepts:

    schedulers, reductions, stores, alignments, index_bits, batchings: the legal values.
    `reductions` leaves out ``none``.
    padding: the legal values of pad_m, pad_n and pad_k.
    odd_rows, odd_columns, odd_warps: legal tile_m, tile_n and num_warps that are no powers of two.
    largest_k: the largest tile_k (times the parts of K that warps share out; see `small_m`).
    rules: the kernel's own rules, by the rule of `rules.LEGALITY` that they extend (`OWN_RULES`).
    own_words: for ``scheduler``, ``reduction`` or ``epilogue``, the rule among `rules` that says in
    words of its own what the kernel lacks; for those left out, ``combination`` says it.

    Its operands, and how it computes:

    reads: how it reaches A and B. writes: how it reaches C.
    traits: what else holds of it (`Trait`).

    What it takes, each a function of the config, or of the config and the architecture:

    operand_dtype: the operand dtype of its matrix instructions, as `Arch.dtypes` lists it.
    summed_k: elements of K whose products are summed before anything else is done with them.
    several_blocks: whether a step of K may have several blocks of scales.
    meetings: pieces of a tile whose partial sums meet on their own, each with its flags.
    shared_memory: bytes of shared memory; the compiler may add a little.
    accumulators: registers of a thread that hold sums.
    boxes: rows, columns and K of A and B that one copy moves, and columns of C; None if `reads` is
    ``pointers``. With ``rest`` among `arguments`: of a tile's first accumulator.

    What the compiler is told:

    arguments: what it takes behind the matrices, sizes and leading dimensions (`ARGUMENTS`, in that
    order). A kernel without ``pre_a`` and ``pre_b`` has no operations on A and B, without ``extra``
    no epilogue, without ``scales`` no block scales.
    constants: its constants in the order of its parameters; ``CHAIN`` and its kin follow from
    `arguments`.
    own_constants: values of those among `constants` that `constants.SHARED` does not have.
    options: the compiler's options.

    How it is chosen:

    estimate: ``tiled`` (`estimate`), or ``unpacking`` (`estimate_few`).
    rates: what it reaches under the first; None under the second.
    grids: the grids of the default space (`GRIDS`) whose axes list it.
    worth_having: by grid, whether a config of this pipeline is the best for somebody; also of the
    configs that the default space lists one by one.

    Raises `BadArgument`, naming the field, for a value that cannot be meant.
    """

    name: str
    module: str
    function: str
    language: Literal["triton", "gluon"]
    sibling: str
    needs: tuple[str, ...]

    schedulers: tuple[str, ...]
    reductions: tuple[str, ...]
    stores: tuple[str, ...]
    padding: tuple[bool, ...]
    alignments: tuple[int, ...]
    index_bits: tuple[int, ...]
    batchings: tuple[str, ...]
    odd_rows: tuple[int, ...]
    odd_columns: tuple[int, ...]
    odd_warps: tuple[int, ...]
    largest_k: int
    rules: Mapping[str, Rule]
    own_words: Mapping[str, str]

    reads: Literal["pointers", "descriptors"]
    writes: Literal["pointers", "descriptors"]
    traits: tuple[Trait, ...]

    operand_dtype: Callable[[GemmConfig], str]
    summed_k: Callable[[GemmConfig], int]
    several_blocks: Callable[[GemmConfig], bool]
    meetings: Callable[[GemmConfig], int]
    shared_memory: Callable[[GemmConfig, Arch], int]
    accumulators: Callable[[GemmConfig, Arch], int]
    boxes: Callable[[GemmConfig], tuple[int, int, int, int]] | None

    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    own_constants: Mapping[str, Constant]
    options: Callable[[GemmConfig, Arch], tuple[tuple[str, Value], ...]]

    estimate: Literal["tiled", "unpacking"]
    rates: Rates | None
    grids: tuple[str, ...]
    worth_having: Mapping[str, Callable[[GemmConfig], bool]]

    def __post_init__(self) -> None:
        listed: tuple[tuple[str, Sequence[object], Sequence[object], bool], ...] = (
            ("schedulers", self.schedulers, SCHEDULERS, True),
            ("reductions", self.reductions, REDUCTIONS[1:], bool({*self.schedulers} & {*SHARING})),
            ("stores", self.stores, STORES, True),
            ("padding", self.padding, (False, True), True),
            ("alignments", self.alignments, ALIGNMENTS, True),
            ("index_bits", self.index_bits, INDEX_BITS, True),
            ("batchings", self.batchings, BATCHINGS, True),
            ("rules", tuple(self.rules), OWN_RULES, False),
            ("own_words", tuple(self.own_words), ("scheduler", "reduction", "epilogue"), False),
            ("own_words", tuple(self.own_words.values()), tuple(self.rules), False),
            ("traits", self.traits, TRAITS, False),
            ("arguments", self.arguments, ARGUMENTS, False),
            ("constants", self.constants, (*SHARED, *self.own_constants), True),
            ("own_constants", tuple(self.own_constants), self.constants, False),
            ("grids", self.grids, tuple(self.worth_having), False),
            ("worth_having", tuple(self.worth_having), GRIDS, True),
        )
        for field, values, known, needed in listed:
            for value in values:
                if value not in known:
                    words = ", ".join(map(str, known))
                    raise self._wrong(field, f"{value!r} is not one of {words}")
            if needed and not values:
                raise self._wrong(field, "is empty")
        for name in self.own_constants:
            if name in SHARED:
                raise self._wrong("own_constants", f"{name} has its value in `constants.SHARED`")
        if self.arguments != tuple(name for name in ARGUMENTS if name in self.arguments):
            raise self._wrong("arguments", f"must be in the order {', '.join(ARGUMENTS)}")
        shares = bool({*self.schedulers} & {*SHARING})
        if self.reductions and not shares:
            raise self._wrong("reductions", "belong to schedulers that share tiles; it has none")
        for name, needed in (("sharing", shares), ("batch", self.batchings != ("none",))):
            if needed and name not in self.arguments:
                raise self._wrong("arguments", f"need '{name}' for its schedulers and batchings")
        if ("pre_a" in self.arguments) != ("pre_b" in self.arguments):
            raise self._wrong("arguments", "have both pre_a and pre_b, or neither")
        if (self.boxes is None) != (self.reads == "pointers"):
            raise self._wrong("boxes", "are of copies by descriptors, and only of those")
        if (self.rates is None) != (self.estimate == "unpacking"):
            raise self._wrong("rates", "are of estimate tiled, and only of that")
        if (self.language == "triton") != (self.sibling == self.name):
            raise self._wrong("sibling", "is the pipeline itself in Triton, another one in Gluon")

    def _wrong(self, field: str, why: str) -> BadArgument:
        return BadArgument(f"pipeline {self.name}: {field}: {why}")

    def has(self, trait: Trait) -> bool:
        """Whether `trait` holds of the kernel."""
        return trait in self.traits

    def runs_on(self, arch: Arch) -> bool:
        """Whether `arch` has everything that the kernel needs."""
        return all(arch.has(word) for word in self.needs)
