"""A tuning finds proven kernels, goes on where it was, and never leaves anything worse."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from fake_crew import GROUP, SETTINGS, FakeCrew
from tune_cases import PROBLEMS, SM90

from tilewright.cli.settings import read_settings
from tilewright.compile import Store
from tilewright.compile.report import BuildReport, BuildResult
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadFile
from tilewright.jsonfile import convert
from tilewright.measure import sweep as sweep_module
from tilewright.measure.measurement import Settings, text
from tilewright.measure.results import Results
from tilewright.measure.statistics import median_interval
from tilewright.measure.sweep import settings_on
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.space import KernelSpace
from tilewright.tables.table import Table
from tilewright.tune import coming
from tilewright.tune import tuner as tuner_module
from tilewright.tune.finals import LEAST_TAKES, TAKES
from tilewright.tune.jobs import _tiles_first, jobs_of
from tilewright.tune.search import EFFORTS, Effort
from tilewright.tune.tuner import FINAL, SEARCH, Tuner, final_of
from tilewright.verdict import YES

SPACE = KernelSpace(
    "gemm",
    {
        "tile_m": [16, 32, 64], "tile_n": [32, 64], "tile_k": [32, 64], "num_warps": [4],
        "num_stages": [2], "alignment": [1],
    },
)  # fmt: skip
CONFIGS = SPACE.expand(SM90).configs
SMALL = Effort(first=3, step=3, patience=1)


def truth(kernel: str, problem) -> float:
    """What a kernel takes on a problem, in microseconds; some are near the best."""
    us = 10 * (1 + random.Random(f"{kernel} {problem}").choice([0.0, 0.001, 0.02, 0.1, 0.3, 0.5]))
    return us * (1 + random.Random(kernel).random() / 1000)


def made(noise: float = 0.0, seed: int = 0, wrong=(), worse=()):
    """What a crew makes of measurements: times by `truth`, with noise that the same question always
    has; kernels in `wrong` are wrong."""

    def change(m):
        if m.kernel in wrong:
            return replace(m, status="mismatch", reason="planted", samples_us=())
        us = truth(m.kernel, m.problem) * (2.0 if m.kernel in worse else 1.0)
        rng = random.Random(f"{seed} {m.key}")
        samples = tuple(us * rng.gauss(1, noise) for _ in range(40))
        return replace(m, samples_us=samples, interval_us=median_interval(samples, 0.95))

    return change


@cache
def untuned(problem):
    """A problem's job without a table."""
    [job], _ = jobs_of(GROUP, [problem], None, CONFIGS)
    return job


def tune(folder, crew, table=None, problems=PROBLEMS, effort=SMALL, **options):
    """The table and what came of it."""
    jobs = [untuned(problem) for problem in problems]
    if table is not None:
        jobs, _ = jobs_of(GROUP, problems, table, CONFIGS)
    kept = {row.problem: row for row in table or ()}
    saved: list[Table] = []

    def save(rows):
        kept.update({row.problem: row for row in rows})
        saved.append(Table.of(kept.values()))
        (folder / "t.twt").write_bytes(saved[-1].data)

    with Results(folder / "sweep", write=True) as results:
        tuner = Tuner(
            jobs, results, Store(folder / "store"), crew, SETTINGS, save, effort, **options
        )
        tuned = tuner.run()
    return saved[-1], tuned


def best(problem) -> float:
    return min(truth(name, problem) for name in untuned(problem).configs)


def test_each_problem_gets_a_row_of_the_finals(tmp_path):
    crew = FakeCrew(change=made(0.002))
    table, tuned = tune(tmp_path, crew, effort=EFFORTS["exhaustive"])
    assert len(table) == 3 and tuned.final == {0, 1, 2} and not tuned.without
    for row in table:
        assert truth(row.kernel, row.problem) <= best(row.problem) * 1.015
        timed = [text(settings_on(GROUP, replace(FINAL, take=n + 1))) for n in range(TAKES)]
        assert row.timed in timed and row.error == 0.5
    # The finals measure those near the best, together, and nothing else.
    finals = [m for m in crew.made if m.settings.precision == FINAL.precision]
    for m in finals:
        assert truth(m.kernel, m.problem) < best(m.problem) * 1.06
    assert max(m.settings.take for m in finals) <= TAKES
    assert tuned.measured == len(crew.made)


def test_the_search_stops_early_and_exhaustive_does_not(tmp_path):
    early, whole = FakeCrew(change=made()), FakeCrew(change=made())
    for folder, crew, effort in (("a", early, SMALL), ("b", whole, EFFORTS["exhaustive"])):
        (tmp_path / folder).mkdir()
        tune(tmp_path / folder, crew, effort=effort)

    def searched(crew):
        return len([m for m in crew.made if m.settings == SETTINGS])

    assert searched(whole) == sum(len(untuned(p).configs) for p in PROBLEMS)
    assert searched(early) < searched(whole)


