"""Pairs of (config, problem) for operands of 4 bits and the MX formats."""

from __future__ import annotations

from tilewright.arch import arch
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem

MX = {"scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0"}
SPLIT = {"scheduler": "split_k", "split_k": 2, "reduction": "linear"}
GLUON = {"pipeline": "gluon_weights", "tile_m": 8, "tile_k": 256}
WHOLE = (32, 112, 288)
"""Rows of whole 16 bytes in every operand; no whole tile, and a short last group."""
RAGGED = (23, 103, 134)


def config(arch_name: str = "sm_90", **fields: object) -> GemmConfig:
    small = {"tile_m": 16, "tile_n": 64, "tile_k": 128, "num_warps": 4, "num_stages": 2}
    defaults = {**FAMILY.axes(), **small, "pipeline": "weights"}
    return FAMILY.make_config({**defaults, **fields}, arch(arch_name))


def _weights(dtype_b: str, scale_b: str, **fields: object) -> dict[str, object]:
    return {"dtype_b": dtype_b, "scale_b": scale_b, **fields}


SIGNATURES: tuple[tuple[dict[str, object], dict[str, object]], ...] = (
    # Sums of a group scaled; every width of word, several groups a step, A's every dtype.
    (_weights("int4", "128x1-bf16"), {}),
    (_weights("int4", "128x1-bf16"), {"tile_k": 256}),
    (_weights("int4", "128x1"), {"tile_k": 64, "tile_m": 64}),
    (_weights("int4", "32x1-fp16"), {"tile_k": 64}),
    (_weights("int4", "128x1-bf16"), {"alignment": 1}),
    (_weights("int4", "128x1-bf16", layout="ccr"), {}),
    (_weights("int4", "64x32-bf16", layout="rcc", scale_a="1x128"), SPLIT),
    (_weights("int4", "128x1-bf16", epilogue="bias+gelu"), {}),
    ({"dtype_b": "int4"}, {"alignment": 1}),
    (_weights("e2m1", "128x1-bf16"), {}),
    (_weights("int4", "128x1-fp16", dtype_a="fp16", dtype_c="fp32"), {}),
    (_weights("e2m1", "32x1-e8m0", dtype_a="fp16"), {"tile_k": 32}),
    (_weights("e2m1", "128x1-fp16", dtype_a="e4m3fn"), {}),
    (_weights("int4", "128x1-fp16", dtype_a="e5m2"), {"alignment": 1}),
    ({"dtype_a": "e2m1", "scale_a": "1x128", "scale_b": "128x1"}, {}),
    # The same from the copy engine: groups of every depth against a step's, every format.
    (_weights("int4", "128x1-bf16"), GLUON),
    (_weights("int4", "32x1-fp16"), {**GLUON, "tile_m": 32, "num_stages": 4}),
    (_weights("int4", "64x1", dtype_a="fp16", epilogue="bias+gelu"), {**GLUON, **SPLIT}),
    (_weights("int4", "512x1-bf16", layout="rcc"), {**GLUON, "tile_n": 128, "num_warps": 8}),
    (_weights("e2m1", "32x1-e8m0", epilogue="swiglu"), {**GLUON, "tile_n": 128}),
    (_weights("e2m1", "256x1-bf16", dtype_a="fp16"), {**GLUON, **SPLIT, "reduction": "tree"}),
    ({"dtype_b": "int4"}, {**GLUON, "tile_m": 64, "num_stages": 1}),
    # Elements scaled.
    (_weights("e2m1", "32x1-e8m0"), {}),
    (_weights("int4", "32x2-e8m0", scale_a="1x128-e8m0"), {}),
    ({"dtype_a": "e2m1", **MX}, {}),
    ({"dtype_a": "e2m1", **MX}, {"alignment": 1}),
    ({"dtype_a": "e4m3fn", "dtype_b": "e2m1", **MX}, {}),
    # Block-scaled products.
    ({"dtype_a": "e4m3fn", **MX}, {"pipeline": "mx"}),
    ({"dtype_a": "e5m2", **MX}, {"pipeline": "mx", "tile_k": 64, "alignment": 1}),
    ({"dtype_a": "e2m1", **MX}, {"pipeline": "mx"}),
    ({"dtype_a": "e2m1", **MX}, {"pipeline": "mx", "alignment": 1}),
    ({"dtype_a": "e4m3fn", "dtype_b": "e2m1", **MX}, {"pipeline": "mx"}),
    ({"dtype_a": "e4m3fn", "layout": "crc", **MX}, {"pipeline": "mx", **SPLIT}),
    (_weights("e2m1", "32x1-e8m0"), {"pipeline": "mx"}),
    (_weights("e2m1", "32x1-e8m0", dtype_a="fp16"), {"pipeline": "mx"}),
    # The same scales on sums.
    ({"dtype_a": "e4m3fn", **MX}, {"pipeline": "basic", "tile_k": 32}),
    ({"dtype_a": "e4m3fn", **MX}, {"pipeline": "tma", "tile_k": 32}),
)


def cases(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """All that are legal on an architecture; ragged sizes where nothing is aligned."""
    made = []
    for signature, algorithm in SIGNATURES:
        kernel = config(arch_name, **signature, **algorithm)
        if FAMILY.judge(kernel, arch(arch_name)):
            sizes = RAGGED if kernel.alignment == 1 else WHOLE
            made.append((kernel, GemmProblem(*sizes, **signature)))
    return made
