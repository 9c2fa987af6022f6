"""Kernels with programmatic dependent launch, in the simulation: each partition waits for the
kernel before it accesses memory, and a wait that is left out or comes too late is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sim_language as language
import sim_names
from sim_values import Fault

from simulate import worst_error
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.device import gluon_api
from tilewright.ops.gemm import GemmProblem

GEMM = ops.family("gemm")
SM_90 = arch("sm_90")
SMALL = replace(device("h200"), compute_units=4)
"""So that a workgroup has several tiles of a small problem."""

BF16 = "bf16_bf16_bf16_fp32"
KERNELS = (
    f"rcr_{BF16}_128x64x32_w8_s3_gluon_ws_persistent_g8_direct_padmnk_al16_pdl-ahead",
    f"ccr_{BF16}_64x64x32_w4_s4_gluon_ws_persistent_g8_split_padmnk_al16_pdl-wait",
    f"rcr_{BF16}_64x72x32_w4_s3_gluon_ws_persistent_g8_direct_padmnk_al16_pdl-ahead",
    f"rcr_{BF16}_64x64x32_w4_s3_gluon_ws_split_k4_linear_g8_direct_padmnk_al16_pdl-ahead",
    f"rcr_{BF16}_64x64x32_w4_s12_gluon_ws_stream_k_tree_g8_direct_padmnk_al16_pdl-ahead",
    f"rcr_{BF16}_16x64x32_w4_s3_gluon_ws_split_k2_linear_g8_direct_padmnk_al16_swapab_pdl-ahead",
    f"rcr_{BF16}_32x128x32_w8_s3_gluon_ws_persistent_g8_direct_padmnk_al16_swapab_pdl-ahead",
    f"rcr_{BF16}_64x64x32_w8_s3_gluon_pingpong_persistent_g8_direct_padmnk_al16_pdl-ahead",
    f"rrr_{BF16}_64x64x32_w8_s3_gluon_pingpong_persistent_g8_direct_padmnk_al16_pdl-wait",
    f"rcr_{BF16}_64x64x32_w4_s3_gluon_ws_persistent_g8_direct_padmnk_al16"
    "_pdl-ahead_batch-strided_epi-bias",
)
WS, WAITS, *_ = KERNELS
TURNS = KERNELS[-3]


def error_of(kernel: str, seed: int = 0, **fields: object) -> float:
    """The largest error of a product of a simulated kernel, in tolerances."""
    config = GEMM.parse_name(f"gemm_{kernel}")
    said = {"constant_b": True, "epilogue": config.epilogue, "layout": config.layout}
    if config.batching == "strided":
        said["batch"] = 2
    problem = GemmProblem(m=136, n=144, k=200, **{**said, **fields})
    if problem.constant_b:
        assert GEMM.supports(config, problem, SM_90)
    return worst_error(config, problem, SMALL, seed)


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    monkeypatch.setattr(sim_names, "known_functions", {})


@pytest.mark.grid(6)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(2))
def test_products(kernel, seed):
    assert error_of(kernel, seed) <= 1


def replaced(monkeypatch, function, instead):
    """Run `instead` where kernels call `function`."""
    monkeypatch.setitem(language.OBJECTS, id(function), instead)


def waits_unless(monkeypatch, name: str) -> None:
    """Every partition waits, except those whose name has `name` in it."""

    def wait():
        if name not in language.world.now.name:
            language.world.wait_for_kernel_before()

    replaced(monkeypatch, gluon_api.gdc_wait, wait)


@pytest.mark.parametrize("kernel", [WS, WAITS, TURNS])
def test_a_producer_that_does_not_wait_reads_too_early(monkeypatch, kernel):
    waits_unless(monkeypatch, "fill")
    with pytest.raises(Fault, match=r"\(fill\) reads A before it has waited"):
        error_of(kernel)


@pytest.mark.parametrize("kernel", [WS, WAITS, TURNS])
@pytest.mark.parametrize("partition", ["start", "partition 1"])
def test_a_consumer_that_does_not_wait_writes_too_early(monkeypatch, kernel, partition):
    if partition == "partition 1" and kernel == WAITS:
        partition = "start"  # it has one consumer
    waits_unless(monkeypatch, partition)
    with pytest.raises(Fault, match=r"(start|_multiply\)|_take_turns\)) writes C before it has wa"):
        error_of(kernel)


def test_flags_and_vectors_are_read_after_the_wait(monkeypatch):
    waits_unless(monkeypatch, "start")
    with pytest.raises(Fault, match="reads flags before it has waited"):
        error_of(KERNELS[3])
    with pytest.raises(Fault, match="reads bias before it has waited"):
        error_of(KERNELS[-1])


@pytest.mark.parametrize("kernel", [WS, TURNS, KERNELS[5]])
def test_b_is_read_early_only_where_it_is_said_to_be_constant(kernel):
    config = GEMM.parse_name(f"gemm_{kernel}")
    verdict = GEMM.supports(config, GemmProblem(m=136, n=144, k=200), SM_90)
    assert verdict.rule == "constant_b"
    with pytest.raises(Fault, match=r"\(fill\) reads B before it has waited"):
        error_of(kernel, constant_b=False)


def test_b_is_requested_before_the_wait(monkeypatch):
    """Else the promise would be worth nothing."""
    early = []
    real = language.COPIES["async_copy_global_to_shared"]

    def load(view, at, barrier, tile, pred=True, **how):
        if bool(pred) and not language.world.now.waited:
            early.append((language.world.program, view.memory.name))
        real(view, at, barrier, tile, pred, **how)

    monkeypatch.setitem(language.OBJECTS, id(language.hopper.tma.async_copy_global_to_shared), load)
    assert error_of(WS) <= 1
    # Four workgroups, each as many tiles as its ring has slots.
    assert sorted(early) == sorted(((i, 0, 0), "B") for i in range(4) for _ in range(3))


@pytest.mark.parametrize("kernel", [WS, WAITS, TURNS])
def test_a_workgroup_without_work_waits_too(monkeypatch, kernel):
    """Else the kernel behind could start before the kernel before has ended."""
    real = type(GEMM).launch

    def launch(self, *given):
        (step,) = (made := real(self, *given)).steps
        x, y, z = step.grid
        return replace(made, steps=(replace(step, grid=(x + 20, y, z)),))

    monkeypatch.setattr(type(GEMM), "launch", launch)
    assert error_of(kernel) <= 1


def test_a_workgroup_that_never_lets_the_next_kernel_start(monkeypatch):
    replaced(monkeypatch, gluon_api.gdc_launch_dependents, lambda: None)
    with pytest.raises(Fault, match="has not let the next kernel start"):
        error_of(WS)


def test_a_workgroup_that_lets_the_next_kernel_start_before_its_loads(monkeypatch):
    def wait():
        language.world.wait_for_kernel_before()
        language.world.let_next_kernel_start()

    replaced(monkeypatch, gluon_api.gdc_wait, wait)
    with pytest.raises(Fault, match="loads after it has let the next kernel start"):
        error_of(WS)
