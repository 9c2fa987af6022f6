"""Commands that run kernels: run, demo."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from cli_runner import NAME

WORDS = ("run", "gemm", "m=20", "n=33", "k=17", "--device", "h200_sxm")


def test_run_planned_for_an_emulated_gpu_is_emulated(cli):
    words = ("run", "topk", "rows=2", "columns=64", "k=2", "dtype=fp16")
    there = cli.json(*words, "--device", "emulated:gfx942")
    assert there["on"] == "emulated:gfx942" and "emulated" in there["seconds_mean"]
    assert there["executed"] and not there["findings"] and there["check"]["ok"]


@pytest.mark.turns(24)
def test_run_computes_and_checks(cli):
    text = cli(*WORDS, "--seed", "5")
    assert "within tolerance: 100.0000%" in text
    assert "says nothing about a GPU" in text
    assert "planned for NVIDIA H200 (sm_90)" in text
    document = cli.json(*WORDS, "--seed", "5")
    assert document["check"]["ok"] and document["check"]["max"] > 0
    assert document["seed"] == 5
    assert document == {**cli.json(*WORDS, "--seed", "5"), "seconds": document["seconds"]}


def test_fresh_operands_each_time_unless_a_seed_is_given(cli):
    first, second = (cli.json(*WORDS) for _ in range(2))
    assert first["seed"] != second["seed"]
    assert first["check"]["max"] != second["check"]["max"]


def test_run_by_name_and_without_a_check(cli):
    document = cli.json(*WORDS, "--kernel", NAME, "--no-verify")
    assert document["kernel"] == NAME and document["why"] == "asked for by name"
    assert document["check"] is None
    assert "not checked" in cli(*WORDS, "--no-verify")


def test_run_from_a_registry(cli, tmp_path):
    file = tmp_path / "r.json"
    cli("registry", "export", NAME, "--arch", "sm_90", "-o", file)
    assert cli.json(*WORDS, "--registry", file)["kernel"] == NAME
    message = cli.fails(1, *WORDS, "dtype=fp16", "--registry", file)
    assert "the only kernel does not serve" in message


def test_run_keeps_to_a_limit_on_the_workspace(cli):
    kernel = NAME.replace("_tile_", "_split_k2_linear_")
    words = ("run", "gemm", "m=20", "n=33", "k=64", "--device", "h200_sxm", "--kernel", kernel)
    assert cli.json(*words)["check"]["ok"]
    assert "needs a workspace of" in cli.fails(2, *words, "--max-workspace", 1000)


def test_a_wrong_result_exits_with_1(cli, monkeypatch):
    from tilewright import verify

    right = verify.compare
    monkeypatch.setattr(verify, "compare", lambda *args: replace(right(*args), ok=False))
    assert "OUTSIDE tolerance" in cli(*WORDS, code=1)
    assert cli.json(*WORDS, code=1)["check"]["ok"] is False


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["--on", "gpu"],
            2,
            "a GPU as cuda:0 (AMD's too), or an emulated AMD GPU",
        ),
        (["--kernel", "gemm_x"], 2, "is not the name of a GEMM kernel"),
        (["--kernel", NAME.replace("rcr", "ccr")], 2, "layout is ccr, the problem has rcr"),
    ],
)
def test_runs_that_cannot_be(cli, words, code, message):
    assert message in cli.fails(code, *WORDS, *words)


def test_a_gpu_that_is_not_there(cli):
    pytest.importorskip("torch")
    assert "there is no cuda:99" in cli.fails(1, *WORDS, "--on", "cuda:99")


def test_compare_judges_two_kernels_and_says_how(cli):
    same = ("compare", NAME, NAME, "gemm", "m=16", "n=32", "k=32", "--on", "cpu", "--rounds", "8")
    document = cli.json(*same)
    assert document["first"] == document["second"] == NAME
    assert document["answer"] in ("faster", "slower", "same", "undecided")
    low, high = document["interval"]
    assert low <= document["ratio"] <= high
    assert len(document["first_us"]) == len(document["second_us"]) == 8
    assert "8 pairs, wall" in cli(*same)


@pytest.mark.turns(48)
def test_profile_ranks_what_runs_and_says_why_others_do_not(cli):
    other = NAME.replace("bf16", "fp16")
    words = ("gemm", "m=16", "n=32", "k=32", "--devices", "cpu", "--kernel", NAME)
    document = cli.json("profile", *words, "--kernel", other)
    assert [one["kernel"] for one in document["ranked"]] == [NAME]
    assert document["ranked"][0]["median_us"] > 0 and "roofline" not in document["ranked"][0]
    assert [one["rule"] for one in document["unsupported"]] == ["signature"]
    assert "says nothing about a GPU" in cli("profile", *words)
    none = cli.json("profile", *words[:-1], other, code=1)
    assert none["ranked"] == []


def test_what_cannot_be_compared(cli):
    problem = ("gemm", "m=16", "n=32", "k=32", "--on", "cpu")
    assert "no file or folder" in cli.fails(2, "compare", NAME, "gone.json", *problem)
    assert "not the name" in cli.fails(2, "compare", NAME, "nonsense", *problem)
    assert "no call" in cli.fails(2, "compare", "vendor", NAME, *problem, "epilogue=relu")
    assert "runs on GPUs" in cli.fails(2, "compare", "vendor", NAME, *problem)
    words = ("compare", NAME, NAME, *problem, "--settings")
    assert "there is method" in cli.fails(2, *words, "cache=rotated")
    assert "no method 'wall'" in cli.fails(2, *words, "method=wall")


@pytest.mark.turns(64)
def test_demo_does_the_main_job_and_starts_warm_again(cli, store):
    text = cli("demo")
    for number in range(1, 6):
        assert f"\n{number}  " in f"\n{text}"
    for word in ("sm_90", "gfx942", "e4m3fn→bf16", "int8→int32", "fp16", "chosen", "next 1"):
        assert word in text
    assert "10 of 10 results right" in text and "WRONG" not in text
    assert str(store) in text and "Next, try" in text

    document = cli.json("demo")
    assert set(document["built"]) == {"cached"}
    assert document["built"]["cached"] >= 40
    assert all(row["legal"] and row["rules"] for row in document["expanded"])
    assert all(row["check"]["ok"] for row in document["ran"])
    assert len(document["chosen"]) == 8
    assert document["explanation"]["chosen"]


@pytest.mark.turns(32)
def test_what_the_demo_suggests_next_works(cli, monkeypatch):
    from tilewright.compile import BuildReport

    monkeypatch.setattr("tilewright.cli.build.compile_all", lambda *a, **k: BuildReport((), 0.0))
    text = cli("demo")
    suggested = text.split("Next, try")[1].strip().splitlines()
    assert len(suggested) >= 3
    for line in suggested:
        program, *words = shlex.split(line)
        assert program == "tilewright"
        cli(*words)


def test_the_demo_names_the_program_as_a_shell_finds_it(monkeypatch, tmp_path):
    from tilewright.cli.demo import _program

    called = tmp_path / "an environment" / "tilewright"
    called.parent.mkdir()
    called.touch(mode=0o755)
    monkeypatch.setattr("sys.argv", [str(called), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shlex.split(_program()) == [str(called)]
    monkeypatch.setenv("PATH", str(called.parent))
    assert _program() == "tilewright"
    monkeypatch.setattr("sys.argv", ["-c"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _program() == "tilewright"


@pytest.mark.turns(48)
def test_a_wrong_result_fails_the_demo(cli, monkeypatch):
    from tilewright import verify
    from tilewright.compile import BuildReport

    right = verify.compare
    monkeypatch.setattr(verify, "compare", lambda *args: replace(right(*args), ok=False))
    monkeypatch.setattr("tilewright.cli.build.compile_all", lambda *a, **k: BuildReport((), 0.0))
    text = cli("demo", code=1)
    assert "WRONG" in text and "0 of 10 results right" in text
