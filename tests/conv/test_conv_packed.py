"""Images of few channels, packed before a kernel multiplies whole rows of the filter: right in the
interpreter, what the rules refuse, and what is built."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packed_cases import CASES, FAMILY, STEM, configs

from shared_builds import build_once
from tilewright import arrays, verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import ConvProblem, packing
from tilewright.ops.conv.catalogue import MANY_TOTALS, TOTALS
from tilewright.ops.conv.launch import context
from tilewright.ops.conv.pipelines import packed
from tilewright.ops.conv.pipelines.packed import PACK, PIPELINE
from tilewright.ops.nouns import MAIN
from tilewright.runtime.interpreter import interpreter

H200, SM_90 = device("h200"), arch("sm_90")
RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "conv_stems_h200.json"

# --- in the interpreter ------------------------------------------------------------------------


@pytest.mark.turns(64)
@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_it_is_right(number, case):
    p = CASES[case]
    for c in configs(p):
        result = verify.verify(Dispatcher(device="h200_sxm"), p, c.name, seed=number)
        assert result.ok, f"{c.name}: {result}"


@pytest.mark.turns(8)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_beside_a_run_stays_outside(value):
    """Behind a run lie elements of other pixels, and a step is longer than a run."""
    p = ConvProblem(1, 3, 32, (8, 40), (3, 3), stride=(1, 2), pad=(1, 1))
    c = configs(p)[-1]
    assert c.tile_k > packing.run(p)
    data = verify.operands_of(p, 4)
    x = arrays.to_numpy(data.inputs["x"])
    x[0, :, :, 22] = value  # behind the last tap of pixel 10 of y
    wanted = verify.reference(p, data.inputs)["y"]
    assert [*np.flatnonzero(~np.isfinite(wanted).all(axis=(0, 1, 2)))] == [11]
    verify.run(Dispatcher(device="h200_sxm"), p, data, c.name)
    check = verify.compare_all(p, c, data.written(p), {"y": wanted})
    assert check.ok, check


@pytest.mark.turns(48)
@pytest.mark.parametrize(
    "case",
    [
        "a stem",
        "channels first",
        "video",
        "pixels left out",
        "a taller dilation",
        "int8",
        "weights of a stem",
    ],
)
def test_the_first_kernel_alone(case):
    """Rows of pixels of `pitch` channels: with the padding around those of x, and zeros behind
    those of the filter."""
    p = CASES[case]
    c, each = configs(p)[0], packing.pitch(p)
    launch = FAMILY.launch(c, p, H200)
    data = {name: arrays.to_numpy(a) for name, a in verify.operands_of(p, 5).inputs.items()}
    made = {t.name: np.full(t.bytes, 0xFF, np.uint8) for t in launch.temporaries}
    first = replace(launch, steps=launch.steps[:1])
    given = {name: data[name] for name in "xw" if name in data}
    interpreter().run(FAMILY.sources(c, SM_90), first, given, [], temporaries=made)
    for temporary, name in zip(launch.temporaries, given, strict=False):
        found = made[temporary.name].view(data[name].dtype).astype(np.float64)
        pixels = np.moveaxis(data[name].astype(np.float64), 1, -1)
        before = p.pad if name == "x" else (0,) * len(p.spatial)
        sizes = (*temporary.shape[-3:-1], temporary.shape[-1] // each)[-len(p.spatial) :]
        if name == "w":
            sizes = (*p.filter[:-1], temporary.shape[-1] // each)
        wanted = np.zeros((pixels.shape[0], *sizes, each))
        for place in np.ndindex(*sizes):
            at = tuple(i - b for i, b in zip(place, before, strict=True))
            if all(0 <= i < n for i, n in zip(at, pixels.shape[1:-1], strict=True)):
                wanted[(slice(None), *place, slice(0, p.c))] = pixels[(slice(None), *at)]
        assert np.array_equal(found.reshape(wanted.shape), wanted)


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"c": 9}, "9 channels in 1 groups"),
        ({"c": 4, "k": 64, "groups": 2}, "4 channels in 2 groups"),
        ({"dilation": (1, 2)}, "taps lie 2 pixels apart"),
        ({"n": 0}, "no elements"),
        ({"filter": (7, 1)}, "over the 16 elements"),
        ({"n": 1 << 12, "c": 1, "spatial": (700, 700)}, "indices of 32 bits"),
    ],
)
def test_what_is_refused(fields, why):
    verdict = FAMILY.supports(configs(STEM)[-1], replace(STEM, **fields), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "data"}, "no gradient of the data"),
        ({"merged": True}, "always takes runs"),
        ({"spread": 32}, "for pipelines that copy boxes"),
        ({"box": "1x4x4"}, "for pipelines that copy boxes"),
    ],
)
def test_what_is_not_built(fields, why):
    verdict = FAMILY.judge(replace(configs(STEM)[0], **fields), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spread": 0}, "a power of two of columns, not 0"),
        ({"spread": 48}, "a power of two of columns, not 48"),
        ({"reduction": "tree"}, "by a second kernel, not by tree"),
    ],
)
def test_what_is_not_built_of_weights(fields, why):
    c = configs(CASES["weights of a stem"])[0]
    verdict = FAMILY.judge(replace(c, **fields), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


def test_weights_of_another_row_are_refused():
    p = CASES["weights of a stem"]
    verdict = FAMILY.supports(configs(p)[0], replace(p, filter=(7, 3)), SM_90)
    assert verdict.rule == "pipeline" and "has 16 elements, not 32" in verdict.reason


# --- choosing ----------------------------------------------------------------------------------

LARGE = replace(STEM, n=32, spatial=(224, 224))


@pytest.mark.parametrize("name", ["h200_sxm", "h100_sxm", "a100_sxm_80gb", "mi300x"])
def test_it_is_chosen_for_stems(name):
    for p in (LARGE, replace(LARGE, filter=(3, 3), pad=(1, 1), k=32)):
        assert Dispatcher(device=name).select(p).config.pipeline == PIPELINE


def test_it_is_chosen_for_their_weights():
    p = replace(LARGE, direction="weights")
    assert Dispatcher(device="h200_sxm").select(p).config.pipeline == PIPELINE


def test_patches_that_are_products_stay_products():
    p = ConvProblem(1024, 3, 1280, (2, 14, 14), (2, 14, 14), stride=(2, 14, 14))
    assert Dispatcher(device="h200_sxm").select(p).config.pipeline != PIPELINE


def test_the_estimate_meets_what_was_measured():
    """The fastest kernel that packs, of each layer and direction of the record."""
    gpu, lines = device("h200_sxm"), list(_stems(("forward", "weights")))
    for p, times in lines:
        best = min((name for name in times if f"_{PIPELINE}_" in name), key=times.__getitem__)
        found = FAMILY.estimate(FAMILY.parse_name(best), p, gpu)
        assert 0.85 < times[best] / found.total_us < 1.65, (str(p), best)
        read = math.prod(p.shape_of("x")) * 2 + 2 * packing.counts(p)[0]
        assert dict(found.terms)[PACK] > read / (gpu.bandwidth_gbs * 1e3)
    assert len(lines) == 8


def test_finishing_a_tile_of_y_costs_and_a_gradient_has_none(monkeypatch):
    """Sums of a gradient's parts are a term of their own."""
    gpu, terms = device("h200_sxm"), []
    weights = replace(STEM, direction="weights")
    for cost in (packed.FINISHED, 1e6):
        monkeypatch.setattr(packed, "FINISHED", cost)
        terms.append([FAMILY.estimate(configs(p)[0], p, gpu).terms for p in (STEM, weights)])
    (forward, gradient), (dear, same) = terms
    assert dict(dear)[packed.LOADS] > dict(forward)[packed.LOADS] and same == gradient


