"""Commands that plan: archs, devices, expand, explain."""

from __future__ import annotations

import json

import pytest
from cli_runner import NAME, TMA_NAME

from tilewright import arch
from tilewright.errors import NoDriver


def test_archs_lists_every_architecture_with_what_it_can_do(cli):
    rows = {line.split()[0]: line for line in cli("archs").splitlines()[1:]}
    assert list(rows) == list(arch.archs())
    assert "64 KiB" in rows["gfx942"] and "fnuz" in rows["gfx942"] and "MI300X" in rows["gfx942"]
    assert "227 KiB" in rows["sm_90"] and "e4m3fn" in rows["sm_90"]
    documents = cli.json("archs")
    assert [d["name"] for d in documents] == list(arch.archs())


def test_one_arch_in_detail(cli):
    text = cli("archs", "GFX942:sramecc+")
    for word in ("gfx942", "64 threads", "fnuz", "mfma", "16x16x16", "emulated", "never run"):
        assert word in text
    assert cli.json("archs", "sm_90")["max_registers"] == 255


def test_devices(cli):
    assert "NVIDIA H200" in cli("devices")
    assert "peak TFLOP/s" in cli("devices", "h200_sxm")
    assert cli.json("devices")["mi300x"]["compute_units"] == 304
    assert cli.json("devices", "NVIDIA H200")["arch"] == "sm_90"


def test_live_devices(cli, monkeypatch):
    h200 = arch.device("h200_sxm")
    monkeypatch.setattr("tilewright.arch.detect.live_devices", lambda: [h200, h200])
    found = cli.json("devices", "--live")
    assert len(found) == 2
    assert arch.device(found[0]) == h200, "what --device takes"
    rows = cli("devices", "--live").splitlines()
    assert rows[0].startswith("GPU") and rows[2].startswith("1 ")

    def none() -> None:
        raise NoDriver("no GPU can be used here")

    monkeypatch.setattr("tilewright.arch.detect.live_devices", none)
    assert cli.fails(1, "devices", "--live") == "no GPU can be used here"


def test_expand_counts_and_gives_an_example_of_each_rule(cli, space):
    text = cli("expand", space, "--arch", "sm_90", "--arch", "gfx942")
    assert "sm_90: 2 legal kernels, 2 combinations dropped" in text
    assert "gfx942: 1 legal kernels, 3 combinations dropped" in text
    assert "gfx942 has no pipeline tma" in text
    assert "tile_m = 24 is not a power of two" in text
    assert "note: $.trait_config.scheduler: intrawave" in text
    sm_90, gfx942 = cli.json("expand", space, "--arch", "sm_90", "--arch", "gfx942")
    assert (sm_90["legal"], sm_90["dropped"]) == (2, 2)
    counts = {row["rule"]: row["count"] for row in gfx942["rules"]}
    assert counts == {"pipeline": 2, "tile": 1}
    assert "kernels" not in sm_90


def test_expand_lists_names_and_every_dropped_combination(cli, space):
    text = cli("expand", space, "--arch", "sm_90", "--list")
    assert [line for line in text.splitlines() if line == TMA_NAME] == [TMA_NAME]
    text = cli("expand", space, "--arch", "gfx942", "--dropped")
    assert "pipeline    tile_m=16 pipeline=tma" in text
    document = cli.json("expand", space, "--arch", "gfx942", "--dropped", "--list")[0]
    assert len(document["dropped_combinations"]) == document["dropped"] == 3
    assert document["dropped_combinations"][0]["fields"]["tile_n"] == 32
    assert len(document["kernels"]) == document["legal"] == 1


def test_a_signature_completes_a_space(cli, space):
    text = cli("expand", space, "--arch", "gfx942", "--signature", "dtype=fp8", "--list")
    assert "_e4m3fnuz_e4m3fnuz_" in text
    with_ccr = cli("expand", space, "--arch", "sm_90", "--signature", "layout=ccr", "--list")
    assert "gemm_ccr_bf16" in with_ccr


def test_the_default_space(cli):
    words = ("gemm", "m=64", "n=64", "k=64", "dtype=int8")
    text = cli("expand", "--default", *words, "--arch", "sm_90", "--list")
    assert "gemm_rcr_int8_int8_int32_int32_" in text


def test_an_arch_with_nothing_legal_fails_but_the_others_are_shown(cli, space):
    space.write_text(json.dumps({"family": "gemm", "pipeline": ["tma"]}))
    words = ("expand", space, "--arch", "gfx942", "--arch", "sm_90")
    assert "no config of the space is legal on gfx942" in cli.fails(2, *words)
    assert "sm_90: 1 legal" in cli.result.stdout
    first, second = cli.json(*words, code=2)
    assert first["legal"] == 0 and "pipeline" in first["error"]
    assert second["legal"] == 1


