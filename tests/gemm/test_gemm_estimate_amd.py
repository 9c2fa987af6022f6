"""The estimate of a GEMM's time on AMD GPUs, beside what executed kernels were counted to do."""

from __future__ import annotations

import pytest
from breakdowns import breakdown
from gemm_cases import config

from tilewright.arch import arch, peak_tflops
from tilewright.arch.known import devices
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.gemm.estimate import work
from tilewright.ops.gemm.estimate_step import _idle
from tilewright.ops.gemm.warps import laid, warps

COUNTED = [
    # How often waves repeat the products of a tile, over the clocks that the published rate needs,
    # as executed kernels were counted (benchmarks/results/emulated_counts.json).
    ("gfx942", {"tile_m": 128, "tile_n": 128}, 1),
    ("gfx942", {"tile_m": 128, "num_warps": 8}, 1),
    ("gfx942", {"num_warps": 8}, 2),
    ("gfx942", {"tile_m": 32, "tile_n": 32}, 4),
    ("gfx942", {"tile_m": 32, "tile_n": 32, "num_warps": 2}, 2),
    ("gfx942", {"tile_m": 32, "tile_n": 32, "mma": (16, 16, 16)}, 1),
    ("gfx942", {"tile_m": 32}, 4),
    ("gfx942", {"tile_n": 32}, 2),
    ("gfx942", {"tile_m": 32, "tile_n": 128, "num_warps": 8}, 8),
    ("gfx942", {"tile_m": 16}, 1),
    ("gfx942", {"tile_m": 16, "tile_n": 16}, 4),
    ("gfx942", {"pipeline": "gluon_cdna", "num_warps": 8}, 1),
    ("gfx942", {"pipeline": "small_m", "tile_m": 16, "group_m": 1}, 1),
    ("gfx942", {"pipeline": "small_m", "tile_m": 32, "group_m": 1}, 2),
    ("gfx950", {"tile_m": 16, "tile_n": 16, "tile_k": 16, "num_warps": 1}, 2),
    ("gfx950", {"dtype_a": "e4m3fn", "tile_k": 32}, 2),
    ("gfx950", {"dtype_a": "e4m3fn", "tile_m": 16}, 2),
    ("gfx950", {"dtype_a": "e4m3fn", "tile_m": 16, "tile_k": 128}, 1),
    ("gfx950", {"dtype_a": "e4m3fn"}, 1),
    ("gfx1201", {"tile_m": 32, "tile_n": 32}, 1),
    ("gfx1201", {"tile_m": 16, "tile_n": 16}, 4),
]


