"""Attention on the command line, through the interpreter: what a user of GEMMs knows."""

from __future__ import annotations

import json

import pytest

from tilewright.ops.attention import AttentionFamily
from tilewright.space import KernelSpace
from tilewright.tables import file

QUICK = (
    "--devices", "cpu", "--settings", "min_samples=2", "--settings", "max_samples=2",
    "--settings", "warm_up_seconds=0", "--settings", "budget_seconds=0.05",
)  # fmt: skip
TINY = ("batch=1", "heads=2", "kv_heads=1", "q_len=16", "kv_len=24", "head_dim=16")
ALGORITHMS = {"tile_q": [16], "tile_kv": [16, 32], "num_warps": [4], "num_stages": [2]}
SIGNATURES = [["causal", ""], ["none", "lse"]]
SPACE = {"family": "attention", "head_dim": [16], "mask,features": SIGNATURES, **ALGORITHMS}


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text(
        "batch,heads,kv_heads,q_len,kv_len,head_dim,mask,lse\n"
        "1,2,1,16,24,16,causal,\n"
        "1,2,1,1,40,16,,true\n"
    )
    return path


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "attention.json"
    path.write_text(json.dumps(SPACE))
    return path


def test_run(cli):
    text = cli("run", "attention", *TINY, "mask=causal", "lse=true", "--seed", "1")
    assert "problem    attention b1 h2:1 16×24 d16 bf16 causal lse" in text
    assert "check      within tolerance" in text
    document = cli.json("run", "attention", "ck=-b=1 -h=1 -s=9 -d=16 -mask=t:3,1", "--seed", "1")
    assert document["problem"]["left"] == 3 and document["check"]["ok"]


def test_explain_and_expand(cli):
    text = cli("explain", "attention", *TINY, "--device", "mi300x", "--limit", "1")
    assert "attention b1 h2:1 16×24 d16 bf16 on AMD Instinct MI300X (gfx942)" in text
    assert "analytical: estimated" in text and "1 wave" in text
    text = cli("expand", "--default", "attention", *TINY, "--arch", "sm_80")
    assert "legal kernels" in text


@pytest.mark.turns(8)
def test_sweep_results_and_report(cli, shapes, space, tmp_path):
    out, page = tmp_path / "out", tmp_path / "page.html"
    words = ("sweep", space, "--problems", shapes, "--family", "attention", "--out", out)
    document = cli.json(*words, *QUICK, "--arch", "sm_90")
    assert (document["statuses"], document["unsupported"]) == ({"ok": 4}, 4)
    again = cli.json(*words, *QUICK, "--arch", "sm_90")
    assert (again["statuses"], again["results"]) == ({}, 8)
    text = cli("results", out)
    assert "attention b1 h2:1 16×24 d16 bf16 causal" in text
    assert (
        "unsupported by" in text
        and sum(one["count"] for one in cli.json("results", out)["unsupported_by"]) == 4
    )
    cli("report", out, "-o", page)
    assert "attention b1 h2:1 1×40 d16 bf16 lse" in page.read_text()


@pytest.mark.turns(48)
def test_tune_a_table_and_what_it_answers(cli, shapes, monkeypatch, tmp_path):
    def small(self, problem, arch):
        signature = {"mask": [problem.mask.kind], "features": [problem.features]}
        return KernelSpace("attention", {"head_dim": [16], **signature, **ALGORITHMS})

    monkeypatch.setattr(AttentionFamily, "default_space", small)
    monkeypatch.setattr(AttentionFamily, "tuning_spaces", lambda *a: [small(*a)])
    table = tmp_path / "t.twt"
    words = ("tune", "--problems", shapes, "--family", "attention", "--table", table)
    document = cli.json(*words, *QUICK)
    assert len(document["rows"]) == 2 and document["ok"]
    assert "attention b1 h2:1 1×40 d16 bf16 lse" in cli("table", "show", table)
    cli("table", "check", table)
    rows = tmp_path / "t.json"
    cli("table", "export", table, "-o", rows)
    assert list(file.load(rows)) == list(file.load(table))
    row = next(iter(file.load(table)))
    exact = cli.json("explain", "attention", *TINY, "mask=causal", "--table", table)
    chosen = exact["chosen"]
    assert json.dumps(chosen).count("attention_") and row.kernel.startswith("attention_")


def test_a_list_without_its_family_says_which_it_may_be(cli, shapes, space, tmp_path):
    words = ("sweep", space, "--problems", shapes, "--out", tmp_path / "x", *QUICK)
    text = cli.fails(2, *words, "--arch", "sm_90")
    assert "a gemm problem has no 'heads'" in text
    assert "it states a problem of attention: say --family attention" in text
