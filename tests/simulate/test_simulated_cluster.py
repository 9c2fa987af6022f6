"""Workgroups that exchange their sums through shared memory, in the simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sim_language as language
import sim_names
from sim_values import Fault

from simulate import simulated_run, worst_error
from tilewright import arrays, ops, verify
from tilewright.arch import arch, device
from tilewright.ops.device import gluon_cluster
from tilewright.ops.gemm import GemmProblem

GEMM, H200 = ops.family("gemm"), device("h200")


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(sim_names, "known_functions", {})


def product(kernel: str, seed: int = 0) -> float:
    config = GEMM.parse_name(f"gemm_{kernel}")
    problem = GemmProblem(
        200, 272, 640, dtype_a=config.dtype_a, dtype_c=config.dtype_c, layout=config.layout,
        epilogue=config.epilogue, batching=config.batching,
        **({"batch": 3} if config.batching == "strided" else {}),
    )  # fmt: skip
    assert GEMM.supports(config, problem, arch("sm_90"))
    return worst_error(config, problem, H200, seed)


RCR = "rcr_bf16_bf16_bf16_fp32"
KERNELS = (
    f"{RCR}_128x128x64_w8_s3_gluon_ws_split_k2_cluster_g8_direct_padmnk_al16",
    f"{RCR}_128x128x64_w4_s3_gluon_ws_split_k4_cluster_g8_direct_padmnk_al16",
    f"{RCR}_64x128x64_w4_s3_gluon_ws_split_k8_cluster_g8_direct_padmnk_al16",
    f"{RCR}_128x64x64_w4_s3_gluon_ws_split_k2_cluster_g8_direct_padmnk_al16_swapab",
    f"{RCR}_64x256x64_w4_s3_gluon_ws_split_k2_cluster_g8_split_padmnk_al16",
    "crc_bf16_bf16_bf16_fp32_64x64x64_w4_s3_gluon_ws_split_k2_cluster_g8_direct_padmnk_al16",
    "rcr_int8_int8_bf16_int32_64x64x64_w4_s3_gluon_ws_split_k2_cluster_g8_direct_padmnk_al16"
    "_epi-row_scale-col_scale",
    f"{RCR}_64x64x64_w4_s3_gluon_ws_split_k2_cluster_g8_direct_padmnk_al16_epi-bias-swiglu",
    f"{RCR}_64x64x64_w4_s3_gluon_ws_split_k4_cluster_g8_direct_padmnk_al16_batch-strided",
)


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(2))
def test_products(kernel, seed):
    assert product(kernel, seed) <= 1


def test_sums_that_are_read_before_they_have_come(monkeypatch):
    monkeypatch.setitem(
        language.OBJECTS,
        id(gluon_cluster.hear),
        lambda barrier, phase: (
            language.world.hear(barrier, 1) if language.world.inbox is None else None
        ),
    )
    assert not product(KERNELS[0]) <= 1


@pytest.mark.parametrize(
    ("word", "fault"), [("ready", "said that it is ready"), ("meet", "met the other")]
)
def test_workgroups_that_do_not_wait_for_each_other(word, fault, monkeypatch):
    monkeypatch.setitem(language.OBJECTS, id(getattr(gluon_cluster, word)), lambda: None)
    with pytest.raises(Fault, match=fault):
        product(KERNELS[0])


def test_the_bits_do_not_depend_on_the_share():
    """Sums are added in the order of K's parts, whichever workgroup adds them. The last tile of 160
    columns begins at 32, so that it adds up 96 columns again, in other shares.

    Each part's products are small integers times the part's power of two, and so exact: what
    multiplies them here may sum them in any order. The parts' sums are not.
    """
    config = GEMM.parse_name(f"gemm_{KERNELS[1].replace('_bf16_fp32', '_fp32_fp32')}")
    wide = GemmProblem(64, 160, 512, dtype_c="fp32")
    made = verify.operands_of(wide, 3).inputs
    by_chance = np.random.default_rng(3)
    a, b = (by_chance.integers(-8, 9, arrays.to_numpy(made[name]).shape) for name in "AB")
    a = a * 2.0 ** (9 * np.repeat(np.arange(4), 128))
    a, b = (x.astype(arrays.to_numpy(made["A"]).dtype) for x in (a, b))

    def computed(columns):
        given = {"A": a.reshape(-1), "B": b[:, :columns].T.reshape(-1)}
        return simulated_run(config, replace(wide, n=columns, ldc=0), H200, given)["C"]

    assert (computed(160)[:, :128] == computed(128)).all()
