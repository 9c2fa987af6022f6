"""Each support rule: a problem that a kernel just serves, and one that it just does not."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from dataclasses import replace

import pytest
from rule_configs import (
    BASE,
    CDNA,
    FEW,
    FEW_TMA,
    GFX942,
    GLUON,
    SCALED,
    SM80,
    SM90,
    TMA,
    change,
    fp8,
)

from tilewright.arch import arch
from tilewright.errors import EmptySpace
from tilewright.ops.gemm import FAMILY
from tilewright.ops.gemm.layouts import gated
from tilewright.ops.gemm.legality import LEGALITY
from tilewright.ops.gemm.problem import LAYOUTS, GemmProblem
from tilewright.ops.gemm.support import SUPPORT, supports
from tilewright.ops.pool import Pool
from tilewright.ops.tile_sharing import shared_tiles


def problem(**fields):
    return GemmProblem(**{"m": 256, "n": 256, "k": 256, **fields})


@pytest.mark.parametrize(
    "fields",
    [{"dtype_a": "fp16"}, {"dtype_c": "fp32"}, {"layout": "rrr"}, {"epilogue": "bias"}],
)
def test_a_kernel_serves_its_own_signature_only(fields):
    assert supports(BASE, problem(), SM90)
    assert supports(BASE, problem(**fields), SM90).rule == "signature"


def test_b_is_loaded_early_only_where_it_is_said_to_be_constant():
    ahead, wait = (change(dependent_launch=word, **GLUON) for word in ("ahead", "wait"))
    refused = supports(ahead, problem(), SM90)
    assert refused.rule == "constant_b" and "pass constant_b=True" in refused.reason
    assert supports(ahead, problem(constant_b=True), SM90)
    for kernel in (wait, BASE):
        assert all(supports(kernel, problem(constant_b=said), SM90) for said in (False, True))
    swapped = change(dependent_launch="ahead", swap_ab=True, tile_m=16, **GLUON)
    assert supports(swapped, problem(), SM90).rule == "constant_b"
    assert supports(swapped, problem(constant_b=True), SM90)


GATED = {
    # layout: the dimensions that are innermost in A, B or C
    "rcr": "nk",
    "rrr": "nk",
    "ccr": "mnk",
    "crr": "mn",
    "rcc": "mk",
    "rrc": "mnk",
    "ccc": "mk",
    "crc": "mn",
}


def test_every_layout_has_its_gates():
    assert set(GATED) == set(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", "mnk")
@pytest.mark.parametrize("padded", [False, True])
def test_a_dimension_must_divide_its_tile_only_where_innermost_and_unpadded(layout, axis, padded):
    config = change(layout=layout, pad_m=False, pad_n=False, pad_k=False, alignment=1)
    config = dataclasses.replace(config, **{f"pad_{axis}": padded})
    ragged = problem(layout=layout, **{axis: 257})
    verdict = supports(config, ragged, SM90)
    gate = axis in GATED[layout]
    assert gated(layout)["mnk".index(axis)] == gate
    assert verdict.ok == (padded or not gate)
    assert verdict.rule == ("" if verdict else "divisibility")
    assert supports(config, problem(layout=layout), SM90)


def test_vector_width_needs_aligned_addresses():
    assert supports(BASE, problem(alignment=8), SM90).rule == "vector_width"
    assert supports(change(alignment=8), problem(alignment=8), SM90)
    assert supports(change(alignment=1), problem(alignment=1), SM90)


def test_pointer_kernels_need_aligned_extents_too_and_the_copy_engine_does_not():
    ragged = problem(k=250, lda=256, ldb=256)
    assert ragged.alignment == 16
    assert supports(BASE, ragged, SM90).rule == "vector_width"
    assert supports(change(alignment=4), ragged, SM90)
    assert supports(change(pipeline="tma"), ragged, SM90)
    # What the copy engine does not load, an epilogue's matrix, is loaded like a pointer kernel's.
    ragged = problem(n=250, ldc=256, epilogue="add", ldd=256)
    assert supports(change(pipeline="tma", epilogue="add"), ragged, SM90).rule == "vector_width"
    assert supports(change(epilogue="add", alignment=4), ragged, SM90)


@pytest.mark.parametrize(
    ("layout", "sizes", "refused"),
    [
        ("rcr", {"n": 300, "ldc": 304}, True),  # n - tile_n is no multiple of 8
        ("rcr", {"n": 304, "ldc": 312}, False),
        ("rrr", {"n": 300, "ldc": 304, "ldb": 304}, False),  # tiles reach beyond B's rows
        ("rcc", {"m": 300, "ldc": 304}, True),
        ("ccc", {"m": 300, "ldc": 304, "lda": 304}, False),
    ],
)
@pytest.mark.parametrize("pipeline", ["tma", "gluon_ws"])
def test_no_last_tile_begins_within_16_bytes_of_c(pipeline, layout, sizes, refused):
    """Such a launch ends with an illegal instruction."""
    words = {"gluon_ws": {"tile_m": 128, "tile_n": 128, "num_warps": 8, "scheduler": "persistent"}}
    p = problem(layout=layout, **sizes)
    c = change(pipeline=pipeline, layout=layout, **words.get(pipeline, {}))
    verdict = supports(c, p, SM90)
    assert verdict.rule == ("last_tile" if refused else ""), verdict.reason
    if refused:
        assert "300 is no multiple of 8" in verdict.reason
        # stream-K cuts tiles elsewhere, and a single tile begins where C does.
        small = replace(p, **{key: 60 for key in sizes if key in "mn"})
        assert supports(c, small, SM90)


def test_what_reads_through_pointers_needs_aligned_extents_and_32_bits():
    cdna = change(**CDNA)
    assert supports(cdna, problem(), GFX942)
    assert supports(cdna, problem(k=250, lda=256, ldb=256), GFX942).rule == "vector_width"
    assert supports(cdna, problem(lda=2**23), GFX942).rule == "addressing"


def test_a_pipeline_has_to_be_filled():
    assert supports(change(**CDNA), problem(k=72), GFX942)
    verdict = supports(change(**CDNA), problem(k=64), GFX942)
    assert verdict.rule == "depth" and "k = 64 is under 2 steps of 64" in verdict.reason
    assert supports(change(**TMA), problem(k=64), SM90)


@pytest.mark.parametrize(
    ("sizes", "operand"),
    [
        ({"m": 2**16, "k": 2**14, "n": 64}, "A"),
        ({"n": 2**16, "k": 2**14, "m": 64}, "B"),
        ({"m": 2**16, "n": 2**14, "k": 64}, "C"),
    ],
)
def test_two_gibibytes_need_64_bit_addresses(sizes, operand):
    """2³⁰ elements of 2 bytes are the first span that 32 bits do not count."""
    verdict = supports(BASE, problem(**sizes), SM90)
    assert verdict.rule == "addressing"
    assert verdict.reason.startswith(f"{operand} spans {2**31} bytes")
    assert supports(change(index_bits=64), problem(**sizes), SM90)
    assert supports(change(pipeline="tma"), problem(**sizes), SM90)
    smaller = {d: size - 64 if size == 2**16 else size for d, size in sizes.items()}
    assert supports(BASE, problem(**smaller), SM90)


def test_the_pipelines_for_few_rows_have_one_row_of_tiles():
    for fields in (FEW, FEW_TMA):
        assert supports(change(**fields), problem(m=8), SM90)
        verdict = supports(change(**fields), problem(m=9), SM90)
        assert verdict.rule == "few_rows" and verdict.reason.startswith("m = 9 is over tile_m = 8")


def test_a_matrix_of_the_epilogue_counts_towards_the_span():
    config = change(epilogue="add")
    assert supports(config, problem(epilogue="add", ldd=2**21), SM90)
    verdict = supports(config, problem(epilogue="add", ldd=2**23), SM90)
    assert verdict.rule == "addressing" and verdict.reason.startswith("D spans")


def test_a_wide_stride_counts_towards_the_span():
    assert supports(BASE, problem(lda=2**22), SM90)
    assert supports(BASE, problem(lda=2**23), SM90).rule == "addressing"


@pytest.mark.parametrize("fields", [{"split_k": 4}, {"split_k": 17}])
def test_k_must_have_a_step_for_each_part(fields):
    config = change(scheduler="split_k", reduction="linear", **fields)
    assert supports(config, problem(k=64 * fields["split_k"]), SM90)
    verdict = supports(config, problem(k=64 * fields["split_k"] - 64), SM90)
    assert verdict.rule == "sharing" and "too few to split" in verdict.reason


@pytest.mark.parametrize(
    ("tiles", "reduction", "shared"),
    [
        (264, "linear", 0),  # whole waves: nothing is left over
        (198, "linear", 66),  # two workgroups for each tile left over
        (199, "linear", 199),  # fewer: the last whole wave is shared too
        (199, "atomic", 67),  # unless parts are added as they come
        (331, "tree", 199),
        (67, "linear", 67),  # there is no whole wave to share
        (131, "linear", 131),
    ],
)
def test_stream_k_shares_the_tiles_left_over_and_a_wave_more_where_parts_would_cross(
    tiles, reduction, shared
):
    kernel = change(scheduler="stream_k", reduction=reduction)
    assert shared_tiles(kernel, tiles, 132) == shared


def test_every_part_of_a_tile_needs_a_flag_and_warp_groups_each_their_own():
    shared = {"scheduler": "split_k", "split_k": 16, "reduction": "linear", "tile_m": 128}
    most = problem(m=128 * 32, n=64 * 32, k=1024)  # 1024 tiles of 16 parts, and 16384 flags
    assert supports(change(**shared), most, SM90)
    assert (
        supports(change(**shared), problem(m=128 * 32, n=64 * 33, k=1024), SM90).rule == "sharing"
    )
    groups = {"pipeline": "gluon_ws", "num_warps": 8}
    assert supports(change(**shared, **groups), most, SM90).rule == "sharing"
    assert supports(change(**shared, **groups), problem(m=128 * 16, n=64 * 32, k=1024), SM90)
    parts = fp8("e4m3fn", num_warps=8, **{**SCALED, **shared, "tile_m": 256, "tile_n": 128})
    blocks = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128", "k": 2048}
    assert supports(parts, problem(m=256 * 16, n=128 * 16, **blocks), SM90)  # four parts each
    assert supports(parts, problem(m=256 * 16, n=128 * 17, **blocks), SM90).rule == "sharing"


def test_a_config_that_is_illegal_here_supports_nothing_here():
    assert supports(change(pipeline="tma"), problem(), SM90)
    assert supports(change(pipeline="tma"), problem(), SM80).rule == "pipeline"


def test_rule_names_are_unique():
    names = [name for name, _ in (*LEGALITY, *SUPPORT)]
    assert len(names) == len(set(names))


@pytest.mark.grid(5)
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(1000, 1000, 1000, alignment=4),
        GemmProblem(33, 100000, 32768),
        GemmProblem(7, 8, 0),
        GemmProblem(5, 512, 96, layout="rsr"),
        GemmProblem(300, 256, 64, batch=3, constant_b=True),
        GemmProblem(16, 512, 256, "e4m3fn", scale_a="1x128", scale_b="128x128"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["sm_90", "gfx942"])
def test_all_kernels_of_a_pool_are_judged_as_each_alone(problem, name):
    this = arch(name)
    others = replace(problem, alignment=0, epilogue="bias")
    kernels = []
    for of in (problem, others):
        with suppress(EmptySpace):
            kernels += FAMILY.default_space(of, this).expand(this).configs
    illegal = [replace(kernel, num_stages=99) for kernel in kernels[:2]]
    kernels += [replace(kernel, pad_m=False, pad_k=False) for kernel in kernels[::7]] + illegal
    alone = [i for i, kernel in enumerate(kernels) if FAMILY.supports(kernel, problem, this)]
    assert len(alone) < len(kernels)
    assert FAMILY.serving(problem, kernels, this) == alone
    some = Pool(kernels).part(range(1, len(kernels), 2))
    assert [some[i] for i in FAMILY.serving(problem, some, this)] == [
        kernels[i] for i in alone if i % 2
    ]
