"""sweep, results, merge: on a crew without devices."""

from __future__ import annotations

import csv
import json
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import NAME, TMA_NAME
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "tune"))

from fake_crew import GROUP, SETTINGS, FakeCrew, measurement

from tilewright.cli.app import app
from tilewright.compile import BuildReport
from tilewright.errors import NoDriver, TilewrightError
from tilewright.measure.database import FILE
from tilewright.measure.results import Results

SWEEP = ("--settings", "warm_up_seconds=0", "--devices", "cpu")
"""The settings that the fake crew measures with; the interpreter has its own timer."""


@pytest.fixture
def crew(monkeypatch):
    """A crew that the command line finds; `asked`: what it was asked for."""
    made = FakeCrew()
    made.asked = []

    def groups(words, store, settings, **options):
        made.asked.append((words, settings, options))
        if words == "all":
            raise NoDriver("no GPU can be used here")
        return [GROUP], made

    monkeypatch.setitem(sys.modules, "tilewright.measure.groups", SimpleNamespace(groups=groups))
    return made


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k\n64,64,64\n16,32,64\n64,64,64\n")
    return path


def kernels(crew):
    return {m.kernel for m in crew.made}


def test_a_sweep_measures_shows_and_goes_on(cli, crew, space, shapes, tmp_path):
    out = tmp_path / "out"
    words = ("sweep", space, "--problems", shapes, "--out", out, *SWEEP)
    text = cli(*words)
    assert "sm_90: 2 kernels × 2 problems" in text and "1 problem repeated" in text
    assert "measured      4 ok" in text and "results       4 in" in text
    assert "measured 4 of 4 (4 ok), 0 s left" in cli.result.stderr
    assert len(kernels(crew)) == 2 and TMA_NAME in kernels(crew) and len(crew.made) == 4
    document = cli.json(*words)
    assert document["known"] == 4 and document["statuses"] == {} and document["results"] == 4
    assert len(crew.made) == 4
    document = cli.json(*words, "--signature", "dtype=fp16")
    assert document["known"] == 0 and document["statuses"] == {"ok": 4}
    assert "_fp16_" in crew.made[-1].kernel and crew.made[-1].problem.dtype_a == "fp16"


@pytest.mark.turns(24)
def test_options_reach_what_they_are_for(cli, crew, space, shapes, tmp_path):
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o")
    cli(*words, *SWEEP, "--match", "*_tma_*", "--timeout", "7", "--arch", "sm_90")
    assert kernels(crew) == {TMA_NAME}
    assert crew.asked[-1] == (
        "cpu",
        replace(SETTINGS, timer="events"),
        {"timeout": 7.0, "arch": "sm_90"},
    )
    text = cli(*words, *SWEEP, "--where", "pipeline == 'basic'")
    assert "1 legal kernel left out: not pipeline == 'basic'" in text
    cli(*words, *SWEEP, "--max-kernels", "1", "--dry-run")
    assert cli.json(*words, *SWEEP, "--dry-run", "--max-kernels", "1")["archs"][0]["left_out"] == [
        {"count": 1, "why": "at most 1 kernels, evenly"}
    ]


@pytest.mark.turns(48)
def test_a_shipped_set_brings_its_problems(cli, crew, tmp_path):
    words = ("sweep", "gemm:small", "--out", tmp_path / "o", *SWEEP, "--match", "*_128x128x*_al1")
    document = cli.json(*words)
    assert document["archs"][0]["problems"] == 6
    assert document["statuses"]["ok"] == len(crew.made) == 6 * document["archs"][0]["kernels"]


def test_what_did_not_come_out_right_exits_with_1(cli, crew, space, shapes, tmp_path):
    crew.change = lambda m: replace(m, status="nan" if "_tma_" in m.kernel else "ok", reason="NaN")
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP)
    text = cli(*words, code=1)
    assert "2 nan" in text
    assert f"nan {TMA_NAME} on gemm 64×64×64 bf16 rcr: NaN" in cli.result.stderr
    cli(*words)


def test_a_retry_is_foreseen_counted_and_done(cli, crew, space, shapes, tmp_path):
    crew.change = lambda m: replace(m, status="timeout" if "_tma_" in m.kernel else "ok")
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP)
    cli(*words, code=1)
    crew.change = lambda m: m
    retry = ("--retry", "timeout", "--retry", "nan")
    assert "2 of these again, because of --retry" in cli(*words, *retry, "--dry-run")
    (part,) = cli.json(*words, *retry, "--dry-run")["devices"]
    assert (part["known"], part["measurements"], part["again"]) == (2, 2, 2)
    document = cli.json(*words, *retry)
    assert (document["statuses"], document["again"], document["results"]) == ({"ok": 2}, 2, 4)
    assert cli.json(*words, *retry)["again"] == 0


