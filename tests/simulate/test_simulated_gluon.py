"""Gluon's kernels for sm_90 in the simulation: right, and faults put into them are found."""

from __future__ import annotations

import pytest
import sim_language as language
import sim_names
from sim_values import Fault

from simulate import worst_error
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.gemm import GemmProblem

GEMM = ops.family("gemm")
H200, SM_90 = device("h200"), arch("sm_90")
SIMULATED = ("gluon_ws", "gluon_pingpong", "gluon_scaled")
"""Not `gluon_weights`, which unpacks weights in assembly language."""


def product(kernel: str, *, m: int = 200, n: int = 272, k: int = 320, seed: int = 0) -> float:
    """The largest error of a product of the simulated kernel, in tolerances."""
    config = GEMM.parse_name(f"gemm_{kernel}_padmnk_al16")
    problem = GemmProblem(m=m, n=n, k=k, layout=config.layout)
    return worst_error(config, problem, H200, seed)


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(sim_names, "known_functions", {})


KERNELS = (
    "rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s3_gluon_ws_persistent_g8_direct",
    "ccr_bf16_bf16_bf16_fp32_128x128x64_w4_s4_gluon_ws_persistent_g8_split",
    "rcr_bf16_bf16_bf16_fp32_64x128x64_w8_s3_gluon_pingpong_persistent_g8_direct",
)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(3))
def test_products(kernel, seed):
    assert product(kernel, seed=seed) <= 1


def _spread():
    """A kernel of every pipeline, scheduler and reduction that Gluon has on sm_90, and a few of its
    tiles."""
    eight = {"dtype_a": "e4m3fn", "dtype_b": "e4m3fn"}
    for problem in (
        GemmProblem(m=200, n=272, k=320),
        GemmProblem(m=96, n=272, k=512, **eight),
        GemmProblem(m=64, n=256, k=512, **eight, scale_a="1x128", scale_b="128x128"),
    ):
        kinds = {}
        for space in GEMM.tuning_spaces(problem, SM_90):
            for c in space.expand(SM_90).configs:
                if c.pipeline in SIMULATED and GEMM.supports(c, problem, SM_90):
                    kinds.setdefault((c.pipeline, c.scheduler, c.reduction), []).append(c)
        for some in kinds.values():
            for c in some[:: max(1, len(some) // 2)][:2]:
                yield pytest.param(problem, c, id=c.name)


@pytest.mark.grid(3)
@pytest.mark.parametrize(("problem", "config"), list(_spread()))
def test_every_kind(problem, config):
    assert worst_error(config, problem, H200) <= 1


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
        assert not product(KERNELS[0], seed=seed) <= 1  # NaN, or what was there before
    except Fault as fault:
        assert "changed while" in str(fault) or "more arrive" in str(fault)


@pytest.mark.parametrize("seed", range(3))
def test_a_slot_that_is_released_too_early(monkeypatch, seed):
    """The product that reads a slot is still in flight when the slot is released."""

    def wait(count=0, deps=None):
        return language.warpgroup_mma_wait(2 * int(count), deps)

    # The sums are available at once here, so that the early release is the only fault.
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
