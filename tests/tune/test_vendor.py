"""The vendor's library is measured beside kernels, as they are, and never taken for one."""

from __future__ import annotations

import csv
import importlib.metadata
from collections import Counter
from dataclasses import replace

import numpy as np
import planted
import pytest
from fake_crew import ENVIRONMENT, GROUP, SETTINGS, FakeCrew, measurement
from tune_cases import CONFIGS, PROBLEMS

import tilewright.measure.sweep as sweep_module
from tilewright import GemmProblem, ops, verify
from tilewright.arch import device
from tilewright.compile import BuildReport, Store
from tilewright.errors import BadArgument, UnsupportedProblem
from tilewright.measure import crew as crew_module
from tilewright.measure import vendor
from tilewright.measure.crew import Crew, Task
from tilewright.measure.export import export
from tilewright.measure.measurement import Settings
from tilewright.measure.places import parse
from tilewright.measure.results import Results
from tilewright.measure.summary import best, coverage
from tilewright.measure.sweep import Group, plan, sweep
from tilewright.ops import library
from tilewright.report.data import gather

GPU = Group(device("h200_sxm"), ENVIRONMENT)
MM = "vendor.torch.mm"
ODD = GemmProblem(64, 64, 64, "bf16", epilogue="relu")
"""Torch has no call for it."""


def planned(known=frozenset(), group=GPU, configs=CONFIGS, problems=PROBLEMS, **more):
    archs = group.device.arch
    return plan((group,), {archs: configs}, {archs: problems}, SETTINGS, set(known), **more)


def test_every_problem_that_torch_has_a_call_for_first_of_its_batch():
    this = planned(problems=(*PROBLEMS, ODD))
    (part,) = this.parts
    measured = [(pair.problem, pair.kernel) for pair in part.todo]
    assert measured == [(p, n) for p in PROBLEMS for n in (MM, *(c.name for c in CONFIGS))]
    assert (part.vendor, part.vendor_known, this.total) == (3, 0, 3 + 3 * len(CONFIGS))
    assert len(part.todo) - part.vendor + len(part.refused) == part.kernels * part.problems
    assert [config for config, _ in this.to_build()] == [*CONFIGS]


def test_of_several_calls_each_is_measured(monkeypatch):
    monkeypatch.setattr(type(ops.family("gemm")), "vendor", lambda self, p: dict.fromkeys("ab"))
    (part,) = planned().parts
    assert [pair.kernel for pair in part.todo][:2] == ["vendor.a", "vendor.b"]
    assert part.vendor == 6


def test_a_call_that_torch_lacks_is_named():
    with pytest.raises(UnsupportedProblem, match=r"no call of torch\.bmm"):
        vendor.vendor_bind(PROBLEMS[0], "vendor.torch.bmm")


def test_none_in_the_interpreter_and_where_it_is_not_wanted():
    assert planned(group=GROUP).parts[0].vendor == 0
    assert planned(vendor=False).parts[0].vendor == 0
    mixed = [Task(MM, PROBLEMS[0], "sm_90")]
    with pytest.raises(BadArgument, match="no device is: the interpreter"):
        Crew(parse("cpu"), Store("."), SETTINGS).run(mixed)


def test_problems_of_no_kernels_operation_are_not_the_vendors_either(monkeypatch):
    grouped = ops.family("grouped_gemm")
    monkeypatch.setattr(type(grouped), "vendor", lambda self, p: {"torch.grouped": None})
    problem = grouped.problem_type("contiguous", 2, 8, 8, 8)
    assert planned(problems=(*PROBLEMS, problem)).parts[0].vendor == 3


def test_a_new_library_is_measured_anew_and_the_same_one_is_not(monkeypatch):
    monkeypatch.setattr(sweep_module, "vendor_build", lambda: "cublas 1")
    (part,) = planned().parts
    rest = {pair.problem: measurement(CONFIGS[0].name, pair.problem, GPU).key[2:]
            for pair in part.todo}  # fmt: skip
    known = {(pair.kernel, pair.build, *rest[pair.problem]) for pair in part.todo}
    assert planned(known).total == 0 and planned(known).parts[0].vendor_known == 3
    monkeypatch.setattr(sweep_module, "vendor_build", lambda: "cublas 2")
    again = planned(known)
    assert again.total == again.parts[0].vendor == 3


def test_the_librarys_version_is_read_from_its_package(monkeypatch):
    def version(package):
        if package != "nvidia-cublas-cu12":
            raise importlib.metadata.PackageNotFoundError
        return "12.8.4.1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert library.package.__wrapped__(library.CUBLASLT) == "nvidia-cublas-cu12 12.8.4.1"
    monkeypatch.setattr(library, "_PACKAGES", {library.CUBLASLT: ()})
    assert library.package.__wrapped__(library.CUBLASLT) == ""


def test_amds_release_is_read_from_its_file(monkeypatch, tmp_path):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert library.package.__wrapped__(library.HIPBLASLT) == ""
    (tmp_path / ".info").mkdir()
    (tmp_path / ".info" / "version").write_text("7.1.1-38\n")
    assert library.package.__wrapped__(library.HIPBLASLT) == "rocm 7.1.1-38"


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """A sweep whose vendor is four times as fast as any kernel, and fails on one problem."""

    def build(requests, *, store, workers, timeout, progress):
        return BuildReport((), 0.0)

    def change(m):
        if m.kernel != MM:
            return m
        if m.problem == PROBLEMS[1]:
            return replace(m, status="crashed", reason="said no", samples_us=(), check=None)
        return replace(m, samples_us=(2.0,) * 12, interval_us=(2.0, 2.0))

    monkeypatch.setattr(sweep_module, "build", build)
    with Results(tmp_path, write=True) as results:
        outcome = sweep(planned(), results, Store(tmp_path / "s"), FakeCrew(GPU, change=change))
        assert planned(results.keys()).total == 0, "it resumes as kernels do"
    return tmp_path, outcome