def test_a_quick_tuning_holds_its_finals_once(tmp_path):
    crew = FakeCrew(change=made())
    table, tuned = tune(tmp_path, crew, effort=replace(SMALL, takes=1))
    assert len(table) == 3 and tuned.final == {0, 1, 2} and not tuned.without
    assert {m.settings.take for m in crew.made} == {0, 1}
    assert {settings(row).take for row in table} == {1}
    # A later one holds the others, until the winners are in no doubt.
    more = FakeCrew(change=made())
    again, _ = tune(tmp_path, more, table, effort=replace(SMALL, takes=TAKES))
    assert min(m.settings.take for m in more.made) == 2
    assert [row.kernel for row in again] == [row.kernel for row in table]
    assert min(settings(row).take for row in again) == LEAST_TAKES


def settings(row) -> Settings:
    return convert(json.loads(row.timed), Settings, "a row")


def test_the_present_choice_is_measured_first(tmp_path):
    crew = FakeCrew(change=made())
    tune(tmp_path, crew)
    for job in map(untuned, PROBLEMS):
        mine = [m.kernel for m in crew.made if m.problem == job.problem]
        assert mine[0] == job.present
        first = {job.present, *job.names[: SMALL.first]}
        assert {*mine[: len(first)]} == first


@pytest.mark.turns(24)
def test_again_measures_nothing_and_writes_the_same(tmp_path):
    table, _ = tune(tmp_path, FakeCrew(change=made(0.01)))
    for effort in (SMALL, Effort(first=3, step=3, patience=1, gain=0.02)):
        crew = FakeCrew(change=made(0.01, seed=1))
        again, tuned = tune(tmp_path, crew, table, effort=effort)
        assert [(m.kernel, m.problem, m.settings.take) for m in crew.made] == []
        assert tuned.measured == 0
        assert {(r.problem, r.kernel) for r in again} == {(r.problem, r.kernel) for r in table}
        assert {r.median_us for r in again} == {r.median_us for r in table}


class Stop(Exception):
    pass


def stop_after(count: int):
    left = iter(range(count))

    def step():
        if next(left, None) is None:
            raise Stop

    return step


@pytest.mark.turns(24)
@pytest.mark.parametrize("count", [1, 5, 12, 20, 25, 30])
def test_a_tuning_that_was_stopped_ends_the_same(tmp_path, count):
    """Whether it is in the search or in the finals; and what it left is right."""
    (tmp_path / "whole").mkdir(), (tmp_path / "cut").mkdir()
    whole, _ = tune(tmp_path / "whole", FakeCrew(change=made()))
    with pytest.raises(Stop):
        tune(tmp_path / "cut", FakeCrew(change=made(), step=stop_after(count)))
    left = tmp_path / "cut" / "t.twt"
    table = Table(left.read_bytes()) if left.is_file() else None
    for row in table or ():
        present = untuned(row.problem).present
        assert truth(row.kernel, row.problem) <= truth(present, row.problem) * 1.011
    crew = FakeCrew(change=made())
    again, _ = tune(tmp_path / "cut", crew, table)
    assert len(crew.made) + count == count_of(tmp_path / "cut")  # nothing twice
    assert [(r.problem, r.kernel, r.ties, r.median_us) for r in again] == [
        (r.problem, r.kernel, r.ties, r.median_us) for r in whole
    ]


def seen(**by_take: dict[str, float]):
    """Two kernels' times by take; that of take 0 is the search. All others are slow."""

    def change(m):
        us = by_take[f"take{min(m.settings.take, len(by_take) - 1)}"].get(m.kernel, 100.0)
        return replace(m, samples_us=(us,) * 12, interval_us=(us, us))

    return change


FIRST, LATER = sorted(c.name for c in CONFIGS)[:2]


