"""The runner's flow, with fake workers, a fake GPU and a fake clock."""

from __future__ import annotations

import json
import lzma
import math
import time
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

import pytest
from test_comparison import OURS, TIMES, Fake

import ahead
import cases
import claims
import run
import run_file
from cases import Case, HostTimes, InGraphs, Part, Programs
from comparison import Field, NothingToCompare, VendorWrong, compared
from run import Report, run_all, run_case
from run_file import Earlier
from tilewright.arch import arch

NEVER = math.inf


def case(name="toy", problems=("a", "b"), **more) -> Case:
    return Case(name, "toys", "others", lambda: list(problems), **more)


class Bench:
    """A GPU that answers at once, or takes `seconds`; problems in `bad` cannot be compared, and the
    vendor is wrong on those in `unmatched`. chosen_by: a selector by problem."""

    arch = arch("sm_90")
    note = ""

    def __init__(
        self, bad=(), seconds=0.0, clock=None, unmatched=(), chosen_by=MappingProxyType({})
    ) -> None:
        self._chosen_by = chosen_by
        self.seeds: list[int] = []
        self.released = 0
        self._unmatched = unmatched
        self._bad, self._seconds, self._clock = bad, seconds, clock

    def compared(self, case, problem, seed, say):
        self.seeds.append(seed)
        if self._clock is not None:
            self._clock[0] += self._seconds
        if problem in self._bad:
            raise NothingToCompare("no kernel is right")
        if problem in self._unmatched:
            raise VendorWrong("no call of the vendor is right")
        mm = {"a": 22.0, "b": 44.0}.get(problem, 20.0)
        by = self._chosen_by.get(problem, "")
        field = Field(OURS, (), (), ("mm", "bmm"), chosen_by=by)
        stage = Fake(field, TIMES | {"mm": mm, "bmm": 100.0})
        return compared(problem, stage), {}

    def prepare(self, case, problems, say):
        self.prepared = list(problems)
        return self.note

    def stepped(self, make):
        return {name: [call()] * 10 for name, call in make().items()}, {}

    def release(self):
        self.released += 1


def ran(case, bench, deadline=NEVER):
    said = []
    return run_case(case, lambda: bench, deadline, lambda *words: said.append(words)), said


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.setattr(run, "environment", lambda: {"commit": None})


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
    monkeypatch.setattr(run.time, "time", lambda: clock[0])
    bench = Bench(seconds=10.0, clock=clock)
    with pytest.raises(run.Late, match="left out 2 of 4"):
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


def steps(us):
    return lambda: {"ours": lambda: 10.0, "vendor": lambda: us}


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
    monkeypatch.setattr(run.time, "time", lambda: clock[0])

    def slow():
        clock[0] += 10.0
        return steps(20.0)()

    programs = {"model-a": slow, "model-b": slow, "model-c": slow, "model-d": slow}
    samples = {"ours": [10.0] * 10, "vendor": [20.0] * 10}
    known = {"model-d": {"problem": "model-d", "samples": samples, "configs": []}}
    said = []
    with pytest.raises(run.Late, match=r"^left out 1 of 4 programs: model-c$"):
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


# --- workers ------------------------------------------------------------------------------------


def claim(name: str) -> claims.Claim:
    return claims.Claim(name, None, None, None, None, {}, times_us={"call": 1.0})


def script(*workers):
    """Workers that say these words one after the other; each must be asked for."""
    left = list(workers)
    asked = []

    def messages(names, deadline):
        asked.append(list(names))
        yield from left.pop(0)

    return messages, asked


def test_the_rest_goes_on_after_a_case_that_fails():
    messages, asked = script(
        [("begin", "a"), ("count", 2), ("row", {"problem": 1}), ("failed", "RuntimeError: fault")],
        [("begin", "b"), ("claims", [claim("b")]), ("begin", "c"), ("gone", "no word for 300 s")],
        [("begin", "d"), ("text", "  1/1"), ("claims", [claim("d")]), ("end", None)],
    )
    kept = []
    reports = run_all(["a", "b", "c", "d"], NEVER, messages, lambda r: kept.append(len(r)))
    assert asked == [["a", "b", "c", "d"], ["b", "c", "d"], ["d"]]
    assert {name: report.failed for name, report in reports.items()} == {
        "a": "RuntimeError: fault", "b": "", "c": "no word for 300 s", "d": "",
    }  # fmt: skip
    assert (reports["a"].rows, reports["a"].left_out) == ([{"problem": 1}], 1)
    assert kept == [1, 2, 3, 4]