@pytest.mark.parametrize(("direction", "more"), [("forward", True), ("weights", False)])
def test_y_is_moved_in_the_type_of_the_result_only_where_it_is_the_result(direction, more):
    moved = []
    for dtype_out in ("bf16", "fp32"):
        p = replace(STEM, direction=direction, dtype_out=dtype_out)
        found = FAMILY.estimate(configs(p)[0], p, device("h200_sxm"))
        moved.append(dict(found.terms)[packed.MEMORY])
    assert (moved[1] > moved[0]) == more and moved[1] >= moved[0]


@pytest.mark.parametrize(("direction", "most"), [("forward", 1.06), ("weights", 1.12)])
def test_what_is_chosen_is_near_the_best_that_was_measured(direction, most):
    dispatcher = Dispatcher(device="h200_sxm")
    for p, times in _stems((direction,)):
        name = dispatcher.select(p).config.name
        if name not in times and p.filter == p.stride:
            continue  # a product of patches, which was not there to be timed
        if name not in times and p.k < 64 and direction == "weights":
            continue  # a tile with empty filters, which was not there to be timed either
        ours = [us for kernel, us in times.items() if "aten" not in kernel]
        assert times[name] / min(ours) < most, (str(p), name)


def _stems(directions):
    """Problems of the record, each with its kernels' times."""
    layers = (
        LARGE,
        ConvProblem(32, 3, 96, (224, 224), (4, 4), stride=(4, 4)),
        ConvProblem(32, 3, 32, (224, 224), (3, 3), stride=(2, 2), pad=(1, 1)),
        ConvProblem(32, 3, 64, (224, 224), (3, 3), pad=(1, 1)),
    )
    for direction in directions:
        lines = json.loads(RECORD.read_text())["sets"][f"stems {direction}"]
        for layer, line in zip(layers, lines, strict=True):
            p = replace(layer, direction=direction)
            assert str(p) == line["problem"]
            yield p, line["brief_us"]


