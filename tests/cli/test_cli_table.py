"""`tilewright table`, and tables and constraints in `explain` and `run`."""

from __future__ import annotations

import pytest
from table_cases import DEEP, H20, H100, H200, PLAIN, WIDE, gemm, kernel, row

from tilewright.arch import device, device_to_json
from tilewright.tables import file
from tilewright.tables.table import Table

UNUSUAL = kernel(tile_m=32, num_warps=2, group_m=5)
WORDS = ("explain", "gemm", "m=512", "n=512", "k=512")


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.twt"
    rows = [
        row(gemm(512), UNUSUAL, ties=(WIDE,)),
        row(gemm(512), WIDE, on=H20),
        row(gemm(64), DEEP),
    ]
    file.save(Table.of(rows), path)
    return path


def test_show(cli, table):
    text = cli("table", "show", table)
    digest = file.load(table).digest
    assert digest in text and "NVIDIA H200 (sm_90)" in text and UNUSUAL in text
    assert "and 2 more" in cli("table", "show", table, "--limit", 1)
    document = cli.json("table", "show", table)
    assert (document["count"], document["digest"]) == (3, digest)
    assert {r["kernel"] for r in document["rows"]} == {UNUSUAL, WIDE, DEEP}


def test_export_there_and_back(cli, table, tmp_path):
    text, back = tmp_path / "mine.json", tmp_path / "back.twt"
    assert cli("table", "export", table, "-o", text) == f"3 rows written to {text}\n"
    assert cli.json("table", "export", text, "-o", back)["count"] == 3
    assert back.read_bytes() == table.read_bytes()
    said = cli.fails(2, "table", "export", table, "-o", table)
    assert "is one of the tables that are read" in said
    assert back.read_bytes() == table.read_bytes()


@pytest.mark.turns(24)
def test_check(cli, table, tmp_path):
    text = cli("table", "check", table)
    assert text.startswith("3 rows: no problem found") and "geometric mean" in text
    document = cli.json("table", "check", table)
    assert document["findings"] == [] and len(document["ratios"]) == 3
    assert all(r["ratio"] > 0 and r["estimated"].startswith("gemm_") for r in document["ratios"])
    other = tmp_path / "other.twt"
    file.save(Table.of([row(gemm(64), PLAIN), row(gemm(1), "gemm_of_old")]), other)
    text = cli("table", "check", table, other, "--no-ratio", code=1)
    assert "1 kernel, 1 duplicate" in text and "gemm_of_old" in text and str(other) in text
    assert cli.json("table", "check", table, other, "--no-ratio", code=1)["ratios"] == []


def test_merge(cli, table, tmp_path):
    other, both = tmp_path / "other.twt", tmp_path / "both.twt"
    file.save(Table.of([row(gemm(64), PLAIN, 9.0), row(gemm(1))]), other)
    said = cli.fails(2, "table", "merge", table, other, "-o", both)
    assert str(table) in said and str(other) in said and DEEP in said and PLAIN in said
    assert not both.exists()
    text = cli("table", "merge", table, other, "-o", both, "--policy", "fastest")
    assert "4 rows in" in text and "different rows of 1; kept the fastest" in text and DEEP in text
    assert file.load(both).get(gemm(64), H200).kernel == PLAIN
    document = cli.json("table", "merge", table, other, "-o", both, "--policy", "fastest")
    assert [r["kernel"] for r in document["duplicates"][0]] == [PLAIN, DEEP]
    assert "is one of the tables" in cli.fails(2, "table", "merge", table, other, "-o", other)


def test_diff(cli, table, tmp_path):
    other = tmp_path / "other.twt"
    file.save(Table.of([row(gemm(512), PLAIN, 5.0), row(gemm(64), DEEP)]), other)
    text = cli("table", "diff", table, other)
    assert {*text.splitlines()[0].split(", ")} == {"1 removed", "1 same", "1 faster"}
    assert "2.000" in text and UNUSUAL in text and PLAIN in text
    document = cli.json("table", "diff", table, other)
    assert document["counts"] == {"same": 1, "faster": 1, "removed": 1}
    [faster] = [c for c in document["changes"] if c["outcome"] == "faster"]
    assert faster["speedup"] == 2.0 and faster["after"]["kernel"] == PLAIN
    assert cli("table", "diff", table, table) == "3 same\n"


