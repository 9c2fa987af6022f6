"""An operation of a user's own: swept, learned, and chosen by what was learned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "learn"))

from learned_cases import ARCH, H200, made

from tilewright import ops
from tilewright.dispatch import Dispatcher
from tilewright.learn import judge, matrix, train
from tilewright.measure.results import Results
from tilewright.select.model import Models


@pytest.fixture
def pick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The family of an operation that no other test finds."""
    with monkeypatch.context() as patch:
        patch.setattr(ops, "_registered", dict(ops._registered))
        patch.setenv(ops.MODULES_VARIABLE, "grown_kernels")
        sys.modules.pop("grown_kernels", None)
        ops._import_named.cache_clear()
        yield ops.family("custom_pick")
        ops._import_named.cache_clear()


@pytest.mark.turns(8)
def test_an_operation_of_ones_own_is_learned(pick: Any, tmp_path: Path):
    pytest.importorskip("lightgbm")
    sizes = [(count, width) for width in (8, 16, 24, 32) for count in (4, 40, 400, 4000, 40000)]
    problems = [
        pick.problem_type(many=50, width=width, count=count, dtype="fp32") for count, width in sizes
    ]

    def us_of(config: Any, problem: Any) -> float:
        """Kernels without a bound on registers take half as long again as they are estimated."""
        estimated = pick.estimate(config, problem, H200).total_us
        return float(estimated * (1.0 if config.maxnreg else 1.5))

    with Results(tmp_path, write=True) as results:
        for problem in problems:
            configs = pick.default_space(problem, ARCH).expand(ARCH).configs
            served = [c for c in configs if pick.supports(c, problem, ARCH)]
            results.add(made(c.name, problem, (us_of(c, problem),) * 3) for c in served)
    sheets = [train.Sheet(block) for block in matrix.blocks(matrix.read([tmp_path]))]
    assert {pick.kin(sheet.block.problem) for sheet in sheets} == {*problems}
    model, found = judge.learn(sheets, pick.lesson(problems[0]), 5, 40)
    told = judge.report(found.verdicts, found.guards)
    assert told["estimate"]["mean"] < told["served"]["mean"]
    plan = Dispatcher(device="h200_sxm", models=Models([model])).select(problems[7])
    assert plan.selector == "learned" and plan.config.maxnreg
    without = Dispatcher(device="h200_sxm").select(problems[7])
    assert without.selector == "analytical" and not without.config.maxnreg
