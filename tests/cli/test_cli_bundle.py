"""``bundle``, and the inputs that it shares with ``build``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import NAME
from table_cases import H200, PLAIN, WIDE, gemm, row

from tilewright.arch import arch, device
from tilewright.bundle import Bundle
from tilewright.compile import Store, find
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.nouns import MAIN
from tilewright.registry import Registry
from tilewright.tables import file, named
from tilewright.tables.table import Table

PROBLEMS = "m,n,k,dtype\n64,64,64,fp16\n128,64,64,bf16\n"


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.csv"
    path.write_text(PROBLEMS)
    return path


def stated() -> list[GemmProblem]:
    this = arch("sm_90")
    lines = [line.split(",") for line in PROBLEMS.splitlines()]
    return [
        FAMILY.parse_problem(dict(zip(lines[0], line, strict=True)), this) for line in lines[1:]
    ]


@pytest.mark.turns(24)
def test_what_is_chosen_for_problems_is_served(cli, tmp_path: Path, problems: Path) -> None:
    out = tmp_path / "h200.bundle"
    made = cli.json("bundle", problems, "--device", "h200_sxm", "-o", out)
    chosen = [Dispatcher(device=H200).select(p).config.name for p in stated()]
    assert made["kernels"] == len(set(chosen)) and made["rows"] == 0
    assert made["archs"] == [
        {"arch": "sm_90", "built": len(set(chosen)), "cached": 0, "rejected": 0, "failed": 0}
    ]
    served = Dispatcher(device=H200, bundle=out)
    assert [served.select(p).config.name for p in stated()] == chosen
    kernel, binary = Bundle(out).load(served.select(stated()[0]).config, "sm_90")[MAIN]
    stored = find(FAMILY.parse_name(kernel.name), "sm_90", Store())[MAIN]
    assert binary == Store().read(stored) and binary[:4] == b"\x7fELF"
    said = cli("bundle", out)
    assert f"digest     {made['digest']}" in said and f"{len(set(chosen))} for sm_90" in said
    (shown,) = cli.json("bundle", out)
    assert shown["wrong"] == [] and shown["kernels"] == {"sm_90": len(set(chosen))}
    found = cli.json(
        "explain", "gemm", "m=64", "n=64", "k=64", "dtype=fp16",
        "--bundle", out, "--device", "h200_sxm",
    )  # fmt: skip
    assert found["chosen"] == chosen[0] and len(found["fates"]) == len(set(chosen))


@pytest.mark.turns(32)
def test_the_order_of_inputs_and_architectures_does_not_matter(cli, tmp_path: Path) -> None:
    table = Table.of([row(gemm(64), PLAIN)])
    file.save(table, tmp_path / "t.json")
    inputs = [str(tmp_path / "t.json"), NAME]
    for number, (given, archs) in enumerate(
        ((inputs, "sm_90,gfx942"), (inputs[::-1], "gfx942;sm_90"))
    ):
        cli("bundle", *given, "--arch", archs, "-o", tmp_path / f"{number}.bundle")
    files = [(tmp_path / f"{n}.bundle").read_bytes() for n in range(2)]
    assert files[0] == files[1]
    made = Bundle(tmp_path / "0.bundle")
    assert {a: len(made.names(a)) for a in made.archs} == {"gfx942": 1, "sm_90": 2}
    assert made.table == table


def test_a_bundle_is_added_to(cli, tmp_path: Path) -> None:
    registry = tmp_path / "r.json"
    some = Registry()
    some.register(NAME, 4)
    some.save(registry)
    first, second = tmp_path / "1.bundle", tmp_path / "2.bundle"
    cli("bundle", PLAIN, "--arch", "sm_90", "-o", first)
    made = cli.json("bundle", first, "--registry", registry, "--arch", "sm_90", "-o", second)
    assert made["kernels"] == 2
    assert Bundle(second).manifest.priorities == {NAME: 4}
    for words in (("--device", "h200_sxm"), ("--arch", "sm_90")):  # what is shown has its own
        assert "give -o FILE" in cli.fails(2, "bundle", second, *words)


def test_wrong_requests(cli, tmp_path: Path, problems: Path) -> None:
    assert "give -o FILE" in cli.fails(2, "bundle", problems)
    assert "ends in .bundle" in cli.fails(2, "bundle", problems, "-o", tmp_path / "x.zip")
    (tmp_path / "bad.bundle").write_bytes(b"nothing")
    assert "is no bundle" in cli.fails(2, "bundle", tmp_path / "bad.bundle")


def test_a_strangers_bundle(cli, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "some.bundle"
    cli("bundle", PLAIN, "--arch", "sm_90", "-o", out)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "another"))
    assert "--trust-bundle" in cli.fails(1, "bundle", out)
    assert "1 for sm_90" in cli("bundle", out, "--trust-bundle")
    whole = bytearray(out.read_bytes())
    whole[whole.index(b"\x7fELF")] ^= 1
    out.write_bytes(whole)
    cli("bundle", out, "--trust-bundle", code=1)
    assert "wrong: " in cli.result.stdout


@pytest.mark.grid(2)
@pytest.mark.parametrize("form", ["csv", "json", "jsonl", "set"])
def test_problems_can_be_built(tmp_path: Path, form: str) -> None:
    """From a list in any form; the kernels are those that the architecture's GPUs would choose."""

    path = tmp_path / f"list.{form}"
    problem = GemmProblem(128, 64, 64)
    if form == "csv":
        path.write_text("m,n,k\n128,64,64\n")
    elif form == "json":
        path.write_text('[{"m": 128, "n": 64, "k": 64}]')
    elif form == "jsonl":
        path.write_text(
            json.dumps({"problem": {"family": "gemm", "m": 128, "n": 64, "k": 64}, "count": 2})
        )
    given = "gemm:small" if form == "set" else path
    from tilewright.cli.planned import Planning
    from tilewright.cli.selection import select

    words = {"dtype": "bf16"}
    found = select([str(given)], "sm_90", None, words, (), Planning((H200,)))
    names = {config.name for config in found.configs}
    if form != "set":
        assert names == {Dispatcher(device=H200).select(problem).config.name}
    else:
        assert len(names) > 1


