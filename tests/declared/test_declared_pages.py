"""What all declared operations have in common: they are right, and are built for every vendor."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path

import page_cases
import pytest

import tilewright
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import build
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import DTYPES
from tilewright.tables.row import meant, said

FIELDS = page_cases.fields()
PROBLEMS = page_cases.problems()
FIRST = [ops.family(name).problem_type(**listed[0]) for name, listed in FIELDS.items()]


@pytest.fixture(scope="module")
def dispatcher() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def test_every_page_has_cases_and_problems():
    assert {*FIELDS} == {*ops.declared()}
    for name in ops.declared():
        assert ops.family(name).profiles["declared"].problems(arch("sm_90")), name


def test_pages_import_no_triton():
    code = (
        "import sys; from tilewright import ops\n"
        "for name in ops.declared(): ops.family(name)\n"
        "assert not {'triton', 'torch', 'numpy'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ops.declared())
def test_a_page_says_what_it_computes(name):
    page = importlib.import_module(ops.family(name).declared.module)
    assert ast.get_docstring(ast.parse(Path(page.__file__).read_text()))
    assert page.__name__.rpartition(".")[2] == name


def test_kernels_saturate_where_dtypes_say():
    """Kernels have the numbers once more: they cannot read `DTYPES`."""
    text = (Path(tilewright.__file__).parent / "ops/device/rounding.py").read_text()
    stated = {word: float(most) for word, most in re.findall(r'"(fp8\w+)": ([\d.]+)', text)}
    floats = (one for one in DTYPES.values() if one.bits == 8 and one.kind == "float")
    assert stated == {one.triton: one.range[1] for one in floats if one.range}
    assert f"{DTYPES['int8'].range[1]} if" in text


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_names_and_problems_are_read_back(problem, dispatcher):
    config = dispatcher.select(problem).config
    assert ops.family(problem.family).parse_name(config.name) == config
    assert meant(said(problem), "here") == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert hasattr(tilewright, problem.family)


@pytest.mark.turns(12)
@pytest.mark.grid(2)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right(problem, dispatcher):
    result = verify.verify(dispatcher, problem)
    assert result.ok, result


@pytest.mark.turns(48)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942", "gfx1201"])
@pytest.mark.parametrize("problem", FIRST, ids=lambda p: p.family)
def test_it_is_built(problem, target, dispatcher, store):
    config = dispatcher.select(problem).config
    build([(config, target)], store=store, workers=1).raise_if_failed()


SHARED = (
    ("reduction", {"outer": 1, "far": 1, "middle": 1, "near": 2**16, "inner": 1, "sum": True}),
    ("rms_norm_backward", {"rows": 64, "columns": 64, "has_w": True}),
    ("softmax", {"rows": 1, "columns": 70000}),
    ("log_softmax_backward", {"rows": 1, "columns": 70000}),
    ("cross_entropy", {"rows": 1, "classes": 70000}),
    ("sort_by_expert", {"tokens": 9000, "k": 8, "id_dtype": "int32", "experts": 128}),
)
"""Operations whose later kernels begin before the earlier ones have ended."""


@pytest.mark.turns(12)
@pytest.mark.parametrize(("name", "fields"), SHARED, ids=[name for name, _ in SHARED])
def test_a_kernel_that_begins_early_waits_for_the_one_before_it(name, fields, dispatcher, store):
    family = ops.family(name)
    config = dispatcher.select(family.problem_type(**fields)).config
    for target, early in (("sm_90", True), ("sm_80", False)):
        report = build([(config, target)], store=store, workers=1)
        report.raise_if_failed()
        built = report.results
        kernels = [(one.kernel, store.read(one.kernel, "ptx").decode()) for one in built]
        (first, ptx), *later = kernels
        assert later and not first.pdl
        assert ("griddepcontrol.launch_dependents" in ptx) == early
        for kernel, ptx in later:
            assert kernel.pdl == early == ("griddepcontrol.wait" in ptx)


@pytest.mark.turns(96)
@pytest.mark.parametrize("target", ["gfx942", "gfx950", "gfx1201"])
@pytest.mark.parametrize("problem", FIRST, ids=lambda p: p.family)
def test_it_is_right_in_emulation(problem, target, store):
    emulated = Dispatcher(device=f"emulated:{target}", store=store)
    result = verify.verify(emulated, problem)
    assert result.ok and not result.findings, result
