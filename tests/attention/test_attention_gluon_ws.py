"""Pipeline gluon_ws in the simulation, and its record's rules."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace

import numpy as np
import pytest
import sim_names
from attention_cases import drawn
from hypothesis import given
from hypothesis import strategies as st
from sim_values import Fault
from triton.experimental.gluon import language as gl

from shared_builds import build_once
from simulate import simulated_run, worst_error
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.ops.attention import AttentionConfig, AttentionProblem
from tilewright.ops.attention.pipelines import gluon_ws
from tilewright.ops.attention.pipelines.gluon_ws import GLUON_WS, staging
from tilewright.ops.attention.pipelines.sections import section
from tilewright.ops.nouns import MAIN, Scalar

FAMILY = ops.family("attention")
H200, SM_90 = device("h200"), arch("sm_90")
LOG2E = 1.4426950408889634
FEW = replace(H200, compute_units=2)
"""So that a workgroup has several tiles."""

PLAIN = AttentionProblem(1, 2, 200, 150, 64, others="lse")


def config_of(p: AttentionProblem, **algorithm) -> AttentionConfig:
    fields = {
        "tile_q": 128, "tile_kv": 64, "num_warps": 8, "num_stages": 2, "scheduler": "persistent",
        **algorithm,
    }  # fmt: skip
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind,
        pipeline="gluon_ws", features=p.features, **fields,
    )  # fmt: skip


def right(p: AttentionProblem, seed: int = 0, **algorithm) -> bool:
    """Whether the simulated kernel's outputs are within tolerances."""
    config = config_of(p, **algorithm)
    assert FAMILY.supports(config, p, SM_90)
    return worst_error(config, p, FEW, seed) <= 1


@pytest.mark.parametrize("bound", [None, 0])
@pytest.mark.parametrize("scheduler", ["persistent", "tile"])
@pytest.mark.parametrize("seed", range(2))
def test_rows_and_keys_that_are_no_multiple_of_the_tile(bound, scheduler, seed):
    assert right(replace(PLAIN, right=bound), seed, scheduler=scheduler)


MASKS = [
    {"right": 0},
    {"right": 0, "corner": "top_left"},
    {"right": 70, "corner": "top_left"},
    {"right": -30},
    {"left": 40, "right": 0},
    {"left": 40, "right": 0, "first": 5},
    {"left": 100, "right": 20, "first": 70},
    {"left": 33},
    {"left": 20, "right": 10, "corner": "top_left"},
    {"left": -10, "right": 90},
    {"left": 40, "right": -60},  # no key at all
]


@pytest.mark.grid(8)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", [(200, 150), (100, 420), (1, 333), (333, 1)], ids=str)
def test_masks(mask, sizes):
    assert right(replace(PLAIN, heads=1, kv_heads=1, q_len=sizes[0], kv_len=sizes[1], **mask))


DIMS = [
    ({"head_dim": 128, "head_dim_v": 128}, {}),
    ({"head_dim": 256, "head_dim_v": 256}, {}),
    ({"head_dim": 192, "head_dim_v": 128}, {"tile_kv": 128}),
    ({"head_dim": 96, "head_dim_v": 96}, {}),
    ({"head_dim": 160, "head_dim_v": 160}, {}),
    ({"head_dim": 64, "head_dim_v": 128}, {"num_stages": 3}),
    ({"head_dim": 128, "head_dim_v": 32, "dtype": "fp16", "dtype_kv": "", "dtype_o": ""}, {}),
    ({"dtype_o": "fp32"}, {}),
]


@pytest.mark.parametrize(("fields", "algorithm"), DIMS, ids=str)
def test_head_dims_and_dtypes(fields, algorithm):
    assert right(replace(PLAIN, q_len=130, right=0, **fields), **algorithm)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("groups", "tile_kv"), [(1, 64), (1, 128), (2, 64), (2, 128), (3, 64)], ids=str
)
def test_numbers_of_warp_groups(groups, tile_kv):
    p = replace(PLAIN, right=0, kv_len=500)
    tile = {"tile_q": 64 * groups, "num_warps": 4 * groups, "tile_kv": tile_kv, "num_stages": 3}
    assert right(p, groups, **tile)


@pytest.mark.grid(2)
@pytest.mark.parametrize("head_dim", [192, 256])
@pytest.mark.parametrize("seed", range(3))
def test_sums_leave_through_the_memory_of_q(head_dim, seed):
    dim_v, tile_kv = (128, 128) if head_dim == 192 else (256, 64)
    p = replace(PLAIN, head_dim=head_dim, head_dim_v=dim_v, right=0, others="", kv_len=400)
    assert staging(config_of(p, tile_kv=tile_kv), SM_90) == "q"
    assert right(p, seed, tile_kv=tile_kv)


