"""Each legality rule: what breaks exactly it, and what just does not."""

from __future__ import annotations

import dataclasses

import pytest
from rule_configs import (
    BASE,
    CDNA,
    FEW,
    FEW_TMA,
    GFX942,
    GFX950,
    GLUON,
    SCALED,
    SM80,
    SM89,
    SM90,
    SPECIALISING,
    TMA,
    change,
    fp8,
)

from tilewright.arch import arch
from tilewright.ops.gemm.legality import LEGALITY, judge
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import OVERHEAD_REGISTERS
from tilewright.ops.gemm.support import supports

NEEDED = 64 * 64 // 128 + OVERHEAD_REGISTERS
"""Registers of a thread of `BASE`: its accumulators and the others."""


def with_registers(count):
    """sm_90 with so many registers for each thread."""
    return dataclasses.replace(SM90, max_registers=count)


SHUFFLED = {"pipeline": "preshuffle", "layout": "rsr", "tile_n": 16, "tile_k": 32}
"""A tile of B that is one shuffled block."""
GLUON_STREAM = {"pipeline": "gluon_ws", "scheduler": "stream_k", "reduction": "linear"}
TURNS = {"pipeline": "gluon_pingpong", "scheduler": "persistent", "num_warps": 8}
PARTS = {"scheduler": "split_k", "split_k": 2, "reduction": "tree"}

FP32 = ("dtype_a", "dtype_b", "dtype_c")

VECTOR = {**FEW, "tile_m": 1, "tile_n": 4, "tile_k": 1024, "num_stages": 1}
WEIGHTS = {"pipeline": "gluon_weights", "dtype_b": "int4", "tile_m": 8, "tile_k": 256}

SPLIT = {"scheduler": "split_k", "split_k": 4, "reduction": "linear"}
TMA_WALKS = {**TMA, "scheduler": "persistent"}
TMA_WS = {"pipeline": "tma_ws", "scheduler": "persistent"}
STREAM = {"scheduler": "stream_k", "reduction": "linear"}

MX = {"scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0"}
FP16_MX = {"dtype_a": "fp16", "dtype_b": "e2m1", "dtype_c": "fp16", "scale_b": "32x1-e8m0"}

