"""Split-K in two stages: a kernel stores parts of C, a second one adds them up."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import config

import choice_gain
from shared_builds import build_once
from simulate import worst_error
from tilewright import arrays, verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY, GemmProblem, two_stage
from tilewright.ops.gemm.names import check
from tilewright.ops.nouns import MAIN
from tilewright.runtime.interpreter import interpreter

SM_90 = arch("sm_90")
H200 = device("h200_sxm")


def kernel(arch_name: str = "sm_90", parts: int = 4, **fields):
    how = {"scheduler": "split_k", "split_k": parts, "reduction": "two_stage"}
    return config(arch_name, **{"num_stages": 2, **how, **fields})


RING = {"pipeline": "gluon_ws", "num_stages": 3}
ODD = {**RING, "tile_n": 72}

# --- which there are ------------------------------------------------------------------------------


def test_only_equal_parts_are_added_by_a_second_kernel():
    with pytest.raises(BadArgument, match="reduction two_stage with scheduler stream_k"):
        check(replace(kernel(), scheduler="stream_k", split_k=1))
    assert FAMILY.judge(kernel(batching="strided"), SM_90).rule == "two_stage"
    assert FAMILY.judge(kernel(pipeline="gluon_cdna"), arch("gfx942")).rule == "combination"


def test_tiles_with_odd_edges_are_shared_in_no_other_way():
    assert FAMILY.judge(kernel(**ODD), SM_90)
    for reduction in ("atomic", "linear", "tree"):
        assert "two_stage alone" in FAMILY.judge(kernel(**ODD, reduction=reduction), SM_90).reason


def test_pairs_of_columns_are_not_swapped_though_the_second_kernel_pairs_them():
    paired = kernel(pipeline="tma", tile_n=128, epilogue="swiglu")
    assert FAMILY.judge(paired, SM_90)
    assert FAMILY.judge(replace(paired, swap_ab=True), SM_90).rule == "swap"


def test_the_second_kernel_is_promised_nothing_of_the_operations_on_operands():
    for source in FAMILY.sources(kernel(pre_a="add", epilogue="add"), SM_90).values():
        assert {name for name, _ in source.divisibility} <= {name for name, _ in source.signature}


def test_the_room_for_staging_is_that_of_the_parts():
    """In fp32 they have twice the bytes; an epilogue's matrix is read by the second kernel."""
    large = {**RING, "tile_m": 128, "tile_n": 256, "num_warps": 8, "num_stages": 4}
    staged = {**large, "store": "split"}
    assert FAMILY.judge(kernel(**staged, reduction="linear"), SM_90)
    assert FAMILY.judge(kernel(**staged), SM_90).rule == "shared_memory"
    shallow = {**staged, "num_stages": 3}
    assert FAMILY.judge(kernel(**shallow, epilogue="add"), SM_90)


def test_parts_may_not_go_beyond_the_offsets():
    small = GemmProblem(8192, 8192, 4096)
    for parts, allowed in ((4, True), (8, False)):
        verdict = FAMILY.supports(kernel(parts=parts), small, SM_90)
        assert bool(verdict) == allowed and (allowed or verdict.rule == "addressing")
    assert FAMILY.supports(kernel(parts=8, **RING), small, SM_90)  # 64-bit strides


def test_a_launch_has_two_steps_and_nothing_that_is_kept():
    p = GemmProblem(100, 70, 512, dtype_c="fp16", dtype_a="fp16", epilogue="bias", alignment=2)
    launch = FAMILY.launch(kernel(dtype_a="fp16", alignment=1, epilogue="bias"), p, H200)
    multiplied, added = launch.steps
    assert (multiplied.part, added.part) == (MAIN, two_stage.TOTALS)
    (parts,) = launch.temporaries
    assert (parts.shape, parts.dtype, parts.initial) == ((4, 100, 72), "fp32", "anything")
    assert FAMILY.repeats(kernel()) and FAMILY.invariant(kernel())


# --- results --------------------------------------------------------------------------------------

SIGNATURES = (
    {"dtype_a": "bf16"},
    {"dtype_a": "fp16", "dtype_c": "fp32"},
    {"dtype_a": "fp32", "precision": "tf32"},
    {"dtype_a": "e4m3fn"},
    {"dtype_a": "int8"},
)
CHAINS = ("", "bias+gelu", "row_scale+col_scale", "add", "swiglu")


def cases(pipeline: str, alignment: int):
    for number, signature in enumerate(SIGNATURES):
        for layout in (
            ("rcr", "rcc", "ccr") if signature["dtype_a"] in ("bf16", "fp16") else ("rcr",)
        ):
            chain = CHAINS[number % 5] if signature["dtype_a"] != "int8" else ""
            tile = {"tile_k": 64 if signature["dtype_a"] != "fp32" else 32, "num_stages": 3}
            fields = {**signature, **tile, "layout": layout, "epilogue": chain}
            yield kernel(pipeline=pipeline, alignment=alignment, parts=3, **fields)


