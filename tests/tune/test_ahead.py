"""`prepare` with measuring: the tuner's machinery with few candidates, and rows that the next plans
are made by."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_crew import GROUP, FakeCrew
from library_cases import vendors

import tilewright
from tilewright import default
from tilewright.arch import device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, WrongDevice
from tilewright.measure.algorithms import Offer
from tilewright.measure.statistics import median_interval
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.gemm import GemmFamily, GemmProblem
from tilewright.preparing import Measured, Measuring
from tilewright.registry import Registry
from tilewright.select.constraints import Constraints
from tilewright.space import KernelSpace
from tilewright.tables import file, own
from tilewright.tune import ahead, work
from tilewright.tune.tuner import SEARCH, final_of

SPACE = KernelSpace(
    "gemm",
    {
        "tile_m": [16, 32, 64, 128], "tile_n": [32, 64, 128], "tile_k": [32, 64], "num_warps": [4],
        "num_stages": [2], "alignment": [1],
    },
)  # fmt: skip
PROBLEMS = (GemmProblem(64, 64, 64), GemmProblem(16, 32, 640), GemmProblem(100, 77, 33))


class Laboratory:
    """A crew with planted times, in place of the GPU's.

    wrong, dead: kernels that give wrong results, and that crash. us: planted times, by kernel.
    """

    def __init__(self):
        self.wrong, self.dead, self.us = set(), set(), {}
        self.crew = FakeCrew(
            change=self._change, settings=ahead.settings_for(GROUP.device).interpreted
        )

    def _change(self, m):
        for status, names in (("mismatch", self.wrong), ("crashed", self.dead)):
            if m.kernel in names:
                return replace(m, status=status, reason="planted", samples_us=())
        us = self.us.get(m.kernel, 20 + 30 * random.Random(f"{m.kernel} {m.problem}").random())
        rng = random.Random(f"{m.key}")
        samples = tuple(us * rng.gauss(1, 0.001) for _ in range(20))
        return replace(m, samples_us=samples, interval_us=median_interval(samples, 0.95))

    @property
    def tried(self):
        """The kernels that were measured, by problem."""
        found = {}
        for m in self.crew.made:
            found.setdefault(m.problem, set()).add(m.kernel)
        return found

    def forget(self):
        self.crew.made.clear()


@pytest.fixture
def lab(monkeypatch):
    found = Laboratory()
    monkeypatch.setattr(GemmFamily, "default_space", lambda self, problem, arch: SPACE)
    monkeypatch.setattr(GemmFamily, "tuning_spaces", lambda self, problem, arch: [SPACE])
    monkeypatch.setattr(work, "groups", lambda *_, **__: ([GROUP], found.crew))
    return found


@pytest.fixture
def table(tmp_path):
    return tmp_path / "mine.twt"


def dispatcher(tmp_path, **options):
    return Dispatcher(
        options.pop("registry", None), device=GROUP.device, store=Store(tmp_path / "store"),
        **options,
    )  # fmt: skip


def measured(tmp_path, table, problems=PROBLEMS, how=Measuring(), **options):  # noqa: B008
    return ahead.measured(dispatcher(tmp_path, **options), problems, how, table)


def test_the_winner_of_a_few_is_what_the_next_plan_takes(lab, tmp_path, table):
    before = [dispatcher(tmp_path).select(p) for p in PROBLEMS]
    found = measured(tmp_path, table)
    assert (found.rows, found.wrong, found.left, found.table) == (3, (), (), str(table))
    later = dispatcher(tmp_path, tables=table)
    plans = [later.select(p) for p in PROBLEMS]
    for problem, plan in zip(PROBLEMS, plans, strict=True):
        tried = lab.tried[problem]
        assert plan.config.name in tried and 4 <= len(tried) <= 5  # the first four, and today's
        assert plan.selector == "tuned" and plan.measured_us > 0
        assert "exact row of" in plan.reason and "µs ±" in later.explain(problem).fates[0].reason
        times = {m.kernel: m.median_us for m in lab.crew.made if m.problem == problem}
        assert times[plan.config.name] <= min(times.values()) * 1.011
    changed = sum(a.config != b.config for a, b in zip(before, plans, strict=True))
    assert found.changed == changed > 0


def test_what_was_measured_is_not_measured_again(lab, tmp_path, table):
    measured(tmp_path, table, PROBLEMS[:2])
    lab.forget()
    found = measured(tmp_path, table, tables=table)
    assert found.rows == 1 and set(lab.tried) == {PROBLEMS[2]}
    assert len(file.load(table)) == 3
    lab.forget()
    assert measured(tmp_path, table, tables=table) == Measured(str(table))
    assert not lab.crew.made


def test_so_many_candidates_as_are_asked_for(lab, tmp_path, table):
    measured(tmp_path, table, PROBLEMS[:1], Measuring(candidates=9))
    assert 9 <= len(lab.tried[PROBLEMS[0]]) <= 10


def test_the_librarys_algorithms_are_candidates_unless_only_ours_are_wanted(
    lab, monkeypatch, tmp_path, table
):
    theirs = vendors(PROBLEMS[0])

    def offered(self, group, given):
        self.offers.append(Offer((theirs,)))
        return dict.fromkeys(given, (theirs,))

    monkeypatch.setattr(work.Work, "_offered", offered)
    lab.us[theirs.name] = 1.0
    measured(tmp_path, table, PROBLEMS[:1])
    assert file.load(table).get(PROBLEMS[0], GROUP.device).kernel == theirs.name
    lab.forget()
    ours = tmp_path / "ours.twt"
    measured(tmp_path, ours, PROBLEMS[:1], constraints=Constraints(only_ours=True))
    assert theirs.name not in lab.tried[PROBLEMS[0]]
    assert file.load(ours).get(PROBLEMS[0], GROUP.device).kernel != theirs.name


def test_kernels_that_are_wrong_or_crash_cost_themselves_alone(lab, tmp_path, table):
    measured(tmp_path, table, PROBLEMS[:1])
    first = file.load(table).get(PROBLEMS[0], GROUP.device).kernel
    *others, last = sorted(lab.tried[PROBLEMS[0]] - {first})
    lab.wrong, lab.dead = {first}, {*others}
    again = tmp_path / "again.twt"
    found = measured(tmp_path, again, PROBLEMS[:1])
    assert found.rows == 1 and not found.wrong
    assert file.load(again).get(PROBLEMS[0], GROUP.device).kernel == last
    lab.wrong = {first, last}
    found = measured(tmp_path, tmp_path / "none.twt", PROBLEMS[:1])
    assert found.wrong == (PROBLEMS[0],) and found.rows == 0
    assert "no kernel was right for 1" in str(found)


def test_candidates_keep_to_the_constraints(lab, tmp_path, table):
    def allowed(name):
        return "_128x" not in name

    kept = Constraints(blocked=("*_128x*",))
    measured(tmp_path, table, how=Measuring(candidates=100), constraints=kept)
    every = {name for names in lab.tried.values() for name in names}
    assert every and all(map(allowed, every))
    lab.forget()
    measured(tmp_path, tmp_path / "all.twt", how=Measuring(candidates=100))
    assert not all(allowed(name) for names in lab.tried.values() for name in names)


def test_of_a_registry_its_kernels_are_the_candidates(lab, tmp_path, table):
    mine = [config for config in SPACE.expand(_arch()).configs if config.tile_n == 32][:3]
    measured(tmp_path, table, PROBLEMS[:1], registry=Registry("r").register_all(mine))
    assert lab.tried[PROBLEMS[0]] <= {config.name for config in mine}


def _arch():
    from tilewright.arch import arch

    return arch(GROUP.device.arch)


def test_when_the_time_is_over_no_further_problems_are_begun(lab, monkeypatch, tmp_path, table):
    monkeypatch.setattr(ahead, "TOGETHER", 1)
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr(
        "tilewright.tune.tuner.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    found = measured(tmp_path, table, how=Measuring(seconds=15))
    assert found.rows == 1 and [reason for _, reason in found.left] == ["the time was over"] * 2
    assert "2 were not measured" in str(found) and len(file.load(table)) == 1


def test_what_cannot_be_measured_is_said(lab, monkeypatch, tmp_path, table):
    one = AttentionProblem(2, 4, 64, 64, 64, batch_invariant=True)
    found = measured(tmp_path, table, [one])
    assert [problem for problem, _ in found.left] == [one] and not lab.crew.made
    everywhere = Constraints(batch_invariant=True)
    assert len(measured(tmp_path, table, constraints=everywhere).left) == len(PROBLEMS)
    with pytest.raises(BadArgument, match="prebuilt kernels alone"):
        measured(tmp_path, table, build_missing=False)
    with pytest.raises(BadArgument, match="emulated GPU has no times"):
        ahead.measured(Dispatcher(device="emulated:mi300x"), PROBLEMS, Measuring(), table)
    monkeypatch.setattr(ahead.devices, "gpus", lambda: [SimpleNamespace(device=GROUP.device)])
    with pytest.raises(WrongDevice, match="H20 is no GPU of this machine"):
        ahead.measured(Dispatcher(device="h20"), PROBLEMS, Measuring(), table)
    with pytest.raises(BadArgument, match="candidates is at least 1"):
        Measuring(candidates=0)


def test_calls_are_timed_as_they_come_in_a_model():
    """Back to back in a graph; but MIOpen's solvers cannot be captured."""
    ways = {name: ahead.settings_for(device(name)).timer for name in ("h200_sxm", "mi300x")}
    assert ways == {"h200_sxm": "graph", "mi300x": "events"}
    assert ahead.settings_for(device("h200_sxm")).cache == "rotated"
    shorter = replace(SEARCH, budget_seconds=ahead.BUDGET_SECONDS)
    assert ahead.settings_for(GROUP.device) == shorter
    assert (
        final_of(shorter).budget_seconds == ahead.BUDGET_SECONDS < final_of(SEARCH).budget_seconds
    )


