"""The runner goes on from a file of results, and keeps what it has."""

from __future__ import annotations

import json

import pytest
from fake_runs import NEVER, Bench, case, ran, steps

import ahead
import cases
import claims
import one_case
import run
import run_file
from cases import InGraphs, Programs
from one_case import run_case
from run import Report
from run_file import Earlier


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.setattr(one_case, "environment", lambda: {"commit": None})


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
    for module in (run, one_case):
        monkeypatch.setattr(module, "environment", lambda: HERE)
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
    for module in (run, one_case):
        monkeypatch.setattr(module, "environment", lambda: HERE)
    done = []
    monkeypatch.setattr(run, "compile_ahead", lambda known, deadline: done.append([*known]))

    def worker(known, measures, names, deadline):
        until = deadline if measures else one_case.PAST
        for name in names:
            said = []
            yield "begin", name
            try:
                found = run_case(
                    every[name], Bench, until, lambda *it, to=said: to.append(it), known[name]
                )
                said.append(("claims", found))
            except one_case.Late as late:
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
