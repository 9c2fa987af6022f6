"""What the rules refuse, and that every problem has a kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conv_problems import problems
from hypothesis import given, settings

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.conv import ConvProblem

FAMILY = ops.family("conv")
ARCHS = ("sm_80", "sm_90", "sm_100", "gfx90a", "gfx942", "gfx950", "gfx1201")
DENSE = ConvProblem(8, 640, 640, (32, 32), (3, 3), pad=(1, 1))
HELD = {"pipeline": "window", "held": "3x3s1x1", "group_m": 1, "tile_m": 4}


def config(**fields):
    return FAMILY.make_config({**FAMILY.axes(), **fields}, arch("sm_90"))


@pytest.mark.parametrize(
    ("fields", "rule", "why"),
    [
        ({"scheduler": "split"}, "combination", "pixels are split for gradients of weights"),
        ({"direction": "weights", "epilogue": "bias"}, "combination", "have no epilogue"),
        ({"epilogue": "row_scale"}, "combination", "row_scale is for rows"),
        ({"pipeline": "depthwise", "merged": True}, "combination", "nothing to merge"),
        ({"pipeline": "depthwise", "tile_k": 2}, "combination", "tile_k is 1, not 2"),
        ({"pipeline": "depthwise", "tile_k": 1}, "combination", "group_m is 1, not 8"),
        (
            {"pipeline": "window"},
            "combination",
            "written out for a filter, as in 3x3s1x1; window has",
        ),
        ({"held": "3x3s1x1"}, "combination", "implicit has held = '3x3s1x1'"),
        ({**HELD, "held": "31s1"}, "combination", "one tap in a step: tile_k is 1, not 32"),
        ({**HELD, "held": "12x12s1x1"}, "tile", "12x12s1x1 has more than 128 taps"),
        ({**HELD, "held": "33s1", "tile_k": 1}, "tile", "33s1 has more than 32 taps"),
        (
            {**HELD, "spatial_dims": 3, "held": "3x3x3s4x4"},
            "tile",
            "reads 180 pixels in a step, over 128",
        ),
        ({**HELD, "tile_m": 1}, "tile", "64 strips and channels have no work for 128 threads"),
        ({**HELD, "held": "9x9s1x1"}, "registers", "258 sums"),
        ({"tile_m": 96}, "tile", "tile_m = 96 is not a power of two"),
        ({"tile_n": 512}, "tile", "tile_n = 512 is not from"),
        ({"dtype": "int8", "tile_k": 16}, "tile", "tile_k = 16 is under 32"),
        ({"num_warps": 3}, "warps", "not a power of two"),
        ({"num_warps": 64}, "warps", "2048 threads, over 1024"),
        ({"tile_m": 256, "tile_n": 256, "num_warps": 4}, "registers", "512 sums"),
        ({"tile_k": 256, "num_stages": 4}, "shared_memory", "bytes of shared memory"),
        ({"precision": "tf32"}, "dtype", "tf32 multiplies fp32"),
        ({"dtype": "int8", "direction": "data"}, "dtype", "gradients are of bf16"),
        ({"dtype": "fp32", "tile_m": 128, "tile_n": 128, "num_warps": 8}, "dot", "products a"),
    ],
)
def test_what_cannot_be_built(fields, rule, why):
    verdict = FAMILY.judge(config(**fields), arch("sm_90"))
    assert verdict.rule == rule and why in verdict.reason


@pytest.mark.parametrize(
    ("fields", "problem", "rule", "why"),
    [
        ({}, replace(DENSE, direction="data"), "signature", "is for direction 'forward'"),
        ({"spatial_dims": 3}, DENSE, "signature", "is for 3 dimensions, not 2"),
        ({}, replace(DENSE, epilogue="bias"), "signature", "is for epilogue ''"),
        ({"pipeline": "depthwise", "tile_k": 1, "group_m": 1}, DENSE, "depthwise", "640 channels"),
        (
            HELD,
            replace(DENSE, groups=640, stride=(1, 2)),
            "pipeline",
            "holds 3x3s1x1, but windows for the problem hold 3x3s1x2 or 3s2",
        ),
        ({}, replace(DENSE, c=642), "vector_width", "read are aligned to 4 bytes, under 16"),
        ({}, replace(DENSE, k=642), "vector_width", "channels of y are aligned to 4 bytes"),
        ({}, replace(DENSE, alignment=8), "vector_width", "8 bytes, under 16"),
        ({}, replace(DENSE, n=4096), "index", "which 32-bit indices do not reach"),
    ],
)
def test_what_cannot_be_served(fields, problem, rule, why):
    verdict = FAMILY.supports(config(**fields), problem, arch("sm_90"))
    assert verdict.rule == rule and why in verdict.reason
    assert FAMILY.supports(config(), DENSE, arch("sm_90"))


@pytest.mark.turns(4)
@settings(max_examples=60)
@given(problems())
def test_every_problem_has_kernels_everywhere(problem):
    for name in ARCHS:
        this = arch(name)
        word = "tf32" if problem.precision == "tf32" else problem.dtype
        if this.dtypes[word].support == "refused":
            continue
        found = FAMILY.default_space(problem, this).expand(this).configs
        assert any(FAMILY.supports(c, problem, this) for c in found), (name, problem)


@pytest.mark.parametrize("name", ["h200_sxm", "mi300x", "rx_9070_xt"])
def test_estimates_are_of_a_reasonable_size(name):
    """Not under the roofline, and no choice of a tile for few filters where there are many."""
    this = device(name)
    for direction in ("forward", "data", "weights"):
        problem = replace(DENSE, direction=direction)
        found = FAMILY.default_space(problem, arch(this.arch)).expand(arch(this.arch)).configs
        best, estimate = FAMILY.rank(problem, found, this)[0]
        assert estimate.total_us > problem.min_bytes / this.bandwidth_gbs / 1e3
        assert best.tile_m >= 64 and best.tile_n >= 64


def test_a_gradient_of_few_weights_is_split():
    problem = ConvProblem(32, 64, 64, (56, 56), (3, 3), pad=(1, 1), direction="weights")
    found = FAMILY.default_space(problem, arch("sm_90")).expand(arch("sm_90")).configs
    best, _ = FAMILY.rank(problem, found, device("h200_sxm"))[0]
    assert best.scheduler == "split"


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize("groups", [1, 4, 128])
def test_groups_are_as_aligned_as_kernels_are_promised(direction, groups):
    """Tiles of one group begin at each group's channels. A kernel for the depthwise one of these
    stored 16 bytes at once, at addresses that were multiples of 4."""
    p = ConvProblem(
        2, 128, 128, (16,), (3,), groups, dtype="fp32", precision="tf32", direction=direction
    )
    channels = {"x": p.group_c, "y": p.group_k, "w": p.group_c}
    *read, made = {"forward": "xwy", "data": "ywx", "weights": "xyw"}[direction]
    seen = 0
    for space in FAMILY.tuning_spaces(p, arch("sm_90")):
        for c in space.expand(arch("sm_90")).configs:
            if c.pipeline == "implicit" and FAMILY.supports(c, p, arch("sm_90")):
                seen += 1
                assert channels[made] * 4 % c.alignment_out == 0, c.name
                assert all(channels[n] * 4 % c.alignment == 0 for n in read if n != "w"), c.name
    assert seen > 0


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_kernels_of_every_pipeline_are_judged_together_as_each_alone(direction):
    """Each of these problems has kernels that the others refuse, some of which would divide by
    nothing there."""
    small = {"pad": (1, 1), "direction": direction}
    asked = [
        ConvProblem(4, 64, 72, (14, 14), (3, 3), **small),
        ConvProblem(4, 64, 72, (14, 14), (3, 3), stride=(2, 2), **small),
        ConvProblem(4, 3, 64, (14, 14), (3, 3), **small),
        ConvProblem(4, 64, 64, (14, 14), (3, 3), groups=8, **small),
        ConvProblem(4, 64, 64, (14, 14), (3, 3), groups=64, **small),
        ConvProblem(4, 64, 64, (14, 14), (3, 3), dilation=(2, 2), groups=64, alignment=2, **small),
        ConvProblem(4, 0, 64, (14, 14), (3, 3), **small),
    ]
    this = arch("sm_90")
    spaces = (FAMILY.default_space(p, this).expand(this).configs for p in asked[:-1])
    found = [*dict.fromkeys(c for configs in spaces for c in configs)]
    few = ConvProblem(4, 16, 16, (14, 14), (3, 3), groups=2, **small)
    huge = ConvProblem(2**30, 64, 72, (2**20, 2**20), (3, 3), **small)
    for p in (*asked, few, huge):
        alone = [i for i, c in enumerate(found) if FAMILY.supports(c, p, this)]
        assert FAMILY.serving(p, found, this) == alone
        assert len(alone) < len(found)
    assert not alone and len({c.pipeline for c in found}) > 3
