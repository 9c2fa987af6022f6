"""What the vendor's library offers becomes candidates of a tuning: asked in a child process, for a
live GPU; and without one, it is said why there are none."""

from __future__ import annotations

import math
import statistics
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from fake_crew import ENVIRONMENT, GROUP, SETTINGS, FakeCrew
from tune_cases import CONFIGS

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from fake_cublaslt import Fake
from fake_hipblaslt import FakeHip, solution
from library_cases import PLAIN, SPLIT, amds, vendors

from tilewright import Constraints, Dispatcher, GemmProblem
from tilewright.arch import arch, device
from tilewright.child import ChildDied
from tilewright.compile import Store
from tilewright.errors import LibraryRefused, NoDriver
from tilewright.measure import algorithms
from tilewright.measure.algorithms import Offer, answer, offered
from tilewright.measure.devices import Place
from tilewright.measure.measurement import problem_text
from tilewright.measure.results import Results
from tilewright.measure.sweep import Group, plan_some
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.gemm import FAMILY
from tilewright.runtime import libraries
from tilewright.tables.table import Table
from tilewright.tune.jobs import jobs_of
from tilewright.tune.search import Effort
from tilewright.tune.tuner import Tuner

P = GemmProblem(512, 512, 512)
GPU = Group(device("h200_sxm"), ENVIRONMENT, place=Place("GPU-1", ENVIRONMENT, device("h200_sxm")))


class Driver:
    """Of a GPU whose library is the fake one."""

    def __init__(self, backend):
        assert backend == "cuda"

    def current(self, index):
        return self

    capture_allowed = __enter__ = lambda self: self

    def __exit__(self, *error):
        pass


@pytest.fixture
def fake(tmp_path, monkeypatch):
    made = Fake(tmp_path)
    library = made.opened()
    monkeypatch.setattr(libraries, "present", lambda kind: library)
    monkeypatch.setattr(algorithms, "driver", Driver)
    return made


def message(*problems, count=8):
    return {"problems": [*map(problem_text, problems)], "arch": "sm_90", "count": count}


def names(*problems, **options):
    return [one["names"] for one in answer(message(*problems, **options))["offers"]]


# --- the child --------------------------------------------------------------------------------


def test_offers_are_named_best_guess_first_and_once(fake):
    fake.offer(SPLIT, PLAIN, SPLIT, workspace=3 << 20)
    first = [vendors(P, SPLIT, 4).name, vendors(P, PLAIN, 4).name]
    other = replace(P, m=64)
    assert names(P, other) == [first, first]
    assert names(P, count=1) == [first[:1]]


def test_an_offer_that_a_rule_refuses_is_left_out_and_it_is_said(fake):
    fake.offer(replace(SPLIT, meeting="output"))
    (one,) = answer(message(P))["offers"]
    assert one["names"] == [] and "rounds each part of a sum to bf16" in one["why"]
    fake.offer(SPLIT, workspace=33 << 20)
    (one,) = answer(message(P))["offers"]
    assert one["names"] == [] and "cannot be named: workspace" in one["why"]


def test_a_library_that_offers_nothing_says_so(fake):
    (one,) = answer(message(P))["offers"]
    assert one["names"] == [] and "NOT_SUPPORTED" in one["why"]


@pytest.mark.parametrize("error", [LibraryRefused("no library"), NoDriver("no driver")])
def test_want_of_a_library_is_an_answer(monkeypatch, error):
    def missing(*_):
        raise error

    what = "present" if isinstance(error, LibraryRefused) else "driver"
    monkeypatch.setattr(algorithms, "driver", Driver)
    monkeypatch.setattr(libraries if what == "present" else algorithms, what, missing)
    assert answer(message(P, P))["offers"] == [{"names": [], "why": str(error)}] * 2


# --- the parent -------------------------------------------------------------------------------


class Child:
    """Answers in this process."""

    started: ClassVar[list[dict]] = []

    def __init__(self, module, env):
        assert module == "tilewright.measure.algorithms"
        self.started.append(env)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def request(self, asked, timeout):
        return answer(asked), []


def test_a_gpu_is_asked_in_a_child_that_sees_it_alone(fake, monkeypatch):
    monkeypatch.setattr(algorithms, "Child", Child)
    Child.started.clear()
    fake.offer(PLAIN, SPLIT)
    relu = replace(P, epilogue="relu")
    found = offered(GPU, [P, relu])
    assert found[P] == Offer((vendors(P), vendors(P, SPLIT)))
    assert not found[relu].configs and "NaN" in found[relu].reason
    (seen,) = Child.started
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert fake.count("asked") == libraries.ALGORITHMS
    offered(GPU, [P], count=3)
    assert fake.count("asked") == 3


def test_a_child_that_dies_costs_its_offers(monkeypatch):
    class Dying(Child):
        def request(self, asked, timeout):
            raise ChildDied(-11, "")

    monkeypatch.setattr(algorithms, "Child", Dying)
    assert "killed by SIGSEGV" in offered(GPU, [P])[P].reason


