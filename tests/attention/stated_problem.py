"""What a call of `tilewright.attention` states, without running it or with its outputs checked."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tilewright import arrays, calls, ops, verify
from tilewright.operation import operation


@dataclass
class Stated:
    """The calls made meanwhile: their problems, what they passed by keyword, their outputs.

    run: whether calls are run, and compared with the family's reference.
    """

    run: bool = False
    problems: list[Any] = field(default_factory=list)
    keywords: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[tuple[Any, ...]] = field(default_factory=list)

    @property
    def problem(self) -> Any:
        (problem,) = self.problems
        return problem

    @property
    def said(self) -> dict[str, Any]:
        (said,) = self.keywords
        return said

    def call(self, *operands: Any, out: Any = None, **keywords: Any) -> Any:
        family = ops.family("attention")
        said = calls.spoken("attention", keywords, 0)
        passed = None if out is None else out if isinstance(out, tuple) else (out,)
        given = calls.read(family, None, operands, said, passed)
        self.problems.append(given.problem)
        self.keywords.append({name: x for name, x in keywords.items() if x is not None})
        self.outputs.append(given.outputs)
        if self.run:
            _run_and_check(given, operands, keywords, said)
        return given.outputs if len(given.outputs) > 1 else given.outputs[0]


def _run_and_check(given: Any, operands: Any, keywords: Any, said: Any) -> None:
    family, problem = ops.family("attention"), given.problem
    for target in given.outputs:
        arrays.poison(target)
    named = given.by_name
    roles = {one.name: one.role for one in family.operands(problem)}
    inputs = {name: x for name, x in named.items() if roles[name] != "out"}
    before = {**inputs, **verify.snapshot(problem, inputs)}
    scalars = calls.scalar_values(family, problem, said.scalars)
    wanted = verify.reference(problem, before | scalars)
    operation("attention")(*operands, out=given.outputs, **keywords)
    written = {name: x for name, x in named.items() if roles[name] != "in"}
    verify.require(verify.compare_all(problem, None, written, wanted), str(problem))


@contextmanager
def stated(*modules: Any, run: bool = False):
    """Modules whose name `attention` records calls, and with `run` runs and checks them."""
    found = Stated(run)
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "attention", found.call)
        yield found