def test_a_dry_run_counts_and_touches_nothing(cli, crew, space, shapes, tmp_path):
    out = tmp_path / "out"
    words = ("sweep", space, "--problems", shapes, "--out", out, "--dry-run")
    text = cli(*words, *SWEEP)
    assert "nothing was done" in text and "dropped by" in text
    document = cli.json(*words, *SWEEP)
    (part,) = document["devices"]
    assert (part["pairs"], part["known"], part["measurements"]) == (4, 0, 4)
    assert document["seconds"] == pytest.approx(4 * 1.0)
    assert document["builds"]["missing"] == 0, "the interpreter needs none"
    assert not out.exists() and not crew.made
    cli("sweep", space, "--problems", shapes, "--out", out, *SWEEP, "--match", "*_tma_*")
    (part,) = cli.json(*words, *SWEEP)["devices"]
    assert (part["known"], part["measurements"]) == (2, 2)
    assert part["seconds"] == pytest.approx(2 * 0.01), "by those that were measured"
    document = cli.json(*words, "--arch", "gfx942")
    assert document["builds"]["missing"] == 1 and "devices" not in document


@pytest.mark.turns(24)
def test_on_gpus_the_vendors_library_is_counted_apart(cli, space, shapes, tmp_path, monkeypatch):
    group = replace(GROUP, interpreted=False)
    there = SimpleNamespace(groups=lambda *words, **options: ([group], FakeCrew(group)))
    monkeypatch.setitem(sys.modules, "tilewright.measure.groups", there)
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP[:2])
    (part,) = cli.json(*words, "--dry-run")["devices"]
    assert (part["pairs"], part["measurements"], part["vendor"]) == (4, 4, 2)
    assert part["seconds"] == pytest.approx(6 * 1.0)
    assert cli.json(*words, "--dry-run", "--no-vendor")["devices"][0]["vendor"] == 0
    result = cli.json(*words, "--match", "*_tma_*", "--settings", "timer=wall")
    assert (result["statuses"], result["vendor"], result["results"]) == ({"ok": 2}, {"ok": 2}, 4)
    assert "the vendor's library: 2 ok" in cli("results", tmp_path / "o")
    assert "vs vendor" in cli("results", tmp_path / "o")
    for found in cli.json("results", tmp_path / "o")["best"]:
        assert found["vendor_ratio"] == found["vendor_us"] / found["median_us"]


def test_builds_have_their_own_time_limit(cli, space, shapes, tmp_path, monkeypatch):
    group, limits = replace(GROUP, interpreted=False), []

    def build(requests, *, timeout, **more):
        limits.append(timeout)
        return BuildReport((), 0.0)

    monkeypatch.setattr("tilewright.compile.build", build)
    monkeypatch.setattr("tilewright.measure.sweep.build", build)
    there = SimpleNamespace(groups=lambda *words, **options: ([group], FakeCrew(group)))
    monkeypatch.setitem(sys.modules, "tilewright.measure.groups", there)
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP[:2])
    words += ("--settings", "timer=wall", "--build-timeout", "7")
    cli(*words)
    cli(*words, "--compile-only", "--arch", "sm_90")
    assert limits == [7.0, 7.0]


@pytest.mark.turns(16)
def test_compile_only_needs_no_device(cli, crew, space, shapes, tmp_path, store):
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", "--compile-only",
             "--arch", "sm_90", "--match", "*_tma_*")  # fmt: skip
    document = cli.json(*words)
    assert document["counts"] == {"built": 1} and document["store"] == str(store)
    assert not (tmp_path / "o").exists() and not crew.asked
    assert "1 cached" in cli(*words)
    dry = cli.json(*words[:-5], "--dry-run", "--arch", "sm_90")
    assert dry["builds"]["missing"] == 1, "of two, one is in the store"


def test_ctrl_c_says_how_to_go_on_and_keeps_what_was_measured(crew, space, shapes, tmp_path):
    left = iter(range(3))

    def step():
        if next(left, None) is None:
            raise KeyboardInterrupt

    crew.step = step
    words = ["sweep", str(space), "--problems", str(shapes), "--out", str(tmp_path / "o"), *SWEEP]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 130
    assert "stopped; 3 results are in" in result.stderr and "repeat the command" in result.stderr
    with Results(tmp_path / "o") as results:
        assert len(results) == 3


