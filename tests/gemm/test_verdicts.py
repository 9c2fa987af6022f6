"""What the rules say of thousands of configs and problems is what they said before."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import verdict_cases

import selection
from tilewright.arch import archs
from tilewright.ops.gemm import legality, support

RECORDED = verdict_cases.Record.read(verdict_cases.RECORD.read_text())
if os.environ.get("RECORD_VERDICTS"):
    text = verdict_cases.written(archs(), RECORDED.letters)
    verdict_cases.RECORD.write_text(text)
    RECORDED = verdict_cases.Record.read(text)
MOST_TOLD = 40


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", selection.architectures(archs()))
def test_no_verdict_changed_unnoticed(name):
    known = RECORDED.rules[name].keys() & verdict_cases.found(name).keys()
    assert len(known) > 0.8 * len(RECORDED.rules[name]), "many bases are gone: record anew"
    changed = verdict_cases.differences(name, RECORDED)
    lines = "\n".join(changed[:MOST_TOLD])
    assert not changed, f"{len(changed)} lines:\n{lines}\n{verdict_cases.__doc__}"


@pytest.mark.turns(24)
def test_a_change_is_told_with_the_config_and_both_rules():
    bases = RECORDED.rules["sm_90"]
    key, (said, room) = next((k, b) for k, b in bases.items() if {"ok", "tile"} <= {*b[0]} and b[1])
    cases = verdict_cases.found("sm_90")[key].cases

    def told(said, room):
        record = verdict_cases.Record({}, {"sm_90": {**bases, key: (said, room)}})
        return verdict_cases.differences("sm_90", record)

    at = said.index("ok")
    assert told((*said[:at], "tile", *said[at + 1 :]), room) == [
        "tile to ok: 1 cases", f"{cases[at].words}: was tile, is yes",
    ]  # fmt: skip
    at = said.index("tile")
    assert told((*said[:at], "ok", *said[at + 1 :]), room) == [
        "ok to tile: 1 cases", f"{cases[at].words}: was ok, is tile: {cases[at].verdict.reason}",
    ]  # fmt: skip
    [line] = told(said, room + 1)
    assert line.startswith(f"shared memory in all was {room + 1}, is {room}: ")


def test_every_rule_decides_something():
    deciding = Counter(
        rule for of in RECORDED.rules.values() for said, _ in of.values() for rule in said
    )
    assert {name for name, _ in (*legality.LEGALITY, *support.SUPPORT)} <= deciding.keys()
    assert deciding["ok"] > deciding.total() / 5
