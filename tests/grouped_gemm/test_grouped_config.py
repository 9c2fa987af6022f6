"""Names, spaces and sweeps of grouped kernels."""

from __future__ import annotations

import dataclasses

import pytest
from grouped_cases import config
from hypothesis import given
from hypothesis import strategies as st

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument, BadFile, UnknownName
from tilewright.ops.gemm.lowbit import PARTNERS
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig
from tilewright.ops.grouped_gemm.names import check, parse
from tilewright.ops.grouped_gemm.pipelines import PIPELINES
from tilewright.ops.grouped_gemm.problem import STACKED, WALKED
from tilewright.ops.products import OUTPUTS, accumulator, outputs
from tilewright.registry import Registry
from tilewright.space import KernelSpace
from tilewright.space_file import load_space

SM90 = arch("sm_90")
counts = st.integers(1, 10_000)


@st.composite
def configs(draw):
    """Any expressible config, legal somewhere or not."""
    dtype = draw(st.sampled_from(sorted(OUTPUTS)))
    epilogue = draw(st.sampled_from(("", "relu", "bias+silu", "row_scale+col_scale")))
    form = draw(st.sampled_from(WALKED))
    scale_a, scale_b, dtype_b = "", "", dtype
    if form in STACKED:
        scale_a = draw(st.sampled_from(("", "1x128", "1x32-e8m0")))
        scale_b = draw(st.sampled_from(("", "128x128", "64x1-bf16", "32x1-e8m0")))
        dtype_b = draw(st.sampled_from((dtype, *PARTNERS.get(dtype, ()))))
    scaled = bool(scale_a or scale_b)
    return check(
        GroupedGemmConfig(
            form=form,
            layout=draw(st.sampled_from(LAYOUTS)),
            dtype_a=dtype,
            dtype_b=dtype_b,
            dtype_c=draw(st.sampled_from(outputs(dtype, epilogue, scaled))),
            dtype_acc=accumulator(dtype),
            precision=draw(st.sampled_from(("ieee", "tf32") if dtype == "fp32" else ("ieee",))),
            tile_m=draw(counts),
            tile_n=draw(counts),
            tile_k=draw(counts),
            num_warps=draw(counts),
            num_stages=draw(counts),
            pipeline=draw(st.sampled_from([*PIPELINES])),
            group_m=draw(counts),
            store=draw(st.sampled_from(("direct", "split"))),
            pad_n=draw(st.booleans()),
            pad_k=draw(st.booleans()),
            alignment=draw(st.sampled_from((1, 2, 4, 8, 16))),
            mma=draw(st.just((0, 0, 0)) | st.tuples(counts, counts, counts)),
            index_bits=draw(st.sampled_from((32, 64))),
            epilogue=epilogue,
            scale_a=scale_a,
            scale_b=scale_b,
            zero_b=draw(st.booleans()) if dtype_b == "int4" and scale_b else False,
        )
    )


@given(configs())
def test_a_name_parses_to_its_config(made):
    assert parse(made.name) == made
    assert ops.family_of(made.name) is FAMILY


@given(configs(), configs())
def test_different_configs_have_different_names(one, other):
    assert (one.name == other.name) == (one == other)


GOOD = (
    "grouped_gemm_contiguous_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s2_basic_persistent_g8_direct"
    "_padmnk_al16"
)


def test_the_name_is_the_documented_one():
    assert config().name == GOOD
    changed = dataclasses.replace(config(), form="masked", epilogue="bias+gelu", pad_k=False)
    assert changed.name == (
        GOOD.replace("contiguous", "masked").replace("padmnk", "padmn") + "_epi-bias-gelu"
    )


@pytest.mark.parametrize(
    "name",
    [
        "grouped_gemm",
        "grouped_gemm_",
        "grouped_gemm_contiguous",
        GOOD.replace("_contiguous", ""),
        GOOD.replace("contiguous", "sorted"),
        GOOD.replace("persistent", "tile"),  # every kernel walks groups
        GOOD.replace("persistent", "split_k2_linear"),
        GOOD.replace("padmnk", "padnk"),  # groups end anywhere
        GOOD.replace("basic", "tma_ws"),
        GOOD + "_i32",
        GOOD + "\n",
    ],
)
def test_other_names_are_unknown(name):
    with pytest.raises(UnknownName):
        parse(name)


def test_a_gemms_name_is_a_gemms():
    assert ops.family_of(config().one.name).name == "gemm"
    with pytest.raises(UnknownName, match="is no kernel's name"):
        ops.family_of("grouped_sum_64x64")


@pytest.mark.parametrize(
    ("field", "value"),
    [("form", "sorted"), ("tile_m", 0), ("pipeline", "tma_ws"), ("layout", "rcx"), ("pad_n", 1)],
)
def test_check_refuses_what_a_name_cannot_say(field, value):
    with pytest.raises(BadArgument):
        check(dataclasses.replace(config(), **{field: value}))


def test_a_space_expands_and_a_registry_keeps_it(tmp_path):
    axes = {"form": ["*"], "pipeline": ["*"], "tile_m": [64], "tile_n": [64], "num_warps": [4]}
    found = KernelSpace("grouped_gemm", axes).expand(SM90)
    assert {c.form for c in found.configs} == set(WALKED)
    assert {c.pipeline for c in found.configs} == {"basic", "tma", "gluon_ws"}
    # a list, gathered rows and weights as rcr through tensor maps; bf16, which kernels for few bits
    # and for scales of blocks do not take, nor all forms
    assert found.summary() == {"form": 11, "packed": 6, "scales": 3}
    registry = Registry("kept").register_all(found.configs)
    registry.save(tmp_path / "kept.json")
    assert [e.config for e in Registry.load(tmp_path / "kept.json")] == [e.config for e in registry]


def test_a_sweep_is_a_gemms_with_a_form():
    document = {
        "form": ["contiguous", "masked"],
        "tile_config": {"tile_m": {"values": [64, 128]}, "tile_n": {"values": [64]}},
        "trait_config": {"persistent": {"values": [True]}, "pipeline": {"values": ["mem"]}},
    }
    space, notes = FAMILY.formats.read(document, SM90, None)
    assert len(space.expand(SM90).configs) == 8
    assert any("scheduler ignored" in note for note in notes)
    with pytest.raises(BadFile, match=r"form 'maskd' \(did you mean 'masked'\?\)"):
        FAMILY.formats.read({**document, "form": ["maskd"]}, SM90, None)


def test_a_file_that_names_no_family_stays_a_gemms(tmp_path):
    path = tmp_path / "sweep.json"
    path.write_text('{"tile_m": [64]}')
    assert load_space(path, SM90)[0].family == "gemm"
    path.write_text('{"family": "grouped_gemm", "tile_m": [64]}')
    assert load_space(path, SM90)[0].family == "grouped_gemm"
