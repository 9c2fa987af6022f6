"""A kernel's name says its whole config, and nothing else does."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_configs import change

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.epilogues import OPERATIONS
from tilewright.ops.gemm.batch import BATCHINGS
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    DEPENDENT_LAUNCHES,
    INDEX_BITS,
    REDUCTIONS,
    SCHEDULERS,
    SHARING,
    STORES,
    GemmConfig,
)
from tilewright.ops.gemm.names import check, parse
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.problem import LAYOUTS, SHUFFLED_LAYOUTS
from tilewright.ops.products import OUTPUTS, accumulator, outputs

BASE = change(
    dtype_a="fp32", dtype_b="fp32", dtype_c="fp32", tile_m=128, tile_n=128, num_warps=8,
    num_stages=3,
)  # fmt: skip

SPLIT = dataclasses.replace(BASE, scheduler="split_k", split_k=2, reduction="linear")

counts = st.integers(1, 10_000)
elementwise = sorted(name for name, o in OPERATIONS.items() if not o.halves)
chains = st.lists(st.sampled_from(elementwise), max_size=6).map("+".join)
short = st.lists(st.sampled_from(elementwise), max_size=2).map("+".join)
powers = st.integers(0, 12).map(lambda e: 2**e)
blocks = st.just("") | st.builds("{}x{}{}".format, powers, powers, st.sampled_from(("", "-bf16")))


@st.composite
def configs(draw):
    """Any expressible config, legal somewhere or not."""
    dtype = draw(st.sampled_from(sorted(OUTPUTS)))
    scheduler = draw(st.sampled_from(SCHEDULERS))
    reductions = REDUCTIONS[1:] if scheduler in SHARING else REDUCTIONS[:1]
    if scheduler == "stream_k":
        reductions = tuple(each for each in reductions if each not in ("two_stage", "cluster"))
    whole = DTYPES[dtype].packed == 1
    layout = draw(st.sampled_from((*LAYOUTS, *SHUFFLED_LAYOUTS) if whole else LAYOUTS))
    floats = whole and accumulator(dtype) == "fp32"
    pre_a = draw(short) if floats else ""
    pre_b = draw(short) if floats and layout[1] != "s" else ""
    epilogue = draw(st.just("") | (short if pre_a or pre_b else chains))
    alone = pre_a or pre_b or layout[1] == "s"
    batching = "none" if alone else draw(st.sampled_from(BATCHINGS))
    scale_a, scale_b = ("", "") if alone else (draw(blocks), draw(blocks))
    scaled = bool(scale_a or scale_b)
    return check(
        GemmConfig(
            layout=layout,
            dtype_a=dtype,
            dtype_b=dtype,
            dtype_c=draw(st.sampled_from(outputs(dtype, epilogue, scaled))),
            dtype_acc=accumulator(dtype),
            precision=draw(st.sampled_from(("ieee", "tf32") if dtype == "fp32" else ("ieee",))),
            tile_m=draw(counts),
            tile_n=draw(counts),
            tile_k=draw(counts),
            num_warps=draw(counts),
            num_stages=draw(counts),
            pipeline=draw(st.sampled_from([*PIPELINES])),
            scheduler=scheduler,
            split_k=draw(st.integers(2, 10_000)) if scheduler == "split_k" else 1,
            reduction=draw(st.sampled_from(reductions)),
            group_m=draw(counts),
            store=draw(st.sampled_from(STORES)),
            pad_m=draw(st.booleans()),
            pad_n=draw(st.booleans()),
            pad_k=draw(st.booleans()),
            alignment=draw(st.sampled_from(ALIGNMENTS)),
            mma=draw(st.just((0, 0, 0)) | st.tuples(counts, counts, counts)),
            index_bits=draw(st.sampled_from(INDEX_BITS)),
            epilogue=epilogue,
            pre_a=pre_a,
            pre_b=pre_b,
            batching=batching,
            scale_a=scale_a,
            scale_b=scale_b,
            swap_ab=draw(st.booleans()),
            dependent_launch=draw(st.sampled_from(DEPENDENT_LAUNCHES)),
        )
    )


@given(configs())
def test_a_name_parses_to_its_config(config):
    assert parse(config.name) == config


@given(configs(), configs())
def test_different_configs_have_different_names(one, other):
    assert (one.name == other.name) == (one == other)


CHANGES = {
    "layout": "rrr",
    "dtype_c": "fp16",
    "precision": "tf32",
    "tile_m": 64,
    "tile_n": 64,
    "tile_k": 32,
    "num_warps": 4,
    "num_stages": 2,
    "pipeline": "tma",
    "scheduler": "persistent",
    "split_k": 3,
    "reduction": "tree",
    "group_m": 4,
    "store": "split",
    "pad_m": False,
    "pad_n": False,
    "pad_k": False,
    "alignment": 8,
    "mma": (16, 16, 4),
    "index_bits": 64,
    "swap_ab": True,
    "dependent_launch": "ahead",
    "dtype_a": "fp16",
    "dtype_b": "fp16",
    "dtype_acc": "int32",
    "epilogue": "bias+row_scale",
    "pre_a": "add+row_scale",
    "pre_b": "mul",
    "batching": "strided",
    "scale_a": "1x128",
    "scale_b": "128x128",
}


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(GemmConfig)])
def test_every_field_changes_the_name(field):
    base = SPLIT if field in ("split_k", "reduction") else BASE
    assert dataclasses.replace(base, **{field: CHANGES[field]}).name != base.name


def test_the_name_says_how_a_tile_is_shared():
    assert "_basic_split_k2_linear_g8_" in SPLIT.name
    stream = dataclasses.replace(SPLIT, scheduler="stream_k", split_k=1, reduction="tree")
    assert "_basic_stream_k_tree_g8_" in stream.name
    assert (parse(SPLIT.name), parse(stream.name)) == (SPLIT, stream)


def test_the_name_is_the_documented_one():
    config = dataclasses.replace(
        BASE, precision="tf32", mma=(32, 32, 4), index_bits=64, pad_n=False, pipeline="tma_ws"
    )
    assert config.name == (
        "gemm_rcr_fp32_fp32_fp32_fp32_128x128x64_w8_s3_tma_ws_tile_g8_direct_padmk_al16"
        "_tf32_mma32x32x4_i64"
    )
    assert parse(config.name) == config
    config = dataclasses.replace(config, epilogue="row_scale+gelu_tanh+add")
    assert config.name.endswith("_tf32_mma32x32x4_i64_epi-row_scale-gelu_tanh-add")
    assert parse(config.name) == config
    config = dataclasses.replace(config, batching="pointers")
    assert config.name.endswith("_i64_batch-pointers_epi-row_scale-gelu_tanh-add")
    assert parse(config.name) == config
    pre = {"pre_a": "add+row_scale", "pre_b": "col_scale", "batching": "none"}
    config = dataclasses.replace(config, **pre, epilogue="add")
    assert config.name.endswith("_i64_prea-add-row.scale_preb-col.scale_epi-add")
    assert parse(config.name) == config
    config = dataclasses.replace(
        BASE, swap_ab=True, dependent_launch="wait", batching="strided", epilogue="bias"
    )
    assert config.name.endswith("_al16_swapab_pdl-wait_batch-strided_epi-bias")
    assert parse(config.name) == config
    config = dataclasses.replace(BASE, layout="rsr", pipeline="preshuffle")
    assert config.name.startswith("gemm_rsr_fp32_") and "_preshuffle_tile_" in config.name
    assert parse(config.name) == config


GOOD = "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s3_basic_tile_g8_direct_padmnk_al16"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gemm",
        GOOD.upper(),
        GOOD + "_",
        GOOD + "\n",
        GOOD + "_i32",  # the default is not said
        GOOD + "_mma0x0x0",
        GOOD.replace("_tile_", "_tile_linear_"),  # nothing to reduce
        GOOD.replace("_tile_", "_split_k1_linear_"),
        GOOD.replace("_tile_", "_split_k4_none_"),
        GOOD.replace("_tile_", "_split_k4_"),
        GOOD.replace("_tile_", "_split_k_linear_"),
        GOOD.replace("_tile_", "_stream_k_"),
        GOOD.replace("_tile_", "_stream_k4_linear_"),
        GOOD + "_tf32",  # contradicts bf16
        GOOD + "_epi-",
        GOOD + "_epi-bias-",
        GOOD + "_epi-bias+gelu",
        GOOD + "_epi-bais",
        GOOD + "_epi-bias_i64",  # the epilogue is last
        GOOD + "_prea-",
        GOOD + "_prea-swiglu",
        GOOD + "_prea-row_scale",  # its underscore would begin another part
        GOOD + "_preb-add_prea-add",
        GOOD + "_epi-bias_prea-add",
        GOOD + "_batch-none",
        GOOD + "_batch-strided_i64",
        GOOD + "_epi-bias_batch-strided",
        GOOD.replace("_padmnk", "_pad"),
        GOOD.replace("_padmnk", "_padnm"),
        GOOD.replace("al16", "al32"),
        GOOD.replace("w8", "w08"),
        GOOD.replace("w8", "w0"),
        GOOD.replace("w8", "w1٢"),  # a digit, though not one that a name has
        GOOD.replace("basic", "basik"),
        GOOD.replace("bf16_bf16_bf16", "bf16_fp16_bf16"),
        GOOD.replace("bf16_bf16_bf16_fp32", "bf16_bf16_bf16_int32"),
        GOOD.replace("bf16_bf16_bf16", "fp8_fp8_bf16"),  # names carry the exact type
    ],
)
def test_other_names_are_unknown(name):
    assert parse(GOOD).name == GOOD
    with pytest.raises(UnknownName):
        parse(name)


@settings(max_examples=50)
@given(configs(), st.data())
def test_a_cut_name_never_parses_to_another_spelling(config, data):
    cut = config.name[: data.draw(st.integers(0, len(config.name) - 1))]
    try:
        found = parse(cut)
    except UnknownName:
        return
    assert found.name == cut


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tile_m", 0),
        ("tile_n", 64.0),
        ("tile_k", True),
        ("num_warps", -4),
        ("num_stages", "3"),
        ("group_m", 0),
        ("pad_m", 1),
        ("pipeline", "async"),
        ("scheduler", "split"),
        ("store", ""),
        ("alignment", 32),
        ("index_bits", 16),
        ("mma", (16, 16)),
        ("mma", [16, 16, 16]),
        ("mma", (16, 0, 16)),
        ("layout", "rcx"),
        ("dtype_b", "fp16"),
        ("dtype_c", "bf16"),
        ("dtype_acc", "fp16"),
        ("precision", "tf16"),
        ("epilogue", "bias+"),
        ("epilogue", ["bias"]),
        ("epilogue", None),
        ("pre_a", "ad"),
        ("pre_a", "swiglu"),
        ("pre_b", None),
        ("pre_b", "clamp+clamp+clamp+clamp+clamp+clamp+clamp"),
        ("layout", "rrs"),
        ("batching", ""),
        ("batching", "batched"),
        ("batching", None),
    ],
)
def test_check_refuses_what_a_name_cannot_say(field, value):
    assert check(BASE) is BASE
    with pytest.raises(BadArgument):
        check(dataclasses.replace(BASE, **{field: value}))