BIASED = [
    ({"bias_shape": (1, 2)}, {}),
    ({"bias_shape": (2, 1), "left": 40, "right": 10, "first": 5}, {"tile_kv": 128}),
    ({"bias_shape": (2, 2), "right": 0, "softcap": 3.0}, {"scheduler": "tile"}),
    ({"bias_shape": (1, 1), "heads": 4, "dtype": "fp16", "dtype_kv": "", "dtype_o": ""}, {}),
    ({"bias_shape": (2, 2), "others": "lse+sinks+usedq+usedkv", "right": 0}, {}),
    ({"bias_shape": (1, 2), "kv_len": 400}, {"tile_q": 192, "num_warps": 12}),
    ({"bias_shape": (1, 2), "bias_strides": (0, 160, 320, 1)}, {}),
]


@pytest.mark.grid(2)
@pytest.mark.parametrize(("fields", "algorithm"), BIASED, ids=str)
def test_a_bias(fields, algorithm):
    said = {"batch": 2, "kv_heads": 2, "kv_len": 152}
    assert right(replace(PLAIN, **said | fields), **algorithm)


def test_a_bias_that_hides_keys():
    """Also the first block that is looked at, of which a row then has no maximum, and whole rows;
    and NaN behind a sequence's end."""
    p = replace(PLAIN, kv_len=200, bias_shape=(1, 2), others="lse+usedkv")
    inputs = {**verify.operands_of(p, 1).inputs, "kv_used": np.array([190], np.int32)}
    inputs["bias"][:, :, :, 128:] = -np.inf
    inputs["bias"][:, :, 7] = -np.inf
    wanted = verify.reference(p, inputs)
    inputs["bias"][:, :, :, 190:] = np.nan
    found = simulated_run(config_of(p), p, FEW, inputs)
    for name in ("o", "lse"):
        np.testing.assert_allclose(found[name].astype(float), wanted[name], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("others", ["lse", "lse+sinks"])
def test_a_bias_of_the_least_number(others):
    """Rows of the least number of bf16 alone are means. With another number in a row, it is the
    largest that counts; a sink of its size has a share."""
    p = replace(PLAIN, kv_len=200, bias_shape=(1, 2), others=others)
    inputs = dict(verify.operands_of(p, 2).inputs)
    least = float(np.finfo(np.float32).min) * (1 - 2.0**-8)
    bias = inputs["bias"]
    bias[...] = least
    bias[:, :, 3, ::7] = -2.4e38
    bias[:, :, 5, ::5] = 1.0
    bias[:, :, 6, ::9] = 3e38
    bias[:, :, 7, ::2] = -np.inf
    bias[:, :, 8] = -np.inf
    if "sinks" in others:
        inputs["sinks"][0] = bias[0, 0, 0, 0]
    wanted = verify.reference(p, inputs)
    found = simulated_run(config_of(p), p, FEW, inputs)
    np.testing.assert_allclose(found["o"].astype(float), wanted["o"], atol=2e-2)
    np.testing.assert_allclose(found["lse"], wanted["lse"], rtol=1e-2, atol=2e-2)


def test_slopes_of_any_size():
    p = replace(PLAIN, kv_len=200, others="lse+alibi")  # each query has a key in its own place
    inputs = dict(verify.operands_of(p, 2).inputs)
    inputs["slopes"][...] = 3e38
    assert worst_error(config_of(p), p, FEW, given=inputs) <= 1


KNOWN = sorted(GLUON_WS.features - {"bias", "append", "rotaryi", "rotaryh", "tscale", "hscale"})


@pytest.mark.grid(2)
@pytest.mark.parametrize("seed", range(16))
def test_features_together(seed):
    """Also sequences without queries and without keys, and rows of NaN behind a sequence's own."""
    rng = random.Random(seed)
    words = frozenset(word for word in KNOWN if rng.random() < 0.4)
    dim = rng.choice((32, 64, 96))
    sizes = {"head_dim": dim, "head_dim_v": dim, "dtype": "bf16", "dtype_kv": "bf16"}
    p = drawn(seed, most=300, words=words, **sizes)
    if reason := GLUON_WS.supports["descriptors"](config_of(p), p):
        pytest.skip(reason)
    p = replace(p, q_strides=(), k_strides=(), v_strides=(), o_strides=(), alignment=16)
    if p.block_size:  # of whole tiles
        p = replace(p, block_size=128)
    assert right(p, seed, scheduler=rng.choice(("persistent", "tile")))


def test_more_sequences_than_the_warp_looks_at_together():
    p = AttentionProblem(
        70, 1, 60, 60, 64, right=0, others="packedq+packedkv", total_q=1500, total_kv=1500
    )
    assert right(p)


@pytest.mark.parametrize("units", [1, 3, 100])
def test_the_counter_is_zero_again(units):
    """Else the next launch would leave out tiles: the simulation looks at what a launch leaves."""
    p = replace(PLAIN, right=0)
    assert worst_error(config_of(p), p, replace(H200, compute_units=units)) <= 1


@pytest.mark.parametrize(("bandwidth_gbs", "heads"), [(100_000, 2), (100, 1)])
def test_heads_in_sections(bandwidth_gbs, heads):
    """The tiles of as many heads as fit into L2 come first; where memory is slower than products,
    of as many as run at once."""
    p = replace(PLAIN, heads=5, kv_heads=5, right=0)
    small = replace(FEW, l2_bytes=130_000, bandwidth_gbs=bandwidth_gbs)
    config = config_of(p)
    (step,) = FAMILY.launch(config, p, small).steps
    names = [name for name, _ in FAMILY.sources(config, SM_90)[MAIN].arguments]
    assert step.arguments[names.index("section")] == Scalar("i32", heads)
    assert worst_error(config, p, small) <= 1


def heads_of_section(p: AttentionProblem, units: int = 132) -> int:
    return section(config_of(p), p, replace(H200, compute_units=units), units)


def test_short_sequences_run_all_tiles_of_a_head_together():
    """Else K and V leave L2 before the next tiles of their head come."""
    many = AttentionProblem(96, 20, 256, 256, 128)
    assert heads_of_section(many) == -(-96 * 20 // (96 * 20 // 66))  # of two tiles each
    assert heads_of_section(replace(many, right=0)) == heads_of_section(many)
    grouped = AttentionProblem(53, 32, 384, 384, 128, kv_heads=8)
    assert heads_of_section(grouped) % grouped.group == 0
    long = AttentionProblem(2, 16, 8192, 8192, 128)
    keys = 8192 * 2 * 128 * 2
    assert heads_of_section(long) == int(0.64 * H200.l2_bytes) // keys


@given(
    batch=st.integers(1, 300), kv_heads=st.integers(1, 8), group=st.integers(1, 5),
    rows=st.integers(1, 3000), units=st.integers(1, 200),
)  # fmt: skip
def test_a_section_fills_a_round_and_is_no_larger_than_all_heads(
    batch, kv_heads, group, rows, units
):
    p = AttentionProblem(batch, kv_heads * group, rows, rows, 64, kv_heads=kv_heads)
    found, places = heads_of_section(p, units), -(-rows // 128)
    assert 1 <= found <= p.batch * p.heads
    keys = rows * 2 * 64 * 2
    assert found * places >= units or found in (
        p.batch * p.heads, max(1, int(0.64 * H200.l2_bytes) // keys) * group
    )  # fmt: skip


EIGHT = replace(
    PLAIN, dtype="e4m3fn", dtype_kv="e4m3fn", dtype_o="bf16", q_len=200, kv_len=208,
    v_strides=(2 * 64 * 208, 1, 64 * 208, 208),
)  # fmt: skip
"""Values lie by columns."""


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("fields", "algorithm"),
    [
        ({}, {"tile_kv": 128, "num_stages": 3}),
        ({"right": 0, "others": "lse+hscale"}, {}),
        ({"left": 60, "right": 0, "softcap": 4.0, "others": "sinks+tscale"}, {}),
        ({"dtype_o": "fp32", "heads": 4, "others": "hscale"}, {}),
        (
            {
                "head_dim": 256, "head_dim_v": 256, "heads": 4, "right": 0, "others": "lse+hscale",
                "v_strides": (2 * 256 * 208, 1, 256 * 208, 208),
            },
            {},
        ),
        ({"right": 0, "others": "lse+alibi+hscale"}, {"tile_kv": 128, "num_stages": 4}),
    ],
    ids=str,
)  # fmt: skip
def test_fp8(fields, algorithm):
    assert right(replace(EIGHT, **fields), **algorithm)


@pytest.mark.parametrize("dims", [(80, 80), (192, 128)], ids=str)
def test_fp8_of_odd_dims(dims):
    p = replace(EIGHT, head_dim=dims[0], head_dim_v=dims[1], right=0)
    assert right(replace(p, v_strides=(2 * dims[1] * 208, 1, dims[1] * 208, 208)))


def test_fp8_boxes_of_keys_that_are_wider_than_a_span(monkeypatch):
    """Two boxes of a tile then bring their slabs in turns, which is no tile of slabs."""
    monkeypatch.setattr(gluon_ws, "_box_width", gluon_ws.width)
    wide = {"head_dim": 256, "head_dim_v": 256, "v_strides": (2 * 256 * 208, 1, 256 * 208, 208)}
    with pytest.raises(Fault, match="slabs of"):
        right(replace(EIGHT, **wide))


@pytest.fixture
def few_keys_together(monkeypatch):
    """Sums are set aside every 256 keys."""
    monkeypatch.setattr(sim_names, "known_functions", {})
    kernel = importlib.import_module("tilewright.ops.attention.kernels.gluon_ws")
    monkeypatch.setattr(kernel, "KEYS_TOGETHER", gl.constexpr(256))


@pytest.mark.usefixtures("few_keys_together")
@pytest.mark.parametrize("q_len", [100, 700])
def test_fp8_sums_that_are_set_aside(q_len):
    """Of 100 queries some see all keys; of 700 the first few."""
    p = replace(
        EIGHT, heads=1, kv_heads=1, q_len=q_len, kv_len=720, right=0,
        v_strides=(64 * 720, 1, 64 * 720, 720), others="sinks+hscale",
    )  # fmt: skip
    assert right(p, tile_kv=128)


@pytest.mark.usefixtures("few_keys_together")
def test_fp8_maxima_that_rise_when_sums_are_set_aside():
    """The farther a key the less ALiBi gives it, and the last keys come first."""
    p = replace(
        EIGHT, heads=1, kv_heads=1, q_len=64, kv_len=720, corner="top_left",
        v_strides=(64 * 720, 1, 64 * 720, 720), others="alibi",
    )  # fmt: skip
    assert right(p)


@pytest.mark.grid(10)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "e4m3fn"])
@pytest.mark.parametrize("rise", [-30.0, 5.0, 12.0, 100.0])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("others", ["lse", "lse+sinks"])
def test_maxima_that_rise(dtype, rise, at, others):
    """By fewer bits than the guess leaves room for, and by many more, in one of four blocks, which
    are walked from the last to the first."""
    eight = {"dtype_o": "bf16", "v_strides": (208 * 64, 1, 208 * 64, 208)}
    more = eight if dtype == "e4m3fn" else {"dtype_o": ""}
    heads = {"heads": 1, "kv_heads": 1, "q_len": 100, "kv_len": 208}
    p = replace(PLAIN, dtype=dtype, dtype_kv="", others=others, **heads, **more)
    inputs = dict(verify.operands_of(p, 1).inputs)
    risen = 3 - np.arange(208) // 64 >= at
    inputs["q"][...] = 1
    inputs["k"][...] = (0.25 * risen)[:, None, None].astype(inputs["k"].dtype)
    inputs["scale"] = rise / 16 / LOG2E
    assert worst_error(config_of(p), p, FEW, given=inputs) <= 1


@pytest.mark.parametrize("sink", [-np.inf, -80.0, 12.0, 60.0])
def test_a_sink_takes_no_bits_from_small_weights(sink):
    """A sink over all scores makes a row's weights small. As shares of the row they are as right as
    without it."""
    p = replace(EIGHT, others="lse+sinks+hscale", dtype_o="fp32")
    inputs = dict(verify.operands_of(p, 1).inputs)
    inputs["sinks"] = np.full_like(inputs["sinks"], sink)
    wanted = verify.reference(p, inputs)
    inputs["v"] = np.transpose(inputs["v"], (0, 2, 3, 1))  # as its memory is
    found = simulated_run(config_of(p), p, FEW, inputs)
    of_row = np.sqrt(np.mean(wanted["o"] ** 2, axis=-1, keepdims=True))
    assert (np.abs(found["o"] - wanted["o"]) < 0.25 * of_row).all()
    np.testing.assert_allclose(found["lse"], wanted["lse"], atol=2e-2)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("head_dim", [64, 192])
def test_scales_that_are_not_positive(scale, head_dim):
    p = replace(PLAIN, head_dim=head_dim, right=0)
    inputs = {**verify.operands_of(p, 1).inputs, "scale": scale}
    wanted = verify.reference(p, inputs)["o"]
    found = simulated_run(config_of(p), p, FEW, inputs)["o"]
    np.testing.assert_allclose(found.astype(float), wanted, rtol=2e-2, atol=2e-2)


@pytest.mark.turns(64)
@pytest.mark.parametrize(
    ("fields", "algorithm"),
    [
        ({"head_dim": 128, "head_dim_v": 128}, {"tile_kv": 128}),
        ({"others": "lse+alibi+sinks+packedq+packedkv", "total_q": 9, "total_kv": 9}, {}),
        ({"bias_shape": (1, 2), "head_dim": 128, "head_dim_v": 128}, {"tile_kv": 128}),
        (
            {
                "head_dim": 128, "head_dim_v": 128, "dtype": "e4m3fn", "dtype_kv": "e4m3fn",
                "dtype_o": "bf16", "right": 0, "others": "lse+hscale",
            },
            {"tile_kv": 128, "num_stages": 3},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_it_compiles_and_spills_next_to_nothing(fields, algorithm, store):
    """Of a bias 16 bytes, outside of the loop over keys. Where registers are too few for products
    in flight, ptxas waits for each before the next."""
    config = config_of(replace(PLAIN, **fields), **algorithm)
    report = build_once([(config, "sm_90")], store)
    (kernel,) = (r.kernel for r in report.results)
    assert kernel.resources.spill_bytes <= (16 if "bias_shape" in fields else 0)
    sass = inspect(kernel, store, "sass")
    assert sass.count("WARPGROUP.DEPBAR") < sass.count("GMMA.64x") // 2


@pytest.mark.turns(64)
@pytest.mark.parametrize(
    ("head_dim", "stages", "resident"), [(64, 3, 3), (64, 4, 2), (128, 2, 2), (128, 3, 1)]
)
def test_several_workgroups_of_one_group_fit_into_a_compute_unit(
    head_dim, stages, resident, store
):  # fmt: skip
    p = replace(PLAIN, head_dim=head_dim, head_dim_v=head_dim, right=0, batch=9)
    config = config_of(p, tile_q=64, num_warps=4, num_stages=stages)
    assert gluon_ws.resident(config, SM_90) == resident
    assert FAMILY.launch(config, p, FEW).steps[0].grid == (2 * resident, 1, 1)
    report = build_once([(config, "sm_90")], store)
    (kernel,) = (r.kernel for r in report.results)
    assert report.results[0].occupancy.workgroups >= resident
    assert kernel.resources.spill_bytes == 0


def test_workgroups_of_more_groups_stand_alone():
    p = replace(PLAIN, right=0, batch=9)
    assert gluon_ws.resident(config_of(p), SM_90) == 1
    assert FAMILY.launch(config_of(p), p, FEW).steps[0].grid == (2, 1, 1)


REFUSED = [
    ({}, {"tile_q": 64}, "warpgroups"),
    ({}, {"num_warps": 16, "tile_q": 256}, "warpgroups"),
    (
        {"head_dim": 128, "head_dim_v": 128},
        {"tile_q": 192, "num_warps": 12, "tile_kv": 128},
        "warpgroups",
    ),
    ({"head_dim": 60, "head_dim_v": 60}, {}, "head_dim"),
    ({"head_dim": 264}, {}, "head_dim"),
    ({}, {"alignment": 8}, "copies"),
    ({}, {"num_stages": 14}, "shared_memory"),
    ({}, {"scheduler": "split"}, "combination"),
    ({"dtype": "e4m3fn", "dtype_kv": "e4m3fn", "others": "usedkv"}, {}, "fp8"),
    ({"dtype": "e4m3fn", "dtype_kv": "e4m3fn", "dtype_o": "e4m3fn"}, {}, "fp8"),
    ({"dtype": "e4m3fn", "dtype_kv": "e4m3fn", "dtype_o": "bf16", "bias_shape": (1, 2)}, {}, "fp8"),
]


@pytest.mark.parametrize(("fields", "algorithm", "rule"), REFUSED, ids=str)
def test_rules(fields, algorithm, rule):
    verdict = FAMILY.judge(config_of(replace(PLAIN, **fields), **algorithm), SM_90)
    assert not verdict
    assert verdict.rule == rule


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_len": 0},
        {"k_strides": (19200, 128, 9600, 2)},
        {"q_strides": (0, 128, 64, 1), "batch": 2},
        {"bias_shape": (1, 2)},  # whose rows are no multiple of 16 bytes
        {"dtype": "e4m3fn", "dtype_kv": "e4m3fn"},  # whose values lie by rows
        {
            "dtype": "e4m3fn",
            "dtype_kv": "e4m3fn",
            "kv_len": 150,
            "v_strides": (20480, 1, 10240, 160),
        },
    ],
    ids=str,
)
def test_what_descriptors_cannot_view(fields):
    p = replace(PLAIN, **fields)
    assert FAMILY.supports(config_of(p), p, SM_90).rule == "descriptors"
