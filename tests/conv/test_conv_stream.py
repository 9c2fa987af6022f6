"""Pipeline ``stream``: depthwise convolutions of one tap as one stream of products."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.pipelines.stream import PIPELINE
from tilewright.ops.conv.stated import first_strides

FAMILY = ops.family("conv")
P = ConvProblem(3, 36, 36, (5, 7), (1, 1), 36)


def space(p, name="sm_90"):
    found = FAMILY.default_space(p, arch(name)).expand(arch(name)).configs
    return [c for c in found if FAMILY.supports(c, p, arch(name))]


@pytest.mark.parametrize(
    ("c", "spatial", "dtype", "channels"),
    [(36, (5, 7), "bf16", 4), (24, (11,), "fp16", 8), (7, (2, 3, 4), "fp32", 1),
     (1, (9,), "bf16", 1), (48, (6, 5), "int8", 4), (16, (3, 3), "e4m3fn", 8)],
)  # fmt: skip
def test_a_vector_of_channels_meets_its_weights(c, spatial, dtype, channels):
    """In 1-D to 3-D: a pixel's channels are one vector or several, and the last tile is in part
    empty."""
    dispatcher = Dispatcher(device="h200_sxm", selector="analytical")
    for direction in ("forward", "data") if dtype in ("bf16", "fp16", "fp32") else ("forward",):
        p = ConvProblem(
            3, c, c, spatial, (1,) * len(spatial), c, dtype=dtype, direction=direction
        )  # fmt: skip
        chosen = next(one for one in space(p) if one.pipeline == PIPELINE)
        assert chosen.tile_n == channels
        assert verify.verify(dispatcher, p, chosen.name).ok, (p, chosen.name)


def test_nothing_that_looks_for_pixels_is_beside_it():
    for p in (P, replace(P, direction="data"), replace(P, n=256, spatial=(80, 80))):
        pipelines = {one.pipeline for one in space(p)}
        assert PIPELINE in pipelines and "depthwise" not in pipelines
        planned = Dispatcher(device="h200_sxm", selector="analytical").select(p)
        assert planned.config.pipeline == PIPELINE


@pytest.mark.parametrize(
    ("p", "why"),
    [(replace(P, stride=(1, 2)), "strides of 1"), (replace(P, filter=(1, 3)), "one tap"),
     (replace(P, pad=(0, 1), pad_after=(0, 0)), "no padding"),
     (replace(P, pad_after=(1, 0)), "no padding"),
     (replace(P, **first_strides(P)), "aligned to 1 bytes"),
     (replace(P, x_strides=(40 * 35, 1, 40 * 7, 40)), "gaps"),
     (replace(P, c=34, k=34, groups=34), "aligned to 4 bytes"),
     (replace(P, epilogue="bias"), "epilogue"), (replace(P, direction="weights"), "direction")],
)  # fmt: skip
def test_what_is_no_stream_is_computed_by_others(p, why):
    kernel = next(one for one in space(P) if one.pipeline == PIPELINE)
    verdict = FAMILY.supports(kernel, p, arch("sm_90"))
    assert not verdict and why in str(verdict)
    streams = [one for one in space(p) if one.pipeline == PIPELINE and not one.turned]
    assert space(p) and all(one.tile_n < 4 for one in streams)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [("direction", "weights", "gradients of weights"), ("epilogue", "bias", "epilogue"),
     ("index_bits", 64, "32 bits")],
)  # fmt: skip
def test_configs_that_are_no_stream(field, value, why):
    kernel = next(one for one in space(P) if one.pipeline == PIPELINE)
    verdict = FAMILY.judge(replace(kernel, **{field: value}), arch("sm_90"))
    assert not verdict and why in str(verdict)


def test_more_vectors_for_a_thread_where_there_are_many():
    small, large = P, replace(P, n=256, spatial=(80, 80))
    planner = Dispatcher(device=device("h200_sxm"), selector="analytical")
    assert planner.select(small).config.tile_m < planner.select(large).config.tile_m


@pytest.mark.turns(12)
def test_it_compiles_without_spills(store):
    asked = [(one, name) for name in ("sm_90", "gfx942") for one in space(P, name)
             if one.pipeline == PIPELINE][2::3]  # fmt: skip
    for result in build_once(asked, store).results:
        assert result.kernel is not None, result.reason
        assert result.kernel.resources.spill_bytes == 0