def test_the_second_sweep_is_told_who_is_at_it(cli, crew, space, shapes, tmp_path):
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP)
    with Results(tmp_path / "o", write=True):
        assert "being written by process" in cli.fails(1, *words)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (("--settings", "precison=1"), 2, "no 'precison' (did you mean 'precision'?)"),
        (("--retry", "time_out"), 2, "no status 'time_out' (did you mean 'timeout'?)"),
        (("--settings", "precision=high"), 2, "precision: "),
        (("--settings", "cache=warm"), 2, "cache: "),
        (("--settings", "method=graphs"), 2, "no method 'graphs' (did you mean 'graph'?)"),
        (("--settings", "method=graph", "--settings", "cache=flushed"), 2, "says the cache too"),
        (("--settings", "precision=2"), 2, "not between 0 and 1"),
        (("--where", "tile_q > 3"), 2, "no field 'tile_q'"),
        (("--where", "exit()"), 2, "only fields"),
        (("--match", "nothing"), 2, "no kernel is left"),
        (("--problems", "none.csv"), 2, "cannot be read"),
        (("--problems", "gemm:tiny"), 2, "no set or profile 'gemm:tiny'"),
        (("--devices", "all"), 1, "no GPU can be used here"),
        (("--signature", "layout=xyz"), 2, "layout"),
    ],
)
def test_what_cannot_be_meant_is_said(cli, crew, space, shapes, tmp_path, more, code, said):
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP, *more)
    assert said in cli.fails(code, *words)
    assert not crew.made


def test_a_sweep_needs_problems_that_its_kernels_can_have(cli, crew, space, tmp_path):
    out = ("--out", tmp_path / "o", *SWEEP)
    assert "which problems?" in cli.fails(2, "sweep", space, *out)
    (tmp_path / "bad.csv").write_text("m,n,k\n1,2,3\n1,2,q\n")
    words = ("sweep", space, "--problems", tmp_path / "bad.csv", *out)
    assert "bad.csv: line 3: k = 'q'" in cli.fails(2, *words)
    words = ("sweep", NAME, "--problems", "grouped_gemm:small", *out)
    assert "nothing to measure" in cli.fails(2, *words)
    (tmp_path / "file").write_text("")
    words = ("sweep", "gemm:small", "--out", tmp_path / "file", *SWEEP)
    assert "cannot be made" in cli.fails(2, *words)


# --- results ----------------------------------------------------------------------------------


@pytest.fixture
def swept(cli, crew, space, shapes, tmp_path):
    crew.change = lambda m: replace(m, status="timeout", samples_us=(), reason="hung") if (
        "_tma_" in m.kernel and m.problem.m == 16) else m  # fmt: skip
    out = tmp_path / "out"
    cli("sweep", space, "--problems", shapes, "--out", out, *SWEEP, code=1)
    return out


def test_results_show_the_best_and_the_rest(cli, swept, crew):
    text = cli("results", swept)
    assert "4 of 2 kernels × 2 problems (100.0%): 3 ok, 1 timeout" in text
    document = cli.json("results", swept)
    assert {b["problem"]["m"] for b in document["best"]} == {64, 16}
    for b in document["best"]:
        ours = [m for m in crew.made if m.problem.m == b["problem"]["m"] and m.status == "ok"]
        fastest = min(ours, key=lambda m: m.median_us)
        assert (b["kernel"], b["median_us"]) == (fastest.kernel, fastest.median_us)
        assert str(float(f"{fastest.median_us:.4g}")) in text and fastest.kernel in text
    assert document["coverage"][0]["statuses"] == {"ok": 3, "timeout": 1}


@pytest.mark.turns(8)
def test_results_answer_sql_and_export(cli, swept, tmp_path):
    sql = "SELECT status, count(*) AS n FROM measurement GROUP BY status ORDER BY n"
    assert cli.json("results", swept, "--query", sql) == {
        "columns": ["status", "n"], "rows": [["timeout", 1], ["ok", 3]],
    }  # fmt: skip
    text = cli("results", swept, "--query", "SELECT samples_us, median_us FROM measurement")
    assert "96 bytes" in text
    assert "more than read" in cli.fails(2, "results", swept, "--query", "DELETE FROM measurement")
    table = tmp_path / "r.csv"
    assert cli.json("results", swept, "--export", table) == {"path": str(table), "rows": 4}
    with table.open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)].count("ok") == 3
    assert "not both" in cli.fails(2, "results", swept, "--export", table, "--query", sql)
    assert "as .csv or .parquet" in cli.fails(2, "results", swept, "--export", tmp_path / "r.txt")


