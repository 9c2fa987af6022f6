"""The tables of measurements on pages are what the claims say."""

from __future__ import annotations

import pytest

import claims
import environment
import measured
from claims import Claim, Compared, Ratios
from tilewright.errors import BadFile

HEAD = "0123456789abcdef0123456789abcdef01234567"
BASIC = {"gemm/basic": ["tilewright.ops.gemm.kernels.basic"]}
PAGE = "Before.\n\n<!-- claims{kind}\ntoy: words\n-->\n{table}<!-- /claims -->\n\nAfter.\n"


def test_pages_say_what_the_claims_say():
    known = claims.load_all()
    assert known
    for page in measured.pages():
        said = measured.written(page, known)
        assert page.read_text() == said, f"{page.name}: run `python benchmarks/measured.py`"


def test_every_claim_stands_in_a_table(tmp_path):
    known = claims.load_all()
    assert not measured.unlisted(known, measured.pages())
    page = tmp_path / "page.md"
    page.write_text(PAGE.format(kind="", table=""))
    assert measured.unlisted({"toy": toy(), "other": toy()}, [page]) == {"other"}


def toy(**given: object) -> Claim:
    usual = {
        "claim": "toy",
        "against": "torch",
        "problems": 1234,
        "calls": Compared(Ratios(0.9876, 0.8, 0.7), Ratios(1.2345, 1.1, 1.0)),
        "graphs": Compared(Ratios(1.5, 1.5, 1.5)),
        "environment": {
            "commit": HEAD,
            "changed": False,
            "date": "2026-11-29T01:02:03",
            "command": "benchmarks/claims.py toy --json new.json",
        },
        "kernels": {
            kernel: {module: environment.source_digest(module) for module in modules}
            for kernel, modules in BASIC.items()
        },
        "records": ("toy.json",),
    }
    return Claim(**{**usual, **given})


def rows(folder, claim: Claim, kind: str = "") -> list[str]:
    """The lines of a page's table, after its head."""
    page = folder / "page.md"
    page.write_text(PAGE.format(kind=kind and f" {kind}", table=""))
    text = measured.written(page, {"toy": claim})
    assert text.startswith("Before.\n")
    assert text.endswith("<!-- /claims -->\n\nAfter.\n")
    page.write_text(text)
    assert measured.written(page, {"toy": claim}) == text
    return [line for line in text.splitlines() if line.startswith("|")][2:]


def test_a_row_has_both_columns_of_both_ways_and_its_proof(tmp_path):
    (row,) = rows(tmp_path, toy())
    what, against, problems, *ratios, proof = row.strip("| ").split(" | ")
    assert (what, against, problems) == ("words", "torch", "1,234")
    assert ratios == ["**0.988**, 0.800, 0.700", "1.234, 1.100, 1.000", "1.500", "–"]
    date, command, commit = proof.split("; ")
    assert date.startswith("[2026-11-29](") and date.endswith("results/toy.json)")
    assert command == "`claims.py toy`"
    assert commit == "commit 01234567"


def test_a_short_row_shows_the_least_and_no_graphs(tmp_path):
    (row,) = rows(tmp_path, toy(), "short")
    assert " | **0.988**, 0.700 | 1.234, 1.000 | [2026-11-29](" in row


def test_host_times_have_a_row_each(tmp_path):
    times = {"a call": 4.1234, "a plan": 21_000.0, "a build": 5.6e6}
    found = rows(tmp_path, toy(times_us=times, calls=None, graphs=None), "times")
    assert [row.split(" | ")[:2] for row in found] == [
        ["| a call", "4.12 µs"],
        ["| a plan", "21 ms"],
        ["| a build", "5.6 s"],
    ]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"environment": {"commit": None}}, "stale: no commit recorded"),
        ({"kernels": {"gemm/basic": {"tilewright.ops.gemm.kernels.basic": "0" * 64}}},
         "stale: changed since: gemm/basic"),
    ],
)  # fmt: skip
def test_a_row_without_its_proof_is_marked(tmp_path, given, reason):
    assert reason in rows(tmp_path, toy(**given))[0]


def test_a_command_whose_script_is_gone_is_not_shown(tmp_path):
    said = {"commit": HEAD, "gpu": "NVIDIA H200", "command": "benchmarks/gone.py --set large"}
    (row,) = rows(tmp_path, toy(environment=said))
    assert "; NVIDIA H200; by a script that is no more; " in row


def test_instead_stands_what_measures_the_claim_now(tmp_path):
    said = {"commit": HEAD, "command": "gone.py"}
    (row,) = rows(tmp_path, toy(claim="gemm-bf16-large", environment=said))
    assert "by a script that is no more, now `run.py gemm-bf16-large`" in row


def test_a_note_stands_in_the_row(tmp_path):
    assert rows(tmp_path, toy(note="two sets"))[0].endswith("; two sets |")


@pytest.mark.parametrize(
    "said",
    ["<!-- claims\nmissing: x\n-->\n<!-- /claims -->", "<!-- claims odd\n-->\n<!-- /claims -->"],
)
def test_a_table_of_no_claim_or_of_no_kind_is_refused(tmp_path, said):
    page = tmp_path / "page.md"
    page.write_text(said)
    with pytest.raises(BadFile):
        measured.written(page, {"toy": toy()})
