"""Images of few channels, packed before a kernel multiplies whole rows of the filter: right in the
simulation, what the rules refuse, and what is built."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from packed_cases import CASES, FAMILY, SM_90, STEM, configs

from shared_builds import build_once
from simulate import worst_error
from tilewright import arrays, verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.pipelines import packed
from tilewright.ops.nouns import MAIN, Descriptor
from tilewright.runtime.interpreter import interpreter

H200 = device("h200")
THREE = replace(H200, compute_units=3)


# --- in the simulation -------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_both_kernels_in_the_simulation(number, case):
    p = CASES[case]
    for c in configs(p):
        assert worst_error(c, p, THREE, number) <= 1, c.name


@pytest.mark.parametrize("case", ["a stem", "patches", "video"])
def test_its_sibling_in_the_interpreter(case):
    p = CASES[case]
    name = configs(p)[0].name
    result = verify.verify(Dispatcher(device="h200_sxm"), p, name, seed=3)
    assert result.ok, result


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_infinite_beside_a_filter_stays_outside():
    """A packed row of the filter has places without a tap, and a window reads what lies there."""
    p = ConvProblem(1, 3, 32, (8, 40), (3, 3), stride=(1, 2), pad=(1, 1))
    assert packed.row_w(p) > p.filter[-1] * packed.pitch(p)
    data = verify.operands_of(p, 4)
    inputs = dict(data.inputs)
    x = arrays.to_numpy(inputs["x"]).copy()
    x[0, :, :, 22] = np.inf  # behind the last tap of pixel 10 of y
    inputs["x"] = x
    y = verify.reference(p, inputs)["y"]
    assert [*np.flatnonzero(~np.isfinite(y).all(axis=(0, 1, 2)))] == [11]
    assert worst_error(configs(p)[0], p, THREE, given=inputs) <= 1


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"c": 9}, "9 channels in 1 groups"),
        ({"c": 4, "k": 64, "groups": 2}, "4 channels in 2 groups"),
        ({"dilation": (1, 2)}, "taps lie 2 pixels apart"),
        ({"n": 0}, "no elements"),
        ({"spatial": (20, 7), "pad": (3, 0), "pad_after": (3, 0)}, "one pixel"),
    ],
)
def test_what_is_refused(fields, why):
    verdict = FAMILY.supports(configs(STEM)[0], replace(STEM, **fields), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"direction": "data"}, "not gradients of data"),
        ({"dtype": "fp32"}, "16 bits, not fp32"),
        ({"alignment": 16}, "alignment 1, not 16"),
        ({"box": "1x4x4"}, "16 pixels"),
    ],
)
def test_what_is_not_built(fields, why):
    said = {**fields, **({"dtype_out": "fp32"} if "dtype" in fields else {})}
    verdict = FAMILY.judge(replace(configs(STEM)[0], **said), SM_90)
    assert verdict.rule == "pipeline" and why in verdict.reason


def test_only_hopper_has_it_and_only_a_tuning_tries_it():
    assert FAMILY.judge(configs(STEM)[0], arch("sm_100")).rule == "pipeline"
    default = FAMILY.default_space(STEM, SM_90).expand(SM_90).configs
    assert not any(c.pipeline == packed.PIPELINE for c in default)


# --- packing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["a stem", "channels first", "video", "pixels left out"])
def test_the_first_kernel_in_the_interpreter(case):
    """Rows of pixels of `pitch` channels, with zeros around and behind the own ones."""
    p = CASES[case]
    c, each = configs(p)[0], packed.pitch(p)
    launch = FAMILY.launch(c, p, H200)
    data = {name: arrays.to_numpy(a) for name, a in verify.operands_of(p, 5).inputs.items()}
    made = {t.name: np.full(t.bytes, 0xFF, np.uint8) for t in launch.temporaries}
    first = replace(launch, steps=launch.steps[:1])
    given = {name: data[name] for name in "xw"}
    interpreter().run(FAMILY.sources(c, SM_90), first, given, [], temporaries=made)
    for temporary, name, margin in zip(launch.temporaries, "xw", (p.pad[-1], 0), strict=True):
        found = made[temporary.name].view(data[name].dtype).reshape(temporary.shape)
        rows = np.moveaxis(data[name].astype(np.float64), 1, -1)
        places = temporary.shape[-1] // each
        wanted = np.zeros((*rows.shape[:-2], places, each))
        for at in range(places):
            if 0 <= at - margin < rows.shape[-2]:
                wanted[..., at, : p.c] = rows[..., at - margin, :]
        assert np.array_equal(found.astype(np.float64), wanted.reshape(temporary.shape))


def test_four_channels_where_pixels_then_meet_whole_16_bytes():
    assert packed.pitch(STEM) == 4
    assert packed.pitch(replace(STEM, stride=(2, 1))) == 8
    assert packed.pitch(replace(STEM, c=5)) == 8
    assert packed.problem(STEM).c == 28 and packed.row_w(STEM) == 32


def test_strides_of_all_maps_are_whole_16_bytes():
    for p in CASES.values():
        _, step = FAMILY.launch(configs(p)[0], p, H200).steps
        for one in step.arguments:
            if isinstance(one, Descriptor):
                assert not any(stride * 2 % 16 for stride in one.strides[:-1]), (p, one)


def test_the_estimate_counts_packing():
    p = ConvProblem(32, 3, 64, (224, 224), (7, 7), stride=(2, 2), pad=(3, 3))
    found = FAMILY.estimate(configs(p)[0], p, H200)
    terms = dict(found.terms)
    least = sum(t.bytes for t in packed.temporaries(p)) / (H200.bandwidth_gbs * 1e3)
    assert terms[packed.PACK] > least and found.total_us > terms["memory"] + terms[packed.PACK]


# --- machine code ------------------------------------------------------------------------------


def test_nothing_spills_and_rows_are_written_in_vectors(store):
    made = [(c, "sm_90") for case in ("a stem", "no stride", "video") for c in configs(CASES[case])]
    report = build_once(made, store)
    assert {r.kernel.part for r in report.results} == {MAIN, packed.PACK}
    for result in report.results:
        assert result.ok and result.kernel.resources.spill_bytes == 0, result
        if result.kernel.part == packed.PACK:
            assert "st.global.v4" in inspect(result.kernel, store, "ptx")
