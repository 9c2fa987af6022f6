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


def gluon() -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """The kernel in Gluon: one part of a tile and two, below and beside each other, of one warp
    group and two; A or B without scales; both forms and stores, several rings of K."""
    made = []
    both = {"scale_a": "1x128", "scale_b": "128x128"}
    for number, (tile_m, tile_n, warps, stages, blocks) in enumerate(
        (
            (128, 128, 8, 4, both),
            (256, 128, 8, 3, both),
            (128, 256, 8, 3, both),
            (64, 128, 4, 4, both),
            (64, 256, 4, 2, both),
            (64, 64, 4, 4, {"scale_a": "1x128"}),
            (128, 64, 4, 3, {"scale_b": "128x128"}),
            (128, 128, 8, 4, {"scale_a": "1x64", "scale_b": "64x128"}),
        )
    ):
        said = {"dtype_a": "e4m3fn", "form": ("contiguous", "masked")[number % 2], **blocks}
        kernel = config(
            pipeline="gluon_scaled",
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=64 if "1x64" in blocks.values() else 128,
            num_warps=warps,
            num_stages=stages,
            store=("direct", "split")[number // 2 % 2],
            **said,
        )
        m = 300 if said["form"] == "contiguous" else 150
        more = {"zero_rest": number % 3 == 0}
        made.append((kernel, GroupedGemmProblem(groups=4, m=m, n=336, k=400, **said, **more)))
    return made


def gates() -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """The kernel in Gluon with gates that lie apart: by one warp group and two, in every form."""
    made = []
    for number, (form, chain) in enumerate(
        (
            ("gathered", "swiglu"),
            ("contiguous", "row_scale+clamped_swiglu+bias"),
            ("masked", "geglu"),
        )
    ):
        said = {"form": form, "dtype_a": "e4m3fn", "epilogue": chain}
        said |= {"scale_a": "1x128", "scale_b": "128x128" if number < 2 else ""}
        size = {"tile_m": (128, 64)[number % 2], "num_warps": (8, 4)[number % 2]}
        size |= {
            "tile_n": 256,
            "tile_k": 128,
            "num_stages": 3,
            "store": ("direct", "split")[number % 2],
        }
        kernel = config(pipeline="gluon_scaled", **size, **said)
        n = 2 * 256 if said["scale_b"] else 2 * 168  # without scales of B, gates end anywhere
        more = {"rows_a": 60, "per_row": 2} if form == "gathered" else {"zero_rest": True}
        m = 70 if form == "masked" else 190
        problem = GroupedGemmProblem(groups=3, m=m, n=n, k=272, gates_apart=True, **said, **more)
        made.append((kernel, problem))
    return made


def rounding() -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Results rounded by blocks: by both kernels, with gates that lie apart and without, in every
    form, with tiles that reach beyond C."""
    made = []
    for number, (form, chain, pipeline, tile) in enumerate(
        (
            ("gathered", "swiglu", "basic", (32, 256, 4)),
            ("contiguous", "", "basic", (64, 128, 4)),
            ("masked", "bias+silu", "basic", (16, 256, 4)),
            ("gathered", "swiglu", "gluon_scaled", (64, 256, 4)),
            ("contiguous", "row_scale+clamped_swiglu+bias", "gluon_scaled", (128, 256, 8)),
            ("masked", "", "gluon_scaled", (128, 128, 8)),
        )
    ):
        said = {"form": form, "dtype_a": "e4m3fn", "dtype_c": "e4m3fn", "epilogue": chain}
        said |= {"scale_a": "1x128", "scale_b": "128x128", "quant": "block"}
        size = dict(zip(("tile_m", "tile_n", "num_warps"), tile, strict=True))
        stages = {"num_stages": 3, "store": ("direct", "split")[number == 4]}
        kernel = config(pipeline=pipeline, tile_k=128, **size, **stages, **said)
        more = {"rows_a": 60, "per_row": 2} if form == "gathered" else {}
        apart = "swiglu" in chain
        n = 3 * 128 * (1 + apart)
        m = 70 if form == "masked" else 190
        problem = GroupedGemmProblem(groups=3, m=m, n=n, k=272, gates_apart=apart, **said, **more)
        made.append((kernel, problem))
    return made


def label(case: tuple[GroupedGemmConfig, GroupedGemmProblem]) -> str:
    kernel, problem = case
    words = (kernel.pipeline, kernel.form, problem.layout, problem.dtype_a, kernel.tile_k)
    return "-".join(map(str, (*words, problem.scale_a, problem.scale_b, problem.epilogue)))
