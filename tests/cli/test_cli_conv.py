"""Convolution on the command line, through the interpreter: what a user of GEMMs knows."""

from __future__ import annotations

import json

import pytest

from tilewright.ops.conv import ConvFamily
from tilewright.space import KernelSpace
from tilewright.tables import file

QUICK = (
    "--devices", "cpu", "--settings", "min_samples=2", "--settings", "max_samples=2",
    "--settings", "warm_up_seconds=0", "--settings", "budget_seconds=0.05",
)  # fmt: skip
TINY = ("n=1", "c=16", "k=16", "spatial=6x5", "filter=3x3", "pad=1")
ALGORITHMS = {"tile_m": [32], "tile_n": [16], "tile_k": [32], "merged": [False, True]}
SPACE = {"family": "conv", "direction": ["forward", "data"], **ALGORITHMS}


@pytest.fixture
def shapes(tmp_path):
    """In the columns of recorded layers."""
    path = tmp_path / "shapes.csv"
    path.write_text(
        "transposed,ndim,n,c,k,groups,spatial,filter,stride,pad,dilation,seen_in\n"
        "0,2,1,16,16,1,6x5,3x3,1x1,1x1,1x1,one\n"
        "1,2,1,16,16,2,3x3,2x2,2x2,0x0,1x1,other\n"
    )
    return path


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "conv.json"
    path.write_text(json.dumps(SPACE))
    return path


def test_run(cli):
    text = cli("run", "conv", *TINY, "epilogue=bias+relu", "--seed", "1")
    assert "problem    conv n1 c16 k16 6x5 filter 3x3 bf16 pad 1x1 bias+relu" in text
    assert "check      within tolerance" in text
    document = cli.json("run", "conv", *TINY, "direction=weights", "dtype=fp16", "--seed", "1")
    assert document["problem"]["direction"] == "weights" and document["check"]["ok"]


def test_explain_and_expand(cli):
    text = cli("explain", "conv", *TINY, "--device", "mi300x", "--limit", "1")
    assert "conv n1 c16 k16 6x5 filter 3x3 bf16 pad 1x1 on AMD Instinct MI300X (gfx942)" in text
    assert "analytical: estimated" in text and "workgroups" in text
    text = cli("expand", "--default", "conv", *TINY, "--arch", "sm_80")
    assert "legal kernels" in text


@pytest.mark.turns(6)
def test_sweep_results_and_report(cli, shapes, space, tmp_path):
    out, page = tmp_path / "out", tmp_path / "page.html"
    words = ("sweep", space, "--problems", shapes, "--family", "conv", "--out", out)
    document = cli.json(*words, *QUICK, "--arch", "sm_90")
    assert (document["statuses"], document["unsupported"]) == ({"ok": 4}, 4)
    text = cli("results", out)
    assert "conv n1 c16 k16 6x5 filter 3x3 bf16 pad 1x1" in text
    cli("report", out, "-o", page)
    assert "conv n1 c16 k16 6x6 filter 2x2 bf16 data groups 2 stride 2x2" in page.read_text()


@pytest.mark.turns(24)
def test_tune_a_table_and_what_it_answers(cli, shapes, monkeypatch, tmp_path):
    def small(self, problem, arch):
        return KernelSpace("conv", {"direction": [problem.direction], **ALGORITHMS})

    monkeypatch.setattr(ConvFamily, "default_space", small)
    monkeypatch.setattr(ConvFamily, "tuning_spaces", lambda *a: [small(*a)])
    table = tmp_path / "t.twt"
    words = ("tune", "--problems", shapes, "--family", "conv", "--table", table)
    document = cli.json(*words, *QUICK)
    assert len(document["rows"]) == 2 and document["ok"]
    rows = tmp_path / "t.json"
    cli("table", "export", table, "-o", rows)
    assert list(file.load(rows)) == list(file.load(table))
    exact = cli.json("explain", "conv", *TINY, "--table", table)
    assert json.dumps(exact["chosen"]).count("conv_forward") >= 1


@pytest.mark.turns(6)
def test_profile_lists_every_instance(cli, monkeypatch):
    def wide(self, problem, arch):
        few = {name: values[:1] for name, values in ALGORITHMS.items()}
        return [KernelSpace("conv", {**few, "direction": ["forward"], "alignment": [2, 16]})]

    monkeypatch.setattr(ConvFamily, "default_space", lambda *words: wide(*words)[0])
    monkeypatch.setattr(ConvFamily, "tuning_spaces", wide)
    words = ("n=1", "c=3", "k=16", "spatial=4x4", "filter=3x3", "--devices", "cpu", "--all")
    text = cli("profile", "conv", *words)
    assert "1 of 2 kernels can serve it" in text
    (refused,) = [line for line in text.splitlines() if "_al16-16" in line]
    assert refused.startswith("vector_width") and "aligned to 2 bytes" in refused
    assert "not two of them" in cli.fails(2, "profile", "conv", *words, "--kernel", "x")
