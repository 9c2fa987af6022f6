"""Workgroups that exchange their sums through shared memory, in the simulation."""

from __future__ import annotations

import pytest
import sim_language as language
from sim_values import Fault

from simulate import worst_error
from tilewright import ops
from tilewright.arch import device
from tilewright.ops.device import gluon_cluster
from tilewright.ops.gemm import GemmProblem

GEMM = ops.family("gemm")


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(language, "known_functions", {})


def product(kernel: str, seed: int = 0, **sizes: int) -> float:
    config = GEMM.parse_name(f"gemm_{kernel}")
    of = {"m": 200, "n": 272, "k": 640} | sizes
    problem = GemmProblem(
        **of, dtype_a=config.dtype_a, dtype_c=config.dtype_c, layout=config.layout,
        epilogue=config.epilogue, batching=config.batching,
        **({"batch": 3} if config.batching == "strided" else {}),
    )  # fmt: skip
    assert GEMM.supports(config, problem, __import__("tilewright").arch.arch("sm_90"))
    return worst_error(config, problem, device("h200"), seed)


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


def test_the_bits_do_not_depend_on_the_share(monkeypatch):
    """Sums are added in the order of K's parts, whichever workgroup adds them."""
    from simulate import simulated_run
    from tilewright import verify

    config = GEMM.parse_name(f"gemm_{KERNELS[1].replace('_bf16_fp32', '_fp32_fp32')}")
    narrow, wide = (GemmProblem(64, n, 640, dtype_c="fp32") for n in (96, 128))
    inputs = verify.operands_of(wide, 3).inputs
    less = {**inputs, "B": inputs["B"][:, :96]}
    first = simulated_run(config, wide, device("h200"), {k: flat(v, k) for k, v in inputs.items()})
    again = simulated_run(config, narrow, device("h200"), {k: flat(v, k) for k, v in less.items()})
    assert (first["C"][:, :96] == again["C"]).all()


def flat(values, name):
    from tilewright import arrays

    values = arrays.to_numpy(values)
    return (values.T if name == "B" else values).reshape(-1)
