"""What the rules say of thousands of configs and problems is what they said before."""

from __future__ import annotations

import json
import os

import pytest
import verdict_cases

import selection
from tilewright.arch import archs
from tilewright.ops.gemm import rules

if os.environ.get("RECORD_VERDICTS"):
    made = {name: verdict_cases.record(name) for name in archs()}
    verdict_cases.RECORD.write_text(json.dumps(made, indent=1) + "\n")
RECORDED = json.loads(verdict_cases.RECORD.read_text())


@pytest.mark.parametrize("name", selection.architectures(archs()))
def test_no_verdict_changed_unnoticed(name):
    assert verdict_cases.record(name) == RECORDED[name], verdict_cases.__doc__


def test_every_rule_decides_something():
    deciding = {rule for found in RECORDED.values() for rule in found}
    assert {name for name, _ in (*rules.LEGALITY, *rules.SUPPORT)} <= deciding
