"""One case by the runner: with a fake GPU and a fake clock."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_runs import NEVER, Bench, case, ran, steps

import cases
import one_case
from cases import HostTimes, InGraphs, Part, Programs
from one_case import run_case


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.setattr(one_case, "environment", lambda: {"commit": None})


def test_a_case_becomes_a_claim_with_its_command():
    bench = Bench()
    (found,), said = ran(case(), bench)
    assert (found.claim, found.against, found.problems) == ("toy", "others", 2)
    assert found.calls.ours.mean == pytest.approx((1.1 * 2.2) ** 0.5)
    assert found.graphs.ours.least == pytest.approx(1.1)
    assert found.calls.with_library is None
    assert found.environment["command"] == "benchmarks/run.py toy"
    assert len({*bench.seeds}) == 2
    assert ("count", 2) in said
    assert bench.prepared == ["a", "b"]
    rows = [what for word, what in said if word == "row"]
    assert [row["problem"] for row in rows] == ["a", "b"]
    assert rows[0]["calls"]["ours"]["kernel"] == "k0"
    assert len(rows[0]["samples"]["graphs"]["mm"]) == 20


def test_what_preparing_took_is_noted():
    bench = Bench(unmatched="b")
    bench.note = "3.1 s a problem"
    (found,), _ = ran(case(), bench)
    assert found.note == "3.1 s a problem; left out, as the vendor's result is wrong: b"
    (found,), _ = ran(case(), Bench())
    assert found.note is None


def test_problems_that_a_table_chose_for_are_counted():
    (found,), _ = ran(case(), Bench(chosen_by={"a": "shipped", "b": "analytical"}))
    assert found.note == "chosen by a row of a table: 1 of 2"


def test_parts_are_claims_of_some_problems_or_contenders():
    parts = (Part("first", "mm", where=lambda p: p == "a"), Part("bmm", "bmm", ("bmm",)))
    found, _ = ran(case(parts=parts), Bench())
    by_name = {one.claim: one for one in found}
    assert list(by_name) == ["toy", "toy-first", "toy-bmm"]
    assert by_name["toy-first"].problems == 1
    assert by_name["toy-first"].calls.ours.mean == pytest.approx(1.1)
    assert by_name["toy-bmm"].calls.ours.mean == pytest.approx(5.0)


def test_figures_are_noted_of_the_whole_case():
    def figures(rows):
        return ", ".join(
            f"{problem} {row.ratio('graphs', 'ours').us:.0f} us" for problem, row in rows.items()
        )

    parts = (Part("bmm", "bmm", ("bmm",)),)
    whole, part = ran(case(parts=parts, figures=figures), Bench())[0]
    assert whole.note == "a 10 us, b 10 us" and part.note is None


def test_a_case_in_graphs_has_the_claims_of_a_case():
    parts = (Part("bmm", "bmm", ("bmm",)), Part("b", "mm", where=lambda name: name == "b"))
    graphs = InGraphs("toy", "toys", "mm", ("a", "b"), None, None, None, "by chance", parts)
    bench = Bench()
    bench.note = graphs.note
    found, _ = ran(graphs, bench)
    assert [(one.claim, one.problems) for one in found] == [
        ("toy", 2),
        ("toy-bmm", 2),
        ("toy-b", 1),
    ]
    assert cases.claims_of(graphs) == [one.claim for one in found]
    assert {one.note for one in found} == {"by chance"}


def test_a_part_is_of_the_problems_that_its_vendor_computes_right(monkeypatch):
    """The others are said; without any there is no claim."""
    of = Bench.compared

    def without(self, case, problem, seed, say):
        row, used = of(self, case, problem, seed, say)
        left = {way: {n: us for n, us in taken.items() if n != "bmm" or problem == "a"}
                for way, taken in row.samples.items()}  # fmt: skip
        return replace(row, samples=left), used

    monkeypatch.setattr(Bench, "compared", without)
    parts = (Part("bmm", "bmm", ("bmm",)), Part("none", "nobody", ("nobody",)))
    (whole, bmm), said = ran(case(parts=parts), Bench())
    assert (whole.problems, whole.note) == (2, None)
    assert (bmm.problems, bmm.note) == (1, "left out, as the vendor's result is wrong: b")
    assert bmm.calls.ours.mean == pytest.approx(5.0)
    why = "no problem is meant, or there is no right result of nobody"
    assert ("text", f"  no claim toy-none: {why}") in said


def test_a_problem_that_fails_leaves_the_case_without_a_claim():
    said = []
    with pytest.raises(
        RuntimeError, match="1 of 3 problems failed: a: NothingToCompare: no kernel"
    ):
        run_case(
            case(problems="abc"), lambda: Bench(bad="a"), NEVER, lambda *words: said.append(words)
        )
    assert [what["problem"] for word, what in said if word == "row"] == ["b", "c"]


def test_a_problem_on_which_the_vendor_is_wrong_is_left_out_and_named():
    parts = (Part("first", "mm", where=lambda p: p == "a"),)
    (whole, first), said = ran(case(problems="abc", parts=parts), Bench(unmatched="c"))
    assert (whole.problems, first.problems) == (2, 1)
    assert whole.note == "left out, as the vendor's result is wrong: c"
    assert first.note is None
    assert [what["problem"] for word, what in said if word == "row"] == ["a", "b"]
    assert any(word == "text" and "c: left out" in str(what) for word, what in said)


def test_the_budget_ends_a_case_before_a_problem_that_would_not_fit(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(one_case.time, "time", lambda: clock[0])
    bench = Bench(seconds=10.0, clock=clock)
    with pytest.raises(one_case.Late, match="left out 2 of 4"):
        ran(case(problems="abcd"), bench, deadline=1029.0)
    assert len(bench.seeds) == 2


def test_programs_are_compared_by_their_steps():
    def made(us):
        return lambda: {"ours": lambda: 10.0, "vendor": lambda: us}

    both = Programs("models", "all", "torch", {"model-a": made(20.0), "model-b": made(5.0)})
    bench = Bench()
    found, said = ran(both, bench)
    each = [what for word, what in said if word == "claim"]
    ratios = {one.claim: one.calls.with_library.mean for one in (*found, *each)}
    assert ratios == {
        "models": pytest.approx(1.0), "model-a": pytest.approx(2.0), "model-b": pytest.approx(0.5),
    }  # fmt: skip
    assert bench.released == 2
    alone, _ = ran(Programs("gpt", "one", "torch", {"gpt": made(20.0)}), Bench())
    assert [one.claim for one in alone] == ["gpt"]


def no_steps():
    raise ValueError("wrong: output")


def test_a_program_that_fails_costs_itself_alone():
    """The others have their claims; all together have none."""
    programs = {"model-a": steps(20.0), "model-b": no_steps, "model-c": steps(30.0)}
    bench, said = Bench(), []
    with pytest.raises(
        RuntimeError, match=r"^1 of 3 programs failed: model-b: ValueError: wrong: output$"
    ):
        run_case(
            Programs("models", "all", "torch", programs), lambda: bench, NEVER,
            lambda *words: said.append(words),
        )  # fmt: skip
    assert [what.claim for word, what in said if word == "claim"] == ["model-a", "model-c"]
    assert [what["problem"] for word, what in said if word == "row"] == ["model-a", "model-c"]
    assert bench.released == 3


def test_the_budget_leaves_out_programs_by_name(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(one_case.time, "time", lambda: clock[0])

    def slow():
        clock[0] += 10.0
        return steps(20.0)()

    programs = {"model-a": slow, "model-b": slow, "model-c": slow, "model-d": slow}
    samples = {"ours": [10.0] * 10, "vendor": [20.0] * 10}
    known = {"model-d": {"problem": "model-d", "samples": samples, "configs": []}}
    said = []
    with pytest.raises(one_case.Late, match=r"^left out 1 of 4 programs: model-c$"):
        run_case(
            Programs("models", "all", "torch", programs), Bench, 1029.0,
            lambda *words: said.append(words), known,
        )  # fmt: skip
    claimed = [what.claim for word, what in said if word == "claim"]
    assert claimed == ["model-d", "model-a", "model-b"]


def test_host_times_are_medians():
    (found,), _ = ran(HostTimes("host", "a call", lambda: {"call": [3.0, 1.0, 2.0]}), None)
    assert found.times_us == {"call": 2.0}
    assert found.calls is None
