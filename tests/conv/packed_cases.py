"""Problems of few channels with every kind of edge, and the kernels that pack them."""

from __future__ import annotations

from dataclasses import replace

from tilewright import ops
from tilewright.arch import arch
from tilewright.ops.conv import ConvProblem

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")

STEM = ConvProblem(2, 3, 64, (20, 22), (7, 7), stride=(2, 2), pad=(3, 3))
CASES = {
    "a stem": STEM,
    "channels first": replace(STEM, x_strides=(3 * 20 * 22, 20 * 22, 22, 1)),
    "no stride": ConvProblem(1, 4, 48, (9, 12), (3, 3), pad=(1, 1), epilogue="bias+relu"),
    "patches": ConvProblem(4, 3, 96, (32, 32), (4, 4), stride=(4, 4)),
    "one channel in 1-D": ConvProblem(3, 1, 32, (90,), (10,), stride=(5,)),
    "video": ConvProblem(2, 3, 16, (3, 9, 10), (3, 3, 3), pad=(1, 1, 1), dtype="fp16"),
    "eight channels": ConvProblem(2, 8, 40, (13, 11), (5, 3), stride=(1, 2), pad=(2, 1)),
    "more zeros behind": ConvProblem(
        2, 2, 32, (11, 9), (2, 4), stride=(1, 2), pad=(0, 1), pad_after=(1, 4)
    ),
    "pixels left out": ConvProblem(1, 3, 32, (12, 24), (3, 3), pad=(1, -2), pad_after=(1, -3)),
    "a taller dilation": ConvProblem(2, 3, 32, (15, 17), (3, 3), dilation=(2, 1), pad=(2, 1)),
    "one row": ConvProblem(3, 3, 32, (1, 40), (1, 5), stride=(1, 2), pad=(0, 2)),
    "an array added": replace(STEM, epilogue="add+relu"),
}


def configs(p: ConvProblem):
    """The kernels of a tuning's spaces that pack and serve `p`, the first and the last."""
    spaces = FAMILY.tuning_spaces(p, SM_90)
    found = [c for space in spaces for c in space.expand(SM_90).configs]
    served = [c for c in found if c.pipeline == "gluon_packed" and FAMILY.supports(c, p, SM_90)]
    return [served[0], served[-1]]
