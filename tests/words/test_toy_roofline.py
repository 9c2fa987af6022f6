"""The roofline of a problem that works on two units."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_family import ToyProblem

from tilewright.arch import arch, device, devices, peak_tflops
from tilewright.errors import BadArgument
from tilewright.measure.measurement import Settings
from tilewright.measure.roofline import floor, position
from tilewright.ops.gemm import GemmProblem
from tilewright.report.data import _floor_us, _roof

H200 = device("h200_sxm")
LARGE = ToyProblem((8192, 8192), heads=64)
SMALL = ToyProblem((1, 8192), heads=64)


def test_the_slowest_unit_decides():
    scores = 8192 * 8192 * 64
    place = position(LARGE, H200, 4000.0)
    peaks = {unit: peak_tflops(arch("sm_90"), H200, unit) for unit in ("bf16", "exp")}
    assert place.units_us == {
        "bf16": pytest.approx(scores * 128 / peaks["bf16"] / 1e6),
        "exp": pytest.approx(scores / peaks["exp"] / 1e6),
    }
    assert place.compute_us == place.units_us["exp"] > place.units_us["bf16"]
    assert place.bound == "compute" and place.share == place.compute_us / 4000.0
    assert place.flops == scores * 128
    few = position(SMALL, H200, 4000.0)
    assert few.bound == "memory" and few.share == few.memory_us / 4000.0


def test_a_gemm_works_on_one_unit():
    problem = GemmProblem(4096, 4096, 4096, "fp32", precision="tf32")
    assert problem.work == {"tf32": problem.flops}
    assert floor(problem, H200).units_us == {
        "tf32": problem.flops / peak_tflops(arch("sm_90"), H200, "tf32") / 1e6
    }
    assert GemmProblem(64, 64, 64, "bf16", "int4", scale_b="32x1-bf16").work.keys() == {"bf16"}


def test_a_problem_that_computes_nothing_waits_for_memory(monkeypatch):
    monkeypatch.setattr(ToyProblem, "work", {})
    place = position(LARGE, H200, 100.0)
    assert (place.compute_us, place.bound, place.units_us) == (0.0, "memory", {})


def test_a_unit_without_a_known_peak_is_named():
    unknown = next(d for d in devices().values() if d.arch == "gfx950")
    with pytest.raises(BadArgument, match="the rate of exp"):
        position(LARGE, unknown, 1.0)
    roof = _roof(unknown, [LARGE], Settings().timer)
    assert [*roof["tflops"]] == ["bf16"] and "No peak is known for exp: " in roof["note"]
    assert _floor_us(LARGE, unknown) is None


def test_the_page_has_the_ceiling_of_the_flops_and_the_floor_of_all_units():
    roof = _roof(H200, [LARGE, replace(LARGE, heads=1)], Settings().timer)
    assert roof["tflops"] == {"bf16": peak_tflops(arch("sm_90"), H200, "bf16")}
    assert roof["note"] == ""
    assert _floor_us(LARGE, H200) == pytest.approx(floor(LARGE, H200).units_us["exp"], rel=1e-5)