@pytest.mark.turns(32)
@pytest.mark.parametrize("planted", [
    # In doubt in the first take, whose winner would stay if it were taken for proven.
    {"take0": {FIRST: 10.0, LATER: 10.0}, "take1": {FIRST: 10.12, LATER: 10.0},
     "take2": {FIRST: 9.95, LATER: 10.0}},
    # The search has another winner than the finals, and cannot be told from it there.
    {"take0": {FIRST: 10.3, LATER: 10.0}, "take1": {FIRST: 10.0, LATER: 10.0}},
])  # fmt: skip
def test_stopped_anywhere_noise_decides_nothing(tmp_path, planted):
    problem, change = PROBLEMS[0], seen(**planted)
    (tmp_path / "whole").mkdir()
    crew = FakeCrew(change=change)
    whole, _ = tune(tmp_path / "whole", crew, problems=[problem], effort=EFFORTS["exhaustive"])
    for count in range(len(untuned(problem).configs), len(crew.made)):
        folder = tmp_path / str(count)
        folder.mkdir()
        with pytest.raises(Stop):
            cut = FakeCrew(change=change, step=stop_after(count))
            tune(folder, cut, problems=[problem], effort=EFFORTS["exhaustive"])
        table = Table((folder / "t.twt").read_bytes())
        again, _ = tune(folder, FakeCrew(change=change), table, [problem], EFFORTS["exhaustive"])
        assert [row.kernel for row in again] == [row.kernel for row in whole], count


def test_one_that_was_sampled_until_the_clock_was_down_comes_to_the_finals(tmp_path):
    def change(m):
        us = 10.0 if m.kernel == FIRST else 10.3
        later = m.kernel == FIRST and m.settings.take == 0
        samples = (us,) * 12 + (1.15 * us,) * (40 * later)
        return replace(m, samples_us=samples, interval_us=median_interval(samples, 0.95))

    [problem] = PROBLEMS[:1]
    table, _ = tune(
        tmp_path, FakeCrew(change=change), problems=[problem], effort=EFFORTS["exhaustive"]
    )
    assert table.get(problem, GROUP.device).kernel == FIRST


def test_what_a_take_found_wrong_is_not_taken_again(tmp_path):
    planted = seen(take0={FIRST: 10.0, LATER: 10.0}, take1={FIRST: 10.1, LATER: 10.0})
    wrong = made(wrong=[CONFIGS[5].name])
    near = {FIRST: 10.0, LATER: 10.0, CONFIGS[5].name: 10.0}
    first = seen(take0=near)

    def change(m):
        if m.settings.take == 0:
            return first(m)
        return wrong(m) if m.kernel == CONFIGS[5].name else planted(m)

    crew = FakeCrew(change=change)
    tune(tmp_path, crew, problems=[PROBLEMS[0]], effort=EFFORTS["exhaustive"])
    takes = {m.kernel: m.settings.take for m in crew.made}  # the last of each
    assert takes[CONFIGS[5].name] == 1 < takes[LATER]


def count_of(folder) -> int:
    """How many measurements are on disk."""
    try:
        with Results(folder / "sweep") as results:
            return len(results)
    except BadFile:  # not yet
        return 0


def test_killed_in_the_middle(tmp_path):
    pid = os.fork()
    if pid == 0:
        steps = itertools.count()

        def step():
            if next(steps) == 20:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            tune(tmp_path, FakeCrew(change=made(), step=step))
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "there is no middle"
    before = count_of(tmp_path)
    assert 15 <= before <= 20
    left = tmp_path / "t.twt"
    table = Table(left.read_bytes()) if left.is_file() else None
    crew = FakeCrew(change=made())
    again, _ = tune(tmp_path, crew, table)
    assert len(crew.made) == count_of(tmp_path) - before
    (tmp_path / "whole").mkdir()
    whole, _ = tune(tmp_path / "whole", FakeCrew(change=made()))
    assert {(r.problem, r.kernel) for r in again} == {(r.problem, r.kernel) for r in whole}


def proven(problem, kernel: str, us: float = 10.0):
    from tilewright.tables.row import Row

    return Row(GROUP.device, problem, kernel, (), us, (us, us), 0.5, timed="long ago")


