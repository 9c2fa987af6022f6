"""gfx1250: its matrix instructions by Gluon and by scaled dots; a plain dot stays on vector units.

Built and inspected; the Gluon kernel's source is run on NumPy, as for the older generations.
"""

from __future__ import annotations

import dataclasses
import re

import pytest
from gemm_cases import config
from gluon_stand_in import run

import selection
from tilewright.arch import arch, device
from tilewright.compile import Store, build, inspect
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, cdna
from tilewright.ops.gemm.sizes import shared_memory

NAME = "gfx1250"
THIS = arch(NAME)
A_GPU = dataclasses.replace(device("mi355x"), arch=NAME, name="a gfx1250", compute_units=5)


def kernel(**fields: object) -> GemmConfig:
    return config(NAME, **{"pipeline": "gluon_cdna", "scheduler": "persistent", **fields})


SMALL = {"tile_m": 64, "tile_n": 64, "tile_k": 64}
LARGE = {"tile_m": 128, "tile_n": 128, "tile_k": 64}
MX = {"tile_m": 64, "tile_n": 128, "tile_k": 128, "pipeline": "mx", "scheduler": "tile",
      "dtype_c": "bf16", "scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0"}  # fmt: skip
SHARED = {"scheduler": "split_k", "split_k": 2, "reduction": "linear"}
BUILT = selection.some(
    [
        # config, matrix instruction, loads of shared memory
        (kernel(**LARGE), "v_wmma_f32_16x16x32_bf16", "b128"),
        (kernel(**LARGE, layout="crr", dtype_a="fp16"), "v_wmma_f32_16x16x32_f16", "b128"),
        (
            kernel(**LARGE | {"tile_k": 128}, dtype_a="e4m3fn"),
            "v_wmma_f32_16x16x128_fp8_fp8",
            "b128",
        ),
        (kernel(**SMALL, dtype_a="e5m2"), "v_wmma_f32_16x16x64_bf8_bf8", "b128"),
        (kernel(**SMALL | {"tile_k": 32}, dtype_a="fp32"), "v_wmma_f32_16x16x4_f32", "b64"),
        (kernel(**LARGE, epilogue="bias+swiglu"), "v_wmma_f32_16x16x32_bf16", "b128"),
        (kernel(**SMALL, **SHARED), "v_wmma_f32_16x16x32_bf16", "b128"),
        (kernel(**MX, dtype_a="e4m3fn"), "v_wmma_scale_f32_16x16x128_f8f6f4", "b128"),
        (kernel(**MX, dtype_a="e2m1"), "v_wmma_scale_f32_16x16x128_f8f6f4", "b128"),
    ],
    4,
)
FLAT = {"tile_m": 32, "tile_n": 32, "tile_k": 32}
ON_VECTOR_UNITS = [
    config(NAME, **FLAT, alignment=1, index_bits=64),
    config(NAME, **FLAT, dtype_a="int8"),
    config(NAME, pipeline="small_m", tile_m=1, tile_n=2, tile_k=512, group_m=1, num_stages=1),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    requests = [(made, NAME) for made in (*(c for c, _, _ in BUILT), *ON_VECTOR_UNITS)]
    report = build(requests, store=store)
    report.raise_if_failed()
    return [(r.kernel, inspect(r.kernel, store, "amdgcn")) for r in report.results]


@pytest.mark.turns(64)
@pytest.mark.grid(1)
@pytest.mark.parametrize("number", range(len(BUILT)))
def test_matrix_instructions_multiply_what_whole_loads_bring(built, number):
    made, instruction, reads = BUILT[number]
    binary, listing = built[number]
    assert set(re.findall(r"v_wmma\w+", listing)) == {instruction}
    assert binary.resources.spill_bytes == 0
    assert binary.resources.registers <= THIS.registers_per_lane // cdna.RESIDENT
    assert f"ds_load_{reads}" in listing or f"ds_load_2addr_stride64_{reads}" in listing
    assert "buffer_load_b128" in listing and not re.search(r"scratch_(load|store)", listing)
    if made.pipeline == "gluon_cdna":
        assert binary.shared == shared_memory(made, THIS)
        # Two steps written out in the loop, and one behind it for an odd number of steps.
        m, n, k = cdna.mapping(made, THIS).mma
        step = made.tile_m * made.tile_n * made.tile_k // (m * n * k * made.num_warps)
        assert listing.count(instruction) == 3 * step
        bytes_ = (made.tile_m + made.tile_n) * made.tile_k * DTYPES[made.dtype_a].bytes
        loads = bytes_ // (16 * THIS.warp_size * made.num_warps)
        assert listing.count("buffer_load_b128") >= 4 * loads


@pytest.mark.turns(8)
@pytest.mark.parametrize("number", range(len(ON_VECTOR_UNITS)))
def test_a_plain_dot_is_arithmetic_of_the_vector_units(built, number):
    """As Triton 3.6 lowers it; when that changes, the data file's ``dot`` does."""
    binary, listing = built[len(BUILT) + number]
    assert "wmma" not in listing and binary.resources.spill_bytes == 0


@pytest.mark.parametrize(
    ("number", "layout"), list(enumerate(["rcr", "rrr", "ccr", "crr", "rcc", "crc"]))
)
def test_the_source_gives_the_product(number, layout):
    dtype = ("bf16", "fp32", "fp16")[number % 3]
    epilogue = ("", "bias+relu")[number % 2]
    shared = SHARED if number == 4 else {}
    made = kernel(dtype_a=dtype, layout=layout, tile_k=32, epilogue=epilogue, **shared)
    assert FAMILY.judge(made, THIS), str(FAMILY.judge(made, THIS))
    problem = GemmProblem(
        144, 208, (128, 176)[number % 2], dtype_a=dtype, layout=layout, lda=336, ldb=352, ldc=224,
        epilogue=epilogue,
    )  # fmt: skip
    run(made, problem, A_GPU, seed=number)


@pytest.mark.parametrize(
    ("made", "rule", "reason"),
    [
        (config(NAME, tile_m=128, tile_n=128), "dot", "on the vector units of gfx1250"),
        (config(NAME, tile_m=32, tile_n=64, tile_k=128, dtype_a="e4m3fn"), "dot", "over 512"),
        (kernel(dtype_a="int8", tile_k=64), "cdna", "no matrix instruction for int8"),
        (kernel(dtype_a="fp32", precision="tf32"), "dtype", "tf32"),
        (kernel(mma=(16, 16, 32)), "mma", "the compiler picks"),
        (kernel(num_stages=3), "cdna", "2 stages on gfx1250"),
        (kernel(tile_m=256, tile_n=256), "cdna", "registers a thread, over 512"),
        (config(NAME, pipeline="tma", scheduler="persistent"), "pipeline", "has no pipeline tma"),
        (
            config(NAME, **MX | {"scale_a": "", "dtype_b": "e2m1"}),
            "packed",
            "does not multiply bf16 and e2m1",
        ),
    ],
)
def test_what_it_does_not_do(made, rule, reason):
    verdict = FAMILY.judge(made, THIS)
    assert verdict.rule == rule and reason in verdict.reason


@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(512, 512, 512),
        GemmProblem(512, 512, 512, "fp32"),
        GemmProblem(512, 512, 512, "e4m3fn", dtype_c="bf16"),
        GemmProblem(16, 512, 512, "e2m1", scale_a="1x32-e8m0", scale_b="32x1-e8m0"),
    ],
    ids=str,
)
def test_the_default_space_reaches_the_matrix_units_and_serves_every_size(problem):
    found = FAMILY.default_space(problem, THIS).expand(NAME).configs
    assert {c.pipeline for c in found} & {"gluon_cdna", "mx"}
    odd = dataclasses.replace(problem, m=77, alignment=1, lda=0, ldb=0, ldc=0)
    assert any(FAMILY.supports(c, odd, THIS) for c in found)
    best, _ = FAMILY.rank(problem, [c for c in found if FAMILY.supports(c, problem, THIS)], A_GPU)[
        0
    ]
    assert best.pipeline in ("gluon_cdna", "mx")
