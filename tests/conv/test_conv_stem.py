"""Runs, of stems with few channels: in the interpreter, over channels, strides and paddings;
where they begin; what the rules refuse, and what is built."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.conv import ConvProblem, runs
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.ops.conv.pipelines.implicit import aligned_weights
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
STEM = ConvProblem(32, 3, 64, (224, 224), (7, 7), stride=(2, 2), pad=(3, 3))


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def kernel(p: ConvProblem, **fields):
    """A kernel of runs for `p`."""
    said = {
        "direction": p.direction, "spatial_dims": len(p.spatial), "dtype": p.dtype,
        "dtype_out": p.dtype_out, "precision": p.precision, "epilogue": p.epilogue, "merged": True,
        "runs": True, "alignment": runs.alignment(p), "alignment_out": p.rows_alignment(
            p.output_name), "tile_m": 32, "tile_n": 32, "tile_k": 32, **fields,
    }  # fmt: skip
    return FAMILY.make_config({**FAMILY.axes(), **said}, SM_90)


def stem(seed: int) -> ConvProblem:
    """A problem whose pixels lie side by side."""
    rng = random.Random(seed)
    while True:
        with suppress(BadArgument):
            return _drawn(rng, 1 + seed % 3)


def _drawn(rng: random.Random, rank: int) -> ConvProblem:
    direction = rng.choice(("forward", "weights"))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randint(low, high) for _ in range(rank))

    spatial = each(4, {1: 40, 2: 9, 3: 6}[rank])
    if rng.random() < 0.5:
        spatial = (*spatial[:-1], spatial[-1] + spatial[-1] % 2)
    dilation = (*each(1, 2)[:-1], 1)
    found = ConvProblem(
        rng.randint(1, 2), rng.randint(1, 4), 8 * rng.randint(1, 4), spatial, each(1, 3),
        stride=each(1, 4), pad=each(-1, 3), pad_after=each(0, 2), dilation=dilation,
        direction=direction, dtype=rng.choice(("bf16", "fp16", "fp32")),
        epilogue=rng.choice(("", "bias+relu")) if direction == "forward" else "",
    )  # fmt: skip
    if found.dtype == "fp32" and rng.random() < 0.5:
        found = replace(found, precision="tf32")
    return found


@pytest.mark.parametrize("seed", range(12))
def test_runs_compute_the_same(dispatcher, seed):
    problem = stem(seed)
    schedulers = ("tile", "split") if problem.direction == "weights" else ("tile",)
    for scheduler in schedulers:
        c = kernel(problem, scheduler=scheduler)
        assert FAMILY.supports(c, problem, SM_90)
        found = verify.verify(dispatcher, problem, c.name, seed=seed)
        assert found.ok, (c.name, problem, found)


@pytest.mark.parametrize("direction", ["forward", "weights"])
def test_what_is_infinite_meets_only_the_taps_that_see_it(dispatcher, direction):
    """The elements before and behind a run are other pixels'."""
    problem = ConvProblem(
        1, 3, 8, (4, 12), (1, 2), stride=(1, 4), pad=(0, 1), dtype="fp16", direction=direction
    )
    assert runs.sizes(problem, runs.alignment(problem))[4] > 0
    made = verify.operands_of(problem, 3)
    out = "y" if direction == "forward" else "w"
    seen = {4 * q + tap - 1 for q in range(problem.out_sizes[1]) for tap in range(2)}
    unseen = sorted({*range(12)} - seen)
    plain = verify.reference(problem, made.inputs)[out]
    made.inputs["x"][:, :, :, unseen] = np.inf
    verify.run(dispatcher, problem, made, kernel(problem).name)
    got = np.asarray(made.outputs[out], np.float32)
    assert unseen and np.allclose(got, np.asarray(plain), atol=0.05, rtol=0.01)


