"""A sweep measures what is new, all of it, once; whoever ends it and however."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fake_crew import ENVIRONMENT, GROUP, SETTINGS, FakeCrew, measurement, other
from tune_cases import ALIGNED, CONFIGS, FP16, PROBLEMS

import tilewright.measure.sweep as sweep_module
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.compile import BuildReport, BuildResult, Store
from tilewright.errors import EmptySpace, TilewrightError
from tilewright.measure.results import Results
from tilewright.measure.summary import refusals
from tilewright.measure.sweep import Group, plan, sweep
from tilewright.ops.gemm import GemmFamily
from tilewright.verdict import YES

KERNELS = {"sm_90": CONFIGS}
GPU = Group(replace(device("h200_sxm")), ENVIRONMENT)


def run(
    folder, crew, configs=CONFIGS, problems=PROBLEMS, groups=(GROUP,), settings=SETTINGS,
    vendor=False, retry=(), **o,
):  # fmt: skip
    with Results(folder, write=True) as results:
        archs = {group.device.arch for group in groups}
        this = plan(
            groups,
            dict.fromkeys(archs, configs),
            dict.fromkeys(archs, problems),
            settings,
            results.keys(),
            vendor,
            results.keys(retry),
        )
        return sweep(this, results, Store(folder / "store"), crew, **o)


def stored(folder):
    with Results(folder) as results:
        return list(results.measurements())


def test_every_kernel_on_every_problem_problem_by_problem(tmp_path):
    crew, seen = FakeCrew(), []
    watching = nullcontext(lambda m, done, total: seen.append((m, done, total)))
    outcome = run(tmp_path, crew, measuring=lambda: watching)
    pairs = [(m.kernel, m.problem) for m in crew.made]
    assert pairs == [(c.name, p) for p in PROBLEMS for c in CONFIGS]
    assert stored(tmp_path) == crew.made == [m for m, _, _ in seen]
    assert [(done, total) for _, done, total in seen] == [(i + 1, 12) for i in range(12)]
    assert outcome.statuses == {"ok": 12} and outcome.ok
    assert crew.closed == 1


def test_again_measures_nothing_and_starts_nobody(tmp_path):
    run(tmp_path, FakeCrew())

    def nobody():
        raise AssertionError("a crew was started for nothing")

    assert run(tmp_path, nobody).statuses == {}


def test_one_more_kernel_costs_its_own_measurements(tmp_path):
    run(tmp_path, FakeCrew(), configs=CONFIGS[:-1])
    crew = FakeCrew()
    run(tmp_path, crew)
    assert [(m.kernel, m.problem) for m in crew.made] == [(CONFIGS[-1].name, p) for p in PROBLEMS]


def test_one_more_problem_costs_its_own_measurements(tmp_path):
    run(tmp_path, FakeCrew(), problems=PROBLEMS[1:])
    crew = FakeCrew()
    run(tmp_path, crew)
    assert {m.problem for m in crew.made} == {PROBLEMS[0]} and len(crew.made) == len(CONFIGS)


def test_another_setting_environment_or_device_is_measured_anew(tmp_path):
    run(tmp_path, FakeCrew())
    newer = replace(GROUP, environment=replace(ENVIRONMENT, driver="2.0"))
    for group in (newer, other()):
        crew = FakeCrew(group)
        run(tmp_path, crew, groups=(group,))
        assert len(crew.made) == 12
    slow = replace(SETTINGS, precision=0.02)
    crew = FakeCrew(change=lambda m: replace(m, settings=slow))
    run(tmp_path, crew, settings=slow)
    assert len(crew.made) == 12


def test_a_device_that_joins_does_not_cost_the_others_again(tmp_path):
    run(tmp_path, FakeCrew())
    both = (GROUP, other())
    crew = FakeCrew(*both)
    run(tmp_path, crew, groups=both)
    assert {m.device.name for m in crew.made} == {"another"} and len(crew.made) == 12
    assert len(stored(tmp_path)) == 24


def test_devices_of_two_architectures(tmp_path):
    amd = Group(device("mi300x"), ENVIRONMENT, interpreted=True)
    crew = FakeCrew(GROUP, amd)
    run(tmp_path, crew, groups=(GROUP, amd))
    assert Counter(m.device.arch for m in crew.made) == {"sm_90": 12, "gfx942": 12}


def test_rules_refusals_are_results_that_cost_nothing(tmp_path):
    crew = FakeCrew()
    problems = (*PROBLEMS, FP16)
    outcome = run(tmp_path, crew, configs=(*CONFIGS, ALIGNED), problems=problems)
    refused = [m for m in stored(tmp_path) if m.status == "unsupported"]
    assert outcome.refused == len(refused) == 5 + 1
    reasons = {(m.kernel, m.problem): m.reason for m in refused}
    assert "vector_width" in reasons[ALIGNED.name, PROBLEMS[2]]
    assert "signature" in reasons[CONFIGS[0].name, FP16]
    with Results(tmp_path) as kept:
        found = {r.rule: (r.count, r.reason) for r in refusals(kept)}
    assert found.keys() == {"signature", "vector_width"} and found["vector_width"][0] == 1
    assert found["signature"][0] == 5 and "fp16" in found["signature"][1]
    assert len(crew.made) == 5 * 4 - 6
    assert outcome.ok
    assert run(tmp_path, None, configs=(*CONFIGS, ALIGNED), problems=problems).refused == 0


def test_operations_are_not_mixed_and_nothing_in_common_is_an_error(tmp_path):
    grouped = ops.family("grouped_gemm").problem_type("contiguous", 2, 8, 8, 8)
    crew = FakeCrew()
    run(tmp_path, crew, problems=(*PROBLEMS, grouped))
    assert len(crew.made) == 12
    with pytest.raises(EmptySpace, match="nothing to measure"):
        run(tmp_path, crew, problems=(grouped,))


@pytest.fixture
def building(monkeypatch):
    """Builds of the last kernel fail; which were asked for."""
    asked = []

    def build(requests, *, store, workers, timeout, progress):
        results = []
        for config, name in requests:
            asked.append(config.name)
            bad = config == CONFIGS[-1]
            results.append(
                BuildResult(
                    config, config.name, arch(name), "failed" if bad else "built",
                    reason="the compiler's words" if bad else "", seconds=1.5,
                )
            )  # fmt: skip
            progress(results[-1], len(results), len(requests))
        return BuildReport(tuple(results), 1.0)

    monkeypatch.setattr(sweep_module, "build", build)
    return asked


def test_what_cannot_be_built_is_a_result_and_the_rest_goes_on(tmp_path, building):
    crew = FakeCrew(GPU)
    outcome = run(tmp_path, crew, groups=(GPU,))
    assert building == [c.name for c in CONFIGS]
    assert outcome.statuses == {"ok": 9, "build_failed": 3} and not outcome.ok
    bad = [m for m in stored(tmp_path) if m.status == "build_failed"]
    assert {m.reason for m in bad} == {"the compiler's words"} and len(bad) == 3
    assert CONFIGS[-1].name not in {m.kernel for m in crew.made}
    with Results(tmp_path) as results:
        assert [(b.kernel, b.status, b.seconds) for b in results.builds()][-1] == (
            CONFIGS[-1].name, "failed", 1.5,
        )  # fmt: skip
    building.clear()
    assert run(tmp_path, None, groups=(GPU,)).statuses == {}
    assert not building, "nothing is built for what is known"


def test_only_kernels_with_something_to_measure_are_built(tmp_path, building):
    run(tmp_path, FakeCrew(GPU), configs=CONFIGS[:2], groups=(GPU,))
    building.clear()
    run(tmp_path, FakeCrew(GPU), configs=CONFIGS[:3], groups=(GPU,))
    assert building == [CONFIGS[2].name]


def test_failures_of_kernels_are_results(tmp_path):
    bad = {CONFIGS[1].name: "crashed", CONFIGS[2].name: "mismatch"}
    crew = FakeCrew(change=lambda m: replace(m, status=bad.get(m.kernel, "ok"), reason="why"))
    outcome = run(tmp_path, crew)
    assert outcome.statuses == {"ok": 6, "crashed": 3, "mismatch": 3} and not outcome.ok
    assert run(tmp_path, None).statuses == {}, "a failure is an answer too"


def failing(statuses):
    """Measurements of these kernels fail so."""
    return lambda m: replace(m, status=statuses.get(m.kernel, "ok"), reason="why")


def test_a_retry_measures_what_had_these_statuses_and_replaces_it(tmp_path):
    names = [c.name for c in CONFIGS]
    fates = {names[0]: "timeout", names[1]: "nan", names[2]: "crashed"}
    run(tmp_path, FakeCrew(change=failing(fates)))
    before = {m.key: m for m in stored(tmp_path)}
    crew = FakeCrew(change=failing({names[2]: "crashed"}))
    outcome = run(tmp_path, crew, retry=("timeout", "crashed"))
    assert outcome.statuses == {"ok": 3, "crashed": 3}
    assert Counter(m.kernel for m in crew.made) == {names[0]: 3, names[2]: 3}
    after = {m.key: m for m in stored(tmp_path)}
    assert after.keys() == before.keys() and len(stored(tmp_path)) == len(after)
    for m in crew.made:
        assert after.pop(m.key) == m
        del before[m.key]
    assert after == before, "the rest is as it was"


def test_an_interrupted_retry_keeps_every_old_result_until_its_new_one(tmp_path):
    run(tmp_path, FakeCrew(change=failing({c.name: "timeout" for c in CONFIGS})))
    left = iter(range(5))

    def step():
        if next(left, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, FakeCrew(step=step), retry=("timeout",))
    assert Counter(m.status for m in stored(tmp_path)) == {"ok": 5, "timeout": 7}
    rest = FakeCrew()
    run(tmp_path, rest, retry=("timeout",))
    assert len(rest.made) == 7
    assert Counter(m.status for m in stored(tmp_path)) == {"ok": 12}


def test_a_retry_is_only_of_what_the_sweep_is_about(tmp_path):
    groups = (GROUP, other())
    change = failing({CONFIGS[0].name: "timeout"})
    run(tmp_path, FakeCrew(*groups, change=change), groups=groups)
    both = FakeCrew(*groups)
    run(tmp_path, both, configs=CONFIGS[:2], problems=PROBLEMS[:1], retry=("timeout",))
    assert [(m.kernel, m.problem, m.device) for m in both.made] == [
        (CONFIGS[0].name, PROBLEMS[0], GROUP.device)
    ]


def test_what_a_rule_refused_is_asked_again(tmp_path, monkeypatch):
    run(tmp_path, FakeCrew(), configs=(ALIGNED,))
    assert run(tmp_path, None, configs=(ALIGNED,), retry=("unsupported",)).refused == 1
    monkeypatch.setattr(GemmFamily, "supports", lambda *_: YES)
    crew = FakeCrew()
    run(tmp_path, crew, configs=(ALIGNED,), retry=("unsupported",))
    assert [m.problem for m in crew.made] == [PROBLEMS[2]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, TilewrightError("no device is left")])
def test_stopped_anywhere_it_keeps_what_was_measured_and_goes_on(tmp_path, error):
    for stop in (1, 5, 12):
        left = iter(range(stop))

        def step(left=left):
            if next(left, None) is None:
                raise error

        crew = FakeCrew(step=step)
        folder = tmp_path / str(stop)
        if stop < 12:
            with pytest.raises(type(error) if isinstance(error, Exception) else error):
                run(folder, crew)
        else:
            run(folder, crew)
        assert stored(folder) == crew.made and len(crew.made) == stop
        assert crew.closed == 1
        rest = FakeCrew()
        run(folder, rest)
        assert len(rest.made) == 12 - stop


def test_a_crew_that_does_something_else_is_caught(tmp_path):
    with pytest.raises(TilewrightError, match="without being requested"):
        run(tmp_path / "a", FakeCrew(change=lambda m: replace(m, device=other().device)))
    with pytest.raises(TilewrightError, match="1 measurements were not made"):
        run(tmp_path / "b", Lazy())


class Lazy(FakeCrew):
    def run(self, tasks, known=frozenset()):
        yield from super().run(tasks[1:], known)


class _Short:
    """A step of one who measures `most` and then waits to be killed, and says each begun."""

    def __init__(self, measuring: int, most: int) -> None:
        self.measuring, self.left = measuring, most

    def __call__(self) -> None:
        os.write(self.measuring, b".")
        if not self.left:
            signal.pause()
        self.left -= 1


@pytest.mark.turns(24)
def test_killed_twenty_times_at_random_it_ends_as_an_undisturbed_sweep_does(tmp_path):
    rng = random.Random(11)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    problems = [replace(PROBLEMS[0], m=m) for m in range(1, 101)]
    run(whole, FakeCrew(), problems=problems)
    total, counts = 100 * len(CONFIGS), []
    for number in range(20):
        begun, measuring = os.pipe()
        writer = os.fork()
        if not writer:
            try:
                run(broken, FakeCrew(step=_Short(measuring, 50)), problems=problems)
            finally:
                os._exit(0)
        os.close(measuring)
        for _ in range(rng.randint(1, 50) if number % 2 else 0):  # else it is killed as it starts
            os.read(begun, 1)
        time.sleep(rng.uniform(0.0, 0.02))  # somewhere in what it does next
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(begun)
        with Results(broken, write=True) as results:
            counts.append(len(results))
    assert counts == sorted(counts), "nothing is lost"
    assert counts[5] < total and counts[-1] > 0, f"killed in the middle: {counts}"
    run(broken, FakeCrew(), problems=problems)
    ends = [Counter(m.key for m in stored(folder)) for folder in (whole, broken)]
    assert ends[0] == ends[1]
    assert len(ends[1]) == ends[1].total() == total, "no duplicate"


def test_the_results_know_what_a_measurement_says(tmp_path):
    """The plan's keys are those of the measurements that answer it."""
    m = measurement(CONFIGS[0].name, PROBLEMS[0])
    this = plan((GROUP,), KERNELS, {"sm_90": PROBLEMS}, SETTINGS, {m.key})
    assert this.parts[0].known == 1 and this.total == 11