def test_what_was_claimed_before_a_failure_stays():
    said = [("begin", "a"), ("count", 3), ("row", {}), ("claim", claim("a-1")), ("gone", "stalled")]
    messages, _ = script(said)
    report = run_all(["a"], NEVER, messages, lambda r: None)["a"]
    assert ([one.claim for one in report.claims], report.failed) == (["a-1"], "stalled")
    assert report.left_out == 2


def test_a_worker_that_dies_between_cases_costs_the_next_one():
    messages, asked = script(
        [("begin", "a"), ("claims", [claim("a")]), ("gone", "its process ended")],
        [("gone", "its process ended")],
        [("begin", "d"), ("claims", [claim("d")]), ("end", None)],
    )
    reports = run_all(["a", "b", "c", "d"], NEVER, messages, lambda r: None)
    assert [name for name, report in reports.items() if report.failed] == ["b", "c"]
    assert asked[-1] == ["d"]


def test_what_the_budget_leaves_out_is_told():
    deadline = time.time() - 1
    messages, _ = script([("begin", "a"), ("late", "left out 3 of 4 problems"), ("gone", "over")])
    reports = run_all(["a", "b", "c"], deadline, messages, lambda r: None)
    assert reports["a"].failed == "left out 3 of 4 problems"
    assert reports["b"].failed == "over"
    assert "budget" in reports["c"].failed


def test_a_real_worker_runs_until_a_case_fails():
    """Without a GPU the first case that needs one fails, in its own process."""
    said = list(run.worker({}, True, ["gemm-int8", "gemm-bf16-odd"], NEVER))
    assert said[0] == ("begin", "gemm-int8")
    assert [word for word, _ in said[-2:]] == ["failed", "end"]
    assert [what for word, what in said if word == "begin"] == ["gemm-int8"]


@pytest.mark.parametrize(("measures", "until"), [(True, NEVER), (False, run.PAST)])
def test_a_worker_that_only_claims_begins_nothing(measures, until, monkeypatch):
    started = []

    class Process(SimpleNamespace):
        exitcode = 0

        def start(self):
            started.append(self.args[2])

        def join(self, *seconds):
            """It has ended."""

        def is_alive(self):
            return False

    context = SimpleNamespace(Pipe=run.multiprocessing.Pipe, Process=Process)
    monkeypatch.setattr(run.multiprocessing, "get_context", lambda how: context)
    ((word, _),) = run.worker({}, measures, ["a"], NEVER)
    assert (word, started) == ("gone", [until])


@pytest.mark.parametrize("works", [True, False])
@pytest.mark.parametrize("first", [case("a"), Programs("a", "all", "torch", {})])
def test_a_worker_goes_on_after_a_failure_if_the_gpu_can_be_used(first, works, monkeypatch):
    def ran(one, *rest):
        if one.name == "a":
            raise ValueError("no kernel")
        return [claim(one.name)]

    monkeypatch.setattr(cases, "every", lambda: {"a": first, "b": case("b")})
    monkeypatch.setattr(run, "run_case", ran)
    monkeypatch.setattr(run, "_works", lambda bench: works)
    monkeypatch.setattr(run.gc, "freeze", lambda: None)
    said = []
    run.serve({}, ["a", "b"], NEVER, SimpleNamespace(send=said.append))
    assert ("failed", "ValueError: no kernel") in said
    assert [what for word, what in said if word == "begin"] == ["a", "b"][: 1 + works]
    assert said[-1] == ("end", None)


def test_the_rest_of_a_worker_that_ends_early_goes_to_another():
    messages, asked = script(
        [("begin", "a"), ("failed", "no kernel"), ("begin", "b"), ("failed", "f"), ("end", None)],
        [("begin", "c"), ("claims", [claim("c")]), ("end", None)],
    )
    reports = run_all(["a", "b", "c"], NEVER, messages, lambda r: None)
    assert asked == [["a", "b", "c"], ["c"]]
    assert [name for name, report in reports.items() if report.failed] == ["a", "b"]


