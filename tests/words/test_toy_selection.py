"""Selection and tables with a family that has no rows, no M, and terms of its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from table_cases import H100, H200, row
from toy_family import ToyConfig, ToyProblem

from tilewright import capturing
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, BadFile, UnsupportedProblem
from tilewright.measure.problems import load_problems
from tilewright.measure.sweep import Group
from tilewright.select.constraints import Constraints
from tilewright.space_file import load_space, space_to_json
from tilewright.tables import file
from tilewright.tables.lookup import Lookup
from tilewright.tables.merge import combine
from tilewright.tables.row import still_serves
from tilewright.tables.table import Table
from tilewright.tune.jobs import jobs_of
from tilewright.verdict import YES, no

PROBLEM = ToyProblem((256, 512), heads=8)
BEST = "toy_b16_m2"


def test_the_estimate_says_the_familys_terms():
    plan = Dispatcher(device=H200).select(PROBLEM)
    assert plan.config == ToyConfig(64, 2)
    assert plan.reason == (
        "estimated 1.6 µs: 8 heads; bound by scores; scores 1.6, exponentials 1.5 µs"
    )


def test_a_family_without_invariance_refuses_by_name():
    constraints = Constraints(batch_invariant=True)
    with pytest.raises(UnsupportedProblem, match=r"batch_invariant\): toy has no kernels"):
        Dispatcher(device=H200, constraints=constraints).select(PROBLEM)
    assert Constraints(deterministic=True).allows(ToyConfig(), PROBLEM, H200)
    assert constraints.allows(ToyConfig(), PROBLEM, H200).rule == "batch_invariant"


def test_an_invariance_of_its_own(toy, monkeypatch):
    from tilewright.ops.nearby import Invariance

    def any_head_count(problem):
        asked = tuple(replace(problem, heads=heads) for heads in (16, 1))
        return Invariance("every head count", "16 heads", asked)

    monkeypatch.setattr(toy, "invariance", any_head_count)
    monkeypatch.setattr(
        toy,
        "invariant",
        lambda config: no("m", "has m 2") if config.m == 2 else YES,
        raising=False,
    )
    plan = Dispatcher(device=H200, constraints=Constraints(batch_invariant=True)).select(PROBLEM)
    assert plan.config == ToyConfig(64, 1) and plan.problem == PROBLEM
    assert plan.reason.endswith("; chosen for 16 heads, as for every head count")


def test_nearby_rows_answer_in_the_familys_words():
    table = Table.of([row(replace(PROBLEM, heads=1), BEST)])
    found = next(Lookup(table).find(PROBLEM, H200))
    assert (found.origin, found.where) == ("nearby", "of one head")
    lent = next(Lookup(table).find(PROBLEM, H100))
    assert lent.origin == "borrowed" and lent.where.endswith(", of one head")
    assert next(Lookup(table).find(replace(PROBLEM, tokens=(8, 8)), H200), None) is None
    plan = Dispatcher(device=H200, tables=table).select(PROBLEM)
    assert plan.config.name == BEST and plan.reason.startswith("of one head of table: 10 µs")


# --- the tuning key ------------------------------------------------------------------------


def test_a_scalar_that_decides_nothing_has_no_row_of_its_own(tmp_path):
    near, far = replace(PROBLEM, scale=0.1249), replace(PROBLEM, scale=0.125)
    table = Table.of([row(near, BEST)])
    [kept] = table
    assert kept.problem == PROBLEM and kept == row(far, BEST)
    for path in (tmp_path / "t.twt", tmp_path / "t.json"):
        file.save(table, path)
        loaded = file.load(path)
        assert loaded == table
        for asked in (near, far, PROBLEM):
            found = next(Lookup(loaded).find(asked, H200))
            assert found.origin == "exact" and found.row == kept
            plan = Dispatcher(device=H200, tables=loaded).select(asked)
            assert (plan.config.name, plan.problem) == (BEST, asked)
    other = replace(PROBLEM, limit=5)
    assert table.get(other, H200) is None, "a field that decides has a row of its own"


def test_rows_of_one_key_are_merged_as_rows_of_one_problem():
    rows = [row(replace(PROBLEM, scale=s), BEST, us) for s, us in ((0.1, 9.0), (0.2, 7.0))]
    merged = combine([("a", rows[0]), ("b", rows[1])], "both", "fastest")
    [kept] = merged.table
    assert kept.median_us == 7.0 and len(merged.duplicates) == 1


def test_problems_and_captures_count_by_problem_and_are_tuned_by_key(tmp_path):
    near, far = replace(PROBLEM, scale=0.1249), replace(PROBLEM, scale=0.125)
    path = tmp_path / "met.jsonl"
    met = capturing.Capture(path)
    dispatcher = Dispatcher(device=H200)
    for problem in (near, far, far):
        met.saw(dispatcher.select(problem))
    met.close()
    assert capturing.load(path) == {far: 2, near: 1}
    listed = load_problems([str(path)], arch("sm_90")).problems
    assert listed == (far, near)
    jobs, refused = jobs_of(Group(H200, None, 1), [*listed, replace(near, limit=3)], None)
    assert [job.problem for job in jobs] == [far, replace(near, limit=3)] and not refused


def test_a_rows_kernel_is_asked_about_the_rows_problem():
    made = row(replace(PROBLEM, tokens=(32, 32)), "toy_b64_m1")
    assert still_serves(made.kernel, made).rule == "block"


# --- sweep documents -----------------------------------------------------------------------


def test_a_family_without_formats_reads_documents_of_its_axes(tmp_path):
    path = tmp_path / "space.json"
    said = {"_why": "x", "family": "toy", "block": {"values": [16, 64]}, "m": 2, "split": [None, 3]}
    path.write_text(json.dumps(said))
    space, notes = load_space(path, arch("sm_90"), signature={"status": "x"})
    configs = space.expand("sm_90").configs
    assert {(c.block, c.m, c.split, c.status) for c in configs} == {
        (block, 2, split, "x") for block in (16, 64) for split in (None, 3)
    }
    assert notes == []
    path.write_text(json.dumps(space_to_json(space)))
    assert load_space(path, arch("sm_90"))[0].expand("sm_90").configs == configs


@pytest.mark.parametrize(
    ("said", "signature", "error", "says"),
    [
        ({"tile_m": [64]}, {}, BadFile, "toy kernels have no axis 'tile_m'; they have block"),
        ({"block": []}, {}, BadFile, r"\$\.block: the axis has no values"),
        ({}, {"m": "2"}, BadArgument, "m=2: give numbers in the document"),
        ({}, {"layout": "rcr"}, BadArgument, "toy kernels have no axis 'layout'"),
    ],
)
def test_documents_that_are_wrong(tmp_path, said, signature, error, says):
    path = tmp_path / "space.json"
    path.write_text(json.dumps({"family": "toy", **said}))
    with pytest.raises(error, match=says):
        load_space(path, arch("sm_90"), signature=signature)
