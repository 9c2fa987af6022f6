"""Pairs of (config, problem) for every operation of an epilogue, and chains of them."""

from __future__ import annotations

from gemm_cases import config

from tilewright.arch import arch
from tilewright.ops.epilogues import OPERATIONS
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem

CHAINS = (
    "bias+gelu",
    "row_scale+col_scale",
    "scale+bias+silu+add",
    "bias+swiglu+col_scale+add",
    "mul+clamp+gelu_tanh",
    "add+mul+row_scale",
)
LAYOUTS = ("rcr", "rrr", "rcc", "ccc")


def cases(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Each operation and chain, each dtype that the architecture takes, each pipeline: basic with
    ragged sizes, the copy engine with rows of whole 16 bytes. Layouts, schedulers, stores and
    output dtypes alternate."""
    this = arch(arch_name)
    made = []
    fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
    dtypes = [
        d for d in ("bf16", "fp16", "fp32", "int8", fp8) if this.dtypes[d].support == "native"
    ]
    number = 0
    for chain in (*OPERATIONS, *CHAINS):
        for dtype in dtypes:
            number += 1
            outputs = {"fp32": "fp32", "fp16": "fp16"}.get(dtype, ("bf16", "fp32")[number % 2])
            if OPERATIONS[chain.split("+")[-1]].scales:
                outputs = (outputs, fp8 if fp8 in dtypes else outputs, "int8")[number % 3]
            layout = LAYOUTS[number % 4]
            common = {"layout": layout, "dtype_a": dtype, "dtype_c": outputs, "epilogue": chain}
            scheduler = ("tile", "persistent")[number // 2 % 2]
            kernel = config(arch_name, scheduler=scheduler, alignment=1, **common)
            made.append((kernel, GemmProblem(67, 46, 83, **common)))
            if "tma" in FAMILY.pipelines(this):
                store = ("direct", "split")[number // 4 % 2]
                kernel = config(
                    arch_name, pipeline="tma", scheduler=scheduler, store=store, **common
                )
                made.append((kernel, GemmProblem(80, 96, 112, **common)))
            if "gluon_ws" in FAMILY.pipelines(this):
                warps, tile_m, tile_n = ((4, 64, 64), (8, 128, 128))[number % 2]
                size = {"tile_m": tile_m, "tile_n": tile_n, "num_warps": warps}
                store = ("direct", "split")[number // 4 % 2]
                how = {"pipeline": "gluon_ws", "scheduler": "persistent", "store": store}
                kernel = config(arch_name, **how, **size, **common)
                made.append((kernel, GemmProblem(80, 160, 112, **common)))
    return [*(case for case in made if FAMILY.judge(case[0], this)), *shared(arch_name)]


def shared(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Chains after the sum of a tile that workgroups share: on the whole sum, once."""
    ways = (
        {"scheduler": "split_k", "split_k": 3, "reduction": "linear"},
        {"scheduler": "split_k", "split_k": 2, "reduction": "atomic"},
        {"scheduler": "stream_k", "reduction": "tree"},
    )
    return [
        (
            config(arch_name, pipeline=pipeline, epilogue=chain, **how),
            GemmProblem(80, 96, 504, epilogue=chain),
        )
        for pipeline in ("basic", "tma", "gluon_ws")
        if pipeline in FAMILY.pipelines(arch(arch_name))
        for chain in ("scale+bias+silu+add", "bias+swiglu+col_scale+add")
        for how in ways
    ]