def test_the_command_says_by_its_status_that_a_case_failed(tmp_path, monkeypatch, capsys):
    every = {"a": case("a"), "b": case("b")}
    monkeypatch.setattr(cases, "every", lambda: every)
    monkeypatch.setattr(claims.save, "__defaults__", (tmp_path,))
    good = [("begin", "a"), ("row", {"problem": "p"}), ("claims", [claim("a")])]
    path = tmp_path / "all.json.xz"
    monkeypatch.setattr(run, "environment", lambda: {"commit": "c0ffee", "changed": False})
    for last, status in ((("claims", [claim("b")]), 0), (("failed", "fault"), 1)):
        messages, _ = script([*good, ("begin", "b"), last])
        monkeypatch.setattr(
            run, "worker", lambda known, measures, *rest, says=messages: says(*rest)
        )
        assert run.main(["*", "--json", str(path)]) == status
    out = capsys.readouterr().out
    assert "b: fault" in out
    assert "1 of 2 cases came out" in out
    assert claims.load(tmp_path / "a.json").times_us == {"call": 1.0}
    found = json.loads(lzma.decompress(path.read_bytes()))
    assert found["cases"]["a"]["claims"] == ["a"]
    assert found["cases"]["a"]["rows"] == [{"problem": "p"}]
    assert found["cases"]["b"]["failed"] == "fault"


def test_results_are_plain_json_by_name(tmp_path):
    path = tmp_path / "all.json"
    run_file.write(path, {"a": Report(failed="why")}, Earlier({"commit": None}))
    assert json.loads(path.read_text())["cases"]["a"]["failed"] == "why"


# --- going on from a file -----------------------------------------------------------------------

HERE = {"commit": "c0ffee", "changed": False, "gpu": "NVIDIA H200"}


def document_of(problem):
    row, _ = Bench().compared(case(), problem, 1, print)
    return json.loads(json.dumps(run_file.document(row, ())))


def test_what_a_file_has_is_not_measured_again():
    known = {"a": document_of("a")}
    bench, said = Bench(), []
    (found,) = run_case(case(), lambda: bench, NEVER, lambda *words: said.append(words), known)
    assert bench.prepared == ["b"] and len(bench.seeds) == 1
    (whole,), _ = ran(case(), Bench())
    assert (found.calls, found.graphs, found.problems) == (whole.calls, whole.graphs, 2)
    assert [what["problem"] for word, what in said if word == "row"] == ["a", "b"]


def test_operands_are_those_that_were_compiled_for():
    ran(case(), bench := Bench())
    assert bench.seeds == [ahead.SEED, ahead.SEED + 1]


def test_nor_is_a_program():
    def never():
        raise AssertionError("it is measured again")

    both = Programs("models", "all", "torch", {"model-a": never})
    samples = {"ours": [10.0] * 10, "vendor": [20.0] * 10}
    known = {"model-a": {"problem": "model-a", "samples": samples, "configs": []}}
    found = run_case(both, Bench, NEVER, lambda *words: None, known)
    assert found[0].problems == 1 and found[0].calls.with_library.mean == pytest.approx(2.0)


def test_the_kernels_of_a_known_result_are_in_its_claim():
    name = "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w4_s3_basic_tile_g8_direct_padmnk_al16"
    known = {problem: document_of(problem) | {"configs": [name]} for problem in "ab"}
    (found,) = run_case(case(), Bench, NEVER, lambda *words: None, known)
    assert [*found.kernels] == ["gemm/basic"]


def test_shares_of_a_case_are_the_case(tmp_path, monkeypatch):
    """Each share has its problems and no claim; their files together have the case's."""
    real = cases.every
    monkeypatch.setattr(cases, "_declared", lambda: iter([case("a", "abc")]))
    monkeypatch.setattr(claims.save, "__defaults__", (tmp_path,))
    monkeypatch.setattr(run, "environment", lambda: HERE)
    monkeypatch.setenv(cases.SHARE, "0/1")
    monkeypatch.setattr(run, "compile_ahead", lambda known, deadline: None)

    def worker(known, measures, names, deadline):
        bench, said = Bench(), []
        bench.note = f"prepared {' '.join(p for p in real()['a'].problems())}"
        found = run_case(real()["a"], lambda: bench, NEVER, lambda *it: said.append(it), known["a"])
        yield from [("begin", "a"), *said, ("claims", found), ("end", None)]

    monkeypatch.setattr(run, "worker", worker)
    files = [tmp_path / f"{mine}.json" for mine in range(2)]
    for mine, file in enumerate(files):
        assert run.main(["a", "--share", f"{mine}/2", "--json", str(file)]) == 0
        assert not (tmp_path / "a.json").exists()
    found = json.loads(files[1].read_text())["cases"]["a"]
    assert [row["problem"] for row in found["rows"]] == ["b"] and found["claims"] == []
    monkeypatch.setenv(cases.SHARE, "0/1")
    assert run.main(["a", "--from", *map(str, files)]) == 0
    whole = claims.load(tmp_path / "a.json")
    assert whole.problems == 3 and whole.note == "prepared a c; prepared b"
    with pytest.raises(SystemExit):
        run.main(["a", "--share", "0/2"])


