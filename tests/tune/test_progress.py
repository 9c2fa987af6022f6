"""What is shown while a sweep measures."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from fake_crew import measurement
from tune_cases import CONFIGS, PROBLEMS

from tilewright.compile import show_progress
from tilewright.measure.progress import duration, show_measuring

M = measurement(CONFIGS[0].name, PROBLEMS[0])
BAD = replace(M, status="timeout", reason="hung for 3 s")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_at_each_tenth_with_what_failed():
    out = io.StringIO()
    with show_measuring(out) as told:
        for done in range(1, 101):
            told(BAD if done == 7 else M, done, 100)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"timeout {M.kernel} on {M.problem}: hung for 3 s"
    assert lines[1] == "measured 10 of 100 (9 ok, 1 timeout), 0 s left"
    assert len(lines) == 11


def test_a_bar_with_the_time_left_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out = Terminal()
    with show_progress(out):
        pass
    with show_measuring(out) as told:
        told(M, 1, 2)
        told(BAD, 2, 2)
    text = out.getvalue()
    assert "measuring" in text and "2/2" in text and "left" in text and "0:00:00" in text
    assert "1 ok, 1 timeout" in text and "hung" in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "0 s"), (89, "89 s"), (100, "2 min"), (3590, "1 h 0 min"), (12_000, "3 h 20 min"),
     (200_000, "2 d 7 h")],
)  # fmt: skip
def test_durations(seconds, said):
    assert duration(seconds) == said