def test_tables_among_the_inputs_choose_for_the_problems(tmp_path: Path) -> None:
    from tilewright.cli.planned import Planning
    from tilewright.cli.selection import select, tables_of

    path = tmp_path / "list.csv"
    path.write_text("m,n,k\n64,512,512\n")
    file.save(Table.of([row(gemm(64), WIDE)]), tmp_path / "t.twt")
    how = Planning((H200,), table=tables_of([str(path), str(tmp_path / "t.twt")]))
    found = select([str(path)], "sm_90", how=how)
    assert [config.name for config in found.configs] == [WIDE]


def test_problems_that_nothing_serves_are_noted(tmp_path: Path) -> None:
    from tilewright.cli.planned import Planning
    from tilewright.cli.selection import select

    path = tmp_path / "list.csv"
    path.write_text("m,n,k,dtype\n64,512,512,bf16\n64,512,512,e4m3fn\n")
    found = select([str(path)], "sm_80", how=Planning((device("a100_sxm_80gb"),)))
    assert len(found.configs) == 1
    assert "1 of 2 problems have no kernel on NVIDIA A100" in found.notes[0]


def test_json_says_by_itself_which_file_it_is(cli, tmp_path: Path, space: Path) -> None:
    file.save(Table.of([row(gemm(64), PLAIN)]), tmp_path / "t.json")
    made = cli.json("build", tmp_path / "t.json", "--arch", "sm_90")
    assert [r["name"] for r in made["results"]] == [PLAIN]
    from tilewright.cli.selection import is_problems, is_table

    assert not is_table(str(space)) and not is_problems(str(space))


def test_a_shipped_table_has_a_name_wherever_a_table_is_taken(
    cli, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(named, "FOLDER", tmp_path)
    for folder in ("sm_90", "sm_80"):
        (tmp_path / folder).mkdir()
    file.save(Table.of([row(gemm(64), PLAIN)]), tmp_path / "sm_90" / "gemm_bf16.twt")
    file.save(Table.of([row(gemm(96), PLAIN)]), tmp_path / "sm_90" / "gemm_fp16.twt")
    assert cli.json("table", "show", "shipped:gemm_bf16")["count"] == 1
    assert "1 row: no problem found" in cli("table", "check", "shipped:gemm_bf16", "--no-ratio")
    words = ("explain", "gemm", "m=64", "n=512", "k=512", "--device", "h200_sxm")
    assert cli.json(*words, "--table", "shipped:sm_90/gemm_bf16")["chosen"] == PLAIN
    made = cli.json("build", "shipped:sm_90", "--arch", "sm_90")
    assert [r["name"] for r in made["results"]] == [PLAIN]
    assert "did you mean 'gemm_bf16'" in cli.fails(2, "table", "show", "shipped:gem_bf16")
    assert "means several tables" in cli.fails(2, "table", "show", "shipped:sm_90")