def test_its_failures_are_results_and_no_kernels_fault(swept):
    folder, outcome = swept
    assert outcome.ok and outcome.statuses == {"ok": 12}
    assert outcome.vendor == {"ok": 2, "crashed": 1}
    with Results(folder) as results:
        (failed,) = results.measurements("status = 'crashed'")
    assert (failed.kernel, failed.reason) == (MM, "said no")


def test_it_is_never_the_best_nor_counted_as_covered(swept):
    folder, _ = swept
    with Results(folder) as results:
        found, (covered,) = best(results), coverage(results)
        document = gather(results)
        export(results, folder / "r.csv")
    assert [b.vendor_us for b in found] == [2.0, None, 2.0]
    for b in found:
        assert not vendor.is_vendor(b.kernel) and not any(map(vendor.is_vendor, b.ties))
        assert b.vendor_ratio == (b.vendor_us and 2.0 / b.median_us)
    assert (covered.kernels, covered.problems, covered.share) == (len(CONFIGS), 3, 1.0)
    assert (covered.statuses, covered.vendor) == ({"ok": 12}, {"ok": 2, "crashed": 1})
    assert [document["setups"][0]["kernels"][k] for k in document["setups"][0]["vendors"]] == [MM]
    with (folder / "r.csv").open(newline="") as file:
        rows = Counter(row["kernel"] for row in csv.DictReader(file))
    assert rows[MM] == 3


def test_a_problem_that_only_the_vendor_computed_has_no_time(tmp_path):
    made = [
        measurement(MM, PROBLEMS[0], GPU),
        measurement(CONFIGS[0].name, PROBLEMS[0], GPU, status="crashed", samples_us=()),
    ]
    with Results(tmp_path, write=True) as results:
        results.add(made[:1])
        assert coverage(results)[0].share == 0.0 and best(results) == []
        results.add(made[1:])
        assert coverage(results)[0].without == (PROBLEMS[0],) and best(results) == []


@pytest.mark.turns(4)
def test_workers_verify_and_time_it_in_turns_with_kernels(tmp_path, monkeypatch):
    """With a library for the CPU, planted, and the crew allowed to ask for it."""
    monkeypatch.setenv("TILEWRIGHT_KERNEL_MODULES", "planted:planted_operations:planted_vendor")
    monkeypatch.setattr(crew_module, "_device_for", lambda place, task: place.device_for(task.arch))
    kernel = next(c.name for c in CONFIGS if (c.tile_m, c.tile_n) == (64, 64))
    asked = [(kernel, 32), (planted.VENDOR, 32), (planted.VENDOR, 48), (planted.VENDOR, 16)]
    tasks = [Task(name, GemmProblem(m, 64, 64), "sm_90") for name, m in asked]
    settings = Settings(warm_up_seconds=0, min_samples=2, max_samples=3, budget_seconds=0.01)
    with Crew(parse("cpu"), Store(tmp_path), settings) as crew:
        measured = {(m.kernel, m.problem.m): m for m in crew.run(tasks)}
    assert {k: (m.status, m.attempts) for k, m in measured.items()} == {
        (kernel, 32): ("ok", 1),
        (planted.VENDOR, 32): ("ok", 1),
        (planted.VENDOR, 48): ("mismatch", 1),
        (planted.VENDOR, 16): ("crashed", 2),
    }
    right = measured[planted.VENDOR, 32]
    assert right.check is not None and right.check.ok and len(right.samples_us) >= 2
    assert right.check.tolerance == verify.tolerance(right.problem, None)
    assert "ValueError: no such size" in measured[planted.VENDOR, 16].reason


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dtype_a": "int8"}, "torch._int_mm"),
        ({"dtype_a": "int8", "m": 16}, None),
        ({"dtype_a": "int8", "n": 36}, None),
        ({"dtype_a": "e4m3fn"}, "torch._scaled_mm"),
        ({"dtype_a": "e4m3fn", "k": 72}, None),
        ({"dtype_a": "e5m2", "dtype_b": "e5m2"}, None),
        ({"dtype_a": "e4m3fn", "dtype_c": "fp16", "epilogue": "row_scale+col_scale"}, None),
    ],
    ids=str,
)
def test_what_torch_refuses_is_not_asked_of_it(fields, name):
    problem = GemmProblem(**{"m": 64, "n": 64, "k": 64, **fields})
    assert [*ops.family("gemm").vendor(problem)] == ([name] if name else [])


def test_its_tolerance_is_the_strictest_of_any_kernels():
    problem = GemmProblem(64, 64, 4096)
    loosest = replace(CONFIGS[0], scheduler="split_k", split_k=8, reduction="linear")
    for config in (*CONFIGS, loosest):
        ours, theirs = verify.tolerance(problem, config), verify.tolerance(problem, None)
        assert theirs.scaled <= ours.scaled and theirs.relative <= ours.relative
    assert verify.tolerance(problem, None).scaled < verify.tolerance(problem, loosest).scaled
    assert np.isfinite(verify.tolerance(problem, None).scaled)
