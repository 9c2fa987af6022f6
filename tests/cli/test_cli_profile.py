"""profile: what it says of hardware counters, with a crew and an ncu that are stand-ins."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import TMA_NAME

sys.path.insert(0, str(Path(__file__).parents[1] / "tune"))

import fake_ncu
from fake_crew import GROUP, FakeCrew

from tilewright.arch import device
from tilewright.cli import profile
from tilewright.measure import devices, places

WORDS = ("profile", "gemm", "m=64", "n=64", "k=64", "--kernel", TMA_NAME)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU, as far as the command can tell: a crew measures on it, and nothing is compiled."""
    group = replace(GROUP, device=device("h200_sxm"), interpreted=False)
    place = devices.Place("GPU-0", group.environment, group.device)
    found = SimpleNamespace(groups=lambda *words, **options: ([group], FakeCrew(group)))
    monkeypatch.setitem(sys.modules, "tilewright.measure.groups", found)
    monkeypatch.setattr(places, "parse", lambda words: [place])
    monkeypatch.setattr(profile, "compile_all", lambda requests, kept: None)


@pytest.fixture
def ncu(monkeypatch, tmp_path):
    return lambda body: fake_ncu.put(monkeypatch, tmp_path, body)


def test_counters_are_shown_and_are_in_the_document(cli, gpu, ncu):
    ncu(fake_ncu.prints("gemm"))
    text = cli(*WORDS)
    for word in ("counted ", "DRAM ", "× the least", "matrix units", "they wait", "besides "):
        assert word in text
    assert "not counted" not in text
    counters = cli.json(*WORDS)["counters"]
    assert counters["kernel"] == TMA_NAME and len(counters["launches"]) == 1
    assert counters["values"]["dram_read"]["unit"] == "byte"
    assert counters["values"]["time"]["value"] > 0 and not counters["missing"]


def test_without_counters_a_line_says_why_and_the_rest_stands(cli, gpu, ncu):
    ncu(f"{fake_ncu.prints('no_permission')}; sys.exit(1)")
    (line,) = [line for line in cli(*WORDS).splitlines() if line.startswith("counters")]
    assert "ERR_NVGPUCTRPERM" in line and "run as root" in line
    document = cli.json(*WORDS)
    assert "ERR_NVGPUCTRPERM" in document["no_counters"] and "counters" not in document
    assert [one["kernel"] for one in document["ranked"]] == [TMA_NAME]


def test_counters_need_not_be_read(cli, gpu, ncu):
    ncu("open(log, 'w').write('==ERROR== asked\\n')")
    assert "counter" not in cli(*WORDS, "--no-counters")
    document = cli.json(*WORDS, "--no-counters")
    assert not {"counters", "no_counters"} & document.keys()
