"""What the short suite selects."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import selection
from tilewright.arch import archs


@dataclass(frozen=True)
class Kernel:
    dtype: str
    tile: tuple[int, int]
    padded: bool


KERNELS = [
    Kernel(dtype, (tile, other), padded)
    for dtype in ("fp32", "fp16", "bf16")
    for tile, other in itertools.product((16, 32, 64), (16, 32, 64))
    for padded in (False, True)
]
CASES = [(str(number), kernel) for number, kernel in enumerate(KERNELS)]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_TEST_SELECTION", "short")
    monkeypatch.setenv("TILEWRIGHT_TEST_TURN", "one")


def turned(monkeypatch: pytest.MonkeyPatch, turns: int, most: int) -> list[set[int]]:
    found = []
    for number in range(turns):
        monkeypatch.setenv("TILEWRIGHT_TEST_TURN", str(number))
        found.append({*selection.covering(CASES, most)})
    return found


@given(st.integers(1, 60))
def test_a_grid_has_no_more_than_its_most(most: int) -> None:
    chosen = selection.covering(CASES, most)
    assert len(chosen) == min(most, len(CASES)) and len({*chosen}) == len(chosen)


def test_every_value_and_pair_is_among_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    core = set.intersection(*turned(monkeypatch, 12, 24))
    pairs = {
        pair for place in core for pair in itertools.combinations(selection.axes(KERNELS[place]), 2)
    }
    assert pairs == {p for k in KERNELS for p in itertools.combinations(selection.axes(k), 2)}


def test_the_rest_is_another_for_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = turned(monkeypatch, 40, 16)
    assert len(set.intersection(*turns)) >= 9  # the core
    assert set.union(*turns) == {*range(len(CASES))}


def test_sizes_are_no_axes() -> None:
    many = [(str(size), (size, size % 2)) for size in range(100)]
    assert len(selection.covering(many, 4)) == 4


def test_architectures_are_sm_90_and_one_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for turn in range(60):
        monkeypatch.setenv("TILEWRIGHT_TEST_TURN", str(turn))
        chosen = selection.architectures(archs())
        assert len(chosen) == 4 and "sm_90" in chosen
        seen |= {*chosen}
    assert seen == {*archs()}
    monkeypatch.setenv("TILEWRIGHT_TEST_SELECTION", "all")
    assert selection.architectures(archs()) == tuple(archs())


SUITE = """
import pytest

@pytest.mark.grid(4)
@pytest.mark.parametrize("size", [pytest.param(0, marks=pytest.mark.edge), *range(1, 30)])
def test_grid(size): pass

@pytest.mark.turns(3)
@pytest.mark.parametrize("number", range(30))
def test_turns(number): pass

@pytest.mark.parametrize("number", range(30))
def test_always(number): pass
"""


def collected(folder: Path, *options: str) -> list[str]:
    (folder / "conftest.py").write_text('pytest_plugins = ("selection", "processor_time")')
    (folder / "test_some.py").write_text(SUITE)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *options,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.fspath(Path(__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.turns(2)
def test_marks_say_what_a_run_has(tmp_path: Path) -> None:
    short = collected(tmp_path, "--turn", "a")
    assert short == collected(tmp_path, "--turn", "a") != collected(tmp_path, "--turn", "b")
    counts = {name: sum(f"test_{name}[" in test for test in short) for name in ("grid", "always")}
    assert counts == {"grid": 5, "always": 30}
    assert "test_some.py::test_grid[0]" in short
    assert 0 < sum("test_turns" in test for test in short) < 30
    assert len(collected(tmp_path, "--selection", "all")) == 90
    assert len(collected(tmp_path, "test_some.py::test_grid")) == 30
