"""All declared operations are right on a real GPU: the small problems of the pages' tests, those of
models' sizes, and problems that pages list for sweeps."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tilewright import ops, verify

pytestmark = pytest.mark.gpu

PAGES = runpy.run_path(str(Path(__file__).parents[1] / "declared" / "page_cases.py"))
SWEPT = ("routing", "shape", "sums")
"""Rooms whose problems for sweeps are few enough to be checked."""


def listed():
    """The problems that pages of these rooms list."""
    for name in ops.declared():
        family = ops.family(name)
        if family.declared.module.split(".")[-2] in SWEPT:
            for fields in family.declared.problems:
                yield family.problem_type(**fields)


PROBLEMS = [*PAGES["problems"]("cases"), *PAGES["problems"]("large"), *listed()]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right(problem, dispatcher):
    for seed in range(2):
        found = verify.verify(dispatcher, problem, seed=seed, device="cuda:0")
        assert found.ok, (problem, found)