def test_a_damaged_table_is_named(cli, table):
    table.write_bytes(table.read_bytes()[:-1])
    assert str(table) in cli.fails(2, "table", "show", table)
    assert str(table) in cli.fails(2, *WORDS, "--table", table)


# --- explain, for a device given as JSON, with no GPU ---------------------------------------


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("on", "winner", "why"),
    [
        (H200, UNUSUAL, "exact row of "),
        (H20, WIDE, "exact row of "),
        (H100, UNUSUAL, "borrowed from NVIDIA H200 "),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_explain_shows_every_candidates_fate_on_a_device_in_json(
    cli, table, tmp_path, on, winner, why
):
    gpu = tmp_path / "gpu.json"
    gpu.write_text(device_to_json(on))
    document = cli.json(*WORDS, "--device", gpu, "--table", table)
    assert document["chosen"] == winner and document["device"]["name"] == on.name
    first = document["fates"][0]
    assert first["by"] == "tuned" and first["reason"].startswith(why)
    assert ("expected to lose" in first["reason"]) == (on is H100)
    without = cli.json(*WORDS, "--device", gpu)
    names = {f["name"] for f in document["fates"]}
    assert names >= {f["name"] for f in without["fates"]} and winner in names
    assert all(f["reason"] and f["by"] for f in document["fates"])
    text = cli(*WORDS, "--device", gpu, "--table", table)
    assert f"tuned: {why}" in text and winner in text


def test_explain_shows_the_row_that_was_not_used_and_why(cli, tmp_path):
    path = tmp_path / "old.twt"
    file.save(Table.of([row(gemm(512), "gemm_of_old")]), path)
    words = (*WORDS, "--device", "h200_sxm", "--table", path)
    document = cli.json(*words)
    [skipped] = [f for f in document["fates"] if f["fate"] == "skipped"]
    assert (skipped["name"], skipped["by"]) == ("gemm_of_old", "tuned")
    assert skipped["reason"].startswith(f"exact row of {path}: no_such_kernel: ")
    first, *others = document["notes"]  # whether a library can be asked depends on the machine
    assert document["chosen"] and first == f"tuned: no row of {path} answers"
    assert all("the vendor's library" in note for note in others)
    text = cli(*words, "--limit", "0")
    assert "skipped  gemm_of_old" in text and f"tuned: no row of {path} answers" in text


def test_explain_takes_tables_from_the_environment(cli, table, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_TABLES", str(table))
    assert cli.json(*WORDS, "--device", "h200_sxm")["chosen"] == UNUSUAL


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--block", UNUSUAL, "--block", "*_128x*"], "blocked"),
        (["--pipelines", "tma,gluon_ws"], "pipelines"),
        (["--batch-invariant"], ""),
        (["--deterministic"], ""),
    ],
    ids=str,
)
def test_constraints(cli, table, options, rule):
    document = cli.json(*WORDS, "--device", "h200_sxm", "--table", table, *options)
    rules = {f["by"] for f in document["fates"] if f["fate"] == "refused"}
    assert rule in rules or not rule
    assert (document["chosen"] == UNUSUAL) == (options == ["--deterministic"])
    if options == ["--batch-invariant"]:
        other = ("explain", "gemm", "m=3", "n=512", "k=512", "--device", "h200_sxm")
        assert cli.json(*other, *options)["chosen"] == document["chosen"]


def test_run_goes_by_the_table_and_keeps_to_constraints(cli, tmp_path):
    small = kernel(tile_m=16, tile_n=16, tile_k=16, num_warps=1)
    path = tmp_path / "small.twt"
    file.save(Table.of([row(gemm(16, 16, 16), small)]), path)
    words = ("run", "gemm", "m=16", "n=16", "k=16", "--device", "h200_sxm", "--table", path)
    document = cli.json(*words)
    assert document["kernel"] == small and document["check"]["ok"]
    blocked = cli.json(*words, "--block", small)
    assert blocked["kernel"] != small and blocked["check"]["ok"]
    assert "no pipeline 'tmaa'" in cli.fails(2, *words, "--pipelines", "tmaa")


