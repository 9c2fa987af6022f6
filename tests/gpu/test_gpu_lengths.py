"""Garbage in lengths, offsets, tables and indices on a real GPU: nothing is written outside of the
arrays, which lie between guards, and sequences that say what is so are right."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from lying_serving import CASES, Calls

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("seed", [1, 2])
def test_garbage_on_the_device_leads_nowhere(case, seed):
    calls = Calls("cuda", seed)
    case(calls)
    assert calls.count
