"""The estimate of kernels that copy boxes: pairs of kernels whose order was measured, and what the
estimate counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from boxed_cases import DENSE, FAMILY, configs

from tilewright.arch import device
from tilewright.ops import tile_sharing
from tilewright.ops.conv import ConvProblem, sharing
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.pipelines.boxed.estimate import PORT, SHARED
from tilewright.ops.device import schedule

H200 = device("h200_sxm")


def layer(n: int, c: int, size: int, direction: str = "forward") -> ConvProblem:
    return ConvProblem(n, c, c, (size, size), (3, 3), pad=(1, 1), direction=direction)


def us(kernel: str, p: ConvProblem) -> float:
    """The estimate of a kernel, whose name is given from its tile on."""
    name = f"conv_{p.direction}_{len(p.spatial)}d_bf16_bf16_{kernel}"
    return FAMILY.estimate(FAMILY.parse_name(name), p, H200).total_us


SK, SPLIT = "gluon_ws_stream_k_linear_g8_al16-16", "gluon_ws_split_two_stage_g8_al16-16"
WS, TURNS = "gluon_ws_persistent_g8_al16-16", "gluon_pingpong_persistent_g8_al16-16"
MEASURED = [
    # Columns outside: 107 and 136 µs, 107 and 199, 131 and 352; 95 and 166.
    (layer(8, 320, 64), f"256x128x64_w8_s3_{WS}_b1x2x64", f"128x128x64_w8_s5_{WS}_b1x1x64"),
    (layer(8, 320, 64), f"256x128x64_w8_s3_{WS}_b1x2x64", f"128x256x64_w8_s4_{WS}_b1x1x64"),
    (layer(8, 320, 64), f"128x64x64_w8_s6_{WS}_b1x1x64", f"64x256x64_w8_s4_{TURNS}_b1x1x64"),
    (layer(8, 640, 32), f"128x128x64_w8_s5_{WS}_b1x2x32", f"64x256x64_w8_s4_{TURNS}_b1x2x32"),
    # Shares that cross tiles read apart: 94 and 114 µs, 131 and 140, 105 and 136.
    (
        layer(8, 640, 32, "weights"),
        f"128x128x64_w8_s4_{WS}_b1x2x32", f"128x128x64_w8_s4_{SK}_b1x2x32",
    ),
    (
        layer(16, 512, 32, "weights"),
        f"128x128x64_w8_s4_{SK}_b1x2x32", f"128x256x64_w8_s4_{SK}_b1x2x32",
    ),
    (
        replace(layer(32, 256, 56, "weights"), k=512, stride=(2, 2)),
        f"128x128x64_w8_s4_{SPLIT}_b4x4x4", f"128x128x64_w8_s4_{SK}_b4x4x4",
    ),
    # Steps of 16 pixels wait for their ring: 79.6 and 135.7 µs, 10.6 and 15.7.
    (
        replace(layer(8, 1792, 24, "weights"), groups=7),
        f"128x128x32_w8_s4_{WS}_b1x4x8_grouped", f"128x128x16_w8_s4_{WS}_b1x2x8_grouped",
    ),
    (
        replace(layer(32, 256, 8, "weights"), groups=2),
        f"64x64x32_w4_s8_{WS}_b1x4x8_grouped", f"64x64x16_w4_s8_{WS}_b1x2x8_grouped",
    ),
    # So do those of 32 pixels of one group: 68.7 and 105.3 µs.
    (
        ConvProblem(
            1, 384, 384, (3, 62, 106), (3, 3, 3), pad=(1, 1, 1), direction="weights"
        ),
        f"128x256x32_w8_s8_{WS}_b1x1x4x8_sp64", f"128x128x32_w8_s4_{WS}_b1x1x4x8",
    ),
    # Three ways of 36 tiles leave 24 of 132 compute units idle: 190 and 226 µs.
    (
        layer(32, 256, 56, "weights"),
        f"128x128x64_w8_s4_{SPLIT}_b1x8x8", f"128x128x64_w8_s4_{SK}_b1x8x8",
    ),
]  # fmt: skip
"""A layer, a kernel, and one that took longer on an H200."""


@pytest.mark.parametrize(("p", "faster", "slower"), MEASURED)
def test_kernels_are_in_the_order_that_was_measured(p, faster, slower):
    assert us(faster, p) < us(slower, p)


def test_of_equal_estimates_the_kernel_that_loads_shared_memory_least_goes_first():
    """30.0 and 43.7 µs: two groups of 64 rows each read the 64 columns, and groups that take turns
    read 128 once for as many products."""
    p = replace(layer(32, 512, 8, "data"), k=1024)
    names = [f"128x64x64_w8_s6_{WS}_b1x8x8", f"64x128x64_w8_s6_{TURNS}_b1x8x8"]
    assert us(names[0], p) == pytest.approx(us(names[1], p), abs=0.005)
    both = [FAMILY.parse_name(f"conv_data_2d_bf16_bf16_{name}") for name in names]
    first, second = FAMILY.rank(p, both, H200)
    assert (first[0], second[0]) == (both[1], both[0])
    assert dict(first[1].terms)[SHARED] < dict(second[1].terms)[SHARED]


def test_narrow_accumulators_read_rows_of_weights_longer():
    """144 columns have accumulators of 128 and 16; rows of 32 bytes take more than their share."""
    p = replace(layer(8, 720, 40, "data"), k=576)

    def reads(direction):
        name = f"conv_{direction}_2d_bf16_bf16_128x144x64_w8_s6_{TURNS}_b1x4x32"
        of = replace(p, direction=direction, k=720)
        return dict(FAMILY.estimate(FAMILY.parse_name(name), of, H200).terms)[PORT]

    assert reads("data") > 1.1 * reads("forward"), (
        "whose weights have the channels summed innermost"
    )


def test_columns_outside_cost_where_products_do_not_hide_them():
    small, large = f"128x128x64_w8_s5_{WS}_b1x1x64", f"256x128x64_w8_s3_{WS}_b1x2x64"
    p = layer(8, 320, 64)
    whole = replace(p, k=384)
    assert us(large, p) == pytest.approx(us(large, whole), rel=0.02)
    # A third of the steps have 64 rows outside, which take longer than their products do.
    assert us(small, p) > 1.15 * us(small, whole)


def test_several_taps_side_by_side_read_y_once_for_them():
    p = layer(64, 64, 56, "weights")
    split = [c for c in configs(p) if c.scheduler == "split"]
    c = next(c for c in split if c.spread and c.tile_n == 192)
    plain = next(c for c in split if c.tile_m == c.tile_n == 64)
    read = [
        dict(FAMILY.estimate(one, p, H200).terms)[PORT] for one in (c, plain)
    ]  # fmt: skip
    # Of y and x, nine steps of 2 boxes are three of 4.
    assert read[0] / read[1] == pytest.approx(3 * 4 / (9 * 2), rel=0.06)


@pytest.mark.parametrize("units", [5, 24, 60, 132])
@pytest.mark.parametrize("columns", [128, 256])
def test_shares_are_the_kernels(units, columns):
    """As ops/device/schedule.py cuts them."""
    assert schedule.MOST_WAYS.value == tile_sharing.MOST_WAYS
    p = replace(DENSE, direction="weights")
    gpu = replace(H200, compute_units=units)
    c = next(c for c in configs(p) if c.scheduler == "stream_k" and c.tile_n == columns)
    x = context(c, p, gpu)
    found, steps, workers = sharing.shares(x), x.case.steps, x.case.programs
    if found.ways > 1:
        assert found.tiles * found.ways <= workers and found.steps * found.ways == steps
        assert found.ways == 16 or found.tiles * (found.ways + 1) > workers
    else:
        assert workers * found.steps >= found.tiles * steps
        assert (workers - 1) * found.steps < found.tiles * steps or not found.tiles
