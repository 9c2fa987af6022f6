"""Commands on built kernels: build, kernels, registry."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from cli_runner import NAME, TMA_NAME

from tilewright.cli.selection import named
from tilewright.compile import BuildReport
from tilewright.ops.nouns import MAIN
from tilewright.registry import Registry


@pytest.fixture
def failing(monkeypatch):
    """Builds that fail, without a compiler."""
    import tilewright.compile
    from tilewright.arch import arch
    from tilewright.compile import BuildResult

    def build(requests, **options):
        return BuildReport(
            tuple(
                BuildResult(c, c.name, arch(str(getattr(a, "name", a))), "failed", reason="no luck")
                for c, a in requests
            ),
            0.1,
        )

    monkeypatch.setattr(tilewright.compile, "build", build)


@pytest.mark.turns(64)
def test_build_for_two_vendors_then_from_the_store(cli, space, store):
    words = ("build", space, NAME, "--arch", "sm_90", "--arch", "gfx942", "--workers", "2")
    document = cli.json(*words)
    assert document["counts"] == {"built": 5}
    assert document["store"] == str(store)
    assert {r["arch"] for r in document["results"]} == {"sm_90", "gfx942"}
    assert all(r["resources"]["registers"] > 0 for r in document["results"])
    assert [a["dropped"] for a in document["archs"]] == [2, 3], "counted, and no failure"
    text = cli(*words)
    assert "5 cached" in text and str(store) in text
    assert "note: $.trait_config.scheduler" in text


@pytest.mark.turns(32)
def test_limit_is_for_each_arch_and_is_said(cli, space):
    words = ("build", space, "--arch", "sm_90", "--arch", "sm_80", "--limit", "1")
    text = cli(*words)
    assert "2 built" in text
    assert "1 legal kernels were not built because of --limit 1" in text


def test_a_failed_build_exits_with_1_and_says_why(cli, space, failing):
    text = cli("build", space, "--arch", "sm_90", code=1)
    assert TMA_NAME in text and "no luck" in text
    document = cli.json("build", space, "--arch", "sm_90", code=1)
    assert document["counts"] == {"failed": 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing", "--arch", "sm_90"], "neither a file nor a kernel's name"),
        ([NAME + "x", "--arch", "sm_90"], "is not the name of a GEMM kernel"),
        ([TMA_NAME, "--arch", "gfx942"], "gfx942 has no pipeline tma"),
        ([NAME, "--arch", "gfx9"], "unknown architecture"),
        (["absent.json", "--arch", "sm_90"], "cannot be read"),
    ],
)
def test_wrong_builds_exit_with_2(cli, words, message):
    assert message in cli.fails(2, "build", *words)


def test_an_unusable_store_exits_with_1(cli, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert str(file) in cli.fails(1, "build", NAME, "--arch", "sm_90", "--store", file / "store")


@pytest.fixture
def shapes(tmp_path):
    """Two problems, for which `NAME` and `TMA_NAME` could be chosen."""
    file = tmp_path / "shapes.csv"
    file.write_text("m,n,k,dtype\n64,64,64,bf16\n64,64,64,bf16\n128,64,64,bf16\n")
    kernels = tmp_path / "kernels.json"
    Registry("two").register_all(map(named, (NAME, TMA_NAME))).save(kernels)
    return file, "--device", "h200_sxm", "--registry", kernels


def test_prepare_plans_and_exits_with_1_where_a_kernel_fails(cli, shapes, monkeypatch, store):
    from tilewright import loader
    from tilewright.arch import arch
    from tilewright.compile import BuildResult

    broken = set()

    def build(requests, **options):
        results = [
            BuildResult(
                c, c.name, arch(a), "failed" if c.name in broken else "built", reason="no luck"
            )
            for c, a in requests
        ]
        return BuildReport(tuple(results), 0.1)

    monkeypatch.setattr(loader, "build", build)
    words = ("prepare", *shapes)
    document = cli.json(*words)
    assert document["store"] == str(store) and document["device"]["arch"] == "sm_90"
    counts, chosen = document["counts"], {plan["kernel"] for plan in document["plans"]}
    assert counts["problems"] == len(document["plans"]) == 2
    assert counts["kernels"] == counts["built"] == len(chosen) == 1
    broken |= chosen
    document = cli.json(*words, code=1)
    assert document["counts"]["failed"] == document["counts"]["built"] == 1
    assert not chosen & {plan["kernel"] for plan in document["plans"]}
    broken |= {NAME, TMA_NAME}
    document = cli.json(*words, code=1)
    assert document["counts"]["kernels"] == 0 and len(document["unserved"]) == 2
    text = cli(*words, code=1)
    assert text.splitlines()[1].startswith("problems  kernels  built") and "no luck" in text
    assert "problem without a kernel" in text


def test_wrong_preparations_exit_with_2(cli, shapes):
    assert "cannot be read" in cli.fails(2, "prepare", "absent.csv", "--device", "h200_sxm")
    assert "no_gpu" in cli.fails(2, "prepare", shapes[0], "--device", "no_gpu")


@pytest.mark.turns(32)
def test_list_show_and_inspect(cli, space, store):
    assert "no such kernel" in cli("kernels", "list")
    assert cli.json("kernels", "list") == []
    cli("build", NAME, "--arch", "sm_90", "--arch", "gfx942")
    lines = cli("kernels", "list").splitlines()
    assert lines[0].split()[:3] == ["kernel", "arch", "registers"]
    assert sum(line.startswith(NAME) for line in lines) == 2
    assert f"2 kernels in {store}" in lines[-1]
    (row,) = cli.json("kernels", "list", "--arch", "gfx942", "--match", "*_basic_*")
    assert row["registers"] > 0 and row["limiter"] and row["size"] > 1000
    assert cli.json("kernels", "list", "--match", "*_tma_*") == []

    text = cli("kernels", "show", NAME)
    assert (
        re.search(r"^tile_n +32$", text, re.M)
        and "built for gfx942" in text
        and "limited by" in text
    )
    assert "sm_100" in text and "not built" in text
    states = {t["arch"]: t for t in cli.json("kernels", "show", NAME)["archs"]}
    assert states["sm_90"]["built"] and states["sm_90"]["kernel"]["name"] == NAME
    assert not states["sm_80"]["built"] and states["sm_80"]["legal"]

    assert "mov.u32" in cli("kernels", "inspect", NAME, "--arch", "sm_90", "--what", "ptx")
    gcn = cli.json("kernels", "inspect", NAME, "--arch", "gfx942", "--what", "amdgcn")
    assert "v_mfma" in gcn["text"] and gcn["arch"] == "gfx942"


def test_show_a_kernel_that_was_never_built(cli):
    text = cli("kernels", "show", TMA_NAME, "--arch", "gfx942", "--arch", "sm_90")
    assert re.search(r"^pipeline +tma$", text, re.M)
    assert "cannot be built: pipeline: gfx942 has no pipeline tma" in text
    assert "sm_90   not built" in text


@pytest.mark.turns(48)
def test_inspect_builds_what_is_missing(cli):
    text = cli("kernels", "inspect", NAME, "--arch", "sm_80", "--what", "sass")
    assert "HMMA" in text
    assert len(cli.json("kernels", "list")) == 1
    message = cli.fails(2, "kernels", "inspect", NAME, "--arch", "sm_80", "--what", "amdgcn")
    assert "it has llir, ptx, sass, ttgir" in message
    words = ("kernels", "inspect", TMA_NAME, "--arch", "gfx942", "--what", "amdgcn")
    assert "cannot be built for gfx942" in cli.fails(2, *words)


def test_inspect_reports_a_failed_build(cli, failing):
    words = ("kernels", "inspect", NAME, "--arch", "sm_80", "--what", "sass")
    cli(*words, code=1)
    assert "no luck" in cli.result.stderr


@pytest.mark.turns(24)
def test_outdated_builds_are_marked(cli, store):
    from tilewright.cli.selection import named
    from tilewright.compile import Store, find

    cli("build", NAME, "--arch", "sm_90")
    current = find(named(NAME), "sm_90", Store(store))[MAIN]
    Store(store).save(replace(current, key="0" * 64), {"cubin": b"older"})
    rows = {row["key"]: row["outdated"] for row in cli.json("kernels", "list")}
    assert rows == {current.key: False, "0" * 64: True}
    assert sum(line.endswith("outdated") for line in cli("kernels", "list").splitlines()) == 1


@pytest.mark.turns(24)
def test_check_finds_damage(cli, store):
    assert "does not exist yet" in cli("kernels", "check")
    cli("build", NAME, "--arch", "sm_90")
    assert "1 kernel in" in cli("kernels", "check")
    assert cli.json("kernels", "check")["ok"]
    blob = max((store / "blobs").glob("*/*"), key=lambda p: p.stat().st_size)
    blob.chmod(0o644)
    blob.write_bytes(b"x" * blob.stat().st_size)
    assert "was altered" in cli("kernels", "check", code=1)
    assert not cli.json("kernels", "check", code=1)["ok"]


@pytest.mark.turns(24)
def test_a_registry_there_and_back(cli, space, store, tmp_path):
    cli("build", space, "--arch", "sm_90")
    file = tmp_path / "r.json"
    words = ("registry", "export", space, "--arch", "sm_90", "--arch", "gfx942", "-o", file)
    document = cli.json(*words, "--name", "mine")
    assert document["registry"] == "mine" and document["kernels"] == 2
    assert document["builds"] == {"sm_90": 2}, "those that are built"
    assert json.loads(file.read_text())["registry"] == "mine"
    text = cli("registry", "import", file)
    assert "registry 'mine': 2 kernels" in text and "2 sm_90" in text
    assert cli.json("registry", "import", file)["families"] == {"gemm": 2}
    built = cli.json("registry", "import", file, "--build", "--arch", "gfx942")
    assert built["counts"] == {"built": 1}, "the other is not legal there"
    assert "no problem found" in cli("registry", "check", file)


@pytest.mark.turns(32)
def test_check_of_a_registry_finds_what_would_not_work(cli, space, store, tmp_path):
    cli("build", space, "--arch", "sm_90")
    file = tmp_path / "r.json"
    cli("registry", "export", space, "--arch", "sm_90", "-o", file)
    text = cli("registry", "check", file, "--arch", "gfx942", code=1)
    assert "illegal" in text and TMA_NAME in text
    elsewhere = ("registry", "check", file, "--store", tmp_path / "other")
    problems = cli.json(*elsewhere, code=1)["problems"]
    assert [p["problem"] for p in problems] == ["missing", "missing"]
    document = json.loads(file.read_text())
    document["kernels"][0]["builds"]["sm_90"]["shared"] += 1
    file.write_text(json.dumps(document))
    (problem,) = cli.json("registry", "check", file, code=1)["problems"]
    assert problem["problem"] == "different"


def test_bad_registries(cli, space, tmp_path, monkeypatch):
    file = tmp_path / "r.json"
    file.write_text('{"schema": 1, "registry": "x", "kernels": [{"name": "gemm_y"}]}')
    assert "kernels[0]" in cli.fails(2, "registry", "check", file)
    assert "cannot be read" in cli.fails(2, "registry", "import", tmp_path / "absent.json")
    assert "give --build too" in cli.fails(2, "registry", "import", file, "--arch", "sm_90")
    inside_a_file = file / "r.json"
    message = cli.fails(1, "registry", "export", NAME, "--arch", "sm_90", "-o", inside_a_file)
    assert message.startswith(f"cannot write {inside_a_file}: ")


@pytest.mark.turns(4)
def test_another_users_kernels_need_trust(cli, store, tmp_path, monkeypatch):
    cli("build", NAME, "--arch", "sm_90")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "somebody-else"))
    assert cli.json("kernels", "list") == []
    assert len(cli.json("kernels", "list", "--trust-store")) == 1
    assert "was not made by this user" in cli("kernels", "check", code=1)
