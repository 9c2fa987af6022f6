"""Tables of results, and several directories in one."""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace

import pytest
from fake_crew import GROUP, measurement, other
from hypothesis import given
from hypothesis import strategies as st
from tune_cases import CONFIGS, PROBLEMS

from tilewright import ops
from tilewright.arch import arch
from tilewright.cells import guarded, plain
from tilewright.errors import BadArgument, BadFile, TilewrightError
from tilewright.measure.database import FILE
from tilewright.measure.export import columns, export
from tilewright.measure.measurement import Telemetry, problem_text
from tilewright.measure.merge import merge
from tilewright.measure.problems import load_problems
from tilewright.measure.results import Build, Results
from tilewright.measure.summary import best, coverage, seconds_each, slowest_builds

NAMES = [config.name for config in CONFIGS]
GROUPED = ops.family("grouped_gemm").problem_type("contiguous", 2, 8, 8, 8)


@pytest.fixture
def made():
    return [
        measurement(NAMES[0], PROBLEMS[0], telemetry=Telemetry((1200, 1980), 61, 450.5, ("x",), 1)),
        measurement(NAMES[1], PROBLEMS[2], status="crashed", reason='said "a, b"\nand died',
                    samples_us=(), interval_us=(0.0, 0.0), check=None),
        measurement(NAMES[0], GROUPED, flags=("throttled",)),
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path, made):
    return filled(tmp_path / "sweep", made)


def filled(folder, measurements):
    with Results(folder, write=True) as results:
        results.add(measurements)
    return folder


def check_row(row, m, cell):
    """A row of a table against its measurement; `cell` makes what a value is in that table."""
    said = json.loads(problem_text(m.problem))
    assert row["operation"] == cell(said.pop("family"))
    for field, value in said.items():
        assert row[field] == cell(json.dumps(value) if isinstance(value, list) else value), field
    timed = bool(m.samples_us)
    want = {
        "kernel": m.kernel,
        "device": m.device.name,
        "status": m.status,
        "reason": m.reason,
        "build": m.build,
        "samples": len(m.samples_us),
        "latency_ms": m.median_us / 1e3 if timed else None,
        "tflops": m.tflops if timed else None,
        "low_us": m.interval_us[0] if timed else None,
        "verified": m.check.ok if m.check else None,
        "max_rel": m.check.max / m.check.rms_reference if m.check else None,
        "non_zero": m.check.non_zero if m.check else None,
        "flags": " ".join(m.flags),
        "power_w": m.telemetry.power_w,
        "median_clock_mhz": m.telemetry.clock_mhz[1] if m.telemetry.clock_mhz else None,
        "attempts": m.attempts,
        "measured_at": m.measured_at,
    }
    for name, value in want.items():
        assert row[name] == cell(value), name