def test_nobody_is_asked_without_a_gpu_of_this_machine(monkeypatch):
    monkeypatch.setattr(algorithms, "Child", None)
    place = GPU.place
    for group in (
        GROUP,
        replace(GPU, place=None),
        replace(GPU, place=replace(place, machine="elsewhere")),
    ):
        assert offered(group, [P])[P] == Offer(reason="no GPU of this machine was asked")
    capped = AttentionProblem(1, 2, 64, 64, 64, softcap=5.0)
    assert "softcap" in offered(GPU, [capped])[capped].reason
    assert offered(GPU, []) == {}


def test_an_amd_gpu_is_asked_for_amds_library(tmp_path, monkeypatch):
    fake = FakeHip(tmp_path)
    library, backends = fake.opened(), []

    class Amd(Driver):
        def __init__(self, backend):
            backends.append(backend)

    def present(kind):
        backends.append(kind)
        return library

    monkeypatch.setattr(libraries, "present", present)
    monkeypatch.setattr(algorithms, "driver", Amd)
    monkeypatch.setattr(algorithms, "Child", Child)
    Child.started.clear()
    fake.offer(66771, 5, workspace=3 << 20)
    amd = replace(GPU, device=device("mi300x"), place=replace(GPU.place, device=device("mi300x")))
    relu = replace(P, epilogue="relu")
    found = offered(amd, [P, relu])
    assert found[P] == Offer((amds(P, solution(66771), 4), amds(P, solution(5), 4)))
    assert "never compared" in found[relu].reason
    assert {*backends} == {"hip", "hipblaslt"}
    assert Child.started[0]["ROCR_VISIBLE_DEVICES"] == "GPU-1"


# --- candidates ---------------------------------------------------------------------------------

FP32 = GemmProblem(32, 32, 32, "fp32")
THEIRS = vendors(FP32, SPLIT, 1)


def tune(folder, crew, algorithms=(THEIRS,), configs=CONFIGS, first=2):
    effort = Effort(first=first, step=2, patience=1, takes=1)
    jobs, refused = jobs_of(GROUP, [FP32], None, configs, lambda: {FP32: algorithms})
    assert not refused
    rows = []
    with Results(folder / "sweep", write=True) as results:
        Tuner(
            jobs, results, Store(folder / "store"), crew, SETTINGS,
            lambda found: rows.append([*found]), effort,
        ).run()  # fmt: skip
    return jobs[0], Table.of(rows[-1])


def faster(*kernels):
    def change(m):
        return (
            replace(m, samples_us=tuple(s / 1000 for s in m.samples_us), interval_us=(0.01, 2.0))
            if m.kernel in kernels
            else m
        )

    return change


def test_offers_are_measured_with_the_first_step_and_may_win_a_row(tmp_path):
    crew = FakeCrew(change=faster(THEIRS.name))
    job, table = tune(tmp_path, crew)
    assert job.algorithms == (THEIRS,) and THEIRS.name in job.configs
    assert job.present != THEIRS.name and THEIRS.name not in job.names
    assert THEIRS.name in [m.kernel for m in crew.made][:5]
    (row,) = table
    assert row.kernel == THEIRS.name
    ours = [m for m in crew.made if m.kernel != THEIRS.name]
    assert row.ours == min(ours, key=lambda m: statistics.median(m.samples_us)).kernel
    # What was tuned is what is chosen, unless it may not be.
    on = Dispatcher(device=GROUP.device, tables=table)
    assert on.select(FP32).config == THEIRS
    ours = Dispatcher(device=GROUP.device, tables=table, constraints=Constraints(only_ours=True))
    assert ours.select(FP32).config.name == row.ours


def test_the_row_of_an_algorithm_names_the_best_of_ours_that_was_measured(tmp_path):
    def change(m):
        us = 1.0 if m.kernel == THEIRS.name else 10.0 + zlib.crc32(m.kernel.encode()) % 97
        return replace(m, samples_us=(us,) * len(m.samples_us), interval_us=(us, us))

    crew = FakeCrew(change=change)
    this = arch(GROUP.device.arch)
    served = FAMILY.default_space(FP32, this).expand(this).configs
    _, (row,) = tune(tmp_path, crew, configs=served, first=8)
    ours = {m.kernel: statistics.median(m.samples_us) for m in crew.made} | {THEIRS.name: math.inf}
    assert row.kernel == THEIRS.name and len({*ours.values()}) > 3
    assert ours[row.ours] == min(ours.values())


def test_an_offer_that_is_slow_or_wrong_changes_nothing(tmp_path):
    def wrong(m):
        bad = replace(m, status="mismatch", reason="planted", samples_us=())
        return bad if m.kernel == THEIRS.name else m

    _, without = tune(tmp_path / "a", FakeCrew(), ())
    _, table = tune(tmp_path / "b", FakeCrew(change=wrong))
    assert [row.kernel for row in table] == [row.kernel for row in without]


def test_a_problem_that_only_the_library_serves_has_a_job():
    others = CONFIGS[:0] or [vendors(P)]
    jobs, refused = jobs_of(GROUP, [FP32], None, others, lambda: {FP32: (THEIRS,)})
    assert not refused and jobs[0].configs[THEIRS.name] == THEIRS


def test_an_algorithm_needs_no_build():
    part = plan_some([(GPU, [(P, [vendors(P), *CONFIGS[:1]])])], SETTINGS, vendor=False)
    assert vendors(P).name in {pair.kernel for pair in part.parts[0].todo}
    assert vendors(P) not in {config for config, _ in part.to_build()}
