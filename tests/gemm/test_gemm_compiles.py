"""Every kernel compiles for every architecture, to that architecture's matrix instructions."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from gemm_cases import config, signatures

import selection
from shared_builds import build_once
from tilewright.arch import arch, archs
from tilewright.compile import BuildReport, inspect
from tilewright.ops.device import widths
from tilewright.ops.gemm import FAMILY
from tilewright.ops.gemm.pipelines.warpgroups import SPECIALISATION_BYTES
from tilewright.ops.gemm.sizes import shared_memory

INSTRUCTION = {
    "sm_80": ("ptx", "mma.sync"),
    "sm_86": ("ptx", "mma.sync"),
    "sm_87": ("ptx", "mma.sync"),
    "sm_89": ("ptx", "mma.sync"),
    "sm_90": ("ptx", "wgmma.mma_async"),
    "sm_100": ("ptx", "tcgen05.mma"),
    "sm_103": ("ptx", "tcgen05.mma"),
    "sm_120": ("ptx", "mma.sync"),
    "sm_121": ("ptx", "mma.sync"),
    "gfx908": ("amdgcn", "v_mfma"),
    "gfx90a": ("amdgcn", "v_mfma"),
    "gfx942": ("amdgcn", "v_mfma"),
    "gfx950": ("amdgcn", "v_mfma"),
    "gfx1100": ("amdgcn", "v_wmma"),
    "gfx1151": ("amdgcn", "v_wmma"),
    "gfx1201": ("amdgcn", "v_wmma"),
}
# gfx1250 has none by a plain dot: see test_gemm_gfx1250.py.
assert {*archs()} - {*INSTRUCTION} == {"gfx1250"}
WITHOUT = {("sm_100", "int8"), ("sm_103", "int8")}  # the compiler uses mma.sync for it there
ALIKE = ("sm_86", "sm_87", "sm_103", "sm_121", "gfx908", "gfx1151")
"""Architectures of which every second kernel is compiled: each has a close relative in the list."""
HERE = selection.architectures(INSTRUCTION)


def kernels(name: str) -> list:
    """For each dtype one kernel of each pipeline, padding, scheduler and layout in turn."""
    made = []
    for number, signature in enumerate(signatures(name)):
        layout = ("rcr", "rrr", "ccr", "crr", "rcc")[number % 5]
        common = {"layout": layout, "tile_m": 64, "tile_n": 128, **signature}
        padded = {p: bool(number % 2) for p in ("pad_m", "pad_n", "pad_k")}
        scheduler = ("tile", "persistent")[number % 2]
        made.append(config(name, **common, **padded, scheduler=scheduler))
        made += [
            config(name, **common, pipeline=pipeline, scheduler="persistent")
            for pipeline in ("tma", "tma_ws", "gluon_ws")  # the others have pages of their own
            if pipeline in FAMILY.pipelines(arch(name)) and number % 5 == 0
        ]
        made += [
            config(name, **common, pipeline=pipeline, scheduler="persistent", swap_ab=True)
            for pipeline in ("tma", "gluon_ws")
            if pipeline in FAMILY.pipelines(arch(name)) and number % 5 == 1
        ]
    made.append(config(name, alignment=1, index_bits=64))
    legal = [kernel for kernel in made if FAMILY.judge(kernel, arch(name))]
    first, *others = legal[:: 2 if name in ALIKE else 1]
    return [first, *selection.some(others, 2)]  # the first is plain


@pytest.fixture(scope="module")
def report(store) -> BuildReport:
    requests = [(k, name) for name in HERE for k in kernels(name)]
    return build_once(requests, store)


@pytest.mark.turns(6, of="compiled products")
def test_all_compile_and_fit(report):
    compiled = Counter(result.arch.name for result in report.results)
    assert compiled.keys() == {*HERE} and min(compiled.values()) >= 3, compiled
    assert not report.failures, "\n".join(map(str, report.failures))


@pytest.mark.turns(6, of="compiled products")
@pytest.mark.parametrize("name", HERE)
def test_matrix_instructions_are_used(report, store, name):
    form, word = INSTRUCTION[name]
    seen = 0
    for result in report.results:
        if result.arch.name != name:
            continue
        dtype, on_fma = result.config.dtype_a, arch(name).dtypes["fp32"].via == "fma"
        if (name, dtype) in WITHOUT:
            continue
        text = inspect(result.kernel, store, form)
        vector_fma = dtype == "fp32" and result.config.precision == "ieee" and on_fma
        assert (word in text) != vector_fma, result.name
        seen += not vector_fma
    assert seen


@pytest.mark.turns(6, of="compiled products")
def test_the_copy_engine_is_used_where_it_is_asked_for(report, store):
    for result in report.results:
        if result.arch.vendor == "nvidia" and "tma" in result.arch.features:
            text = inspect(result.kernel, store, "ptx")
            copies = "cp.async.bulk.tensor" in text
            assert copies == (result.config.pipeline != "basic"), result.name


@pytest.mark.turns(6, of="compiled products")
def test_amd_kernels_use_buffer_loads_below_two_gibibytes(report, store):
    for result in report.results:
        # fp32 operands stay with global loads on CDNA under Triton 3.6; so much the worse.
        if result.arch.name in ("gfx942", "gfx950") and result.config.dtype_a != "fp32":
            text = inspect(result.kernel, store, "amdgcn")
            assert ("buffer_load" in text) == (result.config.index_bits == 32), result.name


@pytest.mark.turns(6, of="compiled products")
def test_warp_specialisation_adds_warps(report):
    for result in report.results:
        if result.kernel is not None and result.config.pipeline in ("tma_ws", "gluon_ws"):
            assert result.kernel.num_warps > result.config.num_warps, result.name


@pytest.mark.turns(48)
def test_shared_tiles_compile_to_matrix_instructions(store):
    those = selection.architectures(("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90"))
    made = [
        (config(name, **fields), name)
        for name in those
        for fields in (
            *({"reduction": r, "scheduler": "split_k", "split_k": 4} for r in REDUCTIONS),
            {"reduction": "atomic", "scheduler": "stream_k", "dtype_a": "fp16"},
        )
    ]
    results = build_once(made, store).results
    assert len(results) == len(those) * 4
    for result in results:
        assert result.ok, result
        form, word = INSTRUCTION[result.arch.name]
        assert word in inspect(result.kernel, store, form), result.name


REDUCTIONS = ("atomic", "linear", "tree")
LARGEST = {"tile_m": 128, "tile_n": 256, "num_warps": 8, "num_stages": 4, "store": "split"}


THREE = {"tile_m": 192, "tile_n": 192, "num_warps": 12, "num_stages": 4, "store": "split"}
TURNS = {
    "pipeline": "gluon_pingpong",
    "tile_m": 128,
    "tile_n": 128,
    "num_warps": 8,
    "num_stages": 6,
    "store": "split",
}
SHARED = {
    "atomic": {"scheduler": "stream_k", "reduction": "atomic"},
    "tree": {"scheduler": "stream_k", "reduction": "tree"},
    "linear": {"scheduler": "split_k", "split_k": 4, "reduction": "linear"},
}


def gluon(**fields):
    return config(**{"pipeline": "gluon_ws", "scheduler": "persistent", **fields})


GLUON = selection.some(
    [
        gluon(),
        gluon(**LARGEST),
        *(gluon(**LARGEST, layout=layout, dtype_a="fp16") for layout in ("rrr", "ccc", "crr")),
        gluon(**LARGEST | {"tile_k": 128}, dtype_a="e4m3fn"),
        gluon(**LARGEST | {"tile_k": 128, "num_stages": 2}, dtype_a="int8"),
        gluon(tile_k=32, tile_n=32, dtype_a="fp32", precision="tf32"),
        gluon(**THREE),
        gluon(**THREE, layout="rrr", epilogue="bias+silu"),
        gluon(**LARGEST | {"tile_n": 160}),
        gluon(**LARGEST | {"tile_n": 176, "tile_k": 128}, dtype_a="int8"),
        gluon(**LARGEST | {"tile_n": 112, "store": "direct"}, layout="ccr", epilogue="bias+swiglu"),
        gluon(**THREE | {"tile_n": 224, "num_stages": 3}, layout="rcc", epilogue="bias+gelu"),
        gluon(tile_m=64, tile_n=8, num_stages=16),
        gluon(**LARGEST | {"num_stages": 3}, epilogue="row_scale+col_scale+bias"),
        gluon(**LARGEST | {"num_stages": 3}, epilogue="bias+swiglu"),
        gluon(**LARGEST | SHARED["atomic"]),
        gluon(**LARGEST | SHARED["tree"]),
        gluon(tile_m=64, tile_n=128, num_stages=8, **SHARED["linear"]),
        gluon(tile_m=64, tile_n=128, dtype_a="int8", tile_k=128, **SHARED["atomic"]),
        gluon(**TURNS),
        gluon(**TURNS | {"tile_n": 192, "num_stages": 4}, layout="rrr", epilogue="bias+silu"),
        gluon(**TURNS | {"tile_n": 160, "num_stages": 5}),
        gluon(**TURNS | {"tile_m": 64, "tile_n": 88, "store": "direct"}),
        gluon(**TURNS | {"tile_k": 128}, dtype_a="e4m3fn", epilogue="row_scale+col_scale"),
    ],
    5,
)
ODD = {n: gluon(**LARGEST | {"tile_n": n}) for n in selection.some((72, 160, 192, 208), 1)}


@pytest.fixture(scope="module")
def hopper(store) -> dict:
    """What became of `GLUON` and `ODD`, by name."""
    kernels = (*GLUON, *ODD.values(), gluon(**LARGEST))
    report = build_once([(kernel, "sm_90") for kernel in dict.fromkeys(kernels)], store)
    return {result.name: result for result in report.results}


@pytest.mark.turns(4, of="gluon products")
@pytest.mark.grid(2)
@pytest.mark.parametrize("kernel", GLUON, ids=lambda kernel: kernel.name)
def test_gluon_gives_a_warp_to_the_copies_and_the_rest_to_wgmma(store, hopper, kernel):
    result = hopper[kernel.name]
    assert result.ok, result
    made = result.kernel
    text = inspect(made, store, "ptx")
    assert "wgmma.mma_async" in text and "setmaxnreg.dec.sync.aligned.u32 \t24" in text
    assert "cp.async.bulk.tensor.2d.shared::cluster.global" in text  # loads
    assert "cp.async.bulk.tensor.2d.global.shared::cta" in text  # and stores
    assert made.num_warps == kernel.num_warps + 4  # a warp group of registers for the producer
    assert made.resources.spill_bytes == 0
    budget = shared_memory(kernel, arch("sm_90"))
    assert budget - SPECIALISATION_BYTES < made.shared <= budget
    assert made.global_scratch == 0
    assert len(made.tensor_maps) == 1 + 2 * len(widths.parts(kernel.tile_n))


@pytest.mark.turns(4, of="gluon products")
def test_odd_columns_are_products_side_by_side(store, hopper):
    """And no more: each step's wgmma are those of the parts' widths, and one wait; B comes in a box
    for each part."""
    for columns, kernel in ODD.items():
        made = hopper[kernel.name].kernel
        assert made.resources.spill_bytes == 0
        steps = kernel.tile_k // 16
        parts = widths.parts(columns)
        groups = kernel.num_warps // 4
        issued = Counter(re.findall(r"wgmma\S*sync\S*\.m64n(\d+)k16", inspect(made, store, "ptx")))
        assert issued == {str(width): groups * steps for width in parts}
        sass = inspect(made, store, "sass")
        assert sass.count("HGMMA") == groups * steps * len(parts)
        assert sass.count("WARPGROUP.DEPBAR") == 2 * groups  # in the loop, and at its end
        boxes = [m.block_size for m in made.tensor_maps]
        assert [boxes[1], *boxes[3 : 2 + len(parts)]] == [(width, 64) for width in parts]


@pytest.mark.turns(4, of="gluon products")
@pytest.mark.parametrize("kernel", GLUON, ids=lambda kernel: kernel.name)
def test_an_epilogues_vectors_are_fetched_before_the_sums(store, hopper, kernel):
    """Not if columns are paired, which leaves vectors of two lengths."""
    text = inspect(hopper[kernel.name].kernel, store, "ptx")
    fetched = text.count("prefetch.global.L2")
    if kernel.epilogue and "swiglu" not in kernel.epilogue:
        assert fetched and text.index("prefetch.global.L2") < text.index("wgmma.mma_async")
    else:
        assert not fetched


def test_kernels_for_few_rows_load_an_epilogues_vectors_before_the_sums(store):
    """A and B come by the copy engine, so what is loaded else are the vectors."""
    few = config(
        pipeline="small_m_tma", tile_m=8, tile_n=32, tile_k=256, num_warps=4, num_stages=3,
        scheduler="tile", group_m=1, epilogue="row_scale+col_scale",
    )  # fmt: skip
    report = build_once([(few, "sm_90")], store)
    report.raise_if_failed()
    text = inspect(report.results[0].kernel, store, "ptx")
    products = re.search(r"\b(mma\.sync|wgmma\.mma_async)", text)
    loads = [found.start() for found in re.finditer(r"ld\.global", text)]
    assert products and len(loads) >= 2 and max(loads) < products.start()


@pytest.mark.turns(4, of="gluon products")
def test_each_warp_group_of_a_gluon_kernel_has_its_own_tensor_boxes(hopper):
    result = hopper[gluon(**LARGEST).name]
    assert [m.block_size for m in result.kernel.tensor_maps] == [(64, 64), (256, 64), (64, 64)]
    described = [t for _, t in result.kernel.arguments[:3]]
    assert described == [
        "tensordesc<bf16[64, 64]>", "tensordesc<bf16[256, 64]>", "tensordesc<bf16[64, 64]>"
    ]  # fmt: skip


def test_an_illegal_config_made_by_hand_is_rejected_by_its_rule(store):
    ragged = replace(config(), tile_m=100)
    (result,) = build_once([(ragged, "sm_90")], store).results
    assert result.status == "rejected" and result.kernel is None and result.seconds == 0
    assert result.reason.startswith("tile: tile_m = 100 is not a power of two")
