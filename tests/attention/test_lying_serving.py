"""A serving loop with garbage in lengths, offsets, tables and indices, in the interpreter, which
refuses an access outside of an operand. On a GPU: `tests/gpu/test_gpu_lengths.py`."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from lying_serving import CASES, Calls  # noqa: E402


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_garbage_on_the_device_leads_nowhere(case):
    calls = Calls("cpu", seed=7, dtype=torch.float32, dim=16, heads=2, kv_heads=1)
    case(calls)
    assert calls.count
