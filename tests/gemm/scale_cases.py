"""Pairs of (config, problem) for block scales: forms, dtypes, layouts, pipelines, schedulers."""

from __future__ import annotations

from gemm_cases import config

from tilewright.arch import arch
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem

FORMS = (
    ("1x128", "128x128"),  # DeepSeek's
    ("1x128", ""),
    ("", "128x128"),
    ("", "64x1-bf16"),
    ("2x256-fp16", "64x4"),
    ("128x64", "64x128"),
)
LAYOUTS = ("rcr", "rrr", "ccc", "rcc")
SIZES = (144, 176, 400)
"""Rows of whole 16 bytes, no whole tile, and a block of scales that K ends in."""


def cases(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Each form, each kind of dtype, each Triton pipeline; layouts, schedulers and epilogues
    alternate. Then K shared between workgroups, one part of it empty."""
    this = arch(arch_name)
    fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
    dtypes = [d for d in (fp8, "int8", "bf16") if this.dtypes[d].support == "native"]
    pipelines = [p for p in ("basic", "tma") if p in FAMILY.pipelines(this)]
    made, number = [], 0
    for a, b in FORMS:
        for dtype in dtypes:
            number += 1
            pipeline = pipelines[number % len(pipelines)]
            scheduler = ("tile", "persistent")[number // 2 % 2]
            common = {
                "layout": LAYOUTS[number % 4],
                "dtype_a": dtype,
                "dtype_c": ("bf16", "fp32")[number // 3 % 2],
                "scale_a": a,
                "scale_b": b,
                "epilogue": ("", "bias+relu")[number // 4 % 2],
            }
            kernel = config(arch_name, pipeline=pipeline, scheduler=scheduler, **common)
            made.append((kernel, GemmProblem(*SIZES, **common)))
            alone = config(arch_name, alignment=1, tile_k=32, **common)
            made.append((alone, GemmProblem(67, 45, 83, **common)))
    common = {"dtype_a": fp8, "scale_a": "1x128", "scale_b": "128x128"}
    if fp8 not in dtypes:
        return made
    for how in (
        {"scheduler": "split_k", "split_k": 3, "reduction": "linear"},
        {"scheduler": "split_k", "split_k": 4, "reduction": "atomic"},
        {"scheduler": "stream_k", "reduction": "tree"},
        {"scheduler": "split_k", "split_k": 3, "reduction": "two_stage"},
    ):
        for pipeline in pipelines:
            kernel = config(arch_name, pipeline=pipeline, tile_k=128, num_stages=2, **how, **common)
            made.append((kernel, GemmProblem(80, 96, 640, **common)))
    return [case for case in made if FAMILY.judge(case[0], this)]


def _split(parts: int, reduction: str) -> dict[str, object]:
    return {"scheduler": "split_k", "split_k": parts, "reduction": reduction}


def few(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Kernels for few rows, each form: on the vector units; on the matrix units with one block in
    a step, a part of one, and several, the last ones outside of K; K shared."""
    this = arch(arch_name)
    fp8 = {"ocp": "e4m3fn", "fnuz": "e4m3fnuz"}[this.fp8]
    least = max(16, this.min_dot[1])
    vectors = {"tile_m": 2, "tile_n": 4, "tile_k": 1024, "num_stages": 1}
    matrix = {"tile_m": least, "tile_n": 32, "num_stages": 3}
    made = []
    for number, (a, b) in enumerate(FORMS):
        for fields in (
            {**vectors, "dtype_a": fp8},
            {**vectors, "dtype_a": "bf16", "tile_m": 1, "num_stages": 3},
            {**vectors, "dtype_a": "int8", "tile_m": 4},
            {**matrix, "dtype_a": fp8, "tile_k": 64},
            {**matrix, "dtype_a": fp8, "tile_k": 512, "epilogue": "bias+relu"},
            {**matrix, "dtype_a": "int8", "tile_k": 512, "dtype_c": "fp32"},
            {**matrix, "dtype_a": fp8, "tile_k": 512, **_split(2, "linear")},
        ):
            for pipeline, how in (
                ("small_m", {"layout": ("rcr", "rrr")[number % 2]}),
                ("small_m", {"layout": LAYOUTS[number % 4], "alignment": 1}),
                ("small_m_tma", {"layout": ("rcr", "rrr")[number % 2]}),
            ):
                words = {"scale_a": a, "scale_b": b, **how, **fields}
                kernel = config(arch_name, pipeline=pipeline, group_m=1, **words)
                named = {"dtype_a", "dtype_c", "layout", "scale_a", "scale_b", "epilogue"}
                said = {name: word for name, word in words.items() if name in named}
                rows = max(1, kernel.tile_m - 3)
                made.append((kernel, GemmProblem(rows, 176, 1168, **said)))
    return [case for case in made if FAMILY.judge(case[0], this)]


def gluon() -> list[tuple[GemmConfig, GemmProblem]]:
    """Every form of the kernel in Gluon: one and two parts, side by side and below each other, one
    and two warp groups, A or B without scales, layouts of C, dtypes; K over several rings. Then K
    shared, by each reduction, of one and two parts and groups; more parts than the ring has slots,
    and fewer; of one step each. Then steps of several blocks of scales, the last ones outside of
    K."""
    made = []
    both = {"scale_a": "1x128", "scale_b": "128x128"}
    for tile_m, tile_n, warps, stages, fields in (
        (256, 128, 8, 4, both),
        (128, 256, 8, 3, both),
        (128, 128, 8, 4, both),
        (64, 128, 4, 4, both),
        (128, 64, 4, 4, both),
        (64, 256, 4, 2, both),
        (64, 32, 4, 8, both),
        (256, 128, 8, 3, {"scale_a": "1x128"}),
        (256, 128, 8, 3, {"scale_b": "128x128"}),
        (128, 128, 8, 3, {"scale_a": "64x256", "scale_b": "128x256"}),
        (128, 128, 8, 4, {"scale_a": "1x64", "scale_b": "64x128", "tile_k": 64}),
        (128, 128, 8, 3, {**both, "layout": "rcc", "dtype_c": "fp32"}),
        (256, 128, 8, 4, {**both, "dtype_a": "e5m2"}),
        (128, 256, 8, 3, {**both, "dtype_a": "int8"}),
        (64, 64, 4, 12, {**both, **_split(4, "atomic")}),
        (64, 64, 4, 12, {**both, **_split(4, "linear")}),
        (64, 128, 4, 8, {**both, **_split(2, "linear")}),
        (64, 128, 4, 8, {**both, **_split(9, "tree")}),
        (64, 32, 4, 16, {**both, **_split(3, "linear")}),
        (64, 256, 4, 2, {**both, **_split(3, "linear")}),
        (128, 64, 4, 2, {**both, **_split(7, "atomic"), "layout": "rcc"}),
        (128, 128, 8, 4, {**both, **_split(8, "linear")}),
        (256, 128, 8, 4, {"scale_b": "128x128", **_split(5, "tree")}),
        (128, 256, 8, 3, {**both, **_split(3, "atomic")}),
        (128, 256, 8, 3, {**both, **_split(4, "linear"), "dtype_a": "int8"}),
        (64, 32, 4, 4, {**both, **_split(2, "atomic"), "tile_k": 512}),
        (64, 64, 4, 4, {**both, **_split(2, "linear"), "tile_k": 256}),
        (64, 128, 4, 3, {"scale_a": "1x128", **_split(2, "tree"), "tile_k": 256}),
        (64, 16, 4, 3, {**both, "tile_k": 512}),
        (128, 64, 8, 3, {**both, "tile_k": 256, "layout": "rcc"}),
        (64, 64, 4, 4, {"scale_a": "1x64", "scale_b": "64x128", "tile_k": 256}),
    ):
        fields = {"tile_k": 128, "dtype_a": "e4m3fn", "scheduler": "persistent", **fields}
        kernel = config(
            tile_m=tile_m,
            tile_n=tile_n,
            num_warps=warps,
            num_stages=stages,
            pipeline="gluon_scaled",
            store="split" if tile_n > 32 else "direct",
            **fields,
        )
        named = {"dtype_a", "dtype_c", "layout", "scale_a", "scale_b"}
        words = {name: word for name, word in fields.items() if name in named}
        made.append((kernel, GemmProblem(400, 560, 1040, **words)))
    return made