def in_csv(value):
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_csv_says_what_was_measured(folder, made, tmp_path):
    with Results(folder) as results:
        assert export(results, tmp_path / "r.csv") == 3
    with (tmp_path / "r.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        found = list(reader)
    titles = list(reader.fieldnames or ())
    assert titles[:4] == ["kernel", "m", "n", "k"], "CK Tile Engine's come first"
    at = titles.index("device")
    theirs = ["device", "latency_ms", "tflops", "non_zero", "max_rel", "verified"]
    assert titles[at : at + 6] == theirs
    for row, m in zip(found, made, strict=True):
        check_row(row, m, in_csv)


def test_parquet_says_the_same_with_types(folder, made, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with Results(folder) as results:
        assert export(results, tmp_path / "r.parquet") == 3
        assert tuple(parquet.read_schema(tmp_path / "r.parquet").names) == columns(results)
    for row, m in zip(parquet.read_table(tmp_path / "r.parquet").to_pylist(), made, strict=True):
        check_row(row, m, lambda value: value)


def test_parquet_without_pyarrow_and_other_endings(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Results(folder) as results:
        with pytest.raises(TilewrightError, match=r"pip install 'tilewright\[parquet\]'"):
            export(results, tmp_path / "r.parquet")
        with pytest.raises(BadArgument, match=r"as \.csv or \.parquet"):
            export(results, tmp_path / "r.xlsx")
        with pytest.raises(OSError, match="No such file"):
            export(results, tmp_path / "none" / "r.csv")


def test_an_export_that_fails_leaves_the_old_file(folder, tmp_path, monkeypatch):
    target = tmp_path / "out" / "r.csv"
    target.parent.mkdir()
    target.write_text("old")
    monkeypatch.setattr("tilewright.measure.export._row", lambda m: {"kernel": 1 / 0})
    with Results(folder) as results, pytest.raises(ZeroDivisionError):
        export(results, target)
    assert target.read_text() == "old" and list(target.parent.iterdir()) == [target]


# --- merging ----------------------------------------------------------------------------------

OLD, NEW = "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"


@pytest.fixture
def two(tmp_path):
    """Directories with one measurement in common, one each for itself, and two that differ."""
    same = measurement(NAMES[0], PROBLEMS[0])
    slow = measurement(NAMES[1], PROBLEMS[0], measured_at=NEW)
    fast = replace(slow, samples_us=tuple(x / 2 for x in slow.samples_us), measured_at=OLD)
    failed = measurement(NAMES[2], PROBLEMS[0], status="timeout", samples_us=(), measured_at=NEW)
    timed = measurement(NAMES[2], PROBLEMS[0], measured_at=OLD)
    a = filled(tmp_path / "a", [same, slow, failed, measurement(NAMES[0], PROBLEMS[1])])
    b = filled(tmp_path / "b", [same, fast, timed, measurement(NAMES[0], PROBLEMS[0], other())])
    return a, b, {"newest": (slow, failed), "fastest": (fast, timed)}


@pytest.mark.parametrize("policy", ["newest", "fastest"])
@pytest.mark.parametrize("turned", [False, True])
def test_merging_keeps_all_once_and_names_conflicts(tmp_path, two, policy, turned):
    a, b, winners = two
    merged = merge([b, a] if turned else [a, b], tmp_path / "c", policy)
    assert (merged.measurements, merged.repeated, len(merged.conflicts)) == (5, 1, 2)
    with Results(tmp_path / "c") as results:
        kept = {m.key: m for m in results.measurements()}
    for winner in winners[policy]:
        assert kept[winner.key] == replace(winner, interval_us=kept[winner.key].interval_us)
    owner = str(a if policy == "newest" else b)
    assert {(c.kernel, c.kept) for c in merged.conflicts} == {(NAMES[1], owner), (NAMES[2], owner)}


def test_conflicts_fail_unless_a_policy_is_said_and_nothing_is_made(tmp_path, two):
    a, b, _ = two
    with pytest.raises(BadArgument, match=rf"2 measurements are different.*{NAMES[1]}.*/b"):
        merge([a, b], tmp_path / "c")
    assert not (tmp_path / "c").exists()
    with pytest.raises(BadArgument, match="policy 'best' is not one of"):
        merge([a, b], tmp_path / "c", "best")
    with pytest.raises(BadArgument, match="has results already"):
        merge([a], b)


def test_copies_merge_without_conflict(tmp_path, two):
    a, _, _ = two
    assert merge([a, a], tmp_path / "c").repeated == 4
    assert (tmp_path / "c" / FILE).is_file()


# --- what results say -------------------------------------------------------------------------


def timed(kernel, problem, median, spread, **changes):
    samples = (median - spread, median, median + spread)
    return measurement(
        kernel, problem, samples_us=samples, interval_us=(samples[0], samples[2]), **changes
    )


def test_the_best_of_each_problem_with_its_ties(tmp_path):
    p, q, r = PROBLEMS
    filled(
        tmp_path,
        [
            timed(NAMES[2], p, 30.0, 1.0),
            timed(NAMES[1], p, 10.5, 0.4),
            timed(NAMES[0], p, 10.0, 0.2),
            timed(NAMES[3], p, 40.0, 35.0),
            timed(NAMES[0], q, 7.0, 0.1),
            timed(NAMES[1], q, 1.0, 0.1, status="mismatch"),
            timed(NAMES[1], r, 1.0, 0.1, status="nan"),
            timed(NAMES[1], p, 1.0, 0.1, device=other().device),
        ],
    )
    with Results(tmp_path) as results:
        found = best(results)
        covered = coverage(results)
    rows = {(b.setup.device, b.problem): b for b in found}
    assert len(rows) == len(found) == 3
    first = rows[GROUP.device.name, p]
    assert (first.kernel, first.ties) == (NAMES[0], (NAMES[1], NAMES[3]))
    assert (first.median_us, first.interval_us) == (10.0, (9.8, 10.2))
    assert first.tflops == pytest.approx(p.flops / 10.0 / 1e6)
    assert rows[GROUP.device.name, q].kernel == NAMES[0], "what is wrong is never best"
    assert rows["another", p].kernel == NAMES[1]
    mine, theirs = covered
    assert (mine.kernels, mine.problems, mine.measured) == (4, 3, 7)
    assert mine.statuses == {"ok": 5, "mismatch": 1, "nan": 1}
    assert mine.without == (r,) and theirs.without == ()
    assert mine.share == pytest.approx(7 / 12) and theirs.share == 1.0


def test_builds_and_times(tmp_path):
    with Results(tmp_path, write=True) as results:
        assert best(results) == [] and coverage(results) == []
        assert seconds_each(results) == (None, None)
        results.add([measurement(NAMES[0], PROBLEMS[0], seconds=2.0)])
        builds = [
            Build(n, "k", "sm_90", "built", "", s) for n, s in zip(NAMES, (1, 4, 2, 5), strict=True)
        ]
        results.add_builds(builds)
        assert [b.seconds for b in slowest_builds(results, 2)] == [5, 4]
        assert seconds_each(results) == (2.0, 3.0)


def test_no_cell_is_a_formula_and_what_was_said_can_be_had(tmp_path):
    """Names and reasons come from files and compilers; a spreadsheet runs cells like these."""
    reasons = [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-x",
        "@SUM(A1)",
        "\tx",
        "\rx",
        "'=x",
        "''=x",
        "'x",
        "-1",
    ]
    made = [
        measurement(NAMES[0], PROBLEMS[0], status="crashed", reason=reason, samples_us=(),
                    interval_us=(0.0, 0.0), check=None, build=str(number))
        for number, reason in enumerate(reasons)
    ]  # fmt: skip
    folder = filled(tmp_path / "hostile", made)
    with Results(folder) as results:
        export(results, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        cells = [row["reason"] for row in csv.DictReader(file)]
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r" and cell != "-1"]
    assert [plain(cell) for cell in cells] == reasons


@given(st.text("'=+-@\t\r1.ex "))
def test_a_guarded_cell_is_had_back(text):
    assert plain(guarded(text)) == text
    if guarded(text)[:1] in tuple("=+-@\t\r"):
        assert math.isfinite(float(text)), "a number"


def test_a_problem_list_reads_guarded_cells(tmp_path):
    list_of_problems = tmp_path / "shapes.csv"
    list_of_problems.write_text("m,n,k,dtype\n8,8,8,'=bf16\n")
    with pytest.raises(BadFile, match="'=bf16'"):
        load_problems([list_of_problems], arch("sm_90"))
