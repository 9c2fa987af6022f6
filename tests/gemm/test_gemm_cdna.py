"""The Gluon kernel for CDNA: its source run on NumPy, its layouts, what the compiler made."""

from __future__ import annotations

import dataclasses
import itertools
import re

import numpy as np
import pytest
from gemm_cases import config
from gluon_stand_in import places, run

import selection
from shared_builds import build_once
from tilewright.arch import arch, devices
from tilewright.compile import inspect
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmProblem, cdna
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.gemm.sizes import shared_memory
from tilewright.ops.nouns import MAIN

CDNA = ("gfx90a", "gfx942", "gfx950")


def kernel(arch_name: str, **fields):
    return config(arch_name, **{"pipeline": "gluon_cdna", "scheduler": "persistent", **fields})


def a_gpu(arch_name: str, compute_units: int):
    found = next(d for d in devices().values() if d.arch == arch_name)
    return dataclasses.replace(found, compute_units=compute_units)


# --- what the source computes ----------------------------------------------------------------

DEVICE = {"registers": "gfx942", "direct": "gfx950"}


@pytest.mark.parametrize(("number", "layout"), list(enumerate(LAYOUTS)))
@pytest.mark.parametrize("way", DEVICE)
def test_the_source_gives_the_product(way, number, layout):
    """Persistent, with several tiles to a workgroup, by both ways into shared memory; an even
    and an odd number of K steps, whole and with a rest."""
    name = DEVICE[way]
    dtype = ("bf16", "int8", "fp32", "fp16")[number % 4]
    depth = 64 if dtype == "int8" else 32
    stages = 2 if way == "registers" else 2 + number % 2
    made = kernel(
        name,
        dtype_a=dtype,
        layout=layout,
        tile_k=depth,
        num_stages=stages,
        group_m=(1, 8)[number % 2],
    )
    assert FAMILY.judge(made, arch(name)), str(FAMILY.judge(made, arch(name)))
    k = (4 * depth, 5 * depth, 4 * depth + 16, 3 * depth + 16)[(number // 2 + stages) % 4]
    problem = GemmProblem(144, 208, k, dtype_a=dtype, layout=layout, lda=336, ldb=352, ldc=224)
    run(made, problem, a_gpu(name, 5), seed=number)


@pytest.mark.parametrize("way", DEVICE)
@pytest.mark.parametrize("steps", [2, 3])
def test_the_source_with_as_few_steps_as_it_takes(way, steps):
    made = kernel(DEVICE[way], tile_k=32, scheduler=("tile", "persistent")[steps % 2])
    problem = GemmProblem(64, 128 + 16, 32 * steps)
    assert FAMILY.supports(made, problem, arch(DEVICE[way]))
    run(made, problem, a_gpu(DEVICE[way], 1))
    short = FAMILY.supports(made, GemmProblem(64, 144, 32), arch(DEVICE[way]))
    assert short.rule == "depth"


@pytest.mark.grid(2)
@pytest.mark.parametrize("reduction", ["atomic", "linear", "tree"])
@pytest.mark.parametrize("way", DEVICE)
def test_the_source_splits_k(way, reduction):
    """In parts of several steps and a rest, as few as it takes, and the epilogue once."""
    name = DEVICE[way]
    for number, (layout, splits, k) in enumerate(
        (("rcr", 3, 344), ("crc", 2, 128), ("rrr", 4, 400))
    ):
        how = {"scheduler": "split_k", "split_k": splits, "reduction": reduction}
        fields = {"layout": layout, "epilogue": ("", "bias+relu")[number % 2]}
        made = kernel(name, tile_k=32, **how, **fields)
        problem = GemmProblem(144, 208, k, **fields)
        assert FAMILY.supports(made, problem, arch(name)), FAMILY.supports(
            made, problem, arch(name)
        )
        run(made, problem, a_gpu(name, 5), seed=number)


def test_parts_are_as_long_as_what_is_under_way():
    made = kernel("gfx950", tile_k=32, num_stages=3, scheduler="split_k", split_k=2,
                  reduction="linear")  # fmt: skip
    assert FAMILY.supports(made, GemmProblem(64, 64, 6 * 32), arch("gfx950"))
    short = FAMILY.supports(made, GemmProblem(64, 64, 5 * 32), arch("gfx950"))
    assert short.rule == "depth" and "k = 160 in 2 parts is under 3 steps of 32" in short.reason


@pytest.mark.parametrize(
    "epilogue", ["bias+relu", "row_scale+col_scale+add", "swiglu+mul", "clamp"]
)
def test_the_source_applies_an_epilogue(epilogue):
    made = kernel("gfx942", tile_k=32, epilogue=epilogue)
    ld = 256 if "add" in epilogue or "mul" in epilogue else 0
    problem = GemmProblem(144, 208, 96, epilogue=epilogue, ldd=ld)
    assert FAMILY.supports(made, problem, arch("gfx942"))
    run(made, problem, a_gpu("gfx942", 3))


def test_the_source_on_a_gpu_of_several_dies():
    made = kernel("gfx942", tile_k=32)
    problem = GemmProblem(5 * 64, 7 * 64 - 16, 128)
    gpu = a_gpu("gfx942", 38 * 3)
    assert FAMILY.launch(made, problem, gpu).steps[0].arguments[-1].value == 3
    run(made, problem, gpu)


@pytest.mark.parametrize(("programs", "dies"), [(304, 8), (35, 3), (8, 8), (5, 8), (7, 1), (1, 6)])
def test_neighbouring_programs_share_a_die(programs, dies):
    from tilewright.ops.device.schedule import across_dies

    renumbered = [across_dies.fn(p, programs, dies) for p in range(programs)]
    assert sorted(renumbered) == list(range(programs))
    die_of = {new: p % dies for p, new in enumerate(renumbered)}
    runs = [die for die, _ in itertools.groupby(die_of[i] for i in range(programs))]
    assert len(runs) == min(dies, programs)


def test_dies_follow_the_partition():
    problem, made = GemmProblem(512, 512, 512), kernel("gfx942")
    for units, dies in ((304, 8), (152, 4), (38, 1), (20, 1)):
        (step,) = FAMILY.launch(made, problem, a_gpu("gfx942", units)).steps
        assert step.arguments[-1].value == dies


# --- layouts ---------------------------------------------------------------------------------

TILES = [(64, 128), (128, 64), (256, 64), (128, 32), (64, 64)]
"""Rows and bytes of K of an operand's tile."""


@pytest.fixture(scope="module")
def linear():
    """A layout's bases: what each register, lane and warp adds to the coordinates."""
    from triton._C.libtriton import amd, gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    amd.load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)

    def bases(layout, shape, context=context):  # which has to outlive the builder
        return builder.to_linear_layout(layout._to_ir(builder), list(shape))

    return bases


def spread(bases) -> np.ndarray:
    """Coordinates of 0, 1, 2… under bases that are XORed together."""
    found = np.zeros((1, 2), int)
    for basis in bases:
        found = np.concatenate([found, found ^ np.array(basis)])
    return found


@pytest.mark.parametrize(("rows", "k_bytes"), TILES)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("k_inner", [True, False])
@pytest.mark.parametrize("patched", [True, False])
def test_every_element_is_loaded_once(linear, rows, k_bytes, bits, k_inner, patched):
    from tilewright.ops.gemm.kernels import gluon_cdna

    depth = k_bytes * 8 // bits
    layout = gluon_cdna.loading(rows, depth, bits, 4, 64, k_inner, patched)
    found = linear(layout, (rows, depth))
    at = spread([*found.reg_bases, *found.lane_bases, *found.warp_bases])
    assert len(np.unique(at @ [depth, 1])) == len(at) == rows * depth


@pytest.mark.parametrize(("rows", "k_bytes"), TILES)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("k_inner", [True, False])
def test_a_warp_fills_shared_memory_in_the_order_of_its_lanes(linear, rows, k_bytes, bits, k_inner):
    """What the hardware does with a load that goes straight there: lane after lane, 16 bytes
    each."""
    from tilewright.ops.gemm.kernels import gluon_cdna

    depth, chunk = k_bytes * 8 // bits, 128 // bits
    found = linear(gluon_cdna.loading(rows, depth, bits, 4, 64, k_inner, False), (rows, depth))
    place = places(gluon_cdna.plain(k_inner), (rows, depth))
    vector = chunk.bit_length() - 1
    lanes = spread([*found.reg_bases[:vector], *found.lane_bases])
    for warp, register in itertools.product(
        spread(found.warp_bases), spread(found.reg_bases[vector:])
    ):
        at = lanes ^ warp ^ register
        filled = place[at[:, 0], at[:, 1]]
        assert (filled == filled[0] + np.arange(64 * chunk)).all()


READ = [
    (rows, k_bytes, bits, edge)
    for (rows, k_bytes), bits, edge in itertools.product(TILES, (8, 16, 32), (16, 32))
    if k_bytes * 8 // bits >= 16 and k_bytes >= 16 * 64 // edge
]
"""Tiles that are deep enough for a dot, and for what a warp reads at once."""


@pytest.mark.parametrize(("rows", "k_bytes", "bits", "edge"), READ)
@pytest.mark.parametrize("name", ["gfx942", "gfx950"])
def test_reads_of_operands_meet_in_no_bank(linear, rows, k_bytes, bits, edge, name):
    """With K innermost: whichever neighbouring lanes the hardware serves together, the chunks
    they read lie in different banks."""
    from tilewright.ops.device.gluon_amd_api import AMDMFMALayout, gl
    from tilewright.ops.gemm.kernels import gluon_cdna

    this, depth, chunk = arch(name).cdna, k_bytes * 8 // bits, 128 // bits
    mma = AMDMFMALayout(this.generation, [edge, edge, chunk * 64 // edge], True, [2, 2])
    bases = linear(gl.DotOperandLayout(0, mma, chunk), (rows, depth))
    ways = [gluon_cdna.swizzled(rows, depth, bits, True, this.bank_bytes)]
    if not this.direct_to_shared:
        ways.append(gluon_cdna.turned(rows, depth, bits, this.bank_bytes))
    for layout in ways:
        at = spread(bases.lane_bases)
        byte = places(layout, (rows, depth))[at[:, 0], at[:, 1]] * bits // 8
        assert (byte % 16 == 0).all()
        together = this.bank_bytes // 16
        line = byte.reshape(-1, together) % this.bank_bytes
        assert all(len(set(group)) == together for group in line)


@pytest.mark.parametrize(("rows", "k_bytes"), TILES)
@pytest.mark.parametrize("bits", [8, 16])
def test_writes_that_turn_a_tile_spread_over_the_banks(linear, rows, k_bytes, bits):
    """Lanes whose rows are a chunk apart write to at least half of the banks at once."""
    from tilewright.ops.gemm.kernels import gluon_cdna

    depth, chunk = k_bytes * 8 // bits, 128 // bits
    found = linear(gluon_cdna.loading(rows, depth, bits, 4, 64, False, True), (rows, depth))
    at = spread(found.lane_bases)[: min(8, rows // chunk)]
    place = places(gluon_cdna.turned(rows, depth, bits, 128), (rows, depth))
    banks = {int(p) * bits // 8 % 128 // 16 for p in place[at[:, 0], at[:, 1]]}
    assert len(banks) >= min(len(at), k_bytes // 16) / 2


# --- what the compiler made of it ------------------------------------------------------------

SMALL = {"tile_m": 128, "tile_n": 128, "num_warps": 4}
LARGE = {"tile_m": 256, "tile_n": 256, "num_warps": 8}
PRODUCT = {
    ("gfx90a", "fp16"): "v_mfma_f32_32x32x8f16",
    ("gfx90a", "bf16"): "v_mfma_f32_16x16x16bf16_1k",
    ("gfx942", "bf16"): "v_mfma_f32_32x32x8_bf16",
    ("gfx942", "e4m3fnuz"): "v_mfma_f32_32x32x16_fp8_fp8",
    ("gfx942", "int8"): "v_mfma_i32_32x32x16_i8",
    ("gfx942", "fp32"): "v_mfma_f32_32x32x2_f32",
    ("gfx950", "bf16"): "v_mfma_f32_32x32x16_bf16",
    ("gfx950", "fp16"): "v_mfma_f32_16x16x32_f16",
    ("gfx950", "e4m3fn"): "v_mfma_scale_f32_32x32x64_f8f6f4",
    ("gfx950", "e5m2"): "v_mfma_scale_f32_32x32x64_f8f6f4",
    ("gfx950", "int8"): "v_mfma_i32_32x32x32_i8",
}
BUILT = selection.some(
    [
        # architecture, config, instructions that read shared memory
        ("gfx90a", {**SMALL, "dtype_a": "fp16"}, "b128"),
        ("gfx90a", {**SMALL, "mma": (16, 16, 16)}, "b128"),
        ("gfx942", {**SMALL, "scheduler": "tile"}, "b128"),
        ("gfx942", {**LARGE, "tile_k": 32}, "b128"),
        ("gfx942", {**LARGE, "tile_k": 32, "layout": "crr"}, "b128"),
        ("gfx942", {**LARGE, "tile_k": 32, "layout": "rrc"}, "b128"),
        ("gfx942", {**SMALL, "tile_k": 128, "dtype_a": "e4m3fnuz"}, "b128"),
        ("gfx942", {**SMALL, "layout": "ccr", "dtype_a": "int8"}, "b128"),
        ("gfx942", {**SMALL, "tile_k": 32, "dtype_a": "fp32"}, "b128"),
        ("gfx950", LARGE, "b128"),
        ("gfx950", {**LARGE, "mma": (16, 16, 32), "dtype_a": "fp16"}, "b128"),
        ("gfx950", {**LARGE, "layout": "crr"}, "b64_tr_b16"),
        ("gfx950", {**LARGE, "tile_k": 32, "num_stages": 4}, "b128"),
        ("gfx950", {**LARGE, "tile_k": 128, "dtype_a": "e4m3fn"}, "b128"),
        ("gfx950", {**SMALL, "tile_k": 128, "dtype_a": "e5m2", "layout": "crr"}, "b64_tr_b8"),
        ("gfx950", {**SMALL, "tile_k": 128, "dtype_a": "int8", "layout": "rcc"}, "b128"),
    ],
    5,
)


@pytest.fixture(scope="module")
def built(store):
    requests = [(kernel(name, **fields), name) for name, fields, _ in BUILT]
    report = build_once(requests, store)
    report.raise_if_failed()
    return [(r.kernel, inspect(r.kernel, store, "amdgcn")) for r in report.results]


def main_loop(listing: str) -> list[str]:
    """The instructions of the innermost loop that loads and multiplies."""
    lines = listing.splitlines()
    labels = {line.split(":")[0]: i for i, line in enumerate(lines) if line.startswith(".LBB")}
    loops = []
    for i, line in enumerate(lines):
        branch = re.match(r"\ts_c?branch\w*\s+(\.LBB\w+)", line)
        if branch and labels.get(branch[1], i) < i:
            loops.append(lines[labels[branch[1]] : i])
    both = ("v_mfma", "buffer_load")
    multiplying = [x for x in loops if all(any(w in line for line in x) for w in both)]
    return [line.strip() for line in min(multiplying, key=len) if line.startswith("\t")]


def cover(loop: list[str]) -> int:
    """The fewest products between a load and the wait for it."""
    products, under_way, fewest = 0, [], 10**6
    for line in 2 * loop:
        if line.startswith("v_mfma"):
            products += 1
        elif line.startswith("buffer_load"):
            under_way.append(products)
        elif wait := re.match(r"s_waitcnt.*vmcnt\((\d+)\)", line):
            while len(under_way) > int(wait[1]):
                fewest = min(fewest, products - under_way.pop(0))
    return fewest


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("number", range(len(BUILT)))
def test_the_main_loop_is_as_designed(built, number):
    name, fields, reads = BUILT[number]
    made, listing = built[number]
    this, built_for = arch(name), kernel(name, **fields)
    direct = this.cdna.direct_to_shared
    assert made.resources.spill_bytes == 0
    assert made.resources.registers <= this.registers_per_lane // cdna.RESIDENT
    assert made.shared == shared_memory(built_for, this)

    loop = main_loop(listing)
    kinds = [line.split()[0] for line in loop]
    steps = 1 if direct else 2
    products = [i for i, kind in enumerate(kinds) if kind.startswith("v_mfma")]
    assert {kinds[i] for i in products} == {PRODUCT[name, built_for.dtype_a]}
    m, n, k = cdna.mapping(built_for, this).mma
    tile = built_for.tile_m * built_for.tile_n * built_for.tile_k
    assert len(products) == steps * tile // (m * n * k * built_for.num_warps)

    loads = [i for i, kind in enumerate(kinds) if kind.startswith("buffer_load")]
    bytes_ = (built_for.tile_m + built_for.tile_n) * built_for.tile_k
    bytes_ = bytes_ * DTYPES[built_for.dtype_a].bytes
    assert len(loads) == steps * bytes_ // (16 * 64 * built_for.num_warps)
    assert all(kinds[i] == "buffer_load_dwordx4" for i in loads)
    assert all(("lds" in loop[i].split()) == direct for i in loads)
    # What is loaded for a later step is under way before the first product of this one, and at
    # least half a step passes before it is waited for.
    assert max(loads[: len(loads) // steps]) < products[0]
    assert cover(loop) >= len(products) // steps // 2

    assert kinds.count("s_barrier") == steps
    assert {kind for kind in kinds if kind.startswith("ds_read")} == {f"ds_read_{reads}"}
    assert any(kind.startswith("ds_write") for kind in kinds) != direct
    assert not any(kind.startswith(("scratch", "v_accvgpr", "ds_bpermute")) for kind in kinds)


@pytest.mark.turns(48)
def test_shared_tiles_meet_in_whole_vectors(store):
    """Partial sums are stored and read 16 bytes a lane, published at the scope of the whole GPU,
    and nothing spills; a full shared memory has room for flags."""
    how = {"scheduler": "split_k", "split_k": 4}
    requests = [
        (kernel(name, **{**SMALL, **fields}, reduction=reduction, **how), name)
        for name in selection.architectures(CDNA)
        for reduction in ("atomic", "linear", "tree")
        for fields in ({}, {"dtype_a": "int8", "tile_k": 128, "layout": "rcc"})
    ]
    report = build_once(requests, store)
    report.raise_if_failed()
    for result in report.results:
        made, this = result.config, result.arch
        listing = inspect(result.kernel, store, "amdgcn")
        assert result.kernel.resources.spill_bytes == 0, made.name
        assert result.kernel.shared == shared_memory(made, this)
        partial = made.tile_m * made.tile_n * 4 // (16 * 64 * made.num_warps)
        assert listing.count("global_load_dwordx4") >= partial
        if made.reduction != "atomic":
            assert listing.count("global_store_dwordx4") >= partial
        if this.name != "gfx90a":
            assert "buffer_wbl2" in listing and "buffer_inv" in listing
        loads = [line for line in main_loop(listing) if line.startswith("buffer_load")]
        assert loads and all(line.startswith("buffer_load_dwordx4") for line in loads)


@pytest.mark.turns(12)
def test_both_schedulers_are_one_binary(store):
    requests = [(kernel("gfx942", scheduler=s), "gfx942") for s in ("tile", "persistent")]
    tile, persistent = (store.read(r.kernel) for r in build_once(requests, store).results)
    assert tile == persistent


def test_its_triton_sibling_stands_in_for_it():
    made = kernel("gfx942")
    sibling = FAMILY.interpreted(made)
    assert sibling == dataclasses.replace(made, pipeline="basic")
    assert FAMILY.sources(made, arch("gfx942"))[MAIN].language == "gluon"
    assert FAMILY.judge(sibling, arch("gfx942"))