def problem_of(c, m: int, n: int, k: int) -> GemmProblem:
    types = {"dtype_a": c.dtype_a, "dtype_c": c.dtype_c, "precision": c.precision}
    return GemmProblem(m, n, k, layout=c.layout, epilogue=c.epilogue, **types)


def few_rows():
    for number, (pipeline, rows) in enumerate(
        (("small_m", 2), ("small_m", 8), ("small_m_tma", 16))
    ):
        tile = {"tile_m": rows, "tile_n": 32, "tile_k": 128, "group_m": 1, "num_stages": 2}
        for layout in ("rcr", "rcc"):
            alignment = 16 if pipeline == "small_m_tma" else 1
            fields = {**tile, "layout": layout, "epilogue": CHAINS[number]}
            yield kernel(pipeline=pipeline, alignment=alignment, parts=3, **fields)


@pytest.mark.turns(64)
@pytest.mark.parametrize(
    "c", [*cases("basic", 1), *cases("tma", 16), *few_rows()], ids=lambda c: c.name[5:]
)
def test_both_kernels_are_right_whatever_the_parts_held(c):
    """Twice, with numbers that are none where parts will be."""
    assert FAMILY.judge(c, SM_90), FAMILY.judge(c, SM_90)
    m, n, k = (77, 142, 533) if c.alignment == 1 else (80, 144, 528)
    p = problem_of(c, min(m, c.tile_m) if c.pipeline.startswith("small_m") else m, n, k)
    assert FAMILY.supports(c, p, SM_90), FAMILY.supports(c, p, SM_90)
    made, out = verify.make_operands(p, seed=3)
    launch, sources = FAMILY.launch(c, p, H200), FAMILY.sources(c, SM_90)
    names = [one.name for one in FAMILY.operands(p)]
    temporaries = {t.name: np.full(t.bytes, 0xFF, np.uint8) for t in launch.temporaries}
    results = []
    for _ in range(2):
        arrays.poison(out)
        given = dict(zip(names, [*made, out], strict=True))
        interpreter().run(sources, launch, given, [names[-1]], temporaries=temporaries)
        assert verify.check(p, c, made, out).ok
        results.append(out.copy())
    assert np.array_equal(*(r.view(np.uint8) for r in results))


@pytest.mark.turns(12)
@pytest.mark.parametrize("layout", ["rcr", "rcc"])
@pytest.mark.parametrize("chain", ["", "bias+gelu", "swiglu"])
def test_of_many_parts_several_are_read_at_once(layout, chain):
    """By a kernel of its own, also where ways have no part."""
    p = GemmProblem(36, 72, 64 * 130, layout=layout, epilogue=chain)
    for parts, ways in ((32, False), (128, True)):
        c = kernel(parts=parts, layout=layout, epilogue=chain, alignment=1)
        added = FAMILY.sources(c, SM_90)[two_stage.TOTALS]
        assert (added.function == "gemm_many_totals") == ways
        assert verify.verify(Dispatcher(), p, c.name, seed=parts).ok


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "fields",
    [
        ODD,
        {**RING, "tile_m": 192, "tile_n": 192, "num_warps": 12, "store": "split"},
        {**RING, "layout": "rcc"},
        {**RING, "tile_m": 16, "swap_ab": True, "epilogue": "bias+gelu"},
        {**RING, "epilogue": "add"},
        {**RING, "epilogue": "swiglu"},
        {**RING, "dtype_a": "int8"},
        {**RING, "dependent_launch": "wait"},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
@pytest.mark.parametrize("units", [3, 132])
def test_in_the_simulation(fields, units):
    """The kernel in Gluon too, on few compute units, where each has several parts."""
    c = kernel(parts=3, **fields)
    assert FAMILY.judge(c, SM_90), FAMILY.judge(c, SM_90)
    p = problem_of(c, 200, 272, 336)
    assert FAMILY.supports(c, p, SM_90), FAMILY.supports(c, p, SM_90)
    assert worst_error(c, p, replace(H200, compute_units=units)) <= 1


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "tile",
    [
        {"tile_m": 64, "tile_n": 16, "tile_k": 256},
        {"tile_m": 64, "tile_n": 64, "tile_k": 128},
        {"tile_m": 128, "tile_n": 256, "tile_k": 128, "num_warps": 8, "store": "split"},
    ],
)
def test_with_block_scales_in_the_simulation(tile):
    """The last has two parts of a tile for each warp group."""
    eight = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
    c = kernel(parts=3, **{**eight, "pipeline": "gluon_scaled", "num_stages": 3, **tile})
    assert FAMILY.judge(c, SM_90), FAMILY.judge(c, SM_90)
    p = GemmProblem(200, 272, 1024, **eight)
    assert FAMILY.supports(c, p, SM_90), FAMILY.supports(c, p, SM_90)
    assert worst_error(c, p, replace(H200, compute_units=5)) <= 1


