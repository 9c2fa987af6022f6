"""The kernel for groups that keeps rows of pixels in shared memory: what the rules refuse, how a
result is cut, the kernel in the simulation, faults put into it, and what it is built to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sim_language as language
import sim_names
from grouped_gluon_cases import CASES, FAMILY, ODD, RESNEXT, SM_90, configs
from sim_values import Fault

from shared_builds import build_once
from simulate import simulated_run, worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, pipelines
from tilewright.ops.conv.pipelines import gluon_grouped, grouped_tiles
from tilewright.ops.nouns import MAIN, Descriptor

H200 = device("h200")
TWO = replace(H200, compute_units=2)


def default(p: ConvProblem):
    """The configs of the default space that serve `p`."""
    found = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    return [c for c in found if FAMILY.supports(c, p, SM_90)]


def narrow(p: ConvProblem):
    return configs(p)[0]


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(sim_names, "known_functions", {})


# --- in the simulation -------------------------------------------------------------------------


@pytest.mark.grid(2)
@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_rows_in_the_simulation(number, case):
    """The narrow tile and the wide one in turn."""
    p = CASES[case]
    found = configs(p)  # of a long filter the narrow one alone
    c = found[number % len(found)]
    assert worst_error(c, p, TWO, number) <= 1, c.name


@pytest.mark.parametrize("direction", ["forward", "data"])
def test_what_is_infinite_stays_in_its_group(direction):
    p = replace(ODD, n=2, direction=direction)
    data = verify.operands_of(p, 4)
    read, out = ("x", "y") if direction == "forward" else ("y", "x")
    plain = verify.reference(p, data.inputs)[out]
    inputs = {}
    for one in FAMILY.operands(p):
        if one.read:
            values = np.array(data.inputs[one.name], np.float32)
            if one.name == read:
                values[:, 8:16] = np.inf
            order = (0, *range(2, values.ndim), 1)
            inputs[one.name] = np.ascontiguousarray(values.transpose(order))
    got = np.asarray(simulated_run(narrow(p), p, TWO, inputs)[out], np.float32)
    assert not np.isfinite(got[:, 8:16]).any()
    others = np.r_[0:8, 16:80]
    assert np.allclose(got[:, others], np.asarray(plain)[:, others], atol=0.1, rtol=0.02)


@pytest.mark.parametrize("name", ["x", "y"])
def test_what_is_infinite_stays_in_its_groups_weights(name):
    """Tiles go beyond the pixels: beside what y lacks, there is x."""
    p = replace(ODD, n=2, direction="weights")
    data = verify.operands_of(p, 4)
    plain = np.asarray(verify.reference(p, data.inputs)["w"])
    inputs = {}
    for one in FAMILY.operands(p):
        if one.read:
            values = np.array(data.inputs[one.name], np.float32)
            if one.name == name:
                values[:, 8:16] = np.inf
            inputs[one.name] = np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    got = np.asarray(simulated_run(narrow(p), p, TWO, inputs)["w"], np.float32)
    assert not np.isfinite(got[8:16]).any()
    others = np.r_[0:8, 16:80]
    assert np.allclose(got[others], plain[others], atol=0.1, rtol=0.02)


@pytest.mark.parametrize("masked", [True, False])
def test_pixels_that_y_lacks_meet_none_of_x(monkeypatch, masked):
    """The last columns of x are infinite, and y's last pixels do not see them; those that a tile
    has behind them would."""
    p = replace(ODD, n=2, direction="weights", pad_after=(1, -3))
    if not masked:
        monkeypatch.setitem(language.FUNCTIONS, "where", lambda condition, a, b: a)
    data = verify.operands_of(p, 4)
    inputs = {}
    for one in FAMILY.operands(p):
        if one.read:
            values = np.array(data.inputs[one.name], np.float32)
            if one.name == "x":
                values[..., -3:] = np.inf
            inputs[one.name] = np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    got = np.asarray(simulated_run(narrow(p), p, TWO, inputs)["w"], np.float32)
    assert np.isfinite(got).all() == masked


@pytest.mark.parametrize("direction", ["forward", "weights"])
def test_a_row_that_is_read_before_it_has_come_is_found(monkeypatch, direction):
    """Nobody waits for the copies."""
    wait = lambda barrier, phase: None  # noqa: E731
    monkeypatch.setitem(language.OBJECTS, id(language.hopper.mbarrier.wait), wait)
    monkeypatch.setitem(language.BARRIER, "wait", wait)
    p = replace(ODD, groups=5, direction=direction)
    try:
        assert not worst_error(narrow(p), p, TWO) <= 1  # NaN, or what was there before
    except Fault as fault:
        assert "more arrive" in str(fault)


def test_a_result_that_no_fence_follows_is_found(monkeypatch):
    monkeypatch.setitem(language.OBJECTS, id(language.hopper.fence_async_shared), lambda **_: None)
    with pytest.raises(Fault, match="without fence_async_shared"):
        worst_error(narrow(ODD), ODD, TWO)


def test_on_a_cpu_another_kernel_computes_the_same():
    p = replace(ODD, n=2, dtype="fp16", dtype_out="fp16", epilogue="bias")
    found = verify.verify(Dispatcher(device="h200_sxm"), p, narrow(p).name, seed=1)
    assert found.ok, found


@pytest.mark.grid(5)
@pytest.mark.parametrize("case", CASES)
def test_tensor_maps_are_ones_that_the_driver_takes(case):
    p = CASES[case]
    for c in configs(p):
        for step in FAMILY.launch(c, p, TWO).steps:
            views = [one for one in step.arguments if isinstance(one, Descriptor)]
            assert len(views) == 3 or not views  # sums of parts
            for view in views:
                steps = view.element_strides or (1,) * len(view.shape)
                assert all(n >= 1 for n in view.shape) and view.strides[-1] == 1
                assert all(s > 0 and s % 8 == 0 for s in view.strides[:-1])
                assert view.offset % 8 == 0
                assert all(n * s <= 256 for n, s in zip(view.block, steps, strict=True))


# --- strips ------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 7, 132])
@pytest.mark.parametrize("spatial", [(56, 56), (7, 7), (1, 300), (97, 5)])
def test_strips_cover_the_result(units, spatial):
    p = replace(RESNEXT, spatial=spatial, n=19)
    for c in configs(p):
        few = replace(H200, compute_units=units)
        cut = gluon_grouped.cut(c, p, (0, 0, 0), few)
        height, width = p.out_sizes
        assert cut.rows * cut.segments >= height > cut.rows * (cut.segments - 1)
        assert cut.tiles_w == -(-width // grouped_tiles.columns(c))
        assert (cut.slabs, cut.sets) == (4, 3)
        assert 1 <= cut.programs <= cut.each
        at_once = gluon_grouped.resident(c, arch("sm_90"))
        assert cut.slabs * cut.programs <= max(cut.slabs, at_once * units)


# --- rules -------------------------------------------------------------------------------------

OF_WEIGHTS = {"direction": "weights", "scheduler": "split", "reduction": "two_stage"}


@pytest.mark.parametrize(
    ("fields", "rule", "why"),
    [
        ({"direction": "weights"}, "pipeline", "scheduler and reduction split two_stage"),
        (
            {**OF_WEIGHTS, "reduction": "tree"},
            "pipeline",
            "scheduler and reduction split two_stage",
        ),
        ({**OF_WEIGHTS, "tile_m": 128, "box": "8x1x16"}, "pipeline", "rows of 8 pixels, not 16"),
        ({**OF_WEIGHTS, "held": "5x5s1x1"}, "pipeline", "25 taps of 16 channels are over 288 sums"),
        ({"spatial_dims": 3}, "pipeline", "1 or 2 dimensions, not of 3"),
        ({"dtype_out": "fp32"}, "pipeline", "is for 16-bit types, not for bf16 to fp32"),
        ({"scheduler": "tile"}, "pipeline", "scheduler and reduction persistent none"),
        ({"merged": True}, "pipeline", "and merged steps"),
        ({"alignment": 8}, "pipeline", "aligned to 16 bytes, not 8 and 16"),
        ({"num_warps": 8}, "pipeline", "has 4 warps, not 8"),
        ({"tile_n": 32}, "pipeline", "tile 64x32x16 is not"),
        ({"tile_k": 64}, "pipeline", "tile 64x64x64 is not"),
        ({"merged_groups": 8}, "pipeline", "8 groups do not make a slice of 16 channels"),
        ({"tile_k": 32}, "pipeline", "merged to slices of 16 channels, not of 32"),
        ({"box": "8x1x16"}, "pipeline", "box '8x1x16' is not 8x1x8"),
        ({"held": "3s1"}, "pipeline", "held = '3s1' is not a filter of 2 dimensions"),
        ({"held": ""}, "pipeline", "held = '' is not a filter of 2 dimensions"),
        ({"held": "3x3s2x1"}, "pipeline", "strides are not alike, or over 2"),
        ({"held": "3x3s4x4"}, "pipeline", "strides are not alike, or over 2"),
        (
            {"held": "1x3s2x2", "direction": "data"},
            "pipeline",
            "1x3s2x2 has no tap for some pixels",
        ),
        ({"held": "3x11s1x1"}, "pipeline", "11 taps along the width, over 9"),
        ({"held": "5x3s1x1"}, "pipeline", "5 rows in the ring are not more than the filter's 5"),
        ({"num_stages": 24}, "warps", "num_stages = 24 is over"),
        (
            {"pipeline": "implicit", "scheduler": "tile", "box": ""},
            "combination",
            "are written out for a filter",
        ),
    ],
)
def test_what_cannot_be_built(fields, rule, why):
    verdict = FAMILY.judge(replace(narrow(RESNEXT), **fields), SM_90)
    assert verdict.rule == rule and why in verdict.reason


@pytest.mark.parametrize(
    ("fields", "rule", "why"),
    [
        ({"groups": 16}, "pipeline", "is for groups of 8 channels, not of 16 and 16"),
        ({"k": 512}, "pipeline", "is for groups of 8 channels, not of 8 and 16"),
        ({"filter": (3, 5)}, "pipeline", "is for filters 3x3s1x1, not for 3x5s1x1"),
        ({"stride": (2, 2)}, "pipeline", "is for filters 3x3s1x1, not for 3x3s2x2"),
        ({"dilation": (2, 2)}, "pipeline", "has dilations of 1, not of (2, 2)"),
        ({"n": 0}, "pipeline", "x has no elements"),
        ({"alignment": 8}, "vector_width", "aligned to 8 bytes, under 16"),
        ({"direction": "data"}, "signature", "is for direction 'forward'"),
    ],
)
def test_what_cannot_be_served(fields, rule, why):
    verdict = FAMILY.supports(narrow(RESNEXT), replace(RESNEXT, **fields), SM_90)
    assert verdict.rule == rule and why in verdict.reason


def test_other_architectures_do_not_have_it():
    for name in ("sm_80", "sm_100", "gfx942"):
        assert (
            "which pipeline gluon_grouped needs" in FAMILY.judge(narrow(RESNEXT), arch(name)).reason
        )
        assert grouped_tiles.PIPELINE not in FAMILY.pipelines(arch(name))
    assert grouped_tiles.PIPELINE in FAMILY.pipelines(SM_90)


def test_names_say_the_filter():
    for c in configs(RESNEXT, (1, 2, 3)):
        assert f"_b{c.box}_f3x3s1x1_mg2" in c.name and FAMILY.parse_name(c.name) == c
    for c in configs(replace(RESNEXT, stride=(2, 2))):
        assert f"_b{c.box}_f3x3s2x2_mg2" in c.name and FAMILY.parse_name(c.name) == c


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize("groups", [64, 32, 16, 8])
def test_layers_of_groups_prefer_it(direction, groups):
    p = replace(RESNEXT, groups=groups, direction=direction)
    assert FAMILY.rank(p, default(p), H200)[0][0].pipeline == grouped_tiles.PIPELINE


def test_one_image_leaves_it_little_ahead():
    """Most compute units have no tile then."""
    shares = []
    for n in (1, RESNEXT.n):
        p = replace(RESNEXT, n=n)
        ranked = FAMILY.rank(p, default(p) + configs(p), H200)
        own = next(e.total_us for c, e in ranked if c.pipeline == grouped_tiles.PIPELINE)
        other = next(e.total_us for c, e in ranked if c.pipeline != grouped_tiles.PIPELINE)
        shares.append(other / own)
    assert shares[0] < 1.2 < shares[1]


# --- builds ------------------------------------------------------------------------------------


@pytest.mark.turns(64)
def test_nothing_spills_and_shared_memory_is_as_said(store):
    problems = [
        RESNEXT, replace(RESNEXT, groups=16, stride=(2, 2)),
        replace(RESNEXT, groups=8, direction="data", epilogue="bias+add"),
        replace(RESNEXT, direction="weights"), replace(RESNEXT, groups=8, direction="weights"),
        replace(RESNEXT, groups=8, epilogue="bias+relu"),
        replace(RESNEXT, filter=(4, 5)),  # more taps than are loaded at once
    ]  # fmt: skip
    built = [*map(narrow, problems), configs(RESNEXT)[-1]]
    report = build_once([(c, "sm_90") for c in built], store)
    results = {r.name: r for r in report.results if r.part == MAIN}
    for c in built:
        kernel = results[c.name].kernel
        assert kernel is not None, results[c.name].reason
        assert kernel.resources.spill_bytes == 0
        assert 0 <= pipelines.of(c).shared_memory(c, SM_90) - kernel.shared <= 512
        if grouped_tiles.kept(c, *grouped_tiles.taps(c)):
            threads = grouped_tiles.KEPT_AT_ONCE * 32 * c.num_warps
            assert threads * kernel.resources.registers <= 65536
            assert gluon_grouped.resident(c, SM_90) == grouped_tiles.KEPT_AT_ONCE
