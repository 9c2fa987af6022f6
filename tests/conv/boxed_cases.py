"""Problems for the kernels that copy boxes of pixels, and which configs compute them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from served import served

from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch
from tilewright.compile import Store
from tilewright.compile.report import BuildResult
from tilewright.ops.conv import ConvConfig, ConvProblem, boxes, pipelines
from tilewright.ops.conv.pipelines.boxed import shape
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
BOXED = ("gluon_ws", "gluon_pingpong")

ODD = ConvProblem(2, 72, 80, (9, 11), (3, 3), pad=(1, 1))
DENSE = ConvProblem(8, 128, 256, (32, 32), (3, 3), pad=(1, 1))


def configs(p: ConvProblem, tuned: bool = False) -> list[ConvConfig]:
    """The configs that copy boxes and serve `p`."""
    return [*served(p, *BOXED, tuned=tuned)]


def built_by_name(kernels: Sequence[ConvConfig], store: Store) -> dict[str, BuildResult]:
    """What became of their main kernels on sm_90."""
    report = build_once([(c, "sm_90") for c in kernels], store)
    return {r.name: r for r in report.results if r.part == MAIN}


def check_built(c: ConvConfig, result: BuildResult) -> None:
    """Nothing spills, and the kernel takes the shared memory that its record says."""
    assert result.kernel is not None, result.reason
    assert result.kernel.resources.spill_bytes == 0
    assert 0 <= pipelines.of(c).shared_memory(c, SM_90) - result.kernel.shared <= 512


CASES = {
    "odd": ODD,
    "data": replace(ODD, direction="data"),
    "fp16": replace(ODD, dtype="fp16", dtype_out="fp16", filter=(1, 1), pad=(0, 0)),
    "1-D": ConvProblem(2, 64, 48, (100,), (3,), pad=(1,), pad_after=(0,)),
    "3-D": ConvProblem(2, 24, 40, (4, 5, 6), (3, 2, 3), pad=(1, 0, 1)),
    "3-D data": ConvProblem(
        2, 40, 24, (4, 5, 6), (2, 2, 3), pad=(1, 0, 1), stride=(1, 2, 1), direction="data"
    ),
    "strides": replace(ODD, stride=(2, 3), dilation=(1, 2), pad=(3, -1), pad_after=(0, 4)),
    "classes": replace(ODD, stride=(2, 3), dilation=(2, 1), direction="data"),
    "empty classes": ConvProblem(
        2, 40, 40, (15, 15), (1, 1), stride=(2, 2), direction="data", epilogue="bias"
    ),
    "epilogue": replace(ODD, epilogue="bias+silu+add"),
    "epilogue of classes": replace(ODD, stride=(2, 1), direction="data", epilogue="bias+add"),
    "fp32 out": replace(ODD, dtype_out="fp32"),
    "int8": replace(ODD, c=80, dtype="int8", dtype_out=""),
    "e4m3fn": replace(ODD, c=80, dtype="e4m3fn", dtype_out=""),
    "gaps": replace(
        ODD, x_strides=(20000, 1, 1600, 80), y_strides=(9600, 1, 1056, 96),
        w_strides=(720, 1, 240, 80),
    ),
}  # fmt: skip


WEIGHTS = {
    "2-D": ConvProblem(4, 72, 80, (8, 16), (3, 3), pad=(1, 1), direction="weights"),
    "1-D": ConvProblem(2, 64, 48, (96,), (4,), pad=(3,), pad_after=(0,), direction="weights"),
    "3-D": ConvProblem(
        2, 40, 136, (4, 4, 8), (3, 2, 3), pad=(1, 0, 1), pad_after=(1, 1, 1), direction="weights"
    ),
    "strides": ConvProblem(
        2, 72, 80, (16, 31), (3, 2), stride=(2, 3), dilation=(1, 3), pad=(1, 1), pad_after=(0, 3),
        direction="weights", dtype="fp16",
    ),
    "32 pixels": ConvProblem(
        8, 24, 80, (6, 6), (3, 3), pad=(1, 1), direction="weights", dtype_out="fp32"
    ),
    "gaps": ConvProblem(
        4, 72, 80, (8, 8), (3, 3), pad=(1, 1), direction="weights", w_strides=(720, 1, 240, 80)
    ),
}  # fmt: skip


def kinds(p: ConvProblem) -> list[ConvConfig]:
    """A config of each pipeline, scheduler and number of groups: the widest tile, and the
    narrowest."""
    each: dict[tuple[str, str, int], list[ConvConfig]] = {}
    for c in configs(p):
        each.setdefault((c.pipeline, c.scheduler, c.num_warps), []).append(c)
    return [c for some in each.values() for c in dict.fromkeys((some[0], some[-1]))]


ODD_TILES = sorted(shape.ODD_COLUMNS)
_SIGNATURES = (
    {"dtype": "bf16"},
    {"dtype": "fp16"},
    {"dtype": "bf16", "dtype_out": "fp32"},
    {"dtype": "bf16", "epilogue": "bias+silu"},
    {"dtype": "fp16", "epilogue": "add"},
    {"dtype": "e4m3fn", "dtype_out": "bf16"},
    {"dtype": "int8", "dtype_out": "int32"},
)
"""The last two are of the forward direction."""


def odd_tile(columns: int, direction: str) -> tuple[ConvConfig, ConvProblem]:
    """A legal kernel whose tiles have this many columns, and a problem of several ragged tiles, the
    same at every call."""
    by_chance = random.Random(f"{columns} {direction}")
    while True:
        signature = by_chance.choice(_SIGNATURES[: 5 if direction == "data" else None])
        rank = by_chance.choice((1, 2, 2, 3))
        pipeline, pixels, warps = by_chance.choice(
            (("gluon_ws", 64, 4), ("gluon_ws", 64, 8), ("gluon_ws", 128, 8), ("gluon_ws", 64, 12),
             ("gluon_pingpong", 64, 8), ("gluon_pingpong", 128, 8))
        )  # fmt: skip
        made = 16 * by_chance.randint(1, 2 * columns // 16)
        read = 16 * by_chance.randint(1, 6)
        p = ConvProblem(
            by_chance.randint(1, 3),
            *((made, read) if direction == "data" else (read, made)),
            tuple(by_chance.randint(4, 40 // rank) for _ in range(rank)),
            tuple(by_chance.randint(1, 2) for _ in range(rank)),
            stride=tuple(by_chance.randint(1, 2) for _ in range(rank)),
            pad=tuple(by_chance.randint(0, 1) for _ in range(rank)),
            direction=direction,
            **signature,
        )
        groups = 1 if pipeline == shape.PINGPONG else warps // 4
        fields = {
            **FAMILY.axes(), **signature, "direction": direction, "spatial_dims": rank,
            "pipeline": pipeline, "scheduler": "persistent", "tile_m": pixels * groups,
            "tile_n": columns, "tile_k": by_chance.choice((32, 64)), "num_warps": warps,
            "num_stages": by_chance.randint(2, 4),
            "box": by_chance.choice(boxes.best(p, pixels, 4) or [""]),
        }  # fmt: skip
        c = FAMILY.make_config(fields, SM_90)
        if FAMILY.judge(c, SM_90) and FAMILY.supports(c, p, SM_90):
            return c, p


def weights_tile(seed: int) -> tuple[ConvConfig, ConvProblem]:
    """A legal kernel for gradients of weights whose columns are several taps', or no power of two,
    and a problem of several ragged tiles, the same at every call."""
    by_chance = random.Random(f"weights {seed}")
    while True:
        rank = by_chance.choice((1, 2, 2, 3))
        filters, warps = by_chance.choice(((64, 4), (64, 8), (128, 8), (64, 12)))
        spread = by_chance.choice((64, 64, 0))
        p = ConvProblem(
            by_chance.choice((2, 4)), 8 * by_chance.randint(1, 20), 8 * by_chance.randint(1, 30),
            tuple(by_chance.choice((4, 8)) for _ in range(rank)),
            tuple(by_chance.randint(1, 3) for _ in range(rank)),
            pad=tuple(by_chance.randint(0, 2) for _ in range(rank)),
            pad_after=tuple(by_chance.randint(0, 2) for _ in range(rank)),
            direction="weights", dtype=by_chance.choice(("bf16", "fp16")),
            dtype_out=by_chance.choice(("", "fp32")),
        )  # fmt: skip
        pixels = by_chance.choice((16, 32, 64))
        fields = {
            **FAMILY.axes(), "direction": "weights", "spatial_dims": rank, "dtype": p.dtype,
            "dtype_out": p.dtype_out, "pipeline": "gluon_ws", "tile_m": filters * warps // 4,
            "scheduler": by_chance.choice(("persistent", "split", "stream_k")),
            "tile_n": by_chance.choice((128, 192, 256) if spread else shape.ODD_COLUMNS),
            "tile_k": pixels, "num_warps": warps, "num_stages": by_chance.randint(2, 4),
            "spread": spread, "box": by_chance.choice(boxes.best(p, pixels, 4) or [""]),
        }  # fmt: skip
        c = FAMILY.make_config(fields, SM_90)
        if FAMILY.judge(c, SM_90) and FAMILY.supports(c, p, SM_90):
            return c, p