@pytest.mark.parametrize(("name", "fields", "again"), COUNTED)
def test_the_products_of_amd_kernels_are_those_that_were_counted(name, fields, again) -> None:
    kernel = config(name, **{"dtype_a": "fp16", **fields})
    this, problem = arch(name), GemmProblem(128, 128, 1280, dtype_a=kernel.dtype_a)
    found = warps(kernel, this)
    assert found is not None
    assert found.again / found.share == again
    gpu = next(d for d in devices().values() if d.arch == name)
    least = again * problem.flops / peak_tflops(this, gpu, kernel.dtype_a) / 1e6  # of all units
    claimed = work(kernel, problem, gpu)
    assert claimed is not None
    clocks = least * gpu.clock_mhz * gpu.compute_units * this.simds_per_cu
    assert claimed.matrix_clocks == pytest.approx(clocks)
    estimated = breakdown(kernel, problem, gpu)
    tiles = -(-128 // kernel.tile_m) * -(-128 // kernel.tile_n)
    assert estimated.compute_us > 1.05 * least * gpu.compute_units / tiles


def test_waves_that_find_no_columns_lie_along_the_rows() -> None:
    assert laid(32, 64, 4, 32) == (4, 1)  # four waves across would be too many: all repeat a row
    assert laid(32, 128, 8, 32) == (8, 1)
    assert laid(64, 64, 8, 32) == (4, 2)
    assert laid(128, 256, 8, 32) == (2, 4)
    assert laid(64, 128, 4, 32) == (1, 4)
    assert laid(16, 64, 4, 16) == (1, 4)
    assert laid(64, 16, 4, 16) == (4, 1)
    assert laid(16, 16, 4, 16) == (4, 1)


def test_shared_memory_of_amd_gpus_is_read_as_its_banks_and_instructions_have_it() -> None:
    """Clocks of 64x64x64 tiles with four waves, as they were counted: each matrix goes in once and
    is read by two waves."""
    matrix = 64 * 64 * 2
    clocks = {
        "gfx942": (2 + 4) * matrix / 128,
        "gfx950": 2 * matrix / 128 + 4 * matrix / 256,  # twice the banks, for reads
        "gfx1201": (2 + 4) * matrix / 128,
        "gfx1100": (2 + 8) * matrix / 128,  # two lanes read each element
    }
    one = GemmProblem(64, 64, 64 * 100)
    for name, of_a_step in clocks.items():
        gpu = next(d for d in devices().values() if d.arch == name)
        found = breakdown(config(name, dtype_a="fp16"), one, gpu)
        assert found.shared_us * gpu.clock_mhz == pytest.approx(100 * of_a_step)


def test_waves_are_laid_out_on_amd_gpus_only_and_over_whole_tiles() -> None:
    assert warps(config(tile_m=128, num_warps=8), arch("sm_90")) is None
    for few in ({"tile_m": 16, "tile_n": 32, "tile_k": 128}, {"tile_m": 1, "tile_n": 16}):
        shares_k = config("gfx942", pipeline="small_m", group_m=1, **few)
        assert warps(shares_k, arch("gfx942")) is None
    on_vector_units = config("gfx1201", dtype_a="fp32")
    assert warps(on_vector_units, arch("gfx1201")) is None
    assert warps(config("gfx1250", dtype_a="fp16"), arch("gfx1250")) is None


@pytest.mark.parametrize(
    ("name", "dtype", "clocks"),
    [("gfx942", "e4m3fn", 6612), ("gfx942", "e5m2", 468), ("gfx1100", "e5m2fnuz", 6290)],
)
def test_types_without_instructions_cost_their_conversion_on_amd_gpus(name, dtype, clocks) -> None:
    """Clocks of the vector units for a step of a 64x64x64 tile, counted of executed kernels."""
    gpu = next(d for d in devices().values() if d.arch == name)
    found = {
        each: breakdown(
            config(name, dtype_a=each, dtype_c="fp16"),
            GemmProblem(64, 64, 64 * 100, dtype_a=each, dtype_c="fp16"),
            gpu,
        ).compute_us
        for each in (dtype, "fp16")
    }
    more = (found[dtype] - found["fp16"]) * gpu.clock_mhz / 100
    assert more == pytest.approx(clocks, rel=0.3)


@pytest.mark.parametrize(
    ("name", "tile", "clocks"),
    [
        ("gfx1201", (64, 64, 32, 4), 5248), ("gfx1100", (64, 64, 32, 4), 6272),
        ("gfx1201", (32, 32, 32, 4), 2624), ("gfx1100", (128, 128, 16, 8), 6336),
    ],
)  # fmt: skip
def test_products_on_the_vector_units_of_rdna_wait_for_shared_memory(name, tile, clocks) -> None:
    """Clocks of shared memory for a step of K, as they were counted."""
    m, n, k, warps = tile
    gpu = next(d for d in devices().values() if d.arch == name)
    kernel = config(name, dtype_a="fp32", tile_m=m, tile_n=n, tile_k=k, num_warps=warps)
    problem = GemmProblem(m, n, k * 100, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32")
    found = breakdown(kernel, problem, gpu)
    assert found.shared_us * gpu.clock_mhz / 100 == pytest.approx(clocks, rel=0.2)
    assert found.limiter == "shared memory"


def test_warps_without_an_instruction_of_their_own_repeat_others_products():
    """One of 16×16 lies in the tile for four warps, or one for each."""
    cdna = arch("gfx942")
    few, enough = (config(tile_m=16, tile_n=n, num_warps=4) for n in (16, 64))
    assert (_idle(few, cdna), _idle(enough, cdna)) == (4.0, 1.0)