def test_a_proven_row_stays_unless_it_is_surely_beaten(tmp_path):
    problem = PROBLEMS[0]
    ordered = sorted((c.name for c in CONFIGS), key=lambda n: truth(n, problem))
    near = [n for n in ordered if truth(n, problem) < best(problem) * 1.008]
    far = ordered[-1]
    assert len(near) > 1
    for number, (kernel, stays) in enumerate([(near[-1], True), (near[0], True), (far, False)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        before, crew = Table.of([proven(problem, kernel)]), FakeCrew(change=made(0.001))
        table, _ = tune(folder, crew, before, [problem], effort=EFFORTS["exhaustive"])
        assert (table.get(problem, GROUP.device).kernel == kernel) is stays
        takes = [m.settings.take for m in crew.made if m.kernel == kernel]
        assert takes[:2] == [0, 1], "however far it is from the best, it is in the finals"
        assert len(takes) == len({*takes})


@pytest.mark.parametrize("count", [1, 5, 10, 14])
def test_a_stopped_tuning_leaves_proven_rows_alone(tmp_path, count):
    problem = PROBLEMS[0]
    row = proven(problem, max((c.name for c in CONFIGS), key=lambda n: truth(n, problem)))
    with pytest.raises(Stop):
        crew = FakeCrew(change=made(), step=stop_after(count))
        tune(tmp_path, crew, Table.of([row]), [problem], effort=EFFORTS["exhaustive"])
    left = tmp_path / "t.twt"
    if left.is_file():
        assert [*Table(left.read_bytes())] == [row]


def test_the_budget_ends_the_search_and_finals_follow(tmp_path, monkeypatch):
    crew = FakeCrew(change=made(0.002))
    table, tuned = tune(tmp_path, crew, effort=EFFORTS["exhaustive"], seconds=1e-9)
    assert not tuned.without
    assert tuned.out_of_time and tuned.untried == [0, 1, 2] and len(table) == 0
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(tuner_module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def step():
        clock.now += 0.02

    slow = FakeCrew(change=made(0.002), step=step)
    table, tuned = tune(tmp_path, slow, effort=EFFORTS["exhaustive"], seconds=0.05)
    assert tuned.out_of_time and len(table) == 3 and tuned.final == {0, 1, 2}
    assert {m.settings.take for m in slow.made} == {0, 1}
    searched = [m for m in slow.made if m.settings == SETTINGS]
    assert len(searched) < 3 * len(CONFIGS)
    more = FakeCrew(change=made(0.002))
    table, tuned = tune(tmp_path, more, table, effort=EFFORTS["exhaustive"])
    assert not tuned.out_of_time and more.made
    for row in table:
        assert truth(row.kernel, row.problem) <= best(row.problem) * 1.015


def test_a_kernel_that_fails_never_wins(tmp_path):
    problem = PROBLEMS[0]
    wrong = sorted((c.name for c in CONFIGS), key=lambda n: truth(n, problem))[:3]
    crew = FakeCrew(change=made(0.001, wrong=wrong))
    table, tuned = tune(tmp_path, crew, problems=[problem], effort=EFFORTS["exhaustive"])
    assert table.get(problem, GROUP.device).kernel not in wrong and not tuned.without


def test_a_kernel_that_fails_in_the_finals_does_not_win_either(tmp_path):
    problem = PROBLEMS[0]
    flaky = [n for n in untuned(problem).configs if truth(n, problem) < best(problem) * 1.06]
    fine, broken = made(0.001), made(wrong=flaky)
    crew = FakeCrew(change=lambda m: (fine if m.settings == SETTINGS else broken)(m))
    table, tuned = tune(tmp_path, crew, problems=[problem], effort=EFFORTS["exhaustive"])
    row = table.get(problem, GROUP.device)
    assert row.kernel not in flaky and tuned.final == set()
    assert row.timed == text(SETTINGS)


def test_a_problem_without_a_right_kernel_is_told_and_the_rest_goes_on(tmp_path):
    change, everything = made(0.001), made(wrong=[*untuned(PROBLEMS[1]).configs])

    def some(m):
        return (everything if m.problem == PROBLEMS[1] else change)(m)

    table, tuned = tune(tmp_path, FakeCrew(change=some))
    assert tuned.without == [1]
    assert {row.problem for row in table} == {PROBLEMS[0], PROBLEMS[2]}


def test_what_nothing_supports_is_said_and_the_rest_is_planned():
    fp8 = replace(PROBLEMS[0], dtype_a="e4m3fnuz", dtype_b="e4m3fnuz")
    jobs, refused = jobs_of(GROUP, [fp8, PROBLEMS[0]], None)
    assert [job.problem for job in jobs] == [PROBLEMS[0]]
    assert [problem for problem, _ in refused] == [fp8] and all(why for _, why in refused)


@pytest.mark.turns(24)
def test_candidates_are_ranked_and_starters_are_todays_choices():
    problem = GemmProblem(512, 512, 512)
    [plain], _ = jobs_of(GROUP, [problem], None)
    assert plain.row is None and len(plain.names) > 50
    ranked = [config for config, _ in FAMILY.rank(problem, plain.configs.values(), GROUP.device)]
    assert {*plain.names} == {config.name for config in ranked}
    assert plain.names[0] == ranked[0].name
    assert plain.present == Dispatcher(device=GROUP.device).select(problem).config.name
    chosen = CONFIGS[3].name
    [job], _ = jobs_of(GROUP, [problem], Table.of([proven(problem, chosen)]))
    assert job.present == chosen and job.row is not None
    assert [c.name for c in job.starters] == [chosen]
    assert job.names == plain.names  # the order does not depend on the table
    [narrow], _ = jobs_of(GROUP, [problem], Table.of([proven(problem, chosen)]), CONFIGS[:2])
    assert [c.name for c in narrow.starters] == [chosen, plain.present]
    gone = Table.of([proven(problem, "gemm_of_old")])
    [job], _ = jobs_of(GROUP, [problem], gone)
    assert job.row is None and job.present == plain.present


def test_variants_of_a_tile_are_tried_behind_other_tiles():
    """Unless another tile should take longer than they: each counts 5 % for each before it."""
    one, two = CONFIGS[0], replace(CONFIGS[0], tile_k=2 * CONFIGS[0].tile_k)
    variants = [replace(one, num_stages=n) for n in (2, 3, 4)]
    estimates = [(100.0, variants[0]), (101.0, variants[1]), (102.0, variants[2]), (108.0, two)]
    given = [(config, Estimate(us, "", (), ())) for us, config in estimates]
    found = _tiles_first(given, FAMILY.tile)  # 100, 106.05, 112.5 and 108
    assert found == (variants[0], variants[1], two, variants[2])


def test_the_best_of_each_pipeline_is_tried_first():
    """If its estimate is at most 1.5 times the least."""
    base = CONFIGS[0]
    near, far = (replace(base, pipeline=name) for name in ("gluon_ws", "gluon_pingpong"))
    stages = [replace(base, num_stages=n) for n in (2, 3)]
    estimates = [(100.0, stages[0]), (101.0, stages[1]), (149.0, near), (151.0, far)]
    given = [(config, Estimate(us, "", (), ())) for us, config in estimates]
    assert _tiles_first(given, FAMILY.tile) == (stages[0], near, stages[1], far)


@pytest.mark.turns(64)
def test_candidates_keep_the_order_of_estimates_within_a_tile():
    problem = GemmProblem(512, 512, 512)
    [job], _ = jobs_of(GROUP, [problem], None)
    ranked = [config for config, _ in FAMILY.rank(problem, job.candidates, GROUP.device)]
    for tile in {FAMILY.tile(c) for c in ranked}:
        same = [c for c in ranked if FAMILY.tile(c) == tile]
        assert [c for c in job.candidates if c in same] == same


@pytest.mark.turns(24)
def test_two_tunings_choose_the_same(tmp_path):
    problems = [GemmProblem(16 * i, 64, 64) for i in range(1, 6)]
    chosen = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        crew = FakeCrew(change=made(0.01, seed))
        table, _ = tune(tmp_path / str(seed), crew, problems=problems, effort=EFFORTS["exhaustive"])
        chosen.append([row.kernel for row in table])
    assert chosen[0] == chosen[1]


def test_finals_time_as_their_search_does():
    assert final_of(SEARCH) == FINAL
    graphs = read_settings({"method": "graph"}, SEARCH)
    assert replace(graphs, timer="events", cache="flushed") == SEARCH
    final = final_of(graphs)
    assert (final.timer, final.cache, final.places) == ("graph", "rotated", 1)
    assert replace(final, timer="events", cache="flushed", places=FINAL.places) == FINAL
    assert read_settings({"method": "single"}, graphs) == SEARCH


def test_kernels_of_the_next_problems_are_built_while_these_are_measured(tmp_path, monkeypatch):
    """A sweep finds the kernels of its first step built, but for those of the first problem; what
    was built in between is in the results."""
    real = replace(GROUP, interpreted=False)
    jobs = [replace(untuned(problem), group=real) for problem in PROBLEMS]
    there, missing = set(), []

    def built(requests, store, progress, **_):
        results = [
            BuildResult(
                config, config.name, SM90, "cached" if config.name in there else "built",
                verdict=YES, seconds=1.0,
            )
            for config, _ in requests
        ]  # fmt: skip
        there.update(config.name for config, _ in requests)
        for number, result in enumerate(results, 1):
            progress(result, number, len(results))
        return BuildReport(tuple(results), 1.0)

    def swept(requests, **more):
        missing.append([config.name for config, _ in requests if config.name not in there])
        return built(requests, **more)

    monkeypatch.setattr(coming, "build", built)
    monkeypatch.setattr(sweep_module, "build", swept)
    crew = FakeCrew(real, change=made())
    with Results(tmp_path / "sweep", write=True) as results:
        Tuner(
            jobs, results, Store(tmp_path / "store"), crew, SETTINGS, lambda rows: None,
            EFFORTS["few"], final=SETTINGS, together=1,
        ).run()  # fmt: skip
        recorded = {one.kernel for one in results.builds()}
    assert missing[0] and not any(missing[1:])
    assert recorded == there
