"""Pairs of (config, problem) for groups with operands of 4 bits and in the MX formats."""

from __future__ import annotations

import lowbit_cases
from grouped_cases import config

from tilewright.arch import arch
from tilewright.ops import epilogues
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig, GroupedGemmProblem
from tilewright.ops.grouped_gemm.pipelines import PIPELINES

WHOLE = {"groups": 4, "m": 75, "n": 112, "k": 288}
"""Rows of whole 16 bytes in every operand; no whole tile, and a short last group of scales."""
RAGGED = {"groups": 3, "m": 41, "n": 102, "k": 134}


def cases(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """The signatures of the GEMM's cases, for each pipeline that a grouped kernel has and that is
    legal here. Forms and epilogues take turns, and where one pairs columns, how they lie."""
    made, number = [], 0
    for signature, algorithm in lowbit_cases.SIGNATURES:
        pipeline = algorithm.get("pipeline", "weights")
        tile = {name: value for name, value in algorithm.items() if name in ("tile_k", "tile_m")}
        if pipeline not in PIPELINES or signature.get("layout", "rcr")[::2] != "rr":
            continue
        number += 1
        form = ("contiguous", "masked", "gathered")[number % 3]
        if form not in PIPELINES[pipeline].forms:
            form = "contiguous"
        chain = signature.get("epilogue", ("", "swiglu")[number // 2 % 2])
        said = {**signature, "form": form, "epilogue": chain}
        alignment = algorithm.get("alignment", 16)
        small = {"tile_m": 16, "tile_n": 64, "tile_k": 128, "alignment": alignment}
        kernel = config(arch_name, **{**small, **said, **tile, "pipeline": pipeline})
        if not FAMILY.judge(kernel, arch(arch_name)):
            continue
        more = {"rows_a": 20, "per_row": 2} if form == "gathered" else {}
        if epilogues.fold(chain) == 2 and pipeline != "tma":
            more["gates_apart"] = number % 4 == 2
        sizes = RAGGED if alignment == 1 else WHOLE
        made.append((kernel, GroupedGemmProblem(**sizes, **said, **more)))
    return made


def zero_points(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """int4 weights with zero points, in every form: groups of each depth against a step's, blocks
    of several columns, A with scales, unaligned."""
    made = []
    for number, (signature, algorithm) in enumerate(
        (
            ({"scale_b": "128x1-bf16"}, {}),
            ({"scale_b": "32x1-fp16", "dtype_a": "fp16"}, {"tile_k": 64}),
            ({"scale_b": "64x32", "scale_a": "1x128", "dtype_a": "e4m3fn"}, {}),
            ({"scale_b": "128x1-bf16", "epilogue": "swiglu"}, {"tile_k": 256}),
            ({"scale_b": "64x1", "epilogue": "bias+silu"}, {"alignment": 1}),
            ({"scale_b": "256x1-bf16"}, {"tile_m": 64, "tile_k": 64}),
        )
    ):
        form = ("contiguous", "masked", "gathered")[number % 3]
        said = {"dtype_b": "int4", "zero_b": True, "form": form, **signature}
        small = {"tile_m": 16, "tile_n": 64, "tile_k": 128, "pipeline": "weights"}
        kernel = config(arch_name, **{**small, **algorithm, **said})
        more = {"rows_a": 20, "per_row": 2} if form == "gathered" else {}
        sizes = RAGGED if kernel.alignment == 1 else WHOLE
        apart = {"gates_apart": True} if signature.get("epilogue") == "swiglu" else {}
        made.append((kernel, GroupedGemmProblem(**sizes, **said, **more, **apart)))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))]


def label(case: tuple[GroupedGemmConfig, GroupedGemmProblem]) -> str:
    kernel, problem = case
    words = (kernel.pipeline, kernel.form, problem.dtype_a, problem.dtype_b, kernel.tile_k)
    scales = (problem.scale_a, problem.scale_b, problem.epilogue, f"al{kernel.alignment}")
    return "-".join(map(str, (*words, *scales)))
