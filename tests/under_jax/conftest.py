"""What the tests of `tilewright.jax` share: the CPU, and a cheaper computation than the
interpreter's where that is not what is tested."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tilewright import ops, verify

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # beside the tests for GPUs
sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
collect_ignore_glob = [] if find_spec("jax") else ["test_*.py"]


@pytest.fixture(autouse=True)
def on_cpu():
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def referenced(monkeypatch):
    """Calls are computed by the families' references in float64. Lists the calls as they come."""
    from tilewright.jax import foreign

    seen = []
    monkeypatch.setattr(foreign, "_run", lambda text, addresses: _run(text, addresses, seen))
    return seen


def _run(text, addresses, seen):
    from tilewright.jax import foreign

    stated, _ = foreign.read(text)
    seen.append(stated)
    operands = {one.name: one for one in ops.family(stated.op).operands(stated.problem)}
    views = (*stated.views, *map(foreign._view, stated.outputs))
    found = {
        name: _shaped(foreign._array(view, address), operands[name])
        for name, view, address in zip(stated.names, views, addresses, strict=True)
    }
    defaults = ops.family(stated.op).scalar_defaults(stated.problem)
    read = {name: x for name, x in found.items() if operands[name].read}
    made = verify.reference(stated.problem, {**defaults, **dict(stated.scalars), **read})
    for name, values in made.items():
        found[name][...] = values.astype(found[name].dtype)


def _shaped(array, one):
    strides = [step * array.itemsize for step in one.strides]
    return np.lib.stride_tricks.as_strided(array, one.shape, strides)
