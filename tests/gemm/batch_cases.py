"""Pairs of (config, problem) that cover batches: every way of batching, pipeline, scheduler, layout
and dtype, broadcast of either operand, matrices apart and within each other's rows, epilogues."""

from __future__ import annotations

import itertools

from gemm_cases import TILE, config, signatures

from tilewright.arch import arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem
from tilewright.ops.gemm.config import SPECIALISED
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.gemm.sizes import BATCHED

BATCH = 3

SCHEDULES: tuple[dict[str, object], ...] = (
    {"scheduler": "tile"},
    {"scheduler": "persistent"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "linear"},
    {"scheduler": "stream_k", "reduction": "tree"},
)

STRIDES = ("packed", "apart", "shared A", "shared B", "beside")


def cases(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Each signature with each layout once; everything else in turn."""
    this = arch(arch_name)
    ways = [("strided", p) for p in BATCHED if p in this.pipelines] + [("pointers", "basic")]
    ways_in_turn = itertools.cycle(ways)
    made = []
    for number, (signature, layout) in enumerate(itertools.product(signatures(arch_name), LAYOUTS)):
        batching, pipeline = next(ways_in_turn)
        schedule = SCHEDULES[number % 4 if pipeline not in SPECIALISED else 1]
        if pipeline == "gluon_pingpong":
            schedule = {**schedule, "num_warps": 8}
        how = {"layout": layout, "batching": batching, **signature}
        kernel = config(arch_name, pipeline=pipeline, **schedule, **how)
        if not FAMILY.judge(kernel, this):  # Gluon and 8-bit operands that lie otherwise
            kernel = config(arch_name, pipeline="tma", **schedule, **how)
        rows = 16 // DTYPES[signature["dtype_a"]].bytes
        strides = STRIDES[number % 5] if batching == "strided" else "packed"
        made.append((kernel, problem(TILE + 2 * rows, TILE + rows, 2 * TILE + rows, strides, how)))
    return made


def with_epilogues(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Vectors that a batch shares, matrices that are batched too, and one that is shared."""
    made = []
    for number, (layout, stride_d) in enumerate(itertools.product(("rcr", "ccc"), (-1, 0))):
        for batching, pipeline in (("strided", "basic"), ("strided", "tma"), ("pointers", "basic")):
            if pipeline in arch(arch_name).pipelines:
                how = {"layout": layout, "batching": batching, "epilogue": "bias+swiglu+add+mul"}
                kernel = config(arch_name, pipeline=pipeline, **SCHEDULES[number % 2], **how)
                given = problem(80, 96, 144, "packed", {**how, "stride_d": stride_d})
                made.append((kernel, given))
    return made


def problem(m: int, n: int, k: int, strides: str, fields: dict[str, object]) -> GemmProblem:
    """A batch whose matrices lie as a word of `STRIDES` says."""
    given = {"batch": BATCH, **fields}
    tight = GemmProblem(m, n, k, **given)
    a, b, c, _ = tight.batch_strides
    room = {
        "packed": {},
        "apart": {"stride_a": a + 64, "stride_b": b + 32, "stride_c": c + 128},
        "shared A": {"stride_a": 0},
        "shared B": {"stride_b": 0},
        # All matrices of an operand within the rows of one wide array.
        "beside": {
            f"{field}{x}": size
            for x, inner in zip("abc", tight.inner, strict=True)
            for field, size in (("stride_", inner), ("ld", BATCH * inner))
        },
    }
    return GemmProblem(m, n, k, **given, **room[strides])