def test_matrix_instructions_read_y_of_few_filters_from_shared_memory():
    """Those for fewer than 64 filters have it in registers, and wait for each step's."""
    p = replace(LARGE, direction="weights", k=24)
    assert {c.tile_m for c in configs(p, "sm_90")} == {64}
    assert {c.tile_m for c in configs(p, "gfx942")} == {32}
    assert {c.tile_m for c in configs(replace(p, k=17), "sm_90")} == {32}  # no whole copies


def test_one_tap_of_whole_copies_needs_no_packing():
    p = ConvProblem(128, 8, 32, (57, 57), (1, 1), direction="weights")
    for channels, packs in ((8, False), (3, True)):
        space = FAMILY.default_space(replace(p, c=channels), SM_90).expand(SM_90)
        assert any(c.pipeline == PIPELINE for c in space.configs) == packs


def test_more_parts_where_their_sums_are_few():
    gpu = device("h200_sxm")
    large = replace(LARGE, direction="weights")
    small = replace(large, filter=(3, 3), pad=(1, 1))
    for p, each in ((small, packed.MANY_UNITS), (large, packed.FEW_UNITS)):
        c = configs(p, "sm_90")[0]
        x = context(c, p, gpu)
        assert x.splits == each * gpu.compute_units // x.case.tiles


# --- packed arrays -----------------------------------------------------------------------------


def test_sizes_of_packed_arrays():
    assert (packing.pitch(STEM), packing.run(STEM), packing.row_w(STEM)) == (4, 28, 32)
    assert packing.pitch(replace(STEM, c=5)) == 8
    # 7 by 11 pixels of y meet 19 rows of 27 pixels.
    x, w = packing.shape_x(STEM), packing.shape_w(STEM)
    assert (x, w) == ((1, 1, 19, 112), (64, 7, 32))
    for p in CASES.values():
        assert len(packing.counts(p)) == (1 if p.direction == "weights" else 2)
        whole = packing.WHOLE // DTYPES[p.dtype].bytes
        assert not any(n % whole for n in packing.strides(p)), p


# --- machine code ------------------------------------------------------------------------------

BUILT = (
    LARGE,
    replace(LARGE, direction="weights"),
    ConvProblem(32, 4, 48, (224, 224), (3, 3), pad=(1, 1), epilogue="bias+relu"),
    ConvProblem(2, 3, 128, (9, 128, 128), (3, 3, 3), pad=(1, 1, 1), dtype="fp16"),
    replace(LARGE, dtype="fp32", dtype_out="fp32", precision="tf32"),
)


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", ["sm_80", "sm_90", "gfx942", "gfx1201"])
def test_nothing_spills_and_runs_are_read_in_vectors(name, store):
    served = [p for p in BUILT if p.dtype != "fp32" or name != "gfx1201"]
    made = [(c, name) for p in served for c in configs(p, name)]
    report = build_once(made, store)
    assert {r.kernel.part for r in report.results} == {MAIN, PACK, TOTALS, MANY_TOTALS}
    for result in report.results:
        assert result.ok and result.kernel.resources.spill_bytes == 0, result
        if name == "sm_90":
            text = inspect(result.kernel, store, "ptx")
            if result.kernel.part == PACK:
                assert "st.global.v4" in text
            elif result.kernel.part == MAIN:  # alone, or asynchronously
                wide = result.config.alignment
                loads = rf"ld\.global\.v{wide // 4}\.b32|cp\.async\.c[ag]\..*, 0x{wide:x}, "
                assert re.search(loads, text), result.name
                one_by_one = result.config.direction == "weights" and "ld.global.b16" in text
                assert not one_by_one, result.name
