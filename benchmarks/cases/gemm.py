"""Products of matrices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Any

import rivals
from cases import Case, Part
from tilewright.arch import device
from tilewright.ops.gemm import GemmProblem
from tilewright.tables import file

Size = tuple[int, int, int]

LARGE: tuple[Size, ...] = (
    (4096, 4096, 4096), (8192, 8192, 8192), (2048, 28672, 4096), (8192, 4096, 14336),
    # sampled over the (N, K) of models' layers, one M each
    (32768, 4096, 8192), (16384, 7168, 8192), (2048, 26624, 16384), (60288, 4096, 2048),
    (5504, 6144, 5376), (2048, 11264, 7168), (8192, 17408, 4096),
)  # fmt: skip
"""(M, N, K), as all sizes of this file."""
ODD: tuple[Size, ...] = (
    (2048, 2112, 7168), (3840, 4096, 2048), (512, 768, 4096), (512, 512, 8192),
    (256, 256, 16384), (1024, 1024, 8192), (128, 4096, 14336),
)  # fmt: skip
DECODE: tuple[Size, ...] = (
    (1, 4096, 4096), (1, 4096, 14336), (4, 7168, 2048), (8, 2112, 7168), (16, 28672, 4096),
    (32, 4096, 7168), (64, 2112, 7168), (64, 24576, 1536),
    # random.Random(0).sample of the (N, K) of models' layers, with M from 1 to 64 in turn
    (1, 8192, 8192), (2, 10240, 8192), (4, 512, 256), (8, 5120, 6400), (16, 31104, 7168),
    (32, 20480, 7168), (64, 9216, 4096), (1, 6144, 12288), (2, 17408, 4096), (4, 7168, 8192),
    (8, 4096, 3072), (16, 28672, 8192), (32, 2048, 6144), (64, 6144, 512), (1, 43392, 1792),
    (2, 1536, 128), (4, 6400, 5120), (8, 8704, 5120), (16, 2048, 1024), (32, 15360, 13824),
    (64, 5120, 8704), (1, 7168, 5120), (2, 37984, 2048), (4, 36864, 7168), (8, 14976, 7680),
    (16, 1024, 1024), (32, 2304, 6144), (64, 512, 2048),
)  # fmt: skip
LAYERS: tuple[Size, ...] = (
    (4096, 7168, 2048), (4096, 4096, 7168), (2048, 28672, 4096), (8192, 4096, 14336),
)  # fmt: skip
QUANTISED: tuple[Size, ...] = (*((n, n, n) for n in (1024, 2048, 4096, 8192)), *LAYERS)
BLOCKS: tuple[Size, ...] = (
    (4096, 7168, 16384), *LAYERS, (4096, 24576, 1536), (64, 2112, 7168), (128, 7168, 2048),
)  # fmt: skip
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (8192, 28672))
"""(N, K) of a model's layers."""

EPILOGUES: tuple[tuple[Size, str, str], ...] = (
    ((4096, 4096, 4096), "bf16", "bias+gelu"),
    ((8192, 16384, 4096), "bf16", "bias+gelu"),
    ((8192, 8192, 8192), "bf16", "bias+gelu"),
    ((4096, 8192, 4096), "bf16", "swiglu"),
    ((8192, 28672, 4096), "bf16", "swiglu"),
    ((4096, 4096, 4096), "e4m3fn", "row_scale+col_scale"),
    ((8192, 8192, 8192), "e4m3fn", "row_scale+col_scale"),
    ((8192, 14336, 4096), "e4m3fn", "row_scale+col_scale"),
    ((4096, 4096, 4096), "int8", "row_scale+col_scale"),
)

MULTIPROCESSORS = 132
LAST_WAVE_TILES = ((128, 128), (128, 192), (192, 128), (192, 192), (128, 256), (256, 128))


