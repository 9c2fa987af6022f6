from __future__ import annotations

from dataclasses import replace

import pytest
from store_helpers import make_kernel

from tilewright.arch import arch
from tilewright.compile import check_limits, occupancy
from tilewright.compile.resources import Resources, amd_resources, nvidia_resources
from tilewright.errors import BuildFailed

SM_90 = arch("sm_90")


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "workgroups", "limiter"),
    [
        (8, 168, 0, 1, "registers"),  # 512 // 168 = 3 waves on a SIMD, 2 for each workgroup
        (8, 128, 0, 2, "registers"),
        (4, 32, 100 << 10, 2, "shared_memory"),  # 228 KiB // (100 + 1) KiB
        (4, 32, 114 << 10, 1, "shared_memory"),  # two would fit but for the reserved KiB
        (4, 16, 0, 16, "waves"),
        (1, 16, 0, 32, "workgroups"),
        (16, 255, 0, 0, "registers"),
        (4, 32, 300 << 10, 0, "shared_memory"),
    ],
)
def test_occupancy_of_hopper(
    warps: int, registers: int, shared: int, workgroups: int, limiter: str
) -> None:
    found = occupancy(SM_90, num_warps=warps, registers=registers, shared=shared)
    assert (found.workgroups, found.limiter) == (workgroups, limiter)
    assert found.waves_per_simd == workgroups * warps / 4


def test_occupancy_of_cdna3() -> None:
    # 228 registers of 512: two waves on a SIMD.
    found = occupancy(arch("gfx942"), num_warps=4, registers=228, shared=16384)
    assert (found.workgroups, found.waves_per_simd, found.limiter) == (2, 2.0, "registers")


def test_limits_are_refused_with_their_numbers() -> None:
    kernel = make_kernel()
    assert check_limits(kernel, SM_90)
    refusals = {
        "shared_memory": replace(kernel, shared=262176),
        "threads": replace(kernel, num_warps=64),
        "registers": replace(
            kernel, num_warps=16, resources=replace(kernel.resources, registers=255)
        ),
        "tensor_memory": replace(kernel, resources=replace(kernel.resources, tensor_memory=1024)),
    }
    numbers = {
        "shared_memory": ("262176", "232448"),
        "threads": ("2048", "1024"),
        "registers": ("255", "16"),
        "tensor_memory": ("1024", "512"),
    }
    for rule, refused in refusals.items():
        verdict = check_limits(refused, SM_90)
        assert not verdict and verdict.rule == rule
        assert all(number in verdict.reason for number in numbers[rule])


def test_nvidia_report() -> None:
    line = "  REG:255 STACK:624 SHARED:0 LOCAL:0 CONSTANT[0]:912 TEXTURE:0 SURFACE:0 SAMPLER:0"
    assert nvidia_resources(line, 0) == Resources(255, 0, 0, 624, 624, 0)
    with pytest.raises(BuildFailed, match="not understood"):
        nvidia_resources("cuobjdump fatal", 0)


def test_amd_metadata() -> None:
    text = """
  - .agpr_count:     64
    .private_segment_fixed_size: 40
    .sgpr_count:     102
    .sgpr_spill_count: 3
    .vgpr_count:     228
    .vgpr_spill_count: 7
"""
    assert amd_resources(text) == Resources(228, 64, 102, 28, 40, 0)
    assert amd_resources(text.replace("  - .agpr_count:     64\n", "")).agprs == 0
    with pytest.raises(BuildFailed, match="vgpr_count"):
        amd_resources("s_endpgm")
