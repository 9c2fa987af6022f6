"""profile --on emulated:…: counts instead of times."""

from __future__ import annotations

import pytest

KERNEL = "gemm_rcr_fp16_fp16_fp16_fp32_64x64x64_w4_s2_basic_tile_g8_direct_padmnk_al16"
WORDS = ("profile", "gemm", "m=64", "n=64", "k=128", "dtype=fp16", "--on", "emulated:mi300x")


@pytest.mark.turns(48)
def test_it_counts_the_named_kernel(cli):
    document = cli.json(*WORDS, "--kernel", KERNEL)
    assert document["emulated"] is True and document["device"]["arch"] == "gfx942"
    (one,) = document["counted"]
    assert (one["kernel"], one["ok"], one["findings"]) == (KERNEL, True, [])
    assert one["estimate"]["total_us"] > 0
    (executed,) = one["executed"]
    assert (executed["workgroups"], executed["waves"]) == (1, 4)
    assert executed["counted"]["instructions"]["matrix"] == 64 * 64 * 128 // (32 * 32 * 8)
    assert executed["counted"]["read"]["distinct"] == 2 * 64 * 128 * 2
    shown = cli(*WORDS, "--kernel", KERNEL)
    assert "counts, not times" in shown
    assert "64 matrix" in shown and "512 clocks a workgroup on 4 SIMDs" in shown
    assert "0% bank conflicts" in shown and "1 × the fewest bytes" in shown
    assert "\nestimated " in shown


@pytest.mark.turns(24)
def test_it_executes_the_kernels_with_the_least_estimated_times(cli):
    both = ("--kernel", KERNEL, "--kernel", KERNEL.replace("64x64x64_w4", "64x64x64_w8"))
    shown = cli(*WORDS, *both, "--top", "1")
    assert KERNEL in shown and "64x64x64_w8" not in shown
    assert "and 1 kernel with longer estimates (--top counts more)" in shown


def test_what_it_refuses(cli):
    real = (*WORDS[:-1], "mi300x")
    assert "--devices says which devices measure" in cli.fails(2, *real)
    assert "drop one" in cli.fails(2, *WORDS, "--devices", "cpu")
    nvidia = (*WORDS[:-1], "emulated:h200")
    assert "only AMD's GPUs are emulated" in cli.fails(2, *nvidia)
    other = KERNEL.replace("fp16", "bf16")
    assert "no kernel supports" in cli.fails(2, *WORDS, "--kernel", other)