def test_the_gpu_that_is_planned_for_measures(monkeypatch):
    other, two = (replace(GROUP.device, name=name) for name in ("one more", "two"))
    here = [SimpleNamespace(device=one) for one in (other, two, two)]
    monkeypatch.setattr(ahead.devices, "gpus", lambda: here)
    assert ahead._words(two) == "1,"
    assert ahead._words(GROUP.device) == "cpu"


def test_the_functions_choose_by_what_was_measured_without_a_word(lab, tmp_path, monkeypatch):
    """In the user's folder, which this and later processes read."""
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    # What is built is nobody's concern here.
    monkeypatch.setattr("tilewright.loader.Loader.build", lambda *_, **__: _nothing())
    usual = dispatcher(tmp_path)
    monkeypatch.setattr(default, "default_dispatcher", lambda: usual)
    usual.select(PROBLEMS[0])
    found = tilewright.prepare(PROBLEMS, measure=True)
    assert found.measured.rows == 3 and found.ok and "3 problems measured" in str(found)
    assert {plan.selector for plan in found.plans} == {"tuned"}
    assert usual.select(PROBLEMS[0]).selector == "tuned"
    assert Dispatcher(device=GROUP.device).select(PROBLEMS[0]).selector == "tuned"
    lab.forget()
    few = Measuring(candidates=2)
    assert tilewright.prepare(PROBLEMS, measure=few).measured.rows == 0 and not lab.crew.made
    assert tilewright.prepare(PROBLEMS).measured is None


def _nothing():
    from tilewright.compile import BuildReport

    return BuildReport((), 0.0)


def test_a_problem_without_a_right_kernel_is_no_success(lab, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tilewright.loader.Loader.build", lambda *_, **__: _nothing())
    lab.wrong = {config.name for config in SPACE.expand(_arch()).configs}
    found = tilewright.prepare(
        PROBLEMS[:1], device=GROUP.device, store=Store(tmp_path), measure=True
    )
    assert not found.ok and found.measured.wrong == (PROBLEMS[0],) and found.plans


def test_rows_go_where_later_processes_read_them(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    assert own.to_write(GROUP.device).parent == tmp_path / "tables"
    monkeypatch.setenv("TILEWRIGHT_TABLES", str(tmp_path / "mine.twt"))
    assert own.to_write(GROUP.device) == tmp_path / "mine.twt"
    for said in ("", "a.twt:b.twt", "shipped:gemm_bf16"):
        monkeypatch.setenv("TILEWRIGHT_TABLES", said)
        with pytest.raises(BadArgument, match="not one file to write rows into"):
            own.to_write(GROUP.device)
