"""Problems of few channels with every kind of edge, and the kernels that pack them."""

from __future__ import annotations

from dataclasses import replace

from served import served

from tilewright import ops
from tilewright.ops.conv import ConvProblem

FAMILY = ops.family("conv")

STEM = ConvProblem(1, 3, 64, (14, 22), (7, 7), stride=(2, 2), pad=(3, 3))
CASES = {
    "a stem": STEM,
    "channels first": replace(STEM, x_strides=(3 * 14 * 22, 14 * 22, 22, 1)),
    "a result by channels": replace(STEM, y_strides=(64 * 77, 77, 11, 1)),
    "no stride": ConvProblem(1, 4, 48, (9, 12), (3, 3), pad=(1, 1), epilogue="bias+relu"),
    "patches": ConvProblem(2, 3, 96, (16, 32), (4, 4), stride=(4, 4)),
    "one channel in 1-D": ConvProblem(3, 1, 32, (90,), (10,), stride=(5,)),
    "video": ConvProblem(2, 3, 16, (3, 4, 10), (3, 3, 3), pad=(1, 1, 1), dtype="fp16"),
    "eight channels": ConvProblem(2, 8, 40, (13, 11), (5, 3), stride=(1, 2), pad=(2, 1)),
    "more zeros behind": ConvProblem(
        2, 2, 33, (11, 9), (2, 4), stride=(1, 2), pad=(0, 1), pad_after=(1, 4)
    ),
    "pixels left out": ConvProblem(1, 3, 32, (12, 24), (3, 3), pad=(1, -2), pad_after=(1, -3)),
    "a taller dilation": ConvProblem(2, 3, 32, (15, 17), (3, 3), dilation=(2, 1), pad=(2, 1)),
    "one row": ConvProblem(3, 3, 32, (1, 40), (1, 5), stride=(1, 2), pad=(0, 2)),
    "one pixel": ConvProblem(5, 3, 32, (6, 7), (7, 7), pad=(1, 0), dtype="fp16"),
    "a filter as wide as two steps": ConvProblem(2, 5, 32, (8, 40), (3, 12), pad=(1, 6)),
    "an array added": replace(STEM, epilogue="add+relu"),
    "fp32": replace(STEM, dtype="fp32", dtype_out="fp32", precision="tf32"),
    "int8": replace(STEM, dtype="int8", dtype_out="int32"),
    "fp8": replace(STEM, dtype="e4m3fn", dtype_out="bf16"),
}
CASES |= {
    f"weights of {name}": replace(CASES[name], direction="weights", epilogue="")
    for name in (
        "a stem", "channels first", "a result by channels", "no stride", "patches",
        "one channel in 1-D", "video", "eight channels", "more zeros behind", "pixels left out",
        "a taller dilation", "one pixel", "a filter as wide as two steps", "fp32",
    )
}  # fmt: skip

OF_DATA = {
    name: replace(p, direction="data", epilogue="")
    for name, p in CASES.items()
    if p.direction == "forward" and p.dtype not in ("int8", "e4m3fn")
}
OF_DATA |= {
    "a stride over the filter": ConvProblem(
        2, 3, 32, (13, 17), (2, 2), stride=(3, 3), direction="data"
    ),
    "a stride that divides the dilation": ConvProblem(
        1, 3, 32, (14, 19), (3, 3), stride=(2, 2), dilation=(2, 4), pad=(2, 3), direction="data"
    ),
    "a stride and a dilation without a divisor": ConvProblem(
        1, 2, 32, (14, 19), (3, 2), stride=(3, 2), dilation=(2, 3), pad=(2, 1), direction="data"
    ),
    "filters that are no whole steps": ConvProblem(
        1, 3, 45, (9, 21), (3, 3), stride=(2, 1), pad=(1, 1), direction="data"
    ),
    "a transposed convolution's epilogue": replace(STEM, direction="data", epilogue="bias+relu"),
    "video by two": ConvProblem(
        1, 3, 32, (5, 6, 9), (3, 3, 3), stride=(2, 2, 2), pad=(1, 1, 1), direction="data"
    ),
}
"""Gradients of such images."""


def configs(p: ConvProblem, name: str = "sm_90", pipeline: str = "packed"):
    """The kernels of a tuning's spaces that are of `pipeline` and serve `p`, the first and the
    last."""
    found = served(p, pipeline, name=name)
    return [found[0], found[-1]]
