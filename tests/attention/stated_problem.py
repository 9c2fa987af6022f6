"""What a call of `tilewright.attention` states, without running it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tilewright import calls, ops


@dataclass
class Stated:
    """The calls made meanwhile: their problems, and what they passed by keyword."""

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
        return given.outputs if len(given.outputs) > 1 else given.outputs[0]


@contextmanager
def stated(*modules: Any):
    """Modules whose name `attention` records calls and runs nothing."""
    found = Stated()
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "attention", found.call)
        yield found
