"""Problems for the kernels for groups that keep rows of pixels in shared memory."""

from __future__ import annotations

from dataclasses import replace

from served import served

from tilewright import ops
from tilewright.arch import arch
from tilewright.ops.conv import ConvConfig, ConvProblem
from tilewright.ops.conv.pipelines.grouped_tiles import PIPELINE, taps

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
RESNEXT = ConvProblem(32, 256, 256, (56, 56), (3, 3), 32, pad=(1, 1))
ODD = ConvProblem(9, 80, 80, (5, 11), (3, 3), 10, pad=(1, 1))

CASES = {
    "groups of 8": ODD,
    "groups of 4": replace(ODD, groups=20, dtype="fp16", dtype_out="fp16", epilogue="bias"),
    "groups of 16": replace(ODD, groups=5, epilogue="bias+relu+add"),
    "groups of 32": replace(ODD, c=96, k=96, groups=3, n=3),
    "data": replace(ODD, direction="data", epilogue="bias"),
    "data of 32": replace(ODD, c=96, k=96, groups=3, n=3, direction="data", pad=(2, 0)),
    "groups of 32, added": replace(ODD, c=96, k=96, groups=3, n=3, epilogue="add"),
    "classes of 32": replace(
        ODD, c=96, k=96, groups=3, n=3, stride=(2, 2), direction="data", epilogue="bias"
    ),
    "one tap": replace(ODD, filter=(1, 1), pad=(0, 0)),
    "padding": replace(ODD, filter=(2, 4), pad=(0, 3), pad_after=(2, -1)),
    "data, padding": replace(
        ODD, filter=(2, 4), pad=(0, 3), pad_after=(2, -1), direction="data", groups=5
    ),
    "1-D": ConvProblem(9, 64, 64, (21,), (5,), 4, pad=(2,), pad_after=(1,)),
    "strides": replace(ODD, stride=(2, 2), spatial=(9, 21)),
    "strides, padding": replace(
        ODD, stride=(2, 2), filter=(4, 5), spatial=(9, 21), pad=(0, 3), pad_after=(2, -1),
        groups=5,
    ),
    "classes": replace(ODD, stride=(2, 2), direction="data", epilogue="bias+add"),
    "classes, padding": replace(
        ODD, stride=(2, 2), filter=(2, 5), pad=(0, 3), pad_after=(2, -1), direction="data",
    ),
    "1-D classes": ConvProblem(
        9, 64, 64, (21,), (5,), 4, stride=(2,), pad=(2,), direction="data"
    ),
    "weights": replace(ODD, direction="weights"),
    "weights of 4": replace(ODD, groups=20, direction="weights", dtype="fp16", dtype_out="fp16"),
    "weights of 16": replace(ODD, groups=5, direction="weights", pad=(2, 0)),
    "weights of 32": replace(ODD, c=96, k=96, groups=3, n=3, direction="weights"),
    "weights, padding": replace(
        ODD, filter=(2, 4), pad=(0, 3), pad_after=(2, -1), direction="weights", groups=5
    ),
    "weights, strides": replace(
        ODD, stride=(2, 2), filter=(4, 3), spatial=(9, 21), direction="weights"
    ),
    "weights, one tap": replace(
        ODD, stride=(2, 2), filter=(1, 1), pad=(0, 0), spatial=(9, 21), direction="weights"
    ),
    "1-D weights": ConvProblem(
        9, 64, 64, (21,), (5,), 4, pad=(2,), pad_after=(1,), direction="weights"
    ),
    "weights, gaps": replace(
        ODD, direction="weights", x_strides=(8800, 1, 1056, 96), y_strides=(5280, 1, 1056, 96),
        w_strides=(99, 1, 30, 10),
    ),
    "gaps": replace(
        ODD, x_strides=(8800, 1, 1056, 96), y_strides=(5280, 1, 1056, 96),
        w_strides=(99, 1, 30, 10),
    ),
}  # fmt: skip


def configs(p: ConvProblem, ahead: tuple[int, ...] = (2,)) -> list[ConvConfig]:
    """The configs of the pipeline that serve `p`. ahead: rows on their way."""
    return [c for c in served(p, PIPELINE) if c.num_stages - taps(c)[0] in ahead]