def test_results_of_nothing_damage_and_the_future(cli, tmp_path):
    assert "has no results" in cli.fails(2, "results", tmp_path)
    with Results(tmp_path / "new", write=True):
        pass
    with closing(sqlite3.connect(tmp_path / "new" / FILE)) as db:
        db.execute("PRAGMA user_version = 99")
    assert "use a newer one" in cli.fails(2, "results", tmp_path / "new")
    (tmp_path / FILE).write_bytes(b"\0" * 5000)
    assert "results.db" in cli.fails(2, "results", tmp_path)
    with Results(tmp_path / "empty", write=True):
        pass
    assert "nothing was measured yet" in cli("results", tmp_path / "empty")
    assert cli.json("results", tmp_path / "empty")["best"] == []


def test_setups_are_told_apart(cli, tmp_path):
    with Results(tmp_path, write=True) as results:
        m = measurement(NAME, _problem())
        slower = replace(m, settings=replace(SETTINGS, precision=0.5))
        results.add([m, slower])
    text = cli("results", tmp_path)
    assert f"settings {SETTINGS.digest}" in text
    assert f"settings {slower.settings.digest}" in text and "environment" not in text


def _problem():
    from tilewright import GemmProblem

    return GemmProblem(64, 64, 64)


def test_merge_by_policy(cli, swept, tmp_path):
    other = tmp_path / "other"
    with Results(other, write=True) as results, Results(swept) as old:
        first = next(old.measurements())
        results.add([replace(first, measured_at="2000-01-01T00:00:00.000+00:00")])
    words = ("merge", swept, other, "--out", tmp_path / "both")
    assert "1 measurements are different" in cli.fails(2, *words)
    document = cli.json(*words, "--policy", "newest")
    assert document["measurements"] == 4 and document["conflicts"][0]["kept"] == str(swept)
    assert first.kernel in cli(
        "merge", swept, other, "--out", tmp_path / "c", "--policy", "fastest"
    )
    assert "not one of newest, fastest, fail" in cli.fails(2, *words, "--policy", "best")
    assert json.loads(cli("results", tmp_path / "both", "--json"))["coverage"]


def test_a_crew_that_gives_up_is_an_error_and_loses_nothing(cli, crew, space, shapes, tmp_path):
    left = iter(range(2))

    def step():
        if next(left, None) is None:
            raise TilewrightError("every device is out of order")

    crew.step = step
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "o", *SWEEP)
    cli(*words, code=1)
    assert "error: every device is out of order" in cli.result.stderr
    assert cli.json("results", tmp_path / "o")["coverage"][0]["measured"] == 2


# --- samples ------------------------------------------------------------------------------------


def test_a_sample_measures_few_kernels_on_each_problem_and_is_repeated(cli, crew, shapes, tmp_path):
    pytest.importorskip("scipy")
    words = ("--out", tmp_path / "out", *SWEEP, "--sample", "3", "--design", "lhs")
    document = cli.json("sweep", "gemm", "--problems", shapes, *words)
    assert document["statuses"] == {"ok": 6} and document["archs"][0]["sampled_pairs"] == 6
    pairs = {(m.kernel, m.problem) for m in crew.made}
    assert len({problem for _, problem in pairs}) == 2
    known = cli.json("sweep", "gemm", "--problems", shapes, *words)
    assert known["known"] == 6
    crew.made.clear()
    sample = tmp_path / "out" / "sample.json"
    why = cli.fails(
        2, "sweep", "gemm", "--problems", shapes, "--out", tmp_path / "y", "--design", "lhs"
    )
    assert "--design says how the kernels of --sample are chosen: give both" in why
    again = cli.json("sweep", sample, "--out", tmp_path / "again", *SWEEP)
    assert again["statuses"] == {"ok": 6}
    assert {(m.kernel, m.problem) for m in crew.made} == pairs
    assert cli.json("sweep", sample, "--out", tmp_path / "x", *SWEEP, "--dry-run")["archs"][0][
        "kernels"
    ] == len({kernel for kernel, _ in pairs})
    said = cli("sweep", sample, "--where", "tile_m > 1", "--out", tmp_path / "x", *SWEEP, code=2)
    assert "give nothing else" in said + cli.result.stderr
