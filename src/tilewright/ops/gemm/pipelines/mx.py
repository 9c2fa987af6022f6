"""Pipeline ``mx``: pointers, and block-scaled matrix instructions (``tl.dot_scaled``)."""

from __future__ import annotations

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch
from tilewright.ops.gemm.config import ALIGNMENTS, INDEX_BITS, GemmConfig
from tilewright.ops.gemm.lowbit import MX_SCALES
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.rates import GEMM

MX_FORMATS = {"e4m3fn": "e4m3", "e5m2": "e5m2", "e2m1": "e2m1"}
"""Element types of the MX formats, as `tl.dot_scaled` calls them."""

PLAIN_FORMATS = {"fp16": "fp16", "bf16": "bf16"}
"""What A may be without scales, beside a B in MX e2m1."""

FORMATS = MX_FORMATS | PLAIN_FORMATS

LEAST_K = 64
"""Elements of K that the block-scaled instructions take: 64 of e2m1 on sm_120, 64 or 128 on gfx950;
with fewer the compiler makes something else, or stops."""


def _operand_dtype(c: GemmConfig) -> str:
    """An MX format where its instructions are used."""
    if c.dtype_a not in MX_FORMATS:
        return common.operand_dtype(c)
    return "mxfp4" if c.dtype_a == c.dtype_b == "e2m1" else "mxfp8"


def _accumulators(c: GemmConfig, arch: Arch) -> int:
    """The instructions scale elements, so no products wait for scales."""
    return c.tile_m * c.tile_n // (c.num_warps * arch.warp_size)


def _worth_having(c: GemmConfig) -> bool:
    return common.worth_of_few_bits(c, several_blocks=True)


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    plain = c.dtype_a in PLAIN_FORMATS and c.dtype_b == "e2m1"
    for name, d in (("A", c.dtype_a), ("B", c.dtype_b)):
        if d not in MX_FORMATS and not plain:
            return f"pipeline mx takes {', '.join(MX_FORMATS)}; {name} is {d}"
    want = ("", MX_SCALES[1]) if plain else MX_SCALES
    if (c.scale_a, c.scale_b) != want:
        have, wanted = (
            " and ".join(word or "none" for word in words)
            for words in ((c.scale_a, c.scale_b), want)
        )
        return f"pipeline mx takes scales {wanted} with A in {c.dtype_a}, not {have}"
    if plain and arch.dot == "vector":
        return (
            f"the compiler does not multiply {c.dtype_a} and e2m1 for {arch.name}; pipeline "
            "weights unpacks e2m1"
        )
    if c.dtype_a == "fp16" and arch.dtypes["e4m3fn"].support == "refused":
        return f"the compiler makes fp16 of e2m1 by way of e4m3fn, which {arch.name} does not take"
    if c.tile_k < LEAST_K:
        return f"tile_k = {c.tile_k} is under {LEAST_K}, what a block-scaled instruction takes"
    return None


MX = Pipeline(
    name="mx",
    kernel="tilewright.ops.gemm.kernels.mx:gemm_mx",
    needs=("mxfp8",),
    schedulers=("tile", "split_k"),
    reductions=("atomic", "linear", "tree"),
    padding=(False, True),
    alignments=ALIGNMENTS,
    index_bits=INDEX_BITS,
    rules={"packed": _objection},
    traits=("packed", "b_in_registers"),
    operand_dtype=_operand_dtype,
    several_blocks=common.always,
    shared_memory=common.pipelined_loads,
    accumulators=_accumulators,
    own={
        "A_FORMAT": lambda c, _: FORMATS[c.dtype_a],
        "B_FORMAT": lambda c, _: FORMATS[c.dtype_b],
    },
    rates=Rates(
        share=DEVICE.BASIC * 0.8, converted=GEMM.MX_CONVERTED, unpacked={"e2m1": 15}
    ),
    grids=("few bits",),
    worth_having={"few bits": _worth_having},
)  # fmt: skip
