"""What learned selection learns from: which problems are drawn, and a run without a GPU."""

from __future__ import annotations

import lzma
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tune"))

from fake_crew import GROUP, FakeCrew

import learning_data
from learning_data import Builds, OutOfTime, fewer, left, pieces
from learning_many import covered
from learning_samples import Class, drawn
from tilewright import arch, ops
from tilewright.measure.designs import Design, Sample
from tilewright.measure.results import Results

GEMM = ops.family("gemm")
ARCH = arch.arch("sm_90")
PROBLEMS = [GEMM.problem_type(m, 64, 64) for m in range(16, 16 * 9, 16)]


@dataclass(frozen=True)
class Named:
    name: str


def test_each_kin_is_drawn_once_before_any_is_drawn_twice():
    every = [SimpleNamespace(flops=10 * size, kin=kin) for kin in "abcd" for size in (1, 2, 3, 4)]
    of = Class(lambda: every, lambda p: p.kin, 9, Design(4), 35, 1.0, False)
    found = drawn(of)
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


def run(monkeypatch: Any, folder: Path, *words: str, group: Any = GROUP) -> FakeCrew:
    crew = FakeCrew(group, settings=learning_data.SETTINGS.interpreted)
    monkeypatch.setattr(learning_data, "groups", lambda *_, **__: ([group], lambda: crew))
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


def test_what_was_measured_is_packed_behind_each_class(
    samples: Sample, tmp_path: Path, monkeypatch: Any
):
    samples.save(tmp_path / "gemm_fp8.json")
    measured, packed = learning_data._class, []

    def noting(*args: Any) -> None:
        packed.append((tmp_path / "out" / learning_data.PACKED).exists())
        measured(*args)

    monkeypatch.setattr(learning_data, "_class", noting)
    run(monkeypatch, tmp_path / "out", "--classes", "gemm", "gemm_fp8")
    assert packed == [False, True]


def test_many_kernels_of_each_problem_where_few_are_built():
    kernels = {letter: Named(letter) for letter in "abcdefghijklmnop"}
    lists = {
        "x1": "abcd", "x2": "bacde", "x3": "cdabfg", "x4": "dcbah",  # one space: a to d serve all
        "y1": "ijkl", "y2": "jikl",  # another
        "z1": "mnop",  # a third of its own
        "x5": "abc",  # too few
    }  # fmt: skip
    ranked = {problem: [kernels[one] for one in word] for problem, word in lists.items()}

    def names(built: int, count: int) -> dict[str, str]:
        found = covered(ranked, lambda p: p[0], Design(4, first=2), built, count)
        return {problem: "".join(c.name for c in chosen) for problem, chosen in found}

    found = names(8, 9)
    assert {*found} == {"x1", "x2", "x3", "x4", "y1", "y2"}  # of z, four more are to be built
    assert {"".join(sorted(word)) for word in found.values()} == {"abcd", "ijkl"}
    assert all(word[:2] == lists[problem][:2] for problem, word in found.items())
    assert {*names(12, 9)} == {*lists} - {"x5"}
    assert {*names(12, 3)} == {"x1", "y1", "z1"}  # one of each kind, by the order that is preferred
    assert not names(3, 9)


def test_of_a_sample_of_many_kernels_all_are_measured(
    samples: Sample, tmp_path: Path, monkeypatch: Any
):
    samples.save(tmp_path / "gemm_many.json")
    for name, pairs in (("gemm", 16), ("gemm_many", 24)):
        folder = tmp_path / f"out-{name}"
        monkeypatch.setattr(learning_data, "WHOLE", 0)
        crew = run(monkeypatch, folder, "--classes", name, "--kernels", "2")
        assert len(crew.made) == pairs


def test_of_fewer_kernels_half_are_the_first_and_the_others_common(monkeypatch: Any):
    monkeypatch.setattr(learning_data, "COMMON", 2)
    lists = ("abcdef", "bagdfe", "hiefcd")
    made = Sample(tuple((number, tuple(line)) for number, line in enumerate(lists)))

    def cut(count: int) -> list[str]:
        return ["".join(chosen) for _, chosen in fewer(made, count).pairs]

    # Behind the first two, d, e and f come three times, c twice, and g once; two are common.
    common = {one for line in cut(4) for one in line[2:]}
    assert [line[:2] for line in cut(4)] == ["ab", "ba", "hi"]
    assert len(common) == 2 and common < set("def")
    assert cut(6) != [*lists] and [set(line) for line in cut(6)] == [set(line) for line in lists]
    assert cut(1) == ["a", "b", "h"]
    built = {one for line in cut(4) for one in line}
    monkeypatch.setattr(learning_data, "chance", lambda number: f"{number + 1:x}")
    whole = [{*chosen} for _, chosen in fewer(made, 4, whole=2).pairs]
    assert whole == [{*cut(4)[0]}, {*lists[1]} & built, {*cut(4)[2]}]


def test_what_was_timed_is_left_out():
    configs = tuple(SimpleNamespace(name=name) for name in "ab")
    made = Sample(tuple((problem, configs) for problem in PROBLEMS[:2]))
    text = learning_data.problem_text(PROBLEMS[0])
    assert left(made, {("a", text)}) == [(PROBLEMS[0], configs[1:]), (PROBLEMS[1], configs)]
    assert left(made, {("a", text), ("b", text)}) == [(PROBLEMS[1], configs)]


def test_pieces_are_small_first():
    pairs: Any = [(number, ()) for number in range(100)]
    parts = [*pieces(pairs, 40)]
    assert [len(part) for part in parts] == [8, 16, 32, 40, 4]
    assert [pair for part in parts for pair in part] == pairs
    assert [len(part) for part in pieces(pairs[:9], 2)] == [2, 2, 2, 2, 1]