@given(st.integers(0, 200))
def test_runs_begin_at_multiples_and_hold_all_taps(seed):
    problem = stem(seed)
    aligned = runs.alignment(problem)
    run, step, begin, line, early = runs.sizes(problem, aligned)
    size = {"bf16": 2, "fp16": 2, "fp32": 4}[problem.dtype]
    width = max(1, aligned // size)
    assert all(n % width == 0 for n in (run, step, begin, line))
    assert 0 <= early < width and early + problem.filter[-1] * problem.c <= run
    for q in (0, 1, 5):
        first = (q * problem.stride[-1] - problem.pad[-1]) * problem.c
        assert begin + q * step + early == first


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (replace(STEM, c=6, groups=2), "not of one of 2 groups"),
        (replace(STEM, dilation=(1, 2)), "not of a dilation of 2"),
        (replace(STEM, x_strides=(200704, 1, 896, 4)), "are not neighbours in memory"),
        (replace(STEM, x_strides=(150528, 50176, 224, 1)), "are not neighbours in memory"),
        (replace(STEM, k=65, direction="weights"), "channels of y are aligned to 2 bytes"),
    ],
)
def test_what_runs_do_not_serve(problem, why):
    c = kernel(replace(STEM, direction=problem.direction), alignment=2, alignment_out=2)
    verdict = FAMILY.supports(c, problem, SM_90)
    assert verdict.rule == "runs" and why in verdict.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"merged": False}, "runs are steps of several taps and of one group"),
        ({"merged_groups": 2}, "runs are steps of several taps and of one group"),
        ({"direction": "data"}, "runs are of pixels of x"),
    ],
)
def test_what_cannot_be_built(fields, why):
    verdict = FAMILY.judge(replace(kernel(STEM), **fields), SM_90)
    assert verdict.rule == "combination" and why in verdict.reason


def test_stems_have_runs_in_their_space():
    for direction, c, stride, read in (
        ("forward", 3, 2, 4), ("forward", 4, 2, 16), ("weights", 3, 2, 4), ("forward", 3, 4, 8),
        ("forward", 3, 1, 2), ("forward", 16, 2, 0), ("data", 3, 2, 0),
    ):  # fmt: skip
        p = replace(STEM, c=c, stride=(stride, stride), direction=direction)
        found = FAMILY.default_space(p, SM_90).expand(SM_90).configs
        found = [one for one in found if one.runs and FAMILY.supports(one, p, SM_90)]
        assert {one.alignment for one in found} == ({read} if read else set())
        assert all(FAMILY.parse_name(one.name) == one for one in found)


BUILT = {
    "forward": kernel(STEM, tile_m=128, tile_n=64, num_stages=3),
    "weights": kernel(
        replace(STEM, direction="weights"), tile_m=64, tile_n=128, tile_k=64, num_warps=8,
        scheduler="split",
    ),
}  # fmt: skip


@pytest.mark.turns(48)
@pytest.mark.parametrize("direction", BUILT)
def test_runs_are_read_in_vectors(direction, store):
    """Two elements are one load, also where a pixel has three."""
    report = build_once([(BUILT[direction], "sm_90")], store)
    kernels = [r.kernel for r in report.results if r.part == MAIN]
    assert len(kernels) == 1 and kernels[0] is not None, report.results
    assert kernels[0].resources.spill_bytes == 0
    ptx = store.read(kernels[0], "ptx").decode()
    assert re.search(r"cp\.async\.\w+\.shared\.global .*, 0x4", ptx)


def test_the_gradient_of_few_channels_reads_pixels_in_vectors(dispatcher):
    """Weights are aligned as its channels lie; where they lie worse, nothing is promised."""
    p = replace(STEM, direction="data", n=2, spatial=(13, 12))
    found = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    c = next(c for c in found if c.pipeline == "implicit" and not c.merged)
    assert (c.alignment, c.alignment_out, aligned_weights(c)) == (16, 2, 2)
    assert verify.verify(dispatcher, p, c.name, seed=1).ok
    promising = replace(c, alignment_out=1)
    assert aligned_weights(promising) == 16
    refused = FAMILY.supports(promising, p, SM_90)
    assert refused.rule == "vector_width" and "channels of weights" in refused.reason
    first = replace(p, c=64, w_strides=(64 * 49, 49, 7, 1))
    assert PIPELINES["implicit"].alignments(first) == (1, 16)


@pytest.mark.parametrize("dtype", ["int8", "e4m3fn"])
def test_runs_of_one_channel_of_a_byte(dtype, dispatcher):
    """Nothing is aligned, and the stride of the channel is 0: the kernel once read the pixel before
    each row for all of its taps."""
    p = ConvProblem(1, 1, 16, (5, 9), (3, 3), pad=(1, 1), dtype=dtype)
    c = next(c for c in FAMILY.default_space(p, SM_90).expand(SM_90).configs if c.runs)
    assert c.alignment == 1
    result = verify.verify(dispatcher, p, c.name, seed=1)
    assert result.ok, f"{c.name}: {result}"
