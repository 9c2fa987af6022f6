"""Depthwise filters as bands of matrices: what the rules refuse, how pixels are cut, the kernels in
the simulation, faults put into them, and what they are built to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sim_language as language
import sim_names
from served import served
from sim_values import Fault

from shared_builds import build_once
from simulate import simulated_run, worst_error
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, pipelines
from tilewright.ops.conv.pipelines import gluon_bands
from tilewright.ops.nouns import MAIN, Descriptor

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
H200 = device("h200")
TWO = replace(H200, compute_units=2)
CONVNEXT = ConvProblem(128, 96, 96, (56, 56), (7, 7), 96, pad=(3, 3))
ODD = ConvProblem(3, 40, 40, (7, 19), (3, 3), 40, pad=(1, 1))


def configs(p: ConvProblem):
    """The configs of the pipeline that serve `p`."""
    return [*served(p, gluon_bands.PIPELINE)]


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(sim_names, "known_functions", {})


# --- in the simulation -------------------------------------------------------------------------

CASES = {
    "3x3": ODD,
    "5x5, fp16": replace(ODD, filter=(5, 5), pad=(2, 2), dtype="fp16", dtype_out="fp16"),
    "7x7": replace(ODD, filter=(7, 7), pad=(3, 3), n=2, c=16, k=16, groups=16),
    "unequal": replace(ODD, filter=(2, 9), pad=(0, 5), pad_after=(2, -1)),
    "one image": replace(ODD, n=1, spatial=(3, 131), c=16, k=16, groups=16),
    "many images": replace(ODD, n=17, spatial=(5, 6), c=16, k=16, groups=16),
    "gaps": replace(
        ODD, x_strides=(19200, 1, 1920, 96), y_strides=(19200, 1, 1920, 96),
        w_strides=(19, 1, 6, 2),
    ),
}  # fmt: skip


@pytest.mark.grid(4)
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_bands_in_the_simulation(number, case, direction):
    """The forms of a workgroup in turn."""
    p = replace(CASES[case], direction=direction)
    found = configs(p)
    c = found[number % len(found)]
    assert worst_error(c, p, TWO, number) <= 1, c.name


@pytest.mark.parametrize("direction", ["forward", "data"])
def test_what_is_infinite_spoils_no_neighbour(direction):
    """Zeros of a band meet pixels that no tap of theirs sees."""
    p = replace(ODD, n=2, c=16, k=16, groups=16, direction=direction)
    data = verify.operands_of(p, 4)
    read, out = ("x", "y") if direction == "forward" else ("y", "x")
    values = np.array(data.inputs[read], np.float32)
    values[0, 5, 3, 7] = np.inf
    values[1, :, 2, 0] = np.nan
    wanted = verify.reference(p, {**data.inputs, read: values})[out]
    inputs = {
        "w": np.asarray(data.inputs["w"], np.float32),
        read: np.ascontiguousarray(values.transpose(0, 2, 3, 1)),
    }
    got = np.asarray(simulated_run(configs(p)[0], p, TWO, inputs)[out], np.float32)
    assert not np.isfinite(got[0, 5, 2:5, 6:9]).any()
    assert np.allclose(got, np.asarray(wanted), atol=0.1, rtol=0.02, equal_nan=True)


def test_a_row_that_is_overwritten_while_it_leaves_is_found(monkeypatch):
    """Stores are waited for at the end alone, and not before their buffer is written again."""
    monkeypatch.setitem(
        language.OBJECTS,
        id(language.hopper.tma.store_wait),
        lambda pendings: None if pendings else language.world.wait_stores(0),
    )
    p = replace(ODD, n=17, c=16, k=16, groups=16)
    with pytest.raises(Fault, match="changed while"):
        worst_error(configs(p)[0], p, replace(H200, compute_units=1))


def test_a_row_that_is_read_before_it_came_is_found(monkeypatch):
    monkeypatch.setitem(language.BARRIER, "wait", lambda *_, **__: None)
    p = replace(ODD, c=16, k=16, groups=16, direction="weights")
    assert not worst_error(configs(p)[0], p, TWO) <= 1


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_on_a_cpu_another_kernel_computes_the_same(direction):
    p = replace(ODD, n=2, direction=direction)
    found = verify.verify(Dispatcher(device="h200_sxm"), p, configs(p)[0].name, seed=1)
    assert found.ok, found


# --- cuts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [1, 7, 132])
@pytest.mark.parametrize("spatial", [(56, 56), (7, 7), (1, 300), (97, 5)])
def test_strips_cover_the_result(units, spatial):
    p = replace(CONVNEXT, spatial=spatial, n=19)
    for c in configs(p):
        cut = gluon_bands.cut(c, p, replace(H200, compute_units=units))
        height, width = p.out_sizes
        assert cut.rows * cut.segments >= height > cut.rows * (cut.segments - 1)
        wide = gluon_bands.strips(c) * gluon_bands.STRIP
        assert cut.tiles_w * wide >= width > (cut.tiles_w - 1) * wide
        assert cut.sets * gluon_bands.images(c) >= p.n > (cut.sets - 1) * gluon_bands.images(c)
        assert cut.slabs == -(-p.c // c.tile_n) and 1 <= cut.programs <= cut.each
        resident = gluon_bands.resident(c, SM_90)
        assert cut.slabs * cut.programs <= max(cut.slabs, resident * units)


@pytest.mark.parametrize(
    ("n", "width", "box"),
    [(128, 56, "2x1x64"), (32, 28, "4x1x32"), (32, 14, "8x1x16"), (32, 7, "16x1x8"),
     (1, 300, "1x1x128"), (1, 28, "1x1x128")],
)  # fmt: skip
def test_boxes_read_the_fewest_pixels(n, width, box):
    assert gluon_bands.box(replace(CONVNEXT, n=n, spatial=(9, width))) == box


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", CASES)
def test_tensor_maps_are_ones_that_the_driver_takes(case):
    for direction in ("forward", "data", "weights"):
        p = replace(CASES[case], direction=direction)
        for c in configs(p):
            step = FAMILY.launch(c, p, TWO).steps[0]
            views = [one for one in step.arguments if isinstance(one, Descriptor)]
            assert len(views) == 3
            for view in views:
                assert all(n >= 1 for n in view.shape) and view.strides[-1] == 1
                assert all(s > 0 and s % 8 == 0 for s in view.strides[:-1])
                assert all(n <= 256 for n in view.block)


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "rule", "why"),
    [
        ({"spatial_dims": 3}, "pipeline", "is for 2 dimensions, not for 3"),
        ({"dtype_out": "fp32"}, "pipeline", "is for 16-bit types, not for bf16 to fp32"),
        ({"epilogue": "relu"}, "pipeline", "has no epilogue, not relu"),
        ({"scheduler": "tile"}, "pipeline", "scheduler persistent, not tile"),
        ({"direction": "weights"}, "pipeline", "scheduler split, not persistent"),
        ({"alignment": 8}, "pipeline", "aligned to 16 bytes, not 8 and 16"),
        ({"tile_m": 32}, "pipeline", "does not have 16 strips"),
        ({"tile_n": 128}, "pipeline", "128 channels of 8 warps are not 2, 4 or 8"),
        ({"box": "2x1x32"}, "pipeline", "box '2x1x32' is not 16 strips of 8 pixels"),
        ({"held": "7s1"}, "pipeline", "held = '7s1' is not a filter"),
        ({"held": "3x3s2x2"}, "pipeline", "is not a filter with strides of 1"),
        ({"held": "3x11s1x1"}, "pipeline", "11 taps along the width, over 9"),
        ({"held": "9x9s1x1"}, "registers", "232 sums and 48 other registers"),
        ({"num_stages": 24}, "warps", "num_stages = 24 is over"),
        ({"pipeline": "depthwise", "scheduler": "tile", "box": ""}, "combination", "gluon_bands"),
    ],
)
def test_what_cannot_be_built(fields, rule, why):
    verdict = FAMILY.judge(replace(configs(CONVNEXT)[0], **fields), SM_90)
    assert verdict.rule == rule and why in verdict.reason, verdict


@pytest.mark.parametrize(
    ("fields", "rule", "why"),
    [
        ({"groups": 48}, "depthwise", "has a filter of its own for every channel"),
        ({"filter": (5, 5)}, "pipeline", "is for filters 7x7s1x1 without dilation, not for 5x5"),
        ({"stride": (2, 2)}, "pipeline", "without dilation, not for 7x7s2x2"),
        ({"dilation": (2, 2)}, "pipeline", "7x7s1x1 with (2, 2)"),
        ({"n": 0}, "pipeline", "x has no elements"),
        ({"alignment": 8}, "vector_width", "aligned to 8 bytes, under 16"),
    ],
)
def test_what_cannot_be_served(fields, rule, why):
    verdict = FAMILY.supports(configs(CONVNEXT)[0], replace(CONVNEXT, **fields), SM_90)
    assert verdict.rule == rule and why in verdict.reason, verdict


def test_other_architectures_do_not_have_it():
    for name in ("sm_80", "sm_100", "gfx942"):
        reason = FAMILY.judge(configs(CONVNEXT)[0], arch(name)).reason
        assert "which pipeline gluon_bands needs" in reason
        assert gluon_bands.PIPELINE not in FAMILY.pipelines(arch(name))
    assert gluon_bands.PIPELINE in FAMILY.pipelines(SM_90)


def test_names_say_the_filter_and_the_box():
    for c in configs(CONVNEXT):
        assert f"_b{c.box}_f7x7s1x1" in c.name and FAMILY.parse_name(c.name) == c


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_large_layers_prefer_it(direction):
    p = replace(CONVNEXT, direction=direction)
    found = [c for s in FAMILY.tuning_spaces(p, SM_90) for c in s.expand(SM_90).configs]
    best = FAMILY.rank(p, [c for c in found if FAMILY.supports(c, p, SM_90)], H200)[0][0]
    assert best.pipeline == gluon_bands.PIPELINE


# --- builds ------------------------------------------------------------------------------------


@pytest.mark.turns(32)
def test_nothing_spills_and_shared_memory_is_as_said(store):
    problems = [
        replace(CONVNEXT, filter=(5, 5), pad=(2, 2)),
        replace(CONVNEXT, filter=(3, 3), pad=(1, 1), direction="weights"),
    ]
    built = [configs(p)[0] for p in problems]
    report = build_once([(c, "sm_90") for c in built], store)
    results = {r.name: r for r in report.results if r.part == MAIN}
    for c in built:
        kernel = results[c.name].kernel
        assert kernel is not None, results[c.name].reason
        assert kernel.resources.spill_bytes == 0
        assert 0 <= pipelines.of(c).shared_memory(c, SM_90) - kernel.shared <= 512
