"""Every grouped kernel compiles for GPUs of both vendors, and does there what it is for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from gemm_cases import signatures
from grouped_cases import config

import selection
from shared_builds import build_once
from tilewright.arch import arch
from tilewright.compile import BuildReport, inspect, key
from tilewright.ops import physics
from tilewright.ops.grouped_gemm import FAMILY, low_tiles

MATRIX = {
    "sm_80": ("ptx", "mma.sync"),
    "sm_90": ("ptx", "wgmma.mma_async"),
    "sm_100": ("ptx", "tcgen05.mma"),
    "sm_120": ("ptx", "mma.sync"),
    "gfx90a": ("amdgcn", "v_mfma"),
    "gfx942": ("amdgcn", "v_mfma"),
    "gfx950": ("amdgcn", "v_mfma"),
    "gfx1201": ("amdgcn", "v_wmma"),
}
HERE = selection.architectures(MATRIX)
LOW = config(
    "sm_90", form="gathered", dtype_a="e4m3fn", dtype_b="e4m3fn", scale_a="1x128",
    scale_b="128x128", tile_m=16, tile_n=128, tile_k=128, num_warps=4, num_stages=3,
)  # fmt: skip
"""A tile for few rows, which is multiplied turned."""


def kernels(name: str) -> list:
    """Each form and pipeline with an epilogue and a layout in turn, and with another dtype."""
    made = []
    types = list(signatures(name))
    chains = ("", "swiglu", "bias+silu", "row_scale+add")
    for place, pipeline in enumerate(FAMILY.wildcard("pipeline", arch(name))):
        for number, form in enumerate(("contiguous", "masked", "list", "gathered")):
            fields = {"pipeline": pipeline, "form": form, "tile_n": 128}
            turn = place + number
            plain = form in ("list", "gathered")
            made.append(
                config(
                    name,
                    layout=("rcr", "rrr")[turn % 2],
                    epilogue="" if plain else chains[(2 * place + number) % 4],
                    **fields,
                )
            )
            made.append(config(name, **types[(5 * turn + 1) % len(types)], **fields))
        for number, chain in enumerate(("", "bias+silu")):
            fields = {"pipeline": pipeline, "form": "weights", "tile_n": 128, "layout": "crr"}
            made.append(config(name, epilogue="" if pipeline == "gluon_ws" else chain, **fields))
            made.append(config(name, **types[(5 * number + 2) % len(types)], **fields))
    made += [config(name, layout=layout) for layout in ("rcc", "ccc")]  # groups of columns
    made.append(config(name, alignment=1, index_bits=64))
    legal = [kernel for kernel in made if FAMILY.judge(kernel, arch(name))]
    return [legal[0], *selection.some(legal[1:], 2)]  # the first is plain, in bf16


@pytest.fixture(scope="module")
def report(store) -> BuildReport:
    return build_once([(k, name) for name in HERE for k in kernels(name)], store)


@pytest.mark.turns(16, of="compiled groups")
def test_all_compile_and_fit(report):
    assert not report.failures, "\n".join(map(str, report.failures))


def test_as_many_workgroups_of_low_tiles_fit_a_compute_unit_as_a_grid_has(store):
    (built,) = build_once([(LOW, "sm_90")], store).kernels
    this, count = arch("sm_90"), low_tiles.resident(LOW, arch("sm_90"))
    assert count == 4
    assert low_tiles.resident(replace(LOW, alignment=1), this) == 2  # elements by themselves
    registers = -(-built.resources.registers // 8) * 8
    assert physics.resident(this, registers, built.shared, LOW.num_warps) >= count


def test_a_low_tile_is_multiplied_from_shared_memory(store):
    """Its 8-bit floats are not converted."""
    (built,) = build_once([(LOW, "sm_90")], store).kernels
    text = inspect(built, store, "ptx")
    assert "wgmma.mma_async.sync.aligned.m64n16k32" in text
    assert "mma.sync" not in text and "e4m3x2" not in text


@pytest.mark.turns(16, of="compiled groups")
@pytest.mark.parametrize("name", HERE)
def test_matrix_instructions_are_used(report, store, name):
    form, word = MATRIX[name]
    seen = 0
    for result in report.results:
        if result.arch.name == name and result.config.dtype_a == "bf16":
            assert word in inspect(result.kernel, store, form), result.name
            seen += 1
    assert seen


@pytest.mark.turns(16, of="compiled groups")
def test_loads_are_in_flight_while_tiles_are_multiplied(report, store):
    """A list's promises about alignment reach the loads, or they could not be asynchronous. Of 8
    bits, operands whose K is outside are turned in registers, and so not copied."""
    for result in report.results:
        c = result.config
        turned = c.dtype_a in ("e4m3fn", "e5m2", "int8") and c.layout[:2] != "rc"
        of_columns = c.layout[2] == "c" and c.form != "list"  # groups begin anywhere in a row
        if turned or (of_columns and c.layout[0] == "c"):
            continue
        if result.arch.name == "sm_90" and result.config.alignment == 16:
            text = inspect(result.kernel, store, "ptx")
            copies = "cp.async.bulk.tensor" if result.config.pipeline != "basic" else "cp.async.cg"
            assert copies in text, result.name


@pytest.mark.turns(16, of="compiled groups")
def test_a_store_ends_with_the_group_in_hardware(report, store):
    """Through the copy engine, C has four dimensions (of groups along K, which end in A and B,
    three), and no tile goes another way: all that is stored through pointers is zeros, for rows of
    no group."""
    for result in report.results:
        if result.arch.name == "sm_90" and result.config.pipeline != "basic":
            text = inspect(result.kernel, store, "ptx")
            along_k = result.config.form == "weights"
            assert f"cp.async.bulk.tensor.{3 if along_k else 4}d.global.shared" in text
            assert ("cp.async.bulk.tensor.4d.shared" in text) == along_k
            for stored in re.findall(r"st\.global\S* \[[^\]]*\], (\{[^}]*\}|%\w+);", text):
                for register in re.findall(r"%\w+", stored):
                    zero = rf"mov\.\w+\s+{register}, (0|0x0+|0[fd]0+);"
                    assert re.search(zero, text), (result.name, stored)


@pytest.mark.turns(16, of="compiled groups")
def test_what_roles_are_given_is_written_over_nothing_else(report, store):
    """The number of tiles goes to the warps that load through the shared memory in which it was
    summed up, and the compiler puts no barrier between: a warp that still reads there must find
    what another writes."""
    seen = 0
    for result in report.results:
        if result.arch.name == "sm_90" and result.config.pipeline.startswith("gluon"):
            text = inspect(result.kernel, store, "ptx")
            for part in text.split("barrier.sync")[:-1]:
                since = part.rpartition("bar.sync")[2]
                loads = re.findall(r"ld\.shared\S*\s+(%\w+), \[(\S+)\]", since)
                read = {at: to for to, at in loads}
                for at, given in re.findall(r"st\.shared\S*\s+\[(\S+)\], (%\w+)", since):
                    assert read.get(at, given) == given, (result.name, at)
                    seen += at in read
    assert seen or not any(r.config.pipeline.startswith("gluon") for r in report.results)


@pytest.mark.parametrize("pipeline", ["basic", "tma", "gluon_ws"])
def test_a_kernels_key_covers_kernels_and_nothing_else(pipeline):
    main = FAMILY.sources(config(pipeline=pipeline), arch("sm_90"))["main"]
    ours = {name for name in key.source_texts(main.module) if name.startswith("tilewright")}
    assert "tilewright.ops.device.schedule" in ours
    assert all(".kernels." in name or ".ops.device." in f"{name}." for name in ours), ours
