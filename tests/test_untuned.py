"""Problems that no table's row answers: one line when the process ends, with the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright import capturing, untuned
from tilewright.errors import BadArgument


def plan(problem: Any, selector: str = "analytical") -> Any:
    """As much of a plan as is looked at."""
    return SimpleNamespace(problem=problem, selector=selector)


@pytest.fixture(autouse=True)
def _nothing_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untuned, "_met", set())
    monkeypatch.setattr(untuned.atexit, "register", lambda call: None)


SCRIPT = """
from types import SimpleNamespace
from tilewright import untuned
for problem, selector in (("a", "analytical"), ("a", "analytical"), ("b", "learned"),
                          ("c", "tuned"), ("d", "shipped"), ("e", "name")):
    untuned.saw(SimpleNamespace(problem=problem, selector=selector))
"""


@pytest.mark.parametrize(
    ("variables", "lines"),
    [({}, 1), ({"TILEWRIGHT_UNTUNED": "0"}, 0), ({"RANK": "1"}, 0), ({"RANK": "0"}, 1)],
)
def test_a_process_says_it_once(tmp_path: Any, variables: dict[str, str], lines: int) -> None:
    script = tmp_path / "serve it.py"
    script.write_text(SCRIPT)
    environment = {k: v for k, v in os.environ.items() if k not in ("TILEWRIGHT_UNTUNED", "RANK")}
    done = subprocess.run(
        [sys.executable, str(script), "--fast"],
        env={**environment, **variables}, capture_output=True, text=True,
    )  # fmt: skip
    said = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(said)) == (0, "", lines)
    if lines:
        assert said[0].startswith("2 problems have no row in a table")
        assert f"misses {sys.executable} '{script}' --fast && tilewright prepare" in said[0]


def test_the_commands_are_those_that_measure_and_tune() -> None:
    assert untuned.said(1, [], "python serve.py").endswith(
        "1 problem has no row in a table, so an estimate chose the kernel; to measure a few of "
        "each: TILEWRIGHT_CAPTURE=untuned.jsonl TILEWRIGHT_CAPTURE_ONLY=misses python serve.py && "
        "tilewright prepare untuned.jsonl --measure; or search longer: tilewright tune --problems "
        "untuned.jsonl --table mine.twt"
    )
    assert untuned.said(2, ["my shapes.jsonl"], "python serve.py").endswith(
        "each: tilewright prepare 'my shapes.jsonl' --measure; or search longer: tilewright tune "
        "--problems 'my shapes.jsonl' --table mine.twt"
    )


def test_a_captured_file_has_what_is_counted() -> None:
    """A problem that is counted here is a miss of a capture."""
    assert capturing.TUNED not in untuned.EXPECTED


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(untuned.VARIABLE, "no")
    untuned.saw(plan("a", "tuned"))
    with pytest.raises(BadArgument, match="TILEWRIGHT_UNTUNED: 'no' is neither 1 nor 0"):
        untuned.saw(plan("a"))
