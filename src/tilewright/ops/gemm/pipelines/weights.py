"""Pipeline ``weights``: pointers; operands of 4 bits, and a B in 8 beside an A in 16, converted in
registers for fp16 or bf16 matrix instructions."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import blocks
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.binder import Constant, Value
from tilewright.ops.gemm import scales
from tilewright.ops.gemm.config import ALIGNMENTS, INDEX_BITS, GemmConfig
from tilewright.ops.gemm.lowbit import WORD, converts, widens
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.products import WIDENED

LEAST_K = 16
"""Elements of K that a matrix instruction takes of 16-bit operands."""

MANY_ROWS = 64
"""Rows of a tile from which matrix instructions read converted weights from shared memory (wgmma):
each product of a unit takes a round trip through it, so units are short."""


def elementwise(c: GemmConfig) -> bool:
    """Whether the kernel multiplies the scales into the elements: they are powers of two, which
    bf16 has, and there is one for each word."""
    found = [block for block in map(blocks.parse, (c.scale_a, c.scale_b)) if block is not None]
    return (
        len(found) > 0
        and c.dtype_a != "fp16"
        and all(block.dtype == "e8m0" for block in found)
        and scales.k_block(c) >= WORD // 4
    )


def part(c: GemmConfig) -> int:
    """Elements of K that the kernel sums before it scales: those of a group, or a K step."""
    group = 0 if elementwise(c) else scales.k_block(c)
    return min(c.tile_k, group or c.tile_k)


def multiplied_as(c: GemmConfig) -> str:
    """The dtype that the kernel converts operands to: bf16 for its range, else fp16."""
    return "bf16" if c.dtype_a == "bf16" or elementwise(c) else "fp16"


def several_blocks(c: GemmConfig) -> bool:
    whole = c.tile_k & (c.tile_k - 1) == 0  # and then made of whole groups
    return elementwise(c) or whole


def _worth_having(c: GemmConfig) -> bool:
    return common.worth_of_few_bits(c, several_blocks(c))


def _accumulators(c: GemmConfig, arch: Arch) -> int:
    if elementwise(c):
        return c.tile_m * c.tile_n // (c.num_warps * arch.warp_size)
    return common.accumulators(c, arch)


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if not converts(c):
        return (
            "pipeline weights converts a B of 4 bits, or of 8 beside 16; here A is "
            f"{c.dtype_a} and B {c.dtype_b}"
        )
    if widens(c) and c.layout[1] != "c":
        return f"pipeline weights reads words of B along K, so B is column-major, not {c.layout[1]}"
    least = 2 * LEAST_K
    if part(c) < least:
        return (
            f"a K step within a group has {part(c)} elements, under {least}: those of a byte are "
            "multiplied apart"
        )
    return None


def _unit(c: GemmConfig) -> int:
    """Elements converted together. With an alignment under a word's 4 bytes all that is known is
    that elements of 4 bits share a byte in twos."""
    if 8 * c.alignment < WORD:
        return max(DTYPES[c.dtype_b].packed, c.alignment)
    if c.tile_m >= MANY_ROWS:
        return 2
    return min(WORD // DTYPES[c.dtype_b].bits, part(c) // LEAST_K)


def _word_a(c: GemmConfig) -> int:
    a = DTYPES[c.dtype_a]
    in_rows = c.layout[0] == "r" and (8 * c.alignment >= WORD or a.packed > 1)
    return min(WORD, _unit(c) * a.bits) if in_rows else a.bits


def _of(value: Callable[[GemmConfig], Value]) -> Constant:
    return lambda c, _: value(c)


WEIGHTS = Pipeline(
    name="weights",
    kernel="tilewright.ops.gemm.kernels.weights:gemm_weights",
    schedulers=("tile", "split_k"),
    reductions=("atomic", "linear", "tree"),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    rules={"packed": _objection},
    traits=("packed", "dot", "b_in_registers", "widens"),
    operand_dtype=multiplied_as,
    several_blocks=several_blocks,
    shared_memory=common.pipelined_loads,
    accumulators=_accumulators,
    own={
        "A_FORMAT": _of(lambda c: c.dtype_a if DTYPES[c.dtype_a].packed > 1 else ""),
        "B_FORMAT": _of(lambda c: c.dtype_b if DTYPES[c.dtype_b].packed > 1 else ""),
        "BF16": _of(lambda c: multiplied_as(c) == "bf16"),
        "ELEMENTWISE": _of(elementwise),
        "PART": _of(part),
        "UNIT": _of(_unit),
        "A_WORDS": _of(lambda c: _unit(c) * DTYPES[c.dtype_a].bits // _word_a(c)),
        "A_WORD": _of(_word_a),
        "B_WORD": _of(lambda c: _unit(c) * DTYPES[c.dtype_b].bits),
    },
    rates=Rates(
        share=DEVICE.BASIC,
        scaled=GEMM.SCALED,
        unpacked={"int4": 15, "e2m1": 20, **dict.fromkeys(WIDENED["bf16"], 17), "int8": 16},
    ),
    grids=("few bits",),
    worth_having={"few bits": _worth_having},
)