AITER = """\
gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw
gfx942,304,64,512,512,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,13,7.5,_ZN5aiter_a,0.0,1.1,2.2
gfx950,256,64,512,512,False,torch.bfloat16,torch.bfloat16,False,False,asm,5,13,8.5,_ZN5aiter_a,0.0,1.1,2.2
gfx942,304,8,512,512,False,torch.bfloat16,torch.bfloat16,False,False,,0,0,-1,,1.0,0,0
"""


def test_aiters_files_there_and_back(cli, tmp_path):
    mine, csv, back = tmp_path / "m.twt", tmp_path / "bf16_tuned_gemm.csv", tmp_path / "back.twt"
    rows = [row(gemm(m), WIDE, us=m / 8, on=on) for m in (64, 128) for on in (H200, H20)]
    file.save(Table.of(rows), mine)
    words = ("table", "export", mine, "-o", csv)
    assert "say --form, one of bf16" in cli.fails(2, *words)
    assert cli(*words, "--form", "bf16") == f"4 rows written to {csv}\n"
    text = csv.read_bytes()
    document = cli.json("table", "import", csv, "--device", "h200_sxm", "-o", back)
    assert (document["count"], document["lines"], document["of_other_devices"]) == (2, 4, 2)
    assert [(r.problem.m, r.kernel, r.median_us) for r in file.load(back)] == [
        (64, WIDE, 8.0), (128, WIDE, 16.0),
    ]  # fmt: skip
    refused = cli.fails(2, "table", "import", csv, "--device", "h200_sxm", "-o", csv)
    assert "one of the tables that are read" in refused and csv.read_bytes() == text


def test_rows_that_a_file_of_aiters_cannot_say_are_listed(cli, tmp_path):
    mine, csv = tmp_path / "m.twt", tmp_path / "x.csv"
    file.save(Table.of([row(gemm(64)), row(gemm(64, epilogue="gelu"))]), mine)
    words = ("table", "export", mine, "-o", csv, "--form", "bf16")
    assert "cannot say gemm 64×512×512 bf16 rcr gelu" in cli(*words, code=1)
    document = cli.json(*words, code=1)
    assert (document["count"], len(document["left_out"])) == (1, 1)


def test_aiters_own_kernels_are_counted_or_kept_to_compare_with(cli, tmp_path):
    csv, theirs, mine = tmp_path / "x.csv", tmp_path / "theirs.twt", tmp_path / "mine.twt"
    csv.write_text(AITER)
    words = ("table", "import", csv, "--device", "mi300x", "-o", theirs)
    text = cli(*words)
    assert "0 rows of AMD Instinct MI300X" in text and "1 are of other GPUs" in text
    assert "1 name aiter's own kernels (--reference" in text and "1 have no time" in text
    assert cli.json(*words, "--reference")["count"] == 1
    file.save(Table.of([row(gemm(64), us=5.0, on=device("mi300x"))]), mine)
    (change,) = cli.json("table", "diff", theirs, mine)["changes"]
    assert (change["outcome"], change["speedup"]) == ("faster", 1.5)
    assert change["before"]["kernel"] == "aiter.asm._ZN5aiter_a"


def test_different_lines_of_one_problem_are_refused_or_the_fastest_is_kept(cli, tmp_path):
    one, two, out = tmp_path / "one.csv", tmp_path / "two.csv", tmp_path / "out.twt"
    one.write_text(AITER)
    two.write_text(AITER.replace("7.5", "6.5"))
    words = ("table", "import", one, two, "--device", "mi300x", "--reference", "-o", out)
    said = cli.fails(2, *words)
    assert f"{one}: line 2 has" in said and f"{two}: line 2 has" in said and not out.exists()
    assert "kept the fastest of gemm 64" in cli(*words, "--policy", "fastest")
    assert [r.median_us for r in file.load(out)] == [6.5]
