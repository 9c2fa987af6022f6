"""Operations and their nouns can be pickled, so that other processes can be given them: worker
pools, saved models, copies."""

from __future__ import annotations

import copy
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright
from tilewright import ops

FUNCTIONS = [
    name
    for op in ops.families()
    for name in (op, *ops.family(op).helpers, *ops.family(op).functions)
]
MODULES = ["tilewright.flash_attn", "tilewright.serving"]


def there_and_back(x):
    assert copy.deepcopy(x) == x
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_families(name):
    function = getattr(tilewright, name)
    assert there_and_back(function) is function


@pytest.mark.parametrize("module", MODULES)
def test_functions_of_other_libraries_names(module):
    found = importlib.import_module(module)
    for name in found.__all__:
        assert there_and_back(getattr(found, name)) is getattr(found, name)


def test_the_operation_that_a_room_uses_is_the_public_one():
    from tilewright.flash_attn.words import attention

    assert attention is tilewright.attention


def test_nouns_of_planning():
    problem = tilewright.GemmProblem(m=64, n=64, k=64)
    plan = tilewright.Dispatcher(device="h200").select(problem)
    for noun in (problem, plan, plan.config, tilewright.Constraints(), tilewright.Verdict(True)):
        assert there_and_back(noun) == noun


def test_an_operation_of_the_users_own(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "custom"))
    monkeypatch.setattr(ops, "_registered", dict(ops._registered))
    monkeypatch.setenv(ops.MODULES_VARIABLE, "")
    for _ in range(2):  # the second time, as a notebook's cell that is run anew
        sys.modules.pop("custom_kernels", None)
        importlib.import_module("custom_kernels")
        problem = ops.family("custom_axpy").problem_type(rows=8)
        assert there_and_back(problem) == problem
    problem = tilewright.CustomAxpyProblem(rows=8)
    config = tilewright.CustomAxpyConfig("bf16", False, False, 16)
    for noun in (tilewright.custom_axpy, problem, config):
        assert there_and_back(noun) == noun


def test_another_process_reads_them_and_imports_nothing_for_it():
    given = pickle.dumps([tilewright.gemm, tilewright.conv2d, tilewright.causal_conv1d])
    script = (
        "import pickle, sys\n"
        f"found = pickle.loads({given!r})\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
        "import tilewright\n"
        "assert found == [tilewright.gemm, tilewright.conv2d, tilewright.causal_conv1d]\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
