"""What learned selection learns from: which problems are drawn, and a run without a GPU."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tune"))

from fake_crew import GROUP, FakeCrew

import learning_data
from learning_data import Class
from tilewright import arch, ops
from tilewright.measure.designs import Design, Sample
from tilewright.measure.results import Results

GEMM = ops.family("gemm")
ARCH = arch.arch("sm_90")
PROBLEMS = [GEMM.problem_type(m, 64, 64) for m in range(16, 16 * 9, 16)]


def test_each_kin_is_drawn_once_before_any_is_drawn_twice():
    every = [SimpleNamespace(flops=10 * size, kin=kin) for kin in "abcd" for size in (1, 2, 3, 4)]
    of = Class(lambda: every, lambda p: p.kin, 9, Design(4), 35, 1.0, False)
    found = learning_data.drawn(of)
    assert [p.flops <= 35 for p in found] == [True] * 9
    assert {p.kin for p in found[:4]} == {p.kin for p in found[4:8]} == {*"abcd"}
    assert len({(p.kin, p.flops) for p in found}) == 9


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: Any) -> Sample:
    """The sample of GEMMs, of three kernels each."""
    configs = GEMM.default_space(PROBLEMS[0], ARCH).expand(ARCH).configs
    basic = [c for c in configs if c.pipeline == "basic"]
    served = [c for c in basic if all(GEMM.supports(c, p, ARCH) for p in PROBLEMS)]
    made = Sample(tuple((problem, tuple(served[:3])) for problem in PROBLEMS))
    monkeypatch.setattr(learning_data, "SAMPLES", tmp_path)
    made.save(tmp_path / "gemm.json")
    return made


def run(monkeypatch: Any, folder: Path, *words: str) -> FakeCrew:
    crew = FakeCrew(settings=learning_data.SETTINGS.interpreted)
    monkeypatch.setattr(learning_data, "groups", lambda *_, **__: ([GROUP], lambda: crew))
    given = ["measure", "--classes", "gemm", "--out", str(folder), *words]
    monkeypatch.setattr(sys, "argv", ["learning_data.py", *given])
    learning_data.main()
    return crew


def test_parts_share_the_problems_and_known_results_stay(
    samples: Sample, tmp_path: Path, monkeypatch: Any
):
    seen: list[set[Any]] = []
    for part in ("0/2", "1/2"):
        folder = tmp_path / part[0]
        crew = run(monkeypatch, folder, "--part", part)
        seen.append({m.problem for m in crew.made})
        assert len(crew.made) == 12
        assert run(monkeypatch, folder, "--part", part).made == []
        with Results(folder) as results:
            assert len(results) == 12
        with lzma.open(folder / learning_data.PACKED) as packed:
            assert packed.read(15) == b"SQLite format 3"
    assert not seen[0] & seen[1] and seen[0] | seen[1] == {*PROBLEMS}


def test_a_run_ends_in_time_and_keeps_what_it_has(
    samples: Sample, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    crew = run(monkeypatch, tmp_path / "out", "--seconds", "1e-9")
    assert len(crew.made) < 24
    with Results(tmp_path / "out") as results:
        assert len(results) == len(crew.made)
    assert "pairs" in capsys.readouterr().out