@pytest.mark.parametrize("budget", [0, 100])
def test_what_files_can_claim_is_claimed_before_anything_is_measured(
    budget, tmp_path, monkeypatch, capsys
):
    """A case that is whole in the files is claimed even behind cases that are not."""
    known = {"problem": "model-b", "samples": {"ours": [10.0] * 9, "vendor": [20.0] * 9}}
    path = tmp_path / "share.json"
    reports = {
        "part": Report(rows=[document_of("a")]),
        "models": Report(rows=[{**known, "configs": []}]),
        "whole": Report(rows=[document_of("a"), document_of("b")]),
    }
    run_file.write(path, reports, Earlier(HERE))
    every = {
        "new": case("new"), "part": case("part"),
        "models": Programs("models", "all", "torch", {n: steps(30.0) for n in (
            "model-a", "model-b",
        )}), "whole": case("whole"),
    }  # fmt: skip
    monkeypatch.setattr(cases, "every", lambda: every)
    monkeypatch.setattr(claims.save, "__defaults__", (tmp_path,))
    monkeypatch.setattr(run, "environment", lambda: HERE)
    done = []
    monkeypatch.setattr(run, "compile_ahead", lambda known, deadline: done.append([*known]))

    def worker(known, measures, names, deadline):
        until = deadline if measures else run.PAST
        for name in names:
            said = []
            yield "begin", name
            try:
                found = run_case(
                    every[name], Bench, until, lambda *it, to=said: to.append(it), known[name]
                )
                said.append(("claims", found))
            except run.Late as late:
                said.append(("late", str(late)))
            for word, what in said:
                if word in ("claim", "claims"):
                    done.extend(one.claim for one in ([what] if word == "claim" else what))
                yield word, what
        yield "end", None

    monkeypatch.setattr(run, "worker", worker)
    assert run.main([*every, "--from", str(path), "--budget", str(budget)]) == (budget == 0)
    first = ["model-b", "whole"]
    then = [["new", "part", "models"], "new", "part", "model-b", "model-a", "models"]
    assert done == first + (then if budget else [])
    claimed = {one.stem for one in tmp_path.glob("*.json")} - {"share"}
    assert claimed == {one for one in done if isinstance(one, str)}
    if not budget:
        out = capsys.readouterr().out
        assert "models: left out 1 of 2 programs: model-a" in out
        assert "new: left out: the budget was over" in out and "1 of 4 cases came out" in out


def test_a_share_of_programs_is_every_second_one():
    both = Programs("models", "all", "torch", dict.fromkeys("abc"))
    assert [*cases.shared(both, 1, 2).programs] == ["b"]
    assert [*cases.shared(both, 0, 2).programs] == ["a", "c"]
    graphs = InGraphs("toy", "toys", "mm", ("a", "b", "c"), None, None, None, "by chance")
    assert cases.shared(graphs, 0, 2).problems() == ("a", "c")


@pytest.mark.parametrize("name", ["all.json", "all.json.xz"])
def test_a_file_keeps_what_an_earlier_run_had(name, tmp_path):
    path = tmp_path / name
    first = Report(problems=2, rows=[document_of("a")], failed="the budget was over")
    run_file.write(path, {"a": first, "b": Report()}, Earlier(HERE))
    earlier = run_file.read([path], {**HERE, "date": "later"})
    assert [*earlier.known("a")] == ["a"]
    run_file.write(path, {"a": Report(failed="gone"), "c": Report()}, earlier)
    again = run_file.read([path], HERE)
    assert [*again.cases] == ["a", "b", "c"] and [*again.known("a")] == ["a"]


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"commit": "other"}, "other commit"),
        ({"gpu": "NVIDIA H100"}, "other gpu"),
        ({"changed": True}, "changes since the commit"),
    ],
)
def test_a_file_of_another_state_is_neither_mixed_nor_replaced(now, why, tmp_path):
    path = tmp_path / "all.json"
    run_file.write(path, {}, Earlier(HERE))
    with pytest.raises(SystemExit, match=why):
        run_file.read([path], HERE | now)
    assert run_file.read([tmp_path / "none.json", None], HERE).cases == {}