def last_wave(m: int, n: int, tile: tuple[int, int]) -> tuple[int, float]:
    """Whole waves of a product's tiles on an H200, and how full the wave after them is."""
    waves, left = divmod(-(-m // tile[0]) * -(-n // tile[1]), MULTIPROCESSORS)
    return waves, left / MULTIPROCESSORS


def under_half_full() -> list[GemmProblem]:
    """Products of one to four whole waves of the largest tiles whose last wave is under half full,
    and not empty, for every tile of 128×128 and more."""
    sizes = range(1024, 8193, 128)
    return [
        GemmProblem(m, n, k, "bf16")
        for k in (4096, 8192, 16384)
        for m in sizes
        for n in sizes
        if m <= n
        if 1 <= last_wave(m, n, (128, 256))[0] <= 4
        if all(0 < last_wave(m, n, tile)[1] < 0.5 for tile in LAST_WAVE_TILES)
    ]


def products(sizes: Sequence[Size], **fields: Any) -> list[GemmProblem]:
    """Products of these sizes."""
    return [GemmProblem(*size, **fields) for size in sizes]


def blocks(m: int, n: int, k: int) -> GemmProblem:
    """fp8 with a scale for 1×128 of A and 128×128 of B, which lie as torch has them."""
    return GemmProblem(
        m, n, k, "e4m3fn", scale_a="1x128", scale_b="128x128", strides_sa=(1, m),
        strides_sb=(1, k // 128),
    )  # fmt: skip


def batches() -> list[GemmProblem]:
    """Attention's scores and outputs, for many tokens and for one; square batches; shared
    weights."""
    by_columns = ((32, 512, 512, 64), (128, 1024, 1024, 128), (64, 1, 4096, 128),
                  (16, 2048, 2048, 64), (8, 4096, 4096, 128), (256, 128, 128, 128),
                  (32, 1024, 1024, 1024))  # fmt: skip
    by_rows = ((128, 1024, 128, 1024), (16, 2048, 64, 2048), (64, 1, 128, 4096))
    shared = ((32, 512, 1024, 1024), (64, 16, 4096, 1024))
    return [
        *(GemmProblem(m, n, k, "bf16", batch=b) for b, m, n, k in by_columns),
        *(GemmProblem(m, n, k, "bf16", batch=b, layout="rrr") for b, m, n, k in by_rows),
        *(GemmProblem(m, n, k, "bf16", batch=b, stride_b=0) for b, m, n, k in shared),
    ]


def by_few_bits(**fields: str) -> list[GemmProblem]:
    """bf16 by weights of 4 bits with a scale for each group of K."""
    return [GemmProblem(m, n, k, "bf16", **fields) for n, k in WEIGHTS for m in (1, 4, 16, 64)]


def with_epilogues() -> list[GemmProblem]:
    """A product for each of `EPILOGUES`."""
    return [GemmProblem(*size, dtype, epilogue=chain) for size, dtype, chain in EPILOGUES]


TABLES = ("gemm_bf16", "gemm_fp16", "gemm_e4m3fn")


def shipped(count: int, seed: int) -> list[GemmProblem]:
    """Problems of the shipped tables, drawn by chance, that torch has a call for."""
    folder = resources.files("tilewright") / "tables" / "shipped" / "sm_90"
    rows = [row for name in TABLES for row in file.load(str(folder / f"{name}.twt"))]
    h200 = device("h200_sxm").name
    problems = sorted({row.problem for row in rows if row.device.name == h200}, key=str)
    found = [p for p in problems if rivals.torch_calls(p, None)]  # type: ignore[arg-type]
    return random.Random(seed).sample(found, min(count, len(found)))


BETTER = "the better of `torch.mm` and cuBLASLt's first eight"
BETTER_FP8 = "the better of `torch._scaled_mm` and cuBLASLt's first eight"
MM = (Part("torch", "`torch.mm`", ("torch.mm",)),)
SCALED_MM = (Part("torch", "`torch._scaled_mm`", ("torch._scaled_mm",)),)

CASES = (
    Case(
        "gemm-bf16-large", "bf16, eleven large products", BETTER,
        partial(products, LARGE, dtype_a="bf16"), library=True, parts=MM,
    ),
    Case(
        "gemm-fp16-large", "fp16, the same eleven products", BETTER,
        partial(products, LARGE, dtype_a="fp16"), library=True, parts=MM,
    ),
    Case(
        "gemm-bf16-odd", "bf16, seven products of odd waves or large K", BETTER,
        partial(products, ODD, dtype_a="bf16"), library=True, parts=MM,
    ),
    Case(
        "gemm-bf16-decode", "bf16, 36 products of 1 to 64 rows", BETTER,
        partial(products, DECODE, dtype_a="bf16"), library=True, parts=MM,
    ),
    Case(
        "gemm-bf16-stream-k", "stream-K, 24 bf16 products whose last wave is under half full",
        "Tilewright's best other kernel", under_half_full,
        only=lambda c: c.scheduler == "stream_k",
        vendor=(rivals.own_kernels(lambda c: c.scheduler != "stream_k"),),
    ),
    Case(
        "gemm-bf16-last-wave", "stream-K on the same products", BETTER, under_half_full,
        only=lambda c: c.scheduler == "stream_k", library=True,
    ),
    Case(
        "gemm-bf16-batched", "bf16, twelve batches",
        "the best of `torch.bmm`, `torch.mm` on the folded batch and cuBLASLt's first eight",
        batches, library=True, vendor=(rivals.torch_calls, rivals.folded_mm),
    ),
    Case(
        "gemm-fp8-scale", "fp8 with one scale, eight products", BETTER_FP8,
        partial(products, QUANTISED, dtype_a="e4m3fn", epilogue="scale"), library=True,
        parts=SCALED_MM,
    ),
    Case(
        "gemm-fp8-rows", "fp8 with a scale for each row and column, eight products", BETTER_FP8,
        partial(products, QUANTISED, dtype_a="e4m3fn", epilogue="row_scale+col_scale"),
        library=True, parts=SCALED_MM,
    ),
    Case(
        "gemm-fp8-blocks", "fp8 with scales for 1×128 and 128×128 blocks, eight products",
        BETTER_FP8, lambda: [blocks(*size) for size in BLOCKS], library=True, parts=SCALED_MM,
    ),
    Case(
        "gemm-int8", "int8 into int32, eight products",
        "the better of `torch._int_mm` and cuBLASLt's first eight",
        partial(products, QUANTISED, dtype_a="int8"), library=True,
        parts=(Part("torch", "`torch._int_mm`", ("torch._int_mm",)),),
    ),
    *(
        Case(
            name, f"bf16 by {says}, 20 products of 1 to 64 rows",
            "the better of `torch.mm` and cuBLASLt's first eight in bf16, by the same weights",
            partial(by_few_bits, dtype_b=dtype, scale_b=scale), vendor=(rivals.dequantised,),
            exact=False,
        )
        for name, says, dtype, scale in (
            ("gemm-int4-128", "int4 weights in groups of 128", "int4", "128x1-bf16"),
            ("gemm-int4-32", "int4 weights in groups of 32", "int4", "32x1-bf16"),
            ("gemm-mxfp4", "MX fp4 weights", "e2m1", "32x1-e8m0"),
        )
    ),
    Case(
        "gemm-epilogues", "an epilogue (bias+GELU, SwiGLU, rows and columns of scales), nine "
        "products", "Tilewright's best kernel of the same product without it", with_epilogues,
        vendor=(rivals.without_epilogue,), exact=False,
    ),
    Case(
        "gemm-shipped", "120 problems of the shipped tables (bf16, fp16, fp8), drawn by chance, "
        "by what a dispatcher chooses", "`torch.mm`, `torch._scaled_mm`", partial(shipped, 120, 11),
        ours="answered",
        parts=(
            Part("bf16", "`torch.mm`", where=lambda p: p.dtype_a == "bf16"),
            Part("fp16", "`torch.mm`", where=lambda p: p.dtype_a == "fp16"),
            Part("fp8-rows", "`torch._scaled_mm`", where=lambda p: "row_scale" in p.epilogue),
            Part("fp8-blocks", "`torch._scaled_mm`", where=lambda p: bool(p.scale_a)),
        ),
    ),
)  # fmt: skip
