"""Gluon's kernels for sm_90 in the simulation: right, and faults put into them are found."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import sim_language as language
from sim_values import Fault

from simulate import simulated_run
from tilewright import ops
from tilewright.arch import device
from tilewright.ops.gemm import GemmProblem

GEMM = ops.family("gemm")
H200 = device("h200")


def product(kernel: str, *, m: int = 200, n: int = 272, k: int = 320, seed: int = 0) -> float:
    """The largest error of a product of the simulated kernel."""
    config = GEMM.parse_name(f"gemm_{kernel}_padmnk_al16")
    problem = GemmProblem(m=m, n=n, k=k, layout=config.layout)
    rng = np.random.default_rng(seed)
    inputs, logical = {}, []
    for one in GEMM.operands(problem)[:2]:
        values = rng.standard_normal(one.shape).astype(ml_dtypes.bfloat16)
        flat = np.empty(values.size, values.dtype)
        np.ndarray(one.shape, values.dtype, flat, 0, [2 * s for s in one.strides])[...] = values
        inputs[one.name] = flat
        logical.append(values.astype(np.float32))
    found = simulated_run(config, problem, H200, inputs, seed)["C"].astype(np.float32)
    return float(np.abs(found - logical[0] @ logical[1]).max())


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(language, "known_functions", {})


KERNELS = (
    "rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s3_gluon_ws_persistent_g8_direct",
    "ccr_bf16_bf16_bf16_fp32_128x128x64_w4_s4_gluon_ws_persistent_g8_split",
    "rcr_bf16_bf16_bf16_fp32_64x128x64_w8_s3_gluon_pingpong_persistent_g8_direct",
)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(3))
def test_products(kernel, seed):
    assert product(kernel, seed=seed) < 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_slot_that_is_read_before_it_is_full(monkeypatch, seed):
    """Whoever multiplies does not wait for the copies."""
    real = language.BARRIER["wait"]

    def wait(barrier, phase, **how):
        if "default" not in language.world.now.name and language.world.now.products:
            return
        real(barrier, phase, **how)

    monkeypatch.setitem(language.OBJECTS, id(language.hopper.mbarrier.wait), wait)
    monkeypatch.setitem(language.BARRIER, "wait", wait)
    try:
        assert not product(KERNELS[0], seed=seed) < 0.5  # NaN, or what was there before
    except Fault as fault:
        assert "changed while" in str(fault) or "more arrive" in str(fault)


@pytest.mark.parametrize("seed", range(3))
def test_a_slot_that_is_released_too_early(monkeypatch, seed):
    """The product that reads a slot is still in flight when the slot is released."""

    def wait(count=0, deps=None):
        return language.warpgroup_mma_wait(2 * int(count), deps)

    # What the sums are is known at once here, so that only the early release is the fault.
    monkeypatch.setattr(
        language, "_settled", lambda x, flying: language.Tensor(x._data, x.dtype, x.layout)
    )
    monkeypatch.setitem(language.OBJECTS, id(language.hopper.warpgroup_mma_wait), wait)
    with pytest.raises(Fault, match="changed while a wgmma in flight was reading it"):
        product(KERNELS[0], k=1000, seed=seed)


def test_a_phase_that_never_comes(monkeypatch):
    real = language.BARRIER["init"]
    monkeypatch.setitem(language.BARRIER, "init", lambda barrier, count: real(barrier, count + 1))
    with pytest.raises(Fault, match=r"nobody can go on: .*waits for a barrier's phase"):
        product(KERNELS[0])


def test_a_store_without_a_fence(monkeypatch):
    name = id(language.hopper.fence_async_shared)
    monkeypatch.setitem(language.OBJECTS, name, lambda **_: None)
    with pytest.raises(Fault, match="without fence_async_shared"):
        product(KERNELS[0])


def test_staging_that_is_written_while_it_is_stored(monkeypatch):
    name = id(language.hopper.tma.store_wait)

    def store_wait(pendings):
        if not int(pendings):
            language.world.wait_stores(0)

    monkeypatch.setitem(language.OBJECTS, name, store_wait)
    with pytest.raises(Fault, match="changed while a store in flight was reading it"):
        product(KERNELS[1])