BROKEN = [
    ("dtype", fp8("e4m3fnuz"), SM90),
    ("pipeline", change(**TMA), SM80),
    ("pipeline", change(**TMA), GFX942),
    ("swap", change(swap_ab=True), SM90),
    ("swap", change(swap_ab=True, epilogue="swiglu", **TMA), SM90),
    ("swap", change(swap_ab=True, batching="strided", **GLUON), SM90),
    ("swap", fp8("e4m3fn", swap_ab=True, tile_k=64, scale_a="1x128", **TMA), SM90),
    ("dependent_launch", change(dependent_launch="wait"), SM90),
    ("dependent_launch", change(dependent_launch="wait"), SM80),
    ("dependent_launch", change(dependent_launch="wait"), GFX942),
    ("dependent_launch", change(dependent_launch="wait", **TMA), SM90),
    ("dependent_launch", change(dependent_launch="wait", **TMA, **SPLIT), SM90),
    ("dependent_launch", change(dependent_launch="ahead", **TMA_WALKS), SM90),
    ("dependent_launch", change(dependent_launch="wait", **TMA_WS), SPECIALISING),
    ("tile", change(tile_m=96), SM90),
    ("tile", change(tile_m=512, tile_n=16), SM90),
    ("tile", change(tile_k=8), SM90),
    ("tile", change(tile_n=8), GFX942),
    ("tile", fp8("e4m3fn", tile_k=16), SM90),
    ("warps", change(num_warps=6), SM90),
    ("warps", change(num_warps=64), SM90),
    ("warps", change(num_warps=32), GFX942),
    ("stages", change(num_stages=17, tile_k=16), SM90),
    ("tile", change(**SHUFFLED | {"tile_n": 8}), SM90),
    ("tile", change(**SHUFFLED | {"tile_k": 16}), SM90),
    ("combination", change(pipeline="tma_ws"), SPECIALISING),
    ("combination", change(pipeline="gluon_ws"), SM90),
    ("tile", change(tile_m=192, num_warps=8, **TMA), SM90),
    ("tile", change(tile_k=192, **GLUON), SM90),
    ("warps", change(tile_m=256, num_warps=12, **TMA), SM90),
    ("warpgroups", change(tile_m=192, num_warps=8, **GLUON), SM90),
    ("warpgroups", change(tile_m=128, num_warps=12, **GLUON), SM90),
    ("warpgroups", change(tile_n=192, **GLUON_STREAM), SM90),
    ("warpgroups", change(tile_n=160, store="split", **GLUON_STREAM), SM90),
    ("warpgroups", change(tile_n=72, layout="rrr", **GLUON), SM90),
    ("warpgroups", change(tile_m=128, tile_n=224, **TURNS), SM90),
    ("warpgroups", change(tile_m=256, tile_n=224, num_warps=8, **GLUON), SM90),
    ("warpgroups", change(tile_n=72, **GLUON | {"dtype_c": "e4m3fn"}), SM90),
    ("warpgroups", change(tile_n=72, epilogue="swiglu", **GLUON), SM90),
    ("warpgroups", change(tile_n=72, epilogue="swiglu", **TURNS), SM90),
    ("tile", change(tile_n=160, **TMA), SM90),
    ("tile", change(tile_m=160, **GLUON), SM90),
    ("tile", change(tile_n=216, **GLUON), SM90),
    ("tile", change(tile_n=76, layout="rcc", **GLUON), SM90),
    ("tile", change(tile_n=4, layout="rcc", **GLUON), SM90),
    ("combination", change(store="split"), SM90),
    ("combination", change(store="split", tile_n=16, **TMA), SM90),
    ("pipeline", change(**GLUON), SM80),
    ("warpgroups", change(num_warps=2, **GLUON), SM90),
    ("warpgroups", change(num_warps=16, tile_m=256, **GLUON), SM90),
    ("warpgroups", change(num_warps=8, **GLUON), SM90),
    ("warpgroups", change(tile_m=32, **GLUON), SM90),
    ("warpgroups", change(tile_n=8, layout="rrr", **GLUON), SM90),
    ("warpgroups", change(tile_n=32, store="split", **GLUON), SM90),
    ("warpgroups", change(dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", **GLUON), SM90),
    ("warpgroups", fp8("e4m3fn", layout="rrr", **GLUON), SM90),
    ("warpgroups", fp8("e4m3fn", layout="ccr", **GLUON), SM90),
    ("warpgroups", change(**TURNS | {"num_warps": 4}), SM90),
    ("warpgroups", change(**TURNS | {"scheduler": "tile"}), SM90),
    ("warpgroups", change(**TURNS, tile_m=32), SM90),
    ("warpgroups", fp8("e5m2", layout="rrr", **TURNS), SM90),
    ("tile", change(**TURNS, tile_m=192), SM90),
    ("registers", change(**TURNS, tile_m=128, tile_n=256), SM90),
    ("shared_memory", change(**TURNS, tile_m=128, tile_n=128, num_stages=6), SM90),
    ("pipeline", change(**TURNS), SM80),
    ("padding", change(pad_n=False, **GLUON), SM90),
    ("alignment", change(alignment=8, **GLUON), SM90),
    ("index", change(index_bits=64, **GLUON), SM90),
    (
        "shared_memory",
        change(tile_m=128, tile_n=256, num_warps=8, num_stages=4, **GLUON),
        SM90,
    ),
    ("pipeline", change(**CDNA), SM90),
    ("cdna", change(epilogue="swiglu", layout="rcc", **CDNA), GFX942),
    ("combination", change(scheduler="stream_k", reduction="tree", **CDNA), GFX942),
    ("cdna", change(tile_m=256, tile_n=256, tile_k=32, num_warps=8, **PARTS, **CDNA), GFX942),
    ("combination", change(store="split", **CDNA), GFX942),
    ("padding", change(pad_n=False, **CDNA), GFX942),
    ("alignment", change(alignment=8, **CDNA), GFX942),
    ("index", change(index_bits=64, **CDNA), GFX942),
    ("cdna", change(num_stages=3, **CDNA), GFX942),
    ("cdna", change(num_stages=1, **CDNA), GFX950),
    ("cdna", change(tile_m=16, tile_n=16, **CDNA), GFX942),
    ("cdna", change(tile_k=16, mma=(16, 16, 16), **CDNA), GFX942),
    ("cdna", change(tile_m=32, tile_n=32, tile_k=16, **CDNA), GFX942),
    ("cdna", change(tile_m=128, tile_n=256, tile_k=32, **CDNA), GFX942),
    ("cdna", fp8("e4m3fn", **CDNA), GFX942),
    ("cdna", change(**dict.fromkeys(FP32, "fp32"), precision="tf32", tile_k=16, **CDNA), GFX942),
    ("shared_memory", change(tile_m=128, tile_n=128, tile_k=128, num_warps=8, **CDNA), GFX942),
    ("combination", change(store="split", tile_n=32, epilogue="swiglu", **TMA), SM90),
    ("pipeline", change(**FEW_TMA), SM80),
    ("tile", change(**{**FEW, "tile_m": 8}), GFX942),
    ("tile", change(**{**FEW, "tile_n": 8, "tile_k": 128}), SM90),
    ("tile", change(**{**FEW, "tile_n": 32, "tile_k": 32}), SM90),
    ("tile", fp8("e4m3fn", **{**FEW, "tile_n": 32, "tile_k": 64}), SM90),
    ("tile", change(**{**VECTOR, "tile_k": 4, "alignment": 8}), SM90),
    ("tile", change(**{**VECTOR, "tile_k": 8192, "tile_n": 1, "num_warps": 8}), SM90),
    ("tile", change(**{**VECTOR, "tile_n": 3}), SM90),
    ("combination", change(store="split", **FEW), SM90),
    ("small_m", change(scheduler="persistent", **FEW), SM90),
    ("small_m", change(**{**FEW, "group_m": 8}), SM90),
    ("small_m", change(mma=(16, 16, 16), **{**FEW, "tile_m": 16}), GFX942),
    ("small_m", change(**{**VECTOR, "pipeline": "small_m_tma", "tile_n": 64, "tile_k": 64}), SM90),
    (
        "small_m",
        change(dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", precision="tf32", **VECTOR),
        SM90,
    ),
    ("padding", change(pad_n=False, **FEW_TMA), SM90),
    ("registers", change(**{**VECTOR, "tile_n": 64}), SM90),
    ("shared_memory", change(**{**VECTOR, "tile_n": 16, "num_warps": 8, "num_stages": 8}), SM90),
    ("dtype", change(epilogue="scale", dtype_c="e4m3fn"), SM80),
    ("padding", change(pad_m=False, **TMA), SM90),
    ("padding", change(pad_k=False, **TMA), SM90),
    ("alignment", change(alignment=8, **TMA), SM90),
    ("alignment", change(alignment=2), SM90),
    ("alignment", fp8("e4m3fn", tile_n=8, layout="rrr"), SM90),
    ("index", change(index_bits=64, **TMA), SM90),
    ("batching", change(batching="nested", **TMA), SM90),
    ("batching", change(batching="nested", **GLUON), SM90),
    ("batching", change(batching="pointers", **TMA), SM90),
    ("batching", change(batching="pointers", **GLUON), SM90),
    ("two_stage", change(batching="strided", **{**PARTS, "reduction": "two_stage"}), SM90),
    ("cluster", change(**{**GLUON, **PARTS, "split_k": 3, "reduction": "cluster"}), SM90),
    ("packed", change(dtype_b="int4"), SM90),
    ("packed", change(dtype_b="e2m1", **TMA), SM90),
    ("packed", change(pipeline="weights"), SM90),
    ("packed", change(pipeline="weights", dtype_b="int4", tile_k=16, alignment=8), SM90),
    ("packed", change(pipeline="weights", dtype_b="int4", scale_b="16x1"), SM90),
    ("packed", change(**{**WEIGHTS, "dtype_b": "bf16"}), SM90),
    ("packed", change(dtype_a="e4m3fn", **WEIGHTS), SM90),
    ("packed", change(layout="ccr", **WEIGHTS), SM90),
    ("packed", change(scale_a="1x128", scale_b="128x1", **WEIGHTS), SM90),
    ("packed", change(scale_b="128x32", **WEIGHTS), SM90),
    ("packed", change(scale_b="16x1", **WEIGHTS), SM90),
    ("packed", change(**{**WEIGHTS, "tile_k": 128}), SM90),
    ("packed", change(**{**WEIGHTS, "num_warps": 8}), SM90),
    ("packed", change(**{**WEIGHTS, "tile_m": 128}), SM90),
    ("packed", change(scheduler="split_k", split_k=2, reduction="atomic", **WEIGHTS), SM90),
    ("combination", change(scheduler="persistent", **WEIGHTS), SM90),
    ("combination", change(store="split", **WEIGHTS), SM90),
    ("warpgroups", change(**{**WEIGHTS, "tile_m": 32, "num_warps": 2}), SM90),
    ("padding", change(pad_k=False, **WEIGHTS), SM90),
    ("alignment", change(alignment=8, **WEIGHTS), SM90),
    ("tile", change(**{**WEIGHTS, "tile_m": 4}), SM90),
    ("pipeline", change(**WEIGHTS), SM80),
    ("packed", change(pipeline="mx"), SM90),
    ("packed", change(pipeline="mx", dtype_b="e2m1", scale_b="32x1"), SM90),
    ("packed", change(pipeline="mx", dtype_b="e2m1", scale_b="32x1-e8m0", tile_k=32), SM90),
    ("packed", change(pipeline="mx", **FP16_MX), SM80),
    ("dtype", fp8("e4m3fn", tile_k=64, pipeline="mx", **MX), SM80),
    ("combination", change(pipeline="weights", dtype_b="int4", scheduler="persistent"), SM90),
    ("mma", change(mma=(16, 16, 16)), SM90),
    ("mma", change(mma=(16, 16, 8)), GFX942),
    ("mma", change(mma=(32, 32, 8), tile_m=16), GFX942),
    ("mma", fp8("e4m3fn", tile_k=128, mma=(16, 16, 32)), GFX950),
    ("scales", fp8("e4m3fn", tile_k=128, scale_a="1x64"), SM90),
    ("scales", fp8("e4m3fn", tile_k=128, scale_a="1x128", scale_b="64x64"), SM90),
    ("scales", fp8("e4m3fn", tile_k=128, scale_b="64x1"), GFX950),
    ("scales", fp8("e4m3fn", tile_k=128, scale_a="1x128", scale_b="128x128", **GLUON), SM90),
    ("registers", change(tile_m=128, tile_n=256, num_warps=8, scale_a="1x64"), SM90),
    ("scales", fp8("e4m3fn", **{**SCALED, "scale_a": "", "scale_b": ""}), SM90),
    ("scales", change(**SCALED), SM90),
    ("scales", fp8("e4m3fn", layout="rrr", **SCALED), SM90),
    ("scales", fp8("e4m3fn", epilogue="relu", **SCALED), SM90),
    ("scales", fp8("e4m3fn", **{**SCALED, "scheduler": "tile"}), SM90),
    ("scales", fp8("e4m3fn", **{**SCALED, **STREAM}), SM90),
    ("tile", fp8("e4m3fn", tile_n=16, **{**SCALED, "tile_k": 1024}), SM90),
    ("scales", fp8("e4m3fn", tile_n=256, **{**SCALED, "tile_k": 256}), SM90),
    ("scales", fp8("e4m3fn", **{**SCALED, "tile_k": 256, "pipeline": "tma"}), SM90),
    ("scales", fp8("e4m3fn", num_warps=2, **SCALED), SM90),
    ("shared_memory", fp8("e4m3fn", num_stages=14, **{**SCALED, **SPLIT}), SM90),
    ("scales", fp8("e4m3fn", num_warps=8, tile_m=64, tile_n=128, **SCALED), SM90),
    ("scales", fp8("e4m3fn", num_warps=4, tile_m=256, tile_n=64, **SCALED), SM90),
    ("scales", fp8("e4m3fn", **{**SCALED, "scale_a": "1x128-bf16"}), SM90),
    ("scales", fp8("e4m3fn", **{**SCALED, "scale_b": "128x32"}), SM90),
    ("scales", fp8("e4m3fn", tile_n=256, **{**SCALED, "scale_b": "64x128"}), SM90),
    ("pipeline", fp8("e4m3fn", **SCALED), SM89),
    ("registers", change(tile_m=256, tile_n=256), SM90),
    ("registers", BASE, with_registers(NEEDED - 1)),
    ("dot", change(tile_m=64, tile_n=128), arch("gfx1250")),
    ("shared_memory", change(tile_m=128, tile_n=256, tile_k=128, num_warps=8, num_stages=3), SM90),
    ("shared_memory", change(tile_m=128, tile_n=128, num_stages=4), GFX942),
]

LEGAL = [
    (BASE, SM90),
    (BASE, SM80),
    (BASE, GFX942),
    (fp8("e4m3fnuz"), GFX942),
    (fp8("e4m3fn", tile_k=32), SM90),
    (change(tile_n=8), SM90),
    (change(tile_m=256, tile_n=128, num_warps=8), SM90),
    (change(num_warps=16), GFX942),
    (change(num_stages=8, tile_k=16), SM90),
    (change(num_stages=16, tile_k=16), SM90),
    (BASE, with_registers(NEEDED)),
    (change(**SHUFFLED), SM90),
    (change(pipeline="tma_ws", scheduler="persistent"), SPECIALISING),
    (change(store="split", tile_n=32, **TMA), SM90),
    (change(**GLUON), SM90),
    (change(num_warps=8, tile_m=128, **GLUON), SM90),
    (change(num_warps=12, tile_m=192, **GLUON), SM90),
    (change(tile_n=192, **GLUON), SM90),
    (change(tile_n=192, layout="rrr", **GLUON), SM90),
    (change(tile_n=192, tile_k=128, **GLUON), SM90),
    (change(tile_n=160, store="split", **GLUON), SM90),
    (change(tile_n=160, **GLUON), SM90),
    (change(tile_n=160, store="split", layout="rrr", **GLUON), SM90),
    (change(tile_n=224, **GLUON), SM90),
    (change(tile_m=256, tile_n=208, num_warps=8, **GLUON), SM90),
    (change(tile_n=72, **GLUON), SM90),
    (change(tile_n=80, layout="rrr", **GLUON), SM90),
    (change(tile_m=72, swap_ab=True, layout="rrr", **GLUON), SM90),
    (change(tile_n=72, layout="rcc", **GLUON | {"dtype_c": "e4m3fn"}), SM90),
    (change(tile_n=8, **GLUON), SM90),
    (change(**TURNS, tile_n=88), SM90),
    (change(tile_n=96, **GLUON), SM90),
    (change(**TURNS, tile_n=96), SM90),
    (change(**GLUON_STREAM), SM90),
    (change(epilogue="bias+swiglu", **GLUON), SM90),
    (change(tile_n=32, **GLUON), SM90),
    (change(tile_n=64, store="split", **GLUON), SM90),
    (fp8("e4m3fn", layout="rcc", **GLUON), SM90),
    (change(layout="ccr", **GLUON), SM90),
    (
        change(tile_m=128, tile_n=256, num_warps=8, num_stages=4, store="split", **GLUON),
        SM90,
    ),
    (change(**CDNA), GFX942),
    (change(num_stages=4, **CDNA), GFX950),
    (change(tile_m=128, tile_n=128, num_warps=4, **PARTS, **CDNA), GFX942),
    (change(epilogue="bias+swiglu", **CDNA), GFX942),
    (change(epilogue="bias+gelu", layout="rcc", **CDNA), GFX942),
    (change(mma=(16, 16, 16), tile_m=16, num_warps=1, **CDNA), GFX942),
    (change(tile_m=128, tile_n=256, tile_k=32, num_warps=8, **CDNA), GFX942),
    (fp8("e4m3fnuz", tile_k=128, **CDNA), GFX942),
    (change(tile_m=128, tile_n=128, tile_k=128, num_warps=8, **CDNA), GFX950),
    (change(store="split", tile_n=64, epilogue="swiglu", **TMA), SM90),
    (change(epilogue="scale", dtype_c="e4m3fn"), SM90),
    (change(**FEW), SM90),
    (change(**FEW_TMA), SM90),
    (change(**{**FEW, "tile_m": 16}), GFX942),
    (change(mma=(16, 16, 16)), GFX942),
    (change(**{**FEW, "tile_n": 16, "tile_k": 64}), SM90),
    (fp8("e4m3fn", **{**FEW, "tile_n": 32, "tile_k": 128}), SM90),
    (change(scheduler="split_k", split_k=2, reduction="tree", **FEW), SM90),
    (change(**VECTOR), SM90),
    (change(**VECTOR), GFX942),
    (change(**{**VECTOR, "tile_m": 4, "tile_n": 1, "tile_k": 8}), SM90),
    (change(**{**VECTOR, "tile_k": 4096, "tile_n": 1, "num_warps": 8}), SM90),
    (change(**{**VECTOR, "num_stages": 8}), SM90),
    (fp8("e4m3fn", tile_k=64, scale_a="1x64", scale_b="64x128"), SM90),
    (fp8("e4m3fn", tile_k=64, scale_a="1x128", scale_b="128x128", **TMA), SM90),
    (change(tile_m=128, tile_n=128, num_warps=8, scale_a="1x64"), SM90),
    (fp8("e4m3fn", **SCALED), SM90),
    (fp8("e4m3fn", **{**SCALED, "scale_b": "128x64"}), SM90),
    (fp8("e4m3fn", num_warps=8, tile_m=256, tile_n=128, store="split", **SCALED), SM90),
    (fp8("e4m3fn", num_stages=12, **{**SCALED, **SPLIT}), SM90),
    (fp8("e4m3fn", tile_n=32, **{**SCALED, "tile_k": 512}), SM90),
    (change(pipeline="weights", dtype_b="int4", scale_b="64x1-bf16"), SM90),
    (change(pipeline="weights", dtype_b="e2m1", scale_b="32x1-e8m0"), GFX942),
    (change(scale_b="32x1-e8m0", **WEIGHTS), SM90),
    (change(**{**WEIGHTS, "tile_m": 64}), SM90),
    (change(scheduler="split_k", split_k=2, reduction="tree", **WEIGHTS), SM90),
    (change(pipeline="mx", **FP16_MX), SM90),
    (fp8("e4m3fn", tile_k=64, pipeline="mx", **MX), GFX950),
    (change(alignment=1), SM90),
    (change(alignment=4), SM90),
    (change(index_bits=64), SM90),
    (change(swap_ab=True, tile_m=16, **TMA), SM90),
    (change(dependent_launch="wait", **TMA_WALKS), SM90),
    (change(dependent_launch="wait", **TMA_WALKS), SPECIALISING),
    (change(dependent_launch="ahead", **GLUON), SM90),
    (change(dependent_launch="ahead", **GLUON | SPLIT), SM90),
    (change(dependent_launch="ahead", **GLUON_STREAM), SM90),
    (change(dependent_launch="ahead", **TURNS), SM90),
    (change(dependent_launch="ahead", swap_ab=True, tile_m=16, **GLUON), SM90),
    (change(swap_ab=True, tile_m=96, **GLUON), SM90),
    (change(swap_ab=True, tile_m=160, store="split", **TURNS), SM90),
    (fp8("e4m3fn", swap_ab=True, tile_m=32, tile_n=192, num_warps=12, **GLUON), SM90),
    (change(batching="pointers"), GFX942),
    (change(batching="nested"), GFX942),
    (change(batching="strided", **TMA), SM90),
    (change(batching="strided", **GLUON), SM90),
    (change(mma=(32, 32, 8)), GFX942),
    (fp8("e4m3fn", tile_k=64, mma=(16, 16, 32)), GFX950),
    (fp8("e4m3fn", tile_k=128, mma=(16, 16, 128)), GFX950),
    (change(pad_m=False, pad_n=False, pad_k=False), SM90),
    (change(tile_m=128, tile_n=128, num_stages=3), GFX942),
]


@pytest.mark.parametrize(("rule", "config", "this"), BROKEN)
def test_a_rule_refuses_by_its_name_and_says_why(rule, config, this):
    verdict = judge(config, this)
    assert not verdict
    assert verdict.rule == rule
    assert verdict.reason


@pytest.mark.parametrize(("rule", "config", "this"), BROKEN)
def test_only_that_rule_objects(rule, config, this):
    assert [name for name, objects in LEGALITY if objects(config, this)] == [rule]


@pytest.mark.parametrize(("config", "this"), LEGAL)
def test_legal_configs(config, this):
    assert judge(config, this), str(judge(config, this))


def test_with_a_and_b_swapped_rules_are_of_what_the_kernel_computes():
    tall = judge(change(swap_ab=True, tile_n=96, **GLUON), SM90)
    assert tall.rule == "tile" and "tile_m = 96" in tall.reason
    eight_bits = judge(fp8("e4m3fn", swap_ab=True, layout="rrr", **GLUON), SM90)
    assert "K contiguous" in eight_bits.reason
    kernel = change(swap_ab=True, tile_m=96, pad_m=True, **GLUON)
    assert supports(kernel, GemmProblem(80, 512, 256), SM90)
    refused = supports(kernel, GemmProblem(80, 512, 256, layout="rcc"), SM90)
    assert refused.rule == "signature" and "layout is rcr, the problem has rcc" in refused.reason


def test_every_rule_is_tested():
    assert {rule for rule, _, _ in BROKEN} == {name for name, _ in LEGALITY}


def test_shared_memory_counts_one_buffer_less_where_registers_hold_the_stage_in_use():
    # 128·64·2 + 128·64·2 = 32 KiB a stage: two buffers fill gfx942's 64 KiB, three exceed it.
    big = {"tile_m": 128, "tile_n": 128}
    assert judge(change(num_stages=3, **big), GFX942)
    assert judge(change(num_stages=4, **big), GFX942).rule == "shared_memory"
    # sm_90 keeps every stage: seven of them fit in 227 KiB, eight do not.
    assert judge(change(num_stages=7, **big), SM90)
    assert judge(change(num_stages=8, **big), SM90).rule == "shared_memory"
