"""Pairs of (config, problem) that cover batches: every way of batching, pipeline, scheduler, layout
and dtype, broadcast of either operand, matrices apart and within each other's rows, epilogues."""

from __future__ import annotations

import itertools

import numpy as np
from gemm_cases import TILE, config, signatures

from tilewright.arch import arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem
from tilewright.ops.gemm.pipelines import PIPELINES, on
from tilewright.ops.gemm.problem import LAYOUTS

BATCH = 3

SCHEDULES: tuple[dict[str, object], ...] = (
    {"scheduler": "tile"},
    {"scheduler": "persistent"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "linear"},
    {"scheduler": "stream_k", "reduction": "tree"},
)

STRIDES = ("packed", "apart", "shared A", "shared B", "beside")


def batched(arch_name: str) -> list[str]:
    """The architecture's pipelines that walk the matrices of a batch."""
    here = (PIPELINES[name] for name in on(arch(arch_name)))
    return [record.name for record in here if "strided" in record.batchings]


def cases(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Each signature with each layout once; everything else in turn."""
    this = arch(arch_name)
    ways = [("strided", p) for p in batched(arch_name)] + [("pointers", "basic")]
    ways_in_turn = itertools.cycle(ways)
    made = []
    for number, (signature, layout) in enumerate(itertools.product(signatures(arch_name), LAYOUTS)):
        batching, pipeline = next(ways_in_turn)
        schedule = SCHEDULES[number % 4 if not PIPELINES[pipeline].has("loads_apart") else 1]
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


def summed(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Sums over a batch: pipelines, schedulers, layouts and strides in turn, with and without an
    epilogue. K has no whole steps."""
    this = arch(arch_name)
    here = [record.name for name in on(this) if "summed" in (record := PIPELINES[name]).batchings]
    schedules = (
        *SCHEDULES, {"scheduler": "split_k", "split_k": 3, "reduction": "two_stage"},
    )  # fmt: skip
    made = []
    for number, (pipeline, schedule) in enumerate(itertools.product(here, schedules)):
        how = {
            "layout": ("rcr", "crr", "ccc")[number % 3],
            "dtype_a": ("bf16", "fp16")[number % 2],
            "batching": "summed",
            "epilogue": ("", "bias+add")[number // 2 % 2],
        }
        warps = {"num_warps": 8} if pipeline == "gluon_pingpong" else {}
        kernel = config(arch_name, pipeline=pipeline, **schedule, **how, **warps)
        if FAMILY.judge(kernel, this):
            room = ({}, {"stride_a": 0}, {"stride_b": 80 * 400})[number % 3]
            made.append((kernel, GemmProblem(80, 72, 104, batch=5, **how, **room)))
    return made


def with_epilogues(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Vectors that a batch shares, matrices that are batched too, and one that is shared."""
    made = []
    for number, (layout, stride_d) in enumerate(itertools.product(("rcr", "ccc"), (-1, 0))):
        for batching, pipeline in (("strided", "basic"), ("strided", "tma"), ("pointers", "basic")):
            if pipeline in FAMILY.pipelines(arch(arch_name)):
                how = {"layout": layout, "batching": batching, "epilogue": "bias+swiglu+add+mul"}
                kernel = config(arch_name, pipeline=pipeline, **SCHEDULES[number % 2], **how)
                given = problem(80, 96, 144, "packed", {**how, "stride_d": stride_d})
                made.append((kernel, given))
    return made


def nested(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Batches of batches: as the heads of attention lie, whose rows are within each other's; each
    operand shared by either dimension; and the epilogue's matrices too. Schedulers in turn."""
    heads, m, n, k = 3, 72, 104, 136
    lies: tuple[dict[str, object], ...] = (
        {
            "lda": heads * k, "stride_a": k, "ldb": heads * k, "stride_b": k,
            "outer_strides": (m * heads * k, n * heads * k, heads * m * n, 0),
        },
        {"stride_a": 0, "outer_strides": (m * k, heads * n * k + 64, heads * m * n + 8, 0)},
        {"stride_b": 0, "outer_strides": (heads * m * k, 0, heads * m * n, 0)},
        # C is [rows, heads, batch, columns].
        {"ldc": heads * 2 * n, "stride_c": 2 * n, "outer_strides": (0, heads * n * k, n, 0)},
    )  # fmt: skip
    made = []
    for number, (schedule, room) in enumerate(zip(SCHEDULES, lies, strict=True)):
        how = {"batching": "nested", "dtype_a": ("bf16", "fp32")[number % 2]}
        fields = {"batch": 2 * heads, "batch_inner": heads, **how, **room}
        made.append((config(arch_name, **how, **schedule), GemmProblem(m, n, k, **fields)))
    for layout, room in (("rcr", {}), ("ccc", {"outer_strides": (m * k, 9 * n * k, 3 * m * n, 0)})):
        how = {"batching": "nested", "layout": layout, "epilogue": "bias+add+mul"}
        shared = {"stride_a": 0, "stride_d": 0} if room else {}
        fields = {"batch": 2 * heads, "batch_inner": heads, **how, **room, **shared}
        made.append((config(arch_name, **how), GemmProblem(m, n, k, **fields)))
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


def label(case) -> str:
    kernel, given = case
    strides = ",".join(map(str, given.batch_strides[:3]))
    return f"{kernel.pipeline}-{kernel.scheduler}-{given.layout}-{given.dtype_a}-{strides}"


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)