def test_a_later_sitting_goes_on_from_the_packed_file_alone(
    samples: Sample, tmp_path: Path, monkeypatch: Any
):
    """On another machine, with another driver."""
    monkeypatch.setattr(learning_data, "TOGETHER", 2)
    first, later = tmp_path / "first", tmp_path / "later"
    stops = iter([*range(8), *[1e9] * 100])
    monkeypatch.setattr(learning_data, "time", SimpleNamespace(monotonic=lambda: next(stops)))
    before = run(monkeypatch, first).made
    assert 0 < len(before) < 24
    monkeypatch.setattr(learning_data, "time", time)
    later.mkdir()
    (later / learning_data.PACKED).write_bytes((first / learning_data.PACKED).read_bytes())
    other = replace(GROUP, environment=replace(GROUP.environment, driver="2.0"))
    after = run(monkeypatch, later, group=other).made
    assert len(before) + len(after) == 24
    assert not {(m.kernel, m.problem) for m in before} & {(m.kernel, m.problem) for m in after}
    assert run(monkeypatch, later).made == []


def building(monkeypatch: Any, seconds: float = 0.0, ok: bool = True) -> list[Any]:
    """Have kernels built as quickly; returns those that are built."""
    built: list[Any] = []

    def build(wanted: Sequence[Any], *, progress: Any, **_: Any) -> None:
        for config, _arch in wanted:
            time.sleep(seconds)
            built.append(config)
            progress(SimpleNamespace(config=config, ok=ok), 0, 0)

    monkeypatch.setattr(learning_data, "build", build)
    monkeypatch.setattr(learning_data, "part_keys", lambda *_: {"main": ""})
    return built


def test_kernels_are_built_before_they_are_measured(
    samples: Sample, tmp_path: Path, monkeypatch: Any
):
    def sweep(this: Any, *_: Any, **__: Any) -> None:
        measured.extend(pair for part in this.parts for pair in part.todo)
        assert {pair.config for pair in measured} <= {*built}

    measured: list[Any] = []
    built = building(monkeypatch, 0.05)
    monkeypatch.setattr(learning_data, "sweep", sweep)
    monkeypatch.setattr(learning_data, "TOGETHER", 2)
    real = replace(GROUP, interpreted=False)
    run(monkeypatch, tmp_path / "out", "--kernels", "2", group=real)
    assert {pair.problem for pair in measured} == {*PROBLEMS}


def test_a_kernel_that_cannot_be_built_is_not_waited_for(monkeypatch: Any):
    building(monkeypatch, ok=False)
    monkeypatch.setattr(learning_data, "part_keys", lambda *_: {"main": "", "other": ""})
    later = time.monotonic() + 20
    with Builds({"x": "ab"}, {"x": later}, "sm_90", SimpleNamespace()) as builds:  # type: ignore[arg-type]
        assert builds.wait("ab", later)
    assert time.monotonic() < later


def test_when_a_class_is_over_the_kernels_of_the_next_are_built(monkeypatch: Any):
    built = building(monkeypatch, 0.02)
    now = time.monotonic()
    ends = {"x": now + 0.2, "y": now + 20}
    with Builds({"x": range(1000), "y": "ab"}, ends, "sm_90", SimpleNamespace()) as builds:  # type: ignore[arg-type]
        assert not builds.wait(range(1000), ends["x"])
        assert builds.wait("ab", ends["y"])
    assert built[-2:] == ["a", "b"] and len(built) < 100


def test_what_building_raises_is_raised(monkeypatch: Any):
    def build(*_: Any, **__: Any) -> None:
        raise ValueError("no space")

    building(monkeypatch)
    monkeypatch.setattr(learning_data, "build", build)
    later = time.monotonic() + 20
    with (
        Builds({"x": "a"}, {"x": later}, "sm_90", SimpleNamespace()) as builds,  # type: ignore[arg-type]
        pytest.raises(ValueError, match="no space"),
    ):
        builds.wait("a", later)


def test_what_is_measured_is_packed_whatever_ends_the_run(
    samples: Sample, tmp_path: Path, monkeypatch: Any
):
    def stop(m: Any) -> Any:
        made.append(m)
        if len(made) == 10:
            raise KeyboardInterrupt
        return m

    made: list[Any] = []
    crew = FakeCrew(GROUP, settings=learning_data.SETTINGS.interpreted, change=stop)
    monkeypatch.setattr(learning_data, "groups", lambda *_, **__: ([GROUP], lambda: crew))
    given = ["learning_data.py", "measure", "--classes", "gemm", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(KeyboardInterrupt):
        learning_data.main()
    (tmp_path / "later").mkdir()
    packed = (tmp_path / "out" / learning_data.PACKED).read_bytes()
    (tmp_path / "later" / "results.db").write_bytes(lzma.decompress(packed))
    with Results(tmp_path / "later") as results:
        assert len(results) == 9


def test_a_build_ends_with_the_time(samples: Sample, tmp_path: Path, monkeypatch: Any):
    def build(_wanted: Any, *, progress: Any, **_: Any) -> str:
        try:
            while time.monotonic() - begun < 30:
                time.sleep(0.01)
                progress(SimpleNamespace(config=None, ok=False), 0, 0)
        except OutOfTime:
            ended.append(time.monotonic() - begun)
            raise
        return ""

    ended: list[float] = []
    monkeypatch.setattr(learning_data, "build", build)
    begun = time.monotonic()
    real = replace(GROUP, interpreted=False)
    crew = run(monkeypatch, tmp_path / "out", "--seconds", "0.2", group=real)
    assert crew.made == [] and ended and ended[0] < 10