@pytest.mark.parametrize("limit", [0, 3])
def test_explain_shows_the_choice_and_the_next_best(cli, limit):
    words = ("explain", "gemm", "m=512", "n=512", "k=512", "--limit", limit)
    text = cli(*words, "--device", "h200_sxm")
    lines = text.splitlines()
    assert lines[0] == "gemm 512×512×512 bf16 rcr on NVIDIA H200 (sm_90)"
    assert sum(line.startswith("next ") for line in lines) == limit
    document = cli.json(*words, "--device", "h200_sxm")
    assert f"chosen  {document['chosen']}" in text
    assert document["device"]["compute_units"] == 132


def test_explain_counts_the_refused_by_rule(cli):
    words = ("explain", "gemm", "m=100", "n=77", "k=5", "--device", "h200_sxm")
    assert "vector_width" in cli(*words)
    fates = cli.json(*words)["fates"]
    refused = [f for f in fates if f["fate"] == "refused"]
    assert refused
    everything = cli(*words, "--all")
    assert all(f["name"] in everything for f in fates)


@pytest.mark.turns(24)
def test_explain_keeps_to_a_limit_on_the_workspace(cli):
    words = ("explain", "gemm", "m=32", "n=512", "k=8192", "--device", "h200_sxm")
    assert "_split_k" in cli.json(*words)["chosen"]
    limited = cli.json(*words, "--max-workspace", 0)
    assert "_split_k" not in limited["chosen"]
    assert any(f["by"] == "max_workspace" for f in limited["fates"])


def test_fp8_is_what_the_device_means_by_it(cli):
    words = ("gemm", "m=64", "n=64", "k=64", "dtype=fp8")
    assert cli.json("explain", *words, "--device", "mi300x")["problem"]["dtype_a"] == "e4m3fnuz"
    assert cli.json("explain", *words, "--device", "h200_sxm")["problem"]["dtype_a"] == "e4m3fn"


def test_a_device_from_a_file(cli, tmp_path):
    file = tmp_path / "half.json"
    file.write_text(json.dumps({**cli.json("devices", "mi300x"), "compute_units": 38}))
    text = cli("explain", "gemm", "m=64", "n=64", "k=64", "--device", file)
    assert "AMD Instinct MI300X (gfx942)" in text


def test_explain_without_a_kernel_says_so_and_fails(cli, tmp_path, space):
    cli("registry", "export", space, "--arch", "sm_90", "-o", tmp_path / "r.json")
    words = ("explain", "gemm", "m=64", "n=64", "k=64", "dtype=fp16")
    where = ("--registry", tmp_path / "r.json", "--device", "h200_sxm")
    assert cli.fails(1, *words, *where) == "no kernel serves this problem"
    assert "signature" in cli.result.stdout
    assert cli.json(*words, *where, code=1)["chosen"] == ""


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["archs", "sm_91"], "unknown architecture 'sm_91'"),
        (["devices", "h2000"], "unknown device 'h2000'"),
        (["devices", "h200_sxm", "--live"], "not both"),
        (["expand", "absent.json", "--arch", "sm_90"], "absent.json: cannot be read"),
        (["expand", "--arch", "sm_90"], "give one space file"),
        (["expand", NAME, "--arch", "sm_90"], "is not a space file"),
        (["expand", "--default", "conv9", "--arch", "sm_90"], "no operation family 'conv9'"),
        (["explain", "gem", "m=1", "n=1", "k=1"], "did you mean 'gemm'?"),
        (["explain", "gemm", "m"], "'m' is not KEY=VALUE"),
        (["explain", "gemm", "m=1", "m=2"], "'m' is given twice"),
        (["explain", "gemm", "m=-1", "n=1", "k=1"], "m = -1 is outside"),
        (["explain", "gemm", "m=1", "n=1", "k=1", "x=1"], "a gemm problem has no 'x'"),
        (["explain", "gemm", "m=1", "n=1", "k=1", "--device", "tpu"], "unknown device"),
        (["explain", "gemm", "m=1", "n=1", "k=1", "--registry", "no.json"], "no.json"),
    ],
)
def test_wrong_requests_exit_with_2_and_one_line(cli, words, message):
    assert message in cli.fails(2, *words)
    document = cli.json(*words, code=2)
    assert message in document["error"]
    assert document["type"] in {"BadArgument", "BadFile", "UnknownArch", "UnknownName"}
