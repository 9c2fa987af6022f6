"""``tilewright learn``: from a sweep to a choice, what to measure next, and what errors say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import learned_cases
import pytest
from learned_cases import GEMM, H200, PROBLEMS, made
from typer.testing import CliRunner

from tilewright.cli import learn_tables
from tilewright.cli.app import app
from tilewright.errors import BadArgument
from tilewright.learn import judge, matrix, train
from tilewright.learn.suggest import suggest
from tilewright.measure.results import Results
from tilewright.select.model import Models, save
from tilewright.select.trees import LEAF, Trees
from tilewright.verdict import YES


def run(*words: Any, code: int = 0) -> Any:
    """What a command answers in JSON; on an error, what it says."""
    result = CliRunner().invoke(app, ["learn", *map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return result.output if code else json.loads(result.stdout)


@pytest.mark.turns(16)
def test_from_a_sweep_to_a_choice(folder: Path, tmp_path: Path):
    pytest.importorskip("lightgbm")
    pytest.importorskip("pyarrow")
    packed, model, page = (tmp_path / name for name in ("m.parquet", "model.json", "p.html"))
    assert run("data", folder, "-o", packed)["cells"] > 100
    few = ("--folds", 3, "--trees", 20)
    trained = run("train", packed, "-o", model, *few, "--page", page)
    told = trained["lessons"]["gemm_bf16"]
    assert told["served"]["mean"] > told["estimate"]["mean"]
    folded = tmp_path / "folded.html"
    crossed = run("evaluate", packed, *few, "--page", folded)["lessons"]["gemm_bf16"]
    assert "What it asks about" not in folded.read_text()
    assert crossed["served"] == told["served"]
    own = tmp_path / "own.html"
    judged = run("evaluate", folder, "--model", model, "--page", own)["lessons"]["gemm_bf16"]
    assert f"learned from {len(PROBLEMS)} of these" in own.read_text()
    assert judged["seen"] == judged["problems"] == len(PROBLEMS) and crossed["seen"] == 0
    assert judged["served"]["mean"] >= told["served"]["mean"]
    (compared,) = run("compare", folder, "--model", model)["compared"]
    assert compared["served"] == judged["served"]
    for words in (("evaluate", folder, "--model", model), ("compare", folder, "--model", model)):
        shown = CliRunner().invoke(app, ["learn", *map(str, words)]).stdout
        assert f"it learned from {len(PROBLEMS)} of these" in " ".join(shown.split())
    (said,) = run("explain", model)["models"]
    assert "marks" not in said
    assert said["judged"]["served"] == told["served"] and said["cells"] > 100
    drawn = page.read_text()
    assert "<script" not in drawn and drawn.count("<polyline") == 2
    assert "config.pipeline" in drawn and "gemm_bf16" in drawn
    for words in (("train", folder, "-o", model, *few), ("explain", model)):
        shown = CliRunner().invoke(app, ["learn", *map(str, words)])
        assert shown.exit_code == 0 and "served" in shown.stdout


def test_suggestions_are_where_both_disagree_times_the_calls(learned: Any, tmp_path: Path):
    model, _ = learned
    save(Models([model]), tmp_path / "model.json")
    calls = tmp_path / "calls.jsonl"
    known = [GEMM.problem_type(m, 2048, 1024) for m in (160, 192)]
    unknown = GEMM.problem_type(128, 2048, 100_000)
    counts = {known[0]: 1, known[1]: 1000, unknown: 5}
    calls.write_text(
        "".join(
            json.dumps({"problem": {"family": "gemm", "m": p.m, "n": p.n, "k": p.k}, "count": n})
            + "\n"
            for p, n in counts.items()
        )
    )
    out = tmp_path / "next.json"
    words = ("--model", tmp_path / "model.json", "--device", "h200_sxm")
    found = run("suggest", calls, *words, "-o", out)
    assert [one["count"] for one in found["suggested"]] == [1000, 1]
    assert all(one["worth"] == one["count"] * one["gain"] for one in found["suggested"])
    assert sum(found["unknown"].values()) == 1 and "k is outside" in str(found["unknown"])
    assert len(json.loads(out.read_text())) == 2
    assert len(run("suggest", calls, *words, "--most", 1)["suggested"]) == 1


def test_nothing_is_suggested_where_both_agree(learned: Any):
    model, _ = learned
    alone = Trees((LEAF,), (0.0,), (0,), (0,), (0,))
    probes = tuple(replace(one, answers=(0.0,) * len(one.kernels)) for one in model.probes)
    agreeing = replace(model, trees=alone, probes=probes)
    told = suggest({GEMM.problem_type(128, 2048, 1024): 9}, Models([agreeing]), H200)
    assert told.found == () and [*told.unknown] == ["the model and the estimate agree"]


def test_nothing_is_suggested_by_a_stale_model(learned: Any):
    model, _ = learned
    one = model.probes[0]
    moved = replace(one, estimated=tuple(2 * us for us in one.estimated))
    stale = replace(model, probes=(moved, *model.probes[1:]))
    told = suggest({GEMM.problem_type(128, 2048, 1024): 9}, Models([stale]), H200)
    assert told.found == () and [*told.unknown] == [stale.stale]


def test_a_class_with_few_problems_is_left_out_and_said(folder: Path, tmp_path: Path):
    """It does not keep the others from being learned."""
    pytest.importorskip("lightgbm")
    mixed, model = tmp_path / "mixed", tmp_path / "model.json"
    learned_cases.sweep(mixed)
    other = GEMM.problem_type(64, 1024, 1024, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16")
    with Results(mixed, write=True) as results:
        results.add(
            made(config.name, other, (us, us, us))
            for config in learned_cases.configs(other)[:4]
            for us in (learned_cases.us_of(config, other),)
        )
    few = ("--folds", 3, "--trees", 4)
    trained = run("train", mixed, "-o", model, *few)
    assert [*trained["lessons"]] == ["gemm_bf16"]
    assert trained["left_out"] == {
        "gemm_fp16": "problems of 1 kin are too few for 3 folds: measure others, or take fewer "
        "folds"
    }
    assert "gemm_fp16: problems of 1 kin" in run(
        "train", mixed, "--class", "gemm_fp16", "-o", model, *few, code=2
    )
    assert [*run("evaluate", mixed, *few)["left_out"]] == ["gemm_fp16"]
    judged = run("evaluate", mixed, "--model", model)
    assert judged["left_out"] == {"gemm_fp16": f"{model} has no model of it"}
    compared = run("compare", mixed, "--model", model)
    assert compared["left_out"] == {str(model): ["gemm_fp16"]}
    for words in (("train", mixed, "-o", model, *few), ("compare", mixed, "--model", model)):
        shown = CliRunner().invoke(app, ["learn", *map(str, words)])
        assert shown.exit_code == 0 and "gemm_fp16" in shown.stdout


def test_what_a_model_asks_about_is_shown_most_first(learned: Any, tmp_path: Path):
    """A file has it by name."""
    model, _ = learned
    save(Models([model]), tmp_path / "model.json")
    (said,) = run("explain", tmp_path / "model.json")["models"]
    shares = [*said["importance"].values()]
    assert shares == sorted(shares, reverse=True) and len(shares) > learn_tables.SHOWN
    shown = CliRunner().invoke(app, ["learn", "explain", str(tmp_path / "model.json")]).stdout
    assert max(said["importance"], key=lambda name: said["importance"][name]) in shown
    lost = shown.partition("loses most on")[2]
    assert lost.count("gemm") == sum(w["served"] < 100 for w in said["worst"][: lost.count("\n")])


def test_a_model_that_nobody_judged_is_explained(sheets: list[train.Sheet], tmp_path: Path):
    pytest.importorskip("lightgbm")
    save(Models([train.train(sheets, "gemm_bf16", 2)]), tmp_path / "model.json")
    shown = CliRunner().invoke(app, ["learn", "explain", str(tmp_path / "model.json")])
    assert shown.exit_code == 0 and "not judged" in shown.stdout
    with pytest.raises(BadArgument, match="two halves"):
        train.train(sheets, "gemm_bf16", 1)


def test_what_cannot_be_written_is_said_before_the_training(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(judge, "learn", None)
    monkeypatch.setattr(judge, "crossed", None)
    model = tmp_path / "model.json"
    assert ".json file" in run("train", folder, "-o", tmp_path / "m.parquet", code=2)
    for page, why in ((tmp_path, "it is a folder"), (tmp_path / "no" / "p.html", "no folder")):
        assert why in run("train", folder, "-o", model, "--page", page, code=2)
        assert why in run("evaluate", folder, "--page", page, code=2)
    assert "--trees" in run("train", folder, "-o", model, "--trees", 1, code=2)
    for option in ("--folds", "--trees"):
        told = run("evaluate", folder, "--model", model, option, 3, code=2)
        assert f"{option} is of models that are trained" in told


def test_reasons_of_silence_are_counted_without_the_problems_numbers(learned: Any):
    model, _ = learned
    far = {GEMM.problem_type(128, 2048, k): 1 for k in (100_000, 200_000)}
    far |= {GEMM.problem_type(100_000, 2048, 1024): 1}
    told = suggest(far, Models([model]), H200).unknown
    assert [len(listed) for listed in told.values()] == [2, 1]
    assert all(" is outside the problems it learned from, " in why for why in told)


def test_what_cannot_be_learned_from_is_said(folder: Path, tmp_path: Path):
    with Results(tmp_path / "empty", write=True):
        pass
    assert "nothing to learn from" in run("evaluate", tmp_path / "empty", code=2)
    assert "no problem is of class 'conv'" in run("evaluate", folder, "--class", "conv", code=2)
    assert ".parquet file" in run("data", folder, "-o", tmp_path / "x.csv", code=2)
    (tmp_path / "model.json").write_text("{}")
    assert "no file of models" in run("explain", tmp_path / "model.json", code=2)
    assert ".parquet file" in run("evaluate", tmp_path / "model.json", code=2)
    assert "has no results" in run("evaluate", tmp_path / "nothing", code=2)


def test_a_users_own_operation_is_learned_too():
    """What a family need not state has a usual answer."""
    from tilewright.ops.defaults import Defaults

    class Own(Defaults):
        name = "own"

    own: Any = Own()
    assert own.lesson("p") == own.kind("p") == "own"
    assert own.kin("p") == "p" and own.traits("p", None, H200) == {}
    assert own.repeats(None) == YES


def test_a_problem_timed_anew_has_the_times_of_one_run(tmp_path: Path):
    pytest.importorskip("pyarrow")
    names = [config.name for config in learned_cases.configs(PROBLEMS[0])[:4]]
    runs = {
        "first": [made(n, p, (1.0, 2.0, 3.0)) for p in PROBLEMS[:3] for n in names],
        "second": [
            *(made(name, PROBLEMS[0], (5.0, 6.0, 7.0)) for name in names[:2]),
            *(made(name, PROBLEMS[1], ()) for name in names[:2]),  # crashed: nothing was timed
        ],
    }
    for name, measured in runs.items():
        with Results(tmp_path / name, write=True) as results:
            results.add(measured)
    paths = [str(tmp_path / name) for name in runs]
    for anew, times in ((["--anew"], [{6.0}, {2.0}, {2.0}]), ([], [{2.0, 6.0}, {2.0}, {2.0}])):
        out = tmp_path / "joined.parquet"
        run("data", *paths, "-o", str(out), *anew)
        found = {block.problem: {*block.us.values()} for block in matrix.blocks(matrix.read([out]))}
        assert [found[problem] for problem in PROBLEMS[:3]] == times
