"""What is kept comes back as it was, and survives whatever ends its writer."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from fake_crew import ENVIRONMENT, GROUP, measurement, other
from tune_cases import CONFIGS, PROBLEMS

from tilewright.errors import BadArgument, BadFile, TilewrightError
from tilewright.measure import queries
from tilewright.measure.database import FILE, ResultsInUse
from tilewright.measure.measurement import Telemetry, problem_text
from tilewright.measure.results import Build, Results
from tilewright.measure.summary import best
from tilewright.report.data import gather

NAMES = [config.name for config in CONFIGS]


def some():
    """One of each kind."""
    return [
        measurement(
            NAMES[0], PROBLEMS[0], attempts=2, flags=("throttled", "unsettled"),
            telemetry=Telemetry((1200, 1980), 61, 450.5, ("thermal",), 1),
        ),
        measurement(NAMES[1], PROBLEMS[0], status="timeout", reason="3 s; \"quoted\", ×",
                    samples_us=(), interval_us=(0.0, 0.0), check=None),
        measurement(NAMES[0], PROBLEMS[1]),
        measurement(NAMES[0], PROBLEMS[0], other()),
    ]  # fmt: skip


def test_what_is_added_comes_back_as_it_was(tmp_path):
    made = some()
    with Results(tmp_path / "d", write=True) as results:
        results.add(made)
        assert list(results.measurements()) == made
    with Results(tmp_path / "d") as again:
        assert list(again.measurements()) == made
        assert [m for _, m in again.numbered()] == made
        assert again.keys() == {m.key for m in made} and len(again) == 4
        assert {o.key: o.median_us for o in again.outlines()} == {
            m.key: m.median_us if m.samples_us else None for m in made
        }
        assert list(again.measurements("status = ?", ("timeout",))) == [made[1]]


def test_a_check_from_before_non_zeros_were_counted_is_read(tmp_path):
    m = measurement(NAMES[0], PROBLEMS[0])
    with Results(tmp_path, write=True) as results:
        results.add([m])
        results._db.execute(
            """UPDATE measurement SET "check" = json_remove("check", '$.non_zero')"""
        )
        assert list(results.measurements()) == [replace(m, check=replace(m.check, non_zero=None))]


def test_the_same_thing_measured_again_takes_the_old_ones_place(tmp_path):
    first, second = measurement(NAMES[0], PROBLEMS[0]), measurement(NAMES[0], PROBLEMS[0])
    with Results(tmp_path, write=True) as results:
        results.add([first])
        results.add([replace(second, status="nan")])
        assert [m.status for m in results.measurements()] == ["nan"]


def test_keys_of_some_problems_and_statuses(tmp_path):
    made = [measurement(name, problem) for name in NAMES[:2] for problem in PROBLEMS[:3]]
    made[0] = replace(made[0], status="nan")
    with Results(tmp_path, write=True) as results:
        results.add(made)
        wanted = {problem_text(problem) for problem in (*PROBLEMS[:2], replace(PROBLEMS[0], n=7))}
        some = {m.key for m in made if problem_text(m.problem) in wanted}
        assert len(some) == 4 and results.keys(problems=wanted) == some
        assert results.keys(["nan"], wanted) == {made[0].key}
        assert results.keys(problems=()) == set()


def test_other_environments_are_other_measurements(tmp_path):
    newer = replace(GROUP, environment=replace(ENVIRONMENT, driver="2.0"))
    with Results(tmp_path, write=True) as results:
        results.add(measurement(NAMES[0], PROBLEMS[0], g) for g in (GROUP, newer))
        assert len(results) == 2


def test_builds_are_kept_with_their_kernels(tmp_path):
    build = Build(NAMES[0], "k", "sm_90", "failed", "no", 2.5)
    with Results(tmp_path, write=True) as results:
        results.add_builds([build])
        results.add_builds([replace(build, status="built", reason="")])
        assert list(results.builds()) == [replace(build, status="built", reason="")]


def test_a_newer_version_is_refused_and_left_alone(tmp_path):
    with Results(tmp_path, write=True) as results:
        results.add(some())
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    for write in (False, True):
        with pytest.raises(BadFile, match=r"version 99.*newer"):
            Results(tmp_path, write=write)


def test_no_results_and_damage_are_said(tmp_path):
    with pytest.raises(BadFile, match="has no results"):
        Results(tmp_path)
    (tmp_path / FILE).write_bytes(b"this is no database, whatever its name says" * 100)
    for write in (False, True):
        with pytest.raises(BadFile, match="not a database"):
            Results(tmp_path, write=write)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadArgument, match="cannot be made"):
        Results(tmp_path / "file" / "d", write=True)


def test_a_sweep_that_never_began_is_told_from_damage(tmp_path):
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("VACUUM")
    db.close()
    with pytest.raises(BadFile, match="holds no results: the sweep that made it never began"):
        Results(tmp_path)
    with Results(tmp_path, write=True) as results:
        assert len(results) == 0


def test_the_second_writer_is_told_who_the_first_is(tmp_path):
    with Results(tmp_path, write=True) as first:
        with pytest.raises(ResultsInUse, match=f"process {os.getpid()} on .* since 20"):
            Results(tmp_path, write=True)
        first.add(some())
        with Results(tmp_path) as reader:
            assert len(reader) == 4, "readers are not kept out"
    Results(tmp_path, write=True).close()


@pytest.mark.parametrize("name", ["sweep.lock", FILE])
def test_a_link_in_the_place_of_a_file_of_ours_is_refused(name, tmp_path):
    """The folder may be one that others write; what the link leads to stays as it is."""
    mine, folder = tmp_path / "mine", tmp_path / "d"
    mine.write_text("mine")
    folder.mkdir()
    for target in (mine, tmp_path / "nowhere"):
        (folder / name).symlink_to(target)
        with pytest.raises(TilewrightError, match=f"{name} is a link"):
            Results(folder, write=True)
        (folder / name).unlink()
    assert mine.read_text() == "mine" and not (tmp_path / "nowhere").exists()
    Results(folder, write=True).close()


def test_a_file_of_somebody_elses_is_not_taken_for_a_lock(tmp_path):
    lock = tmp_path / "sweep.lock"
    lock.write_text("procedures of mine")
    with pytest.raises(TilewrightError, match="not made by a sweep"):
        Results(tmp_path, write=True)
    assert lock.read_text() == "procedures of mine"
    open_files = [os.path.realpath(one) for one in Path("/proc/self/fd").iterdir()]
    assert str(lock.resolve()) not in open_files, "it is closed again"
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(TilewrightError, match="not made by a sweep"):
        Results(tmp_path, write=True)
    lock.unlink()
    lock.write_text("proc")  # the disk was full
    Results(tmp_path, write=True).close()


def test_another_programs_database_stays_as_it_is(tmp_path):
    path = tmp_path / FILE
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE history (url TEXT)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(BadFile, match="another program's"):
        Results(tmp_path, write=True)
    assert path.read_bytes() == before


FULL = """
import resource, signal, sys
sys.path[:0] = {paths!r}
from fake_crew import measurement
from tune_cases import CONFIGS, PROBLEMS
from tilewright.errors import TilewrightError
from tilewright.measure.results import Results
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
results = Results({folder!r}, write=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
n = 0
try:
    while n < 5000:
        m = measurement(CONFIGS[0].name, PROBLEMS[0], reason="x" * 2000, build=str(n))
        results.add([m])
        n += 1
except TilewrightError as error:
    print(n, error)
"""


def test_a_full_disk_is_said_and_costs_nothing_that_was_kept(tmp_path):
    folder = tmp_path / "d"
    code = FULL.format(paths=sys.path, folder=str(folder))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    kept, _, said = ran.stdout.partition(" ")
    assert "cannot be written" in said and "make room" in said
    assert int(kept) > 10
    with Results(folder, write=True) as results:
        assert {m.build for m in results.measurements()} == {str(n) for n in range(int(kept))}
        assert results._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        results.add(some())


def test_an_addition_is_whole_or_not_at_all(tmp_path):
    with Results(tmp_path, write=True) as results:
        (pages,) = results._db.execute("PRAGMA page_count").fetchone()
        results._db.execute(f"PRAGMA max_page_count = {pages + 6}")
        big = [measurement(n, PROBLEMS[0], reason="x" * 9000) for n in NAMES]
        with pytest.raises(TilewrightError, match="full"):
            results.add(big)
        assert len(results) == 0
        results._db.execute("PRAGMA max_page_count = 100000")
        results.add(big)
        assert list(results.measurements()) == big


def test_sql_that_cannot_be_read_or_writes_is_refused(tmp_path):
    with Results(tmp_path, write=True) as results:
        results.add(some())
        with pytest.raises(BadArgument, match="cannot be answered"):
            results.query("SELEKT 1")
        for does_more in (
            "DELETE FROM measurement",
            f"ATTACH '{tmp_path}/new.db' AS other",
            f"VACUUM INTO '{tmp_path}/new.db'",
            "PRAGMA journal_mode = DELETE",
            "CREATE TEMP TABLE t (x)",
            "BEGIN",
        ):
            with pytest.raises(BadArgument, match="cannot be answered: it does more than read"):
                results.query(does_more)
        assert not (tmp_path / "new.db").exists()
        for no_query in ("SELECT 1; SELECT 2", "SELECT '\0'", "SELECT '\ud800'", "SELECT ?"):
            with pytest.raises(BadArgument, match="cannot be answered"):
                results.query(no_query)
        _, [[least]] = results.query(
            "WITH RECURSIVE n (x) AS (SELECT 9 UNION SELECT x - 1 FROM n WHERE x) "
            "SELECT min(x) FROM n"
        )
        assert least == 0
        with pytest.raises(BadArgument, match="which measurements"):
            list(results.measurements("nothing = 1"))
        assert results.query("SELECT count(*) AS n FROM measurement") == (["n"], [(4,)])


FOREVER = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "


def test_a_query_has_limits_of_time_and_memory(tmp_path, monkeypatch):
    with Results(tmp_path, write=True) as results:
        results.add(some())
        with monkeypatch.context() as patch:
            patch.setattr(queries, "MOST_SECONDS", 0.05)
            with pytest.raises(BadArgument, match="cannot be answered: it takes over"):
                results.query(FOREVER + "SELECT count(*) FROM n")
        monkeypatch.setattr(queries, "MOST_BYTES", 1 << 20)
        with pytest.raises(BadArgument, match=r"over 1 MiB after [\d,]+ rows: add a LIMIT"):
            results.query(FOREVER + "SELECT x FROM n")
        with pytest.raises(BadArgument, match="a value has over 16 MiB"):
            results.query("SELECT length(zeroblob(900000000))")
        assert results.query(FOREVER + "SELECT x FROM n LIMIT 2") == (["x"], [(1,), (2,)])


DAMAGE = {
    "a time that is none": "UPDATE measurement SET median_us = 'fast', low_us = 9e999",
    "samples cut short": "UPDATE measurement SET samples_us = x'0000'",
    "samples that are text": "UPDATE measurement SET samples_us = 'none'",
    "a sample of no time": "UPDATE measurement SET samples_us = zeroblob(8)",
    "a status there is not": "UPDATE measurement SET status = 'fine'",
    "a kernel that is not there": "UPDATE measurement SET kernel = 999 WHERE id = 1",
    "a problem that is none": "UPDATE problem SET text = '{' || id",
    "a problem of no family": "UPDATE problem SET text = printf('[%d]', id)",
    "a device of no size": "UPDATE device SET text = json_set(text, '$.bandwidth_gbs', 0)",
    "settings of no size": "UPDATE settings SET text = replace(text, '0.95', 'NaN')",
    "telemetry that is none": "UPDATE measurement SET telemetry = '7'",
    "a text that is none": "UPDATE measurement SET reason = x'ff'",
    "a check that is none": "UPDATE measurement SET \"check\" = '{}'",
    "an attempt that is none": "UPDATE measurement SET attempts = 'many'",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damage_is_a_bad_file_that_names_it(tmp_path, damage):
    with Results(tmp_path, write=True) as results:
        results.add(some())
        results._db.execute(damage)
    with Results(tmp_path) as results, pytest.raises(BadFile, match=r"results\.db"):
        list(results.measurements())
        best(results)
        gather(results)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("CREATE VIEW stranger AS SELECT 1", "has a view, 'stranger', which no sweep makes"),
        ("CREATE TRIGGER t AFTER INSERT ON kernel BEGIN SELECT 1; END", "has a trigger, 't'"),
        ("DROP TABLE build", "has no build, as"),
        ("ALTER TABLE build ADD COLUMN x", "table build is not as a sweep makes it"),
        ("PRAGMA user_version = -3", "has version -3"),
    ],
)
def test_a_file_of_other_tables_is_refused(tmp_path, change, says):
    with Results(tmp_path, write=True) as results:
        results._db.execute(change)
    with pytest.raises(BadFile, match=says):
        Results(tmp_path)


def test_pages_that_are_damaged_are_a_bad_file(tmp_path):
    with Results(tmp_path, write=True) as results:
        results.add(some())
        results._db.execute("PRAGMA journal_mode = DELETE")
    whole = (tmp_path / "results.db").read_bytes()
    for at in range(4096, len(whole), 4096):
        (tmp_path / "results.db").write_bytes(whole[:at] + b"\xa5" * 64 + whole[at + 64 :])
        with suppress(BadFile), Results(tmp_path) as results:
            list(results.measurements())
            results.keys()
            best(results)


def test_a_folder_that_cannot_be(tmp_path):
    os.mkfifo(tmp_path / "results.db")
    for folder in (tmp_path, "a\0b", "\ud800"):
        with pytest.raises(BadFile):
            Results(folder)
    for folder in ("a\0b", "\ud800"):
        with pytest.raises(BadArgument):
            Results(folder, write=True)


def test_work_beyond_what_sqlite_counts_is_kept(tmp_path):
    vast = measurement(NAMES[0], type(PROBLEMS[0])(*[2**31 - 512] * 3))
    with Results(tmp_path, write=True) as results:
        results.add([vast])
        assert [*results.measurements()] == [vast]
        assert best(results)[0].tflops > 1e9
