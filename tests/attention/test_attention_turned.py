"""Pipeline gluon_turned: fp8 values by rows are turned by a kernel before gluon_ws's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shared_builds import build_once
from simulate import simulated_run, worst_error
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.ops.attention import AttentionConfig, AttentionProblem

FAMILY = ops.family("attention")
SM_90 = arch("sm_90")
FEW = replace(device("h200"), compute_units=2)
PLAIN = AttentionProblem(
    2, 4, 100, 196, 64, kv_heads=2, dtype="e4m3fn", dtype_o="bf16", others="lse+hscale"
)


def config_of(p: AttentionProblem, **fields) -> AttentionConfig:
    tile = {"tile_q": 128, "tile_kv": 64, "num_warps": 8, "num_stages": 2, **fields}
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind,
        pipeline="gluon_turned", scheduler="persistent", features=p.features, **tile,
    )  # fmt: skip


CASES = [
    {},
    {"right": 0},
    {"head_dim": 128, "head_dim_v": 80},
    {"kv_len": 36, "q_len": 1},
    {"others": "usedkv+tscale"},
    {"others": "sinks+usedq+usedkv", "right": 0},
    {"new_kv": 4, "others": "usedkv", "right": 0},
    {"k_strides": (196 * 3 * 128, 384, 64, 1), "v_strides": (196 * 3 * 128, 384, 64, 1)},
]


@pytest.mark.grid(2)
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_it_is_right(fields):
    p = replace(PLAIN, **fields)
    config = config_of(p)
    assert FAMILY.supports(config, p, SM_90)
    assert worst_error(config, p, FEW) <= 1


def test_what_a_sequence_does_not_have_may_be_nan():
    p = replace(PLAIN, others="usedkv")
    inputs = dict(verify.operands_of(p, 3).inputs)
    inputs["kv_used"] = np.array([70, 0], np.int32)
    wanted = verify.reference(p, inputs)["o"]
    for name in ("k", "v"):
        inputs[name][0, 70:] = np.nan
        inputs[name][1] = np.nan
    found = simulated_run(config_of(p), p, FEW, inputs)["o"].astype(float)
    assert not found[1].any()
    np.testing.assert_allclose(found, wanted, rtol=0.1, atol=0.1)


def test_the_plan_says_that_values_are_turned():
    plan = FAMILY.launch(config_of(PLAIN), PLAIN, FEW)
    assert [step.part for step in plan.steps] == ["turn", "main"]
    (turned,) = (t for t in plan.temporaries if t.name == "turned_v")
    assert turned.shape == (2, 2, 64, 208)  # 196 keys, in whole 16 bytes


def test_it_is_chosen_where_values_lie_by_rows_and_gluon_ws_where_by_columns():
    p = AttentionProblem(2, 16, 8192, 8192, 128, dtype="e4m3fn")
    columns = replace(p, v_strides=(16 * 128 * 8192, 1, 128 * 8192, 8192))
    dispatcher = Dispatcher(device="h200_sxm")
    chosen = [dispatcher.select(one).config.pipeline for one in (p, columns)]
    assert chosen == ["gluon_turned", "gluon_ws"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"others": "packedkv", "total_kv": 196}, "different lengths"),
        ({"kv_len": 198}, "multiple of 4"),
        ({"v_strides": (2 * 64 * 196, 1, 64 * 196, 196)}, "by columns already"),
        ({"dtype": "bf16", "dtype_kv": "", "dtype_o": "", "others": ""}, "bf16"),
    ],
    ids=str,
)
def test_it_refuses(fields, reason):
    p = replace(PLAIN, **fields)
    verdict = FAMILY.supports(config_of(p), p, SM_90) and FAMILY.legal(config_of(p), SM_90)
    assert not verdict
    assert reason in verdict.reason


@pytest.mark.turns(48)
def test_it_compiles(store):
    p = replace(PLAIN, head_dim=128, head_dim_v=128, right=0)
    config = config_of(p, tile_q=192, num_warps=12, num_stages=4)
    report = build_once([(config, "sm_90")], store)
    assert [(r.part, r.kernel.resources.spill_bytes) for r in report.results] == [
        ("turn", 0), ("main", 0),
    ]  # fmt: skip
