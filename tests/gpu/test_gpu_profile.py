"""Hardware counters of a product whose bytes and time are known."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from gemm_cases import config
from gpu_arch import ARCH

from shared_builds import build_once
from tilewright.arch import arch
from tilewright.measure import nsight
from tilewright.measure.counters import COUNTERS, NoCounters
from tilewright.measure.crew import Crew, Task
from tilewright.measure.measurement import Settings
from tilewright.measure.places import parse
from tilewright.ops.gemm import GemmProblem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(nsight.find_ncu() is None, reason="Nsight Compute is not installed"),
    pytest.mark.skipif(arch(ARCH).backend != "cuda", reason="Nsight Compute is for NVIDIA's GPUs"),
]

PROBLEM = GemmProblem(4096, 4096, 4096)


def counted(kernel, problem, store):
    build_once([(kernel, ARCH)], store).raise_if_failed()
    try:
        return nsight.read(kernel.name, problem, parse("0,")[0], store)
    except NoCounters as error:
        if "ERR_NVGPUCTRPERM" in str(error):
            pytest.skip(str(error))
        raise


def test_the_counters_of_a_large_product_make_sense(store):
    kernel = config(ARCH, tile_m=128, tile_n=128, num_warps=8, num_stages=3)
    found = counted(kernel, PROBLEM, store)
    assert not found.missing and {c.name for c in COUNTERS} == set(found.values)
    assert len(found.launches) == 1, "only the call that is marked"
    moved = found.values["dram_read"] + found.values["dram_written"]
    assert 0.5 * PROBLEM.min_bytes < moved < 5 * PROBLEM.min_bytes
    assert found.values["l2"] > moved
    for name in ("matrix_units", "compute_units"):
        assert 10 < found.values[name] <= 100, found.values
    for name in ("issue_slots", "occupancy", "l2_hits"):
        assert 0 < found.values[name] <= 100, found.values
    assert found.stalls and sum(found.stalls.values()) <= 1.0
    with Crew(parse("0,"), store, Settings(budget_seconds=0.3)) as crew:
        (m,) = crew.run([Task(kernel.name, PROBLEM, ARCH)])
    assert 0.5 < found.values["time"] / m.median_us < 2.0, (found.values, m.median_us)


def test_a_kernel_that_keeps_flags_in_a_workspace_can_be_run_again_and_again(store):
    """ncu puts memory back before it runs a launch again: else this one would wait for ever."""
    kernel = config(ARCH, scheduler="split_k", split_k=4, reduction="linear")
    found = counted(kernel, GemmProblem(256, 256, 8192), store)
    assert found.values["dram_read"] > 0 and found.values["time"] > 0


def test_ncu_and_what_it_watches_execute_nothing_of_the_current_folder(
    store, monkeypatch, tmp_path
):
    kernel = config(ARCH, tile_m=128, tile_n=128, num_warps=8, num_stages=3)
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in ("numpy", "torch", "json", "tilewright"):
        text = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + ' ')\n"
        (folder / f"{name}.py").write_text(text)
    # ncu takes options from such a file in the folder that it is started in.
    (folder / "config.ncu-cfg").write_text("[Launch-and-attach]\n--kernel-name = nothing\n")
    monkeypatch.chdir(folder)
    assert counted(kernel, PROBLEM, store).values["time"] > 0
    assert not (tmp_path / "executed").exists()
