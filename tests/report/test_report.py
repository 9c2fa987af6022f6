"""The page as a file: what it holds, that it is alone, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest
from synthetic import ENVIRONMENT, FAILING, H200, REASONS, kernel, one, problem, sweep
from typer.testing import CliRunner

from tilewright.cli.app import app
from tilewright.errors import BadArgument, BadFile
from tilewright.measure.database import SCHEMA
from tilewright.measure.measurement import STATUSES, Flag, Settings
from tilewright.measure.results import Results
from tilewright.printable import printable
from tilewright.report import gather, write
from tilewright.report import page as page_module


def results(folder: Path, measurements: Any) -> Path:
    with Results(folder, write=True) as kept:
        kept.add(measurements)
    return folder


def gathered(folder: Path, measurements: Any) -> dict[str, Any]:
    with Results(results(folder, measurements)) as kept:
        return gather(kept)


class Parsed(HTMLParser):
    """Tags with their attributes, and the text of scripts."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page.read_text())
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and data.strip():
            self.scripts.append(data)

    @property
    def data(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.scripts[0])
        return document


def test_the_page_is_one_file_that_fetches_nothing(tmp_path):
    folder = results(tmp_path / "sweep", sweep(5, 5))
    write(folder, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?://|@import|url\(|\bfetch\(|XMLHttpRequest|@@", text)
    page = Parsed(tmp_path / "page.html")
    for tag, attributes in page.tags:
        assert tag not in ("img", "iframe", "link", "object", "embed"), tag
        assert not {"src", "srcset", "action", "data"} & set(attributes), (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert [a.get("type") for tag, a in page.tags if tag == "script"] == ["application/json", None]
    (policy,) = (
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy


def test_it_holds_each_problem_and_each_failure(tmp_path):
    failing = [one(kernel(i), problem(1), 1, status) for i, status in enumerate(FAILING)]
    folder = results(tmp_path / "sweep", [*sweep(3, 20), *failing])
    write(folder, tmp_path / "page.html")
    (setup,) = Parsed(tmp_path / "page.html").data["setups"]
    assert {p["name"] for p in setup["problems"]} == {str(problem(i)) for i in range(20)}
    reasons = {REASONS.get(status, f"{status} it was") for status in FAILING}
    assert reasons <= set(setup["reasons"])
    letters = {"abcdefghijkl"[STATUSES.index(status)] for status in FAILING}
    assert letters <= set(setup["cells"])


def test_cells_times_and_reasons_belong_together(tmp_path):
    a, b, c = sorted(kernel(i) for i in range(3))
    made = [
        one(a, problem(0), 30),
        one(c, problem(0), 20, flags=("contended",)),
        one(a, problem(1), 1, "timeout"),
        one(b, problem(1), 40),
    ]
    (setup,) = gathered(tmp_path, made)["setups"]
    order = [setup["problems"][p]["name"] for p in (0, 1)]
    assert order == [str(problem(0)), str(problem(1))]
    assert setup["kernels"] == [a, b, c]
    timeout = "abcdefghijkl"[STATUSES.index("timeout")]
    assert setup["cells"] == f"a.a{timeout}a."
    assert setup["times"] == [[30, 20, 40], [29.7, 19.8, 39.6], [30.3, 20.2, 40.4]]
    assert setup["reasons"] == [REASONS["timeout"]]
    assert setup["why"] == [(3,), (0,)]
    assert setup["flagged"] == [(2,), (2,)]
    assert setup["ties"] == [[2], [1]]


def test_kernels_that_cannot_be_told_from_the_best_are_its_ties(tmp_path):
    a, b, c = sorted(kernel(i) for i in range(3))
    made = [one(a, problem(0), 10.1), one(b, problem(0), 10), one(c, problem(0), 11)]
    (setup,) = gathered(tmp_path, made)["setups"]
    assert setup["ties"] == [[1, 0]]


def test_the_vendor_is_never_the_best_kernel(tmp_path):
    made = [one(kernel(0), problem(0), 10), one("vendor.cublas", problem(0), 5)]
    (setup,) = gathered(tmp_path, made)["setups"]
    assert [setup["kernels"][k] for k in setup["vendors"]] == ["vendor.cublas"]
    assert setup["ties"] == [[setup["kernels"].index(kernel(0))]]


def test_devices_settings_and_environments_are_groups_of_their_own(tmp_path):
    slow = replace(H200, name="NVIDIA H200 NVL", clock_mhz=1785)
    made = [
        one(kernel(0), problem(0), 10),
        one(kernel(0), problem(0), 11, device=slow),
        one(kernel(0), problem(0), 12, settings=Settings(timer="graph")),
        one(kernel(0), problem(0), 13, environment=replace(ENVIRONMENT, driver="590.10")),
    ]
    setups = gathered(tmp_path, made)["setups"]
    assert sorted(g["times"][0][0] for g in setups) == [10, 11, 12, 13]
    assert all(len(g["cells"]) == 1 for g in setups)
    labels = {g["times"][0][0]: g["label"] for g in setups}
    assert len(set(labels.values())) == 4
    assert labels[11].startswith("NVIDIA H200 NVL, clock mhz 1785")
    assert "timer graph" in labels[12]
    assert "driver 590.10" in labels[13]


def test_two_builds_of_one_name_are_two_kernels(tmp_path):
    made = [one(kernel(0), problem(0), us, build=f"{us}" * 20) for us in (10, 20)]
    (setup,) = gathered(tmp_path, made)["setups"]
    assert len(set(setup["kernels"])) == 2
    assert all("build" in name for name in setup["kernels"])


def test_roofs_are_those_of_the_device(tmp_path):
    (setup,) = gathered(tmp_path / "a", sweep(2, 4))["setups"]
    assert setup["roof"] == {
        "gbs": H200.bandwidth_gbs,
        "tflops": {"e4m3fn": 1978.9, "bf16": 989.4},
        "note": "",
    }
    wall = Settings(timer="wall")
    (setup,) = gathered(tmp_path / "b", sweep(2, 4, settings=wall))["setups"]
    assert setup["roof"]["tflops"] == {}
    assert "nothing about a GPU" in setup["roof"]["note"]
    nobody = replace(H200, arch="sm_1")
    (setup,) = gathered(tmp_path / "c", sweep(2, 4, device=nobody))["setups"]
    assert "sm_1" in setup["roof"]["note"]


HOSTILE = (
    "</script><script>document.title='owned'</script><!-- <img src=x onerror=alert(1)> & "
    "\u2028\u202e\x1b]0;owned\x07"
)


def test_hostile_names_stay_text(tmp_path):
    made = [
        one(f"gemm_{HOSTILE}", problem(0), 10),
        one(kernel(0), problem(0), 10, "crashed", reason=HOSTILE),
    ]
    folder = results(tmp_path / "<script>alert(1)<\x1b[2J", made)
    write(folder, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script>document" not in text
    assert "<script>alert" not in text
    assert "<img" not in text
    page = Parsed(tmp_path / "page.html")
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    (setup,) = page.data["setups"]
    assert f"gemm_{printable(HOSTILE)}" in setup["kernels"]
    assert setup["reasons"] == [printable(HOSTILE)]
    assert "\x1b" not in text and "\u202e" not in text, "nor is anything turned round"


@pytest.mark.turns(96)
def test_a_hundred_kernels_on_five_hundred_problems_in_time_and_size(tmp_path):
    folder = results(tmp_path / "sweep", sweep(100, 500, vendor=False))
    start = time.process_time()
    written = write(folder, tmp_path / "page.html")
    assert time.process_time() - start < 20  # it takes 2
    assert written.measurements == 50_000
    assert (written.kernels, written.problems, written.setups) == (100, 500, 1)
    assert written.bytes == (tmp_path / "page.html").stat().st_size < 10e6


# --- the command, and bad input ---------------------------------------------------------------


def tilewright(*words: Any) -> Any:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_the_command_says_what_it_wrote(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = results(tmp_path / "sweep", sweep(3, 4, vendor=False))
    done = tilewright(folder)
    assert done.exit_code == 0
    assert done.stdout.startswith("report.html: 12 measurements of 3 kernels on 4 problems, ")
    done = tilewright(folder, "-o", "other.html", "--json")
    assert json.loads(done.stdout) == {
        "path": "other.html",
        "bytes": Path("other.html").stat().st_size,
        "setups": 1,
        "measurements": 12,
        "problems": 4,
        "kernels": 3,
    }


def test_no_results_are_an_error(tmp_path):
    with pytest.raises(BadFile, match=r"has no results"):
        write(tmp_path, tmp_path / "page.html")
    results(tmp_path / "empty", [])
    with pytest.raises(BadFile, match="holds no measurements yet"):
        write(tmp_path / "empty", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    done = tilewright(tmp_path / "empty", "-o", tmp_path / "page.html", "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["type"] == "BadFile"


def test_a_file_of_a_newer_version_is_refused(tmp_path):
    results(tmp_path, sweep(1, 1))
    db = sqlite3.connect(tmp_path / "results.db")
    db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    with pytest.raises(BadFile, match=f"version {SCHEMA + 1}"):
        write(tmp_path, tmp_path / "page.html")


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "results.db").write_bytes(b"no database at all, but long enough to be read" * 100)
    with pytest.raises(BadFile, match=r"results\.db"):
        write(tmp_path, tmp_path / "page.html")


def test_a_path_that_cannot_be_written_is_an_error(tmp_path):
    folder = results(tmp_path / "sweep", sweep(1, 1))
    with pytest.raises(BadArgument, match=r"nowhere/page\.html cannot be written: No such file"):
        write(folder, tmp_path / "nowhere" / "page.html")
    with pytest.raises(BadArgument, match="it is a folder"):
        write(folder, tmp_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_failed_write_keeps_the_page_that_was_there(tmp_path, monkeypatch):
    folder = results(tmp_path / "sweep", sweep(1, 1))
    page = tmp_path / "out" / "page.html"
    page.parent.mkdir()
    page.write_text("yesterday's")

    def full(*_: Any, **__: Any) -> Any:
        made = page.parent / ".report-full"
        made.touch()
        return os.open("/dev/full", os.O_WRONLY), str(made)

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(BadArgument, match="No space left on device"):
        write(folder, page)
    assert page.read_text() == "yesterday's"
    assert [p.name for p in page.parent.iterdir()] == ["page.html"]


def test_the_page_says_what_every_flag_means():
    page = Path(page_module.__file__).with_suffix(".js").read_text()
    meanings = re.search(r"FLAG_MEANINGS = \{(.*?)\};", page, re.DOTALL)
    assert meanings and re.findall(r"^  (\w+): ", meanings[1], re.MULTILINE) == [*get_args(Flag)]
