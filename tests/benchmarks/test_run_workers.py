"""The runner over workers: what becomes of the rest where one fails."""

from __future__ import annotations

import json
import lzma
import time
from types import SimpleNamespace

import pytest
from fake_runs import NEVER, case, claim, script

import cases
import claims
import one_case
import run
import run_file
from cases import Programs
from run import Report, run_all
from run_file import Earlier


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.setattr(one_case, "environment", lambda: {"commit": None})


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


@pytest.mark.parametrize(("measures", "until"), [(True, NEVER), (False, one_case.PAST)])
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
    monkeypatch.setattr(one_case, "run_case", ran)
    monkeypatch.setattr(one_case, "_works", lambda bench: works)
    monkeypatch.setattr(one_case.gc, "freeze", lambda: None)
    said = []
    one_case.serve({}, ["a", "b"], NEVER, SimpleNamespace(send=said.append))
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
