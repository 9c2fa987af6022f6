"""Pairs of (config, problem) for operations on A and B, and for shuffled weights."""

from __future__ import annotations

import itertools

from gemm_cases import config

from tilewright.arch import arch
from tilewright.dtypes import DTYPES
from tilewright.ops.epilogues import OPERATIONS
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, shuffle
from tilewright.ops.gemm.problem import LAYOUTS, SHUFFLED_LAYOUTS

PRE = ("add", "mul+scale", "row_scale", "bias+gelu", "add+col_scale", "clamp")
SHARED = (
    {"scheduler": "split_k", "split_k": 3, "reduction": "linear"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "atomic"},
    {"scheduler": "split_k", "split_k": 2, "reduction": "tree"},
    {"scheduler": "stream_k", "reduction": "tree"},
)

Case = tuple[GemmConfig, GemmProblem]


def native(arch_name: str, *dtypes: str) -> list[str]:
    """Those of `dtypes` that the architecture multiplies; ``fp8`` is its own."""
    this = arch(arch_name)
    own = {"fp8": {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]}
    exact = [own.get(d, d) for d in dtypes]
    return [d for d in exact if this.dtypes[d].support == "native"]


def combined(arch_name: str) -> list[Case]:
    """Every operation on A or on B, and chains on both with and without an epilogue; dtypes,
    layouts and schedulers alternate; ragged sizes unaligned, and whole tiles unpadded."""
    made = []
    alone = [o.name for o in OPERATIONS.values() if not o.halves]
    chains = [(c, "") for c in alone] + [("", c) for c in alone]
    chains += list(itertools.product(PRE, PRE[::2]))
    dtypes = native(arch_name, "bf16", "fp16", "fp32", "fp8")
    for number, (pre_a, pre_b) in enumerate(chains):
        common = {
            "layout": LAYOUTS[number % len(LAYOUTS)],
            "dtype_a": dtypes[number // 2 % len(dtypes)],
            "pre_a": pre_a,
            "pre_b": pre_b,
            "epilogue": ("", "bias+add", "relu")[number % 3],
        }
        how = ({"scheduler": "tile"}, {"scheduler": "persistent"}, *SHARED)[number % 6]
        kernel = config(arch_name, alignment=1, **how, **common)
        made.append((kernel, GemmProblem(67, 45, 211, **common)))
        if number % 4 == 0:
            unpadded = {"pad_m": False, "pad_n": False, "pad_k": False}
            kernel = config(arch_name, **unpadded, **common)
            made.append((kernel, GemmProblem(128, 64, 192, **common)))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))]


def shuffled(arch_name: str) -> list[Case]:
    """Each dtype and layout: tiles that end inside N and K (the last blocks of either), and whole
    ones unpadded; epilogues; tiles alone and shared."""
    made = []
    dtypes = native(arch_name, "bf16", "fp16", "fp32", "fp8", "int8")
    for number, (dtype, layout) in enumerate(itertools.product(dtypes, SHUFFLED_LAYOUTS)):
        block = shuffle.rows(dtype)
        common = {"layout": layout, "dtype_a": dtype, "pipeline": "preshuffle"}
        of_problem = {"layout": layout, "dtype_a": dtype}
        tile = {"tile_m": (16, 64)[number % 2], "tile_k": max(64, 2 * block)}
        last = 5 * tile["tile_k"] + block  # the last tile along K has one block
        chain = ("", "bias+gelu", "add")[number % 3]
        for how in ({"scheduler": "tile"}, SHARED[number % 3]):
            kernel = config(arch_name, alignment=1, epilogue=chain, **tile, **how, **common)
            made.append((kernel, GemmProblem(37, 80, last, epilogue=chain, **of_problem)))
        unpadded = {"pad_m": False, "pad_n": False, "pad_k": False}
        kernel = config(arch_name, **unpadded, **tile, **common)
        ldb = (2 * tile["tile_k"] + block) * shuffle.COLUMNS  # weights cut along K
        wide = DTYPES[dtype].bytes * 64
        sizes = (64, 64, 2 * tile["tile_k"])
        made.append((kernel, GemmProblem(*sizes, ldb=ldb, lda=wide * 4, **of_problem)))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))]
