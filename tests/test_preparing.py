"""Kernels built before the first call."""

from __future__ import annotations

import pytest
from gemm_cases import config

import tilewright
from tilewright import default, loader, preparing
from tilewright.arch import arch, device
from tilewright.compile import BuildReport, BuildResult, Store, find
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, BuildFailed
from tilewright.ops.gemm import GemmProblem
from tilewright.plan import Planner
from tilewright.registry import Registry

SMALL, LARGE = config(), config(tile_m=128, tile_n=128, num_warps=8)
FEW, MANY = GemmProblem(64, 64, 8192), GemmProblem(8192, 8192, 8192)
"""Problems for which `SMALL` and `LARGE` are chosen."""
OTHER = GemmProblem(64, 64, 64, dtype_a="fp16")


class Builds:
    """Builds without a compiler. broken: kernels that cannot be built."""

    def __init__(self, *broken):
        self.broken, self.asked = broken, []

    def __call__(self, configs, target, **how):
        self.asked.append([c.name for c in configs])
        return BuildReport(tuple(self._result(c, target.arch) for c in configs), 1.0)

    def _result(self, config, on):
        status = "failed" if config in self.broken else "built"
        return BuildResult(config, config.name, arch(on), status, reason="no luck")


def prepared(builds, *problems, kernels=(SMALL, LARGE)):
    planner = Planner(Registry("r").register_all(kernels), "h200_sxm")
    return planner, preparing.prepare(planner, builds, problems)


def test_each_kernel_is_built_once_for_all_problems():
    builds = Builds()
    twin = GemmProblem(64, 64, 4096)
    _, found = prepared(builds, FEW, MANY, twin, FEW)
    assert builds.asked == [[SMALL.name, LARGE.name]]
    assert [(p.problem, p.config) for p in found.plans] == [
        (FEW, SMALL), (MANY, LARGE), (twin, SMALL)
    ]  # fmt: skip
    assert found.ok and found.device == device("h200_sxm")
    assert str(found).startswith("3 problems on ") and "take 2 kernels: 2 built" in str(found)


def test_where_a_kernel_cannot_be_built_the_next_choice_is():
    builds = Builds(LARGE)
    planner, found = prepared(builds, MANY, FEW)
    assert builds.asked == [[LARGE.name, SMALL.name], []]
    assert [p.config for p in found.plans] == [SMALL, SMALL]
    assert [r.status for r in found.build.results] == ["failed", "built"] and not found.ok
    assert found.build.seconds == 2.0
    assert planner.select(MANY).config == SMALL, "calls of this process do not try it again"


def test_problems_without_a_kernel_are_told_with_the_reason():
    _, found = prepared(Builds(SMALL, LARGE), FEW, OTHER)
    assert found.plans == () and not found.ok
    told = dict(found.unserved)
    assert "no luck" in told[FEW] and "fp16" in told[OTHER]
    assert "2 problems have no kernel" in str(found)


def test_a_dispatcher_hands_on_how_to_build(monkeypatch, tmp_path):
    seen = {}

    def build(requests, **how):
        seen.update(how, requests=requests)
        return BuildReport((), 0.0)

    monkeypatch.setattr(loader, "build", build)
    store = Store(tmp_path)
    dispatcher = Dispatcher(Registry("r").register_all([SMALL]), "h200_sxm", store=store)
    dispatcher.prepare([FEW], workers=3, timeout=7.0, progress=print)
    assert seen == {
        "requests": [(SMALL, "sm_90")], "store": store,
        "workers": 3, "timeout": 7.0, "progress": print,
    }  # fmt: skip


def test_a_dispatcher_that_does_not_build_says_what_is_lacking(tmp_path):
    kernels, store = Registry("r").register_all([SMALL]), Store(tmp_path)
    dispatcher = Dispatcher(kernels, "h200_sxm", store=store, build_missing=False)
    with pytest.raises(BuildFailed, match=f"{SMALL.name} for sm_90 is not in"):
        dispatcher.prepare([FEW])
    assert dispatcher.prepare([]).ok


def test_by_default_the_dispatcher_of_the_operations_prepares(monkeypatch):
    asked = []

    class Usual:
        def prepare(self, problems, **how):
            asked.append((problems, how))

    monkeypatch.setattr(default, "default_dispatcher", Usual)
    tilewright.prepare([FEW], progress=print)
    assert asked == [([FEW], {"progress": print})]


@pytest.mark.turns(32)
def test_what_was_prepared_is_in_the_store(tmp_path):
    store = Store(tmp_path)
    found = tilewright.prepare([GemmProblem(64, 64, 64)], device="h200_sxm", store=store)
    (plan,) = found.plans
    assert find(plan.config, "sm_90", store)
    again = tilewright.prepare([plan.problem], device="h200_sxm", store=store)
    assert [r.status for r in again.build.results] == ["cached"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([3], "3 is no problem"),
        (["gemm m=64"], "'gemm m=64' is no problem"),
        (FEW, "problems are several, in a list"),
        (3, "problems are several, in a list"),
    ],
)
def test_what_is_no_problem_is_told(wrong, says):
    dispatcher = Dispatcher(device="h200_sxm")
    with pytest.raises(BadArgument, match=says):
        dispatcher.prepare(wrong)
    with pytest.raises(BadArgument, match="is no problem"):
        dispatcher.explain("gemm m=64")


def test_how_to_measure_is_true_or_told_by_its_noun():
    with pytest.raises(BadArgument, match="measure = 3 is neither True, False nor a Measuring"):
        tilewright.prepare([FEW], device="h200_sxm", measure=3)
