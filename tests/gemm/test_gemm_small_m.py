"""The pipelines for few rows: what they are built to, what follows, and when they are taken."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gemm_cases import config

import selection
from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem
from tilewright.ops.gemm.sizes import k_parts, vector

ARCHS = selection.architectures(("sm_80", "sm_90", "gfx90a", "gfx942", "gfx950"))
INSTRUCTION = {"sm": "mma", "gfx9": "v_mfma"}
"""Part of every matrix instruction's name, by how the architecture's begins."""


def few(arch_name: str = "sm_90", **fields: object) -> GemmConfig:
    return config(arch_name, **{"pipeline": "small_m", "group_m": 1, **fields})


def on_vector_units(arch_name: str = "sm_90", **fields: object) -> GemmConfig:
    tile = {"tile_m": 2, "tile_n": 4, "tile_k": 1024, "num_stages": 1}
    return few(arch_name, **{**tile, **fields})


def on_matrix_units(arch_name: str = "sm_90", **fields: object) -> GemmConfig:
    least = arch(arch_name).min_dot[1]
    return few(arch_name, **{"tile_m": least, "tile_n": 32, "tile_k": 256, **fields})


@pytest.fixture(scope="module")
def built(store) -> list:
    requests = []
    for name in ARCHS:
        requests += [
            (on_vector_units(name), name),
            (on_matrix_units(name), name),
            (on_matrix_units(name, tile_n=64, tile_k=64), name),
        ]
    requests.append((on_matrix_units(pipeline="small_m_tma"), "sm_90"))
    requests.append((on_vector_units("gfx1201", dtype_a="fp8"), "gfx1201"))  # through fp16
    report = build_once([r for r in requests if FAMILY.judge(r[0], arch(r[1]))], store)
    assert not report.failures, "\n".join(map(str, report.failures))
    return list(report.results)


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ARCHS)
def test_up_to_four_rows_use_no_matrix_instruction_and_more_use_them(built, store, name):
    mine = [r for r in built if r.arch.name == name]
    assert {bool(vector(r.config)) for r in mine} == {False, True}
    word = next(w for start, w in INSTRUCTION.items() if name.startswith(start))
    for result in mine:
        form = "ptx" if result.arch.vendor == "nvidia" else "amdgcn"
        text = inspect(result.kernel, store, form)
        assert (word in text) != bool(vector(result.config)), result.name
        assert result.kernel.resources.spill_bytes == 0, result.name


@pytest.mark.turns(8)
def test_weights_are_read_16_bytes_a_thread_at_once(built, store):
    for result in built:
        text = inspect(result.kernel, store, "ptx") if result.arch.vendor == "nvidia" else ""
        if text and vector(result.config) and result.config.dtype_a == "bf16":
            # Four columns of B and two rows of A, a vector of each: nothing is read twice.
            assert len(re.findall(r"ld\.global\.v4\.b32", text)) == 6, result.name
            assert "cp.async" not in text, result.name


def test_partial_sums_and_the_output_move_in_whole_vectors(store):
    split = {"scheduler": "split_k", "split_k": 2, "reduction": "linear"}
    tile = {"tile_m": 64, "tile_n": 64, "tile_k": 64}
    for fields in (split, {}):
        kernel = on_matrix_units(pipeline="small_m_tma", **tile, **fields)
        (result,) = build_once([(kernel, "sm_90")], store).results
        text = inspect(result.kernel, store, "ptx")
        wide = len(re.findall(r"st\.global\.v4\.b32", text))
        narrow = len(re.findall(r"st\.global\.b(?:16|32)", text))
        # 64·64 sums are 8 vectors of fp32 a thread, which two places of the code store, and 4 of
        # bf16; a flag is put back by one store.
        assert (wide, narrow) == ((2 * 8 + 4, 1) if fields else (4, 0)), (wide, narrow)


def test_steps_with_much_of_a_column_major_a_are_refused():
    """They spill. Of a row-major A nothing is turned."""
    deep = {"tile_m": 32, "tile_n": 16, "tile_k": 512, "num_stages": 4}
    refused = FAMILY.judge(on_matrix_units(layout="crr", **deep), arch("sm_90"))
    assert refused.rule == "small_m" and "16384 elements of a column-major A" in refused.reason
    assert FAMILY.judge(on_matrix_units(layout="rrr", **deep), arch("sm_90"))
    assert FAMILY.judge(on_matrix_units(layout="crr", **{**deep, "tile_m": 16}), arch("sm_90"))


def test_warps_share_out_k_where_there_are_too_few_columns():
    assert k_parts(on_matrix_units(tile_n=16)) == k_parts(on_matrix_units(tile_n=32)) == 4
    others = (on_matrix_units(tile_n=64), on_vector_units(), config(tile_n=16))
    assert [k_parts(kernel) for kernel in others] == [1, 1, 1]


CHAINS = ("bias+gelu", "row_scale+col_scale", "bias+swiglu+col_scale+add", "scale+bias+silu+add")


@pytest.mark.grid(7)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("how", ["tile", "split_k"])
@pytest.mark.parametrize("kind", ["vector", "matrix", "tma"])
def test_epilogues_follow(kind, how, chain):
    fields: dict[str, object] = {"epilogue": chain}
    if how == "split_k":
        fields |= {"scheduler": "split_k", "split_k": 2, "reduction": "linear"}
    if kind == "vector":
        kernel = on_vector_units(alignment=1, tile_n=16, tile_k=256, **fields)
    else:
        pipeline = {"pipeline": "small_m", "alignment": 1}
        if kind == "tma":
            pipeline = {"pipeline": "small_m_tma"}
        kernel = on_matrix_units(**pipeline, **fields)
    sizes = (2, 48, 528) if kind == "tma" else (2, 46, 531)
    problem = GemmProblem(*sizes, epilogue=chain)
    result = verify.verify(Dispatcher(device="h200_sxm"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("name", "m"), [("mi300x", 1), ("mi300x", 3), *(("h200_sxm", m) for m in (1, 2, 3, 8, 16))]
)
def test_few_rows_are_given_to_them(name, m):
    plans = Dispatcher(device=name)
    for n, k in ((4096, 4096), (7168, 2048), (512, 7168)):
        chosen = plans.select(GemmProblem(m, n, k)).config
        assert chosen.pipeline.startswith("small_m"), chosen.name
        assert m <= chosen.tile_m


def test_many_rows_are_not():
    chosen = Dispatcher(device="h200_sxm").select(GemmProblem(4096, 4096, 4096)).config
    assert not chosen.pipeline.startswith("small_m")


@pytest.mark.parametrize("m", [1, 3, 16])
def test_a_decoding_layer_runs_without_a_registry(m):
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, 256), np.float32), rng.standard_normal((96, 256), np.float32)
    got = Dispatcher(device="h200_sxm").run("gemm", a, b.T)
    np.testing.assert_allclose(got, a @ b.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("name", "there"), [("sm_90", True), ("sm_80", True), ("gfx1201", False)])
def test_kernels_that_tuning_finds_on_nvidia_are_in_its_default_space_alone(name, there):
    tiles = {}
    for m in (1, 8):
        space = FAMILY.default_space(GemmProblem(m, 4096, 4096), arch(name))
        kernels = space.expand(arch(name)).configs
        tiles[m] = {(c.tile_n, c.tile_k, c.num_warps, c.num_stages)
                    for c in kernels if c.pipeline == "small_m"}  # fmt: skip
    assert ((4, 512, 2, 1) in tiles[1]) == there
    assert ((64, 128, 4, 3) in tiles[8]) == there
