"""Pairs of (config, problem) for groups with weights in 8 bits beside activations in 16."""

from __future__ import annotations

from grouped_cases import SIZES, config

from tilewright.arch import arch
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig, GroupedGemmProblem

WHOLE = {"groups": 4, "m": 75, "n": 112, "k": 288}
"""Rows of whole 16 bytes in every operand; no whole tile, and a short last group of scales."""
RAGGED = {"groups": 3, "m": 41, "n": 102, "k": 133}

SIGNATURES: tuple[tuple[dict[str, object], dict[str, object]], ...] = (
    # Every type, with every kind of scales, through both pipelines.
    ({"dtype_b": "e4m3fn", "scale_b": "128x128"}, {"tile_k": 128}),
    ({"dtype_b": "e4m3fn", "epilogue": "col_scale"}, {}),
    ({"dtype_b": "e5m2", "epilogue": "row_scale"}, {}),
    ({"dtype_b": "int8", "scale_b": "64x1-bf16"}, {}),
    ({"dtype_b": "int8", "dtype_a": "fp16", "epilogue": "scale"}, {}),
    ({"dtype_b": "e4m3fn", "dtype_a": "fp16", "scale_b": "32x1-e8m0"}, {"tile_k": 32}),
    ({"dtype_b": "e5m2", "scale_b": "32x1-e8m0"}, {"tile_k": 32}),
    ({"dtype_b": "int8", "scale_a": "1x64", "scale_b": "64x32"}, {}),
    ({"dtype_b": "e4m3fnuz", "scale_b": "128x128", "epilogue": "swiglu"}, {}),
    ({"dtype_b": "e4m3fn", "dtype_c": "fp32", "epilogue": "col_scale+bias+swiglu"}, {}),
    # Words of every width, and rows of which nothing is known.
    ({"dtype_b": "int8", "epilogue": "col_scale"}, {"alignment": 1}),
    ({"dtype_b": "e5m2", "scale_b": "128x64"}, {"alignment": 1, "tile_m": 16}),
    ({"dtype_b": "e4m3fn"}, {"alignment": 2}),
    ({"dtype_b": "e4m3fn", "scale_b": "128x128"}, {"tile_m": 16, "tile_k": 256}),
    ({"dtype_b": "int8", "epilogue": "col_scale"}, {"tile_m": 16, "tile_k": 128}),
    ({"dtype_b": "e4m3fn", "layout": "rrr", "scale_b": "128x128"}, {}),
    ({"dtype_b": "int8", "layout": "rrr"}, {"alignment": 1}),
)


def cases(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Each signature through each pipeline that is legal here. Forms take turns, and where an
    epilogue pairs columns, how they lie. A list of each type behind them."""
    made, number = [], 0
    for signature, algorithm in SIGNATURES:
        for pipeline in ("basic", "weights"):
            number += 1
            form = ("contiguous", "masked", "gathered")[number % 3]
            said = {**signature, "form": form}
            kernel = config(arch_name, **{"tile_n": 64, **algorithm, **said, "pipeline": pipeline})
            if not FAMILY.judge(kernel, arch(arch_name)):
                continue
            more = {"rows_a": 20, "per_row": 2} if form == "gathered" else {}
            if "swiglu" in str(signature.get("epilogue", "")):
                more["gates_apart"] = "col_scale" not in str(signature["epilogue"])
            sizes = WHOLE if kernel.alignment == 16 else RAGGED
            if kernel.alignment == 2:
                sizes = {**RAGGED, "k": 134}
            made.append((kernel, GroupedGemmProblem(**sizes, **said, **more)))
    for dtype_b, layout in (("e4m3fn", "rcr"), ("int8", "crr"), ("e5m2", "rcc")):
        said = {"form": "list", "dtype_b": dtype_b, "layout": layout}
        for alignment in (1, 16):
            kernel = config(arch_name, alignment=alignment, **said)
            sizes = SIZES if alignment == 1 else ((64, 48, 64), (0, 48, 32), (80, 64, 128))
            if FAMILY.judge(kernel, arch(arch_name)):
                made.append((kernel, GroupedGemmProblem(sizes=sizes, alignment=alignment, **said)))
    return made


def label(case: tuple[GroupedGemmConfig, GroupedGemmProblem]) -> str:
    kernel, p = case
    words = (kernel.pipeline, kernel.form, p.dtype_a, p.dtype_b, p.layout, p.scale_b, p.epilogue)
    return "-".join(map(str, (*words, kernel.tile_k, f"al{kernel.alignment}")))