# --- machine code ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(store) -> dict:
    """(result of the kernel that multiplies, of the one that adds up) by architecture and place."""
    wide = {**RING, "tile_m": 128, "tile_n": 256, "num_warps": 8, "store": "split"}
    requests = [
        *((kernel(**f), "sm_90") for f in ({**RING, "epilogue": "bias+gelu"}, ODD, wide)),
        *((kernel(name), name) for name in ("sm_80", "gfx942", "gfx1201")),
        (kernel(pipeline="tma"), "sm_90"),
    ]
    found: dict = {}
    for result in build_once(requests, store).results:
        assert result.ok, result
        found.setdefault((result.arch.name, result.name), {})[result.kernel.part] = result.kernel
    return found


@pytest.mark.turns(64)
def test_nothing_spills(built):
    for parts in built.values():
        assert {*parts} == {MAIN, two_stage.TOTALS}
        assert not any(made.resources.spill_bytes for made in parts.values())


@pytest.mark.turns(48)
def test_parts_are_added_in_vectors_eight_on_their_way(built, store):
    wide = {"ptx": r"ld\.global\.v4", "amdgcn": r"(?:buffer|global)_load_(?:dwordx4|b128)"}
    for (name, _), parts in built.items():
        form = "ptx" if name.startswith("sm") else "amdgcn"
        text = inspect(parts[two_stage.TOTALS], store, form)
        assert len(re.findall(wide[form], text)) >= 8, name


@pytest.mark.turns(48)
def test_the_second_kernel_starts_early_where_it_can(built, store):
    for (name, _), parts in built.items():
        added = parts[two_stage.TOTALS]
        assert added.pdl == arch(name).has("pdl")
        if added.pdl:
            assert "griddepcontrol.wait" in inspect(added, store, "ptx")
        if added.pdl and name == "sm_90":  # the kernel in Gluon lets it
            assert "griddepcontrol.launch_dependents" in inspect(parts[MAIN], store, "ptx")
        assert not parts[MAIN].pdl


# --- choosing -------------------------------------------------------------------------------------


def test_the_estimate_tells_the_ways_to_put_parts_together_from_one_another():
    """By the fastest kernels of each way for each size on an H200; the figures are an H100's."""
    off, measured = [], []
    for row in choice_gain.rows("gemm_reductions_h200.json"):
        p, ways = GemmProblem(row["m"], row["n"], row["k"]), {}
        for how in ("linear", "atomic", "two_stage"):
            timed = choice_gain.timed(FAMILY, row[how])
            off += [us / FAMILY.estimate(c, p, H200).total_us for c, us in timed.items()]
            ways |= timed
        measured.append((p, ways))
    assert len(off) == 99 and all(0.65 < ratio < 1.2 for ratio in off)
    assert statistics.pstdev(map(math.log, off)) < 0.12
    assert choice_gain.gain(FAMILY, H200, measured) > 0.5


def test_the_estimate_prefers_it_for_many_parts_of_few_tiles():
    def us(p: GemmProblem, **how) -> float:
        c = kernel(**{**RING, "tile_n": 128, "num_stages": 6, **how})
        return FAMILY.estimate(c, p, H200).total_us

    deep, large = GemmProblem(64, 256, 32768), GemmProblem(2048, 4096, 1024)
    whole = {"scheduler": "persistent", "parts": 1, "reduction": "none"}
    assert us(deep, parts=32) < us(deep, parts=32, reduction="linear") < us(deep, **whole)
    assert us(large, parts=2) > us(large, **whole)


def test_tuning_has_it():
    found = {
        c.split_k
        for space in FAMILY.tuning_spaces(GemmProblem(64, 512, 8192), SM_90)
        for c in space.expand(SM_90).configs
        if c.two_stage
    }
    assert found == {4, 8, 16, 32}


@pytest.mark.parametrize(
    ("fields", "there"),
    [
        ({}, True),
        ({"m": 96, "n": 384, "k": 100352}, True),
        ({"k": 4095}, False),
        ({"m": 1536, "n": 512}, False),  # 48 tiles
        ({"layout": "rcr"}, False),
        ({"epilogue": "bias"}, False),
        ({"batching": "strided", "batch": 2}, False),
        ({"dtype_a": "fp32", "dtype_b": "fp32"}, False),
    ],
)
def test_gradients_of_weights_with_few_tiles_are_summed_in_many_parts(fields, there):
    said = {"m": 768, "n": 192, "k": 25088, "layout": "crr", **fields}
    space = FAMILY.default_space(GemmProblem(**said), SM_90).expand(SM_90).configs
    found = {(c.tile_m, c.tile_n, c.split_k) for c in space if c.reduction == "two_stage"}
    wanted = {(m, 128, parts) for m in (64, 128) for parts in (8, 16, 32)}
    assert found == (wanted if there else set())
