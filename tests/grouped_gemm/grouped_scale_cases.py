"""Pairs of (config, problem) for block scales of groups: blocks, dtypes, forms, edges."""

from __future__ import annotations

from grouped_cases import config

from tilewright.arch import arch
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig, GroupedGemmProblem

BLOCKS = (
    ("1x128", "128x128"),  # DeepSeek's
    ("1x128", ""),
    ("", "128x128"),
    ("", "64x1-bf16"),
    ("1x32-e8m0", "32x1-e8m0"),  # MX
    ("1x256-fp16", "64x4"),
)


def cases(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Each pair of blocks with each kind of dtype: rows of whole 16 bytes by a pipeline in turn,
    then unaligned. Forms, layouts, outputs and epilogues take turns."""
    this = arch(arch_name)
    fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
    dtypes = [d for d in (fp8, "int8", "bf16") if this.dtypes[d].support == "native"]
    pipelines = [p for p in ("basic", "tma") if p in FAMILY.pipelines(this)]
    made, number = [], 0
    for a, b in BLOCKS:
        for dtype in dtypes:
            number += 1
            form = ("contiguous", "masked", "gathered")[(number + number // 3) % 3]
            common = {
                "form": form,
                "layout": ("rcr", "rrr")[number // 2 % 2],
                "dtype_a": dtype,
                "dtype_c": ("bf16", "fp32")[number // 3 % 2],
                "scale_a": a,
                "scale_b": b,
                "epilogue": ("", "swiglu", "bias+silu")[number % 3],
            }
            depth = 32 if "32" in a else 64
            pipeline = pipelines[number % len(pipelines)] if form != "gathered" else "basic"
            kernel = config(arch_name, pipeline=pipeline, tile_k=depth, **common)
            more = {"bounds": form == "contiguous" and number % 4 == 0}
            if form == "gathered":
                more |= {"rows_a": 60, "per_row": 2}
            sizes = {"groups": 4, "m": 150, "n": 176, "k": 400}
            made.append((kernel, GroupedGemmProblem(**sizes, **common, **more)))
            alone = config(arch_name, alignment=1, tile_k=32, **common)
            more["gates_apart"] = common["epilogue"] == "swiglu" and common["layout"] == "rcr"
            ragged = {"groups": 5, "m": 131, "n": 46, "k": 83}
            made.append((alone, GroupedGemmProblem(**ragged, **common, **more)))
    return [case for case in made if FAMILY.judge(case[0], this)]


def label(case: tuple[GroupedGemmConfig, GroupedGemmProblem]) -> str:
    kernel, problem = case
    words = (kernel.pipeline, kernel.form, problem.layout, problem.dtype_a, kernel.tile_k)
    return "-".join(map(str, (*words, problem.scale_a, problem.scale_b, problem.epilogue)))
