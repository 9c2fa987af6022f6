"""A stream of distinct shapes: a dispatcher's memory does not grow with it."""

from __future__ import annotations

import gc
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blend_family
from tilewright import ops
from tilewright.dispatch import Dispatcher
from tilewright.ops.nouns import Launch
from tilewright.plan import KEPT
from tilewright.select import FirstFit
from tilewright.verdict import YES, Verdict

COUNT = 200_000
CONFIG = SimpleNamespace(name="blend_one", family="blend")


class Planned(blend_family.BlendFamily):
    """What planning asks of a family, at once: hundreds of thousands of plans in seconds."""

    def supports(self, config: Any, problem: Any, arch: Any) -> Verdict:
        return YES

    def launch(self, config: Any, problem: Any, device: Any) -> Launch:
        return Launch(())

    def parse_name(self, name: str) -> Any:
        return CONFIG


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.mark.turns(48)
def test_many_shapes_take_no_more_memory_than_a_tenth_of_them(monkeypatch):
    from tilewright.registry import Registry

    monkeypatch.setitem(ops._registered, "blend", Planned())
    registry = Registry("one").register_all([CONFIG])
    dispatcher = Dispatcher(registry, "h200_sxm", selector=FirstFit())
    early = 0.0
    for n in range(COUNT):
        plan = dispatcher.select(blend_family.BlendProblem(n))
        if n == COUNT // 10:
            early = resident_mib()
    assert plan.problem.n == COUNT - 1 and len(dispatcher.planner._plans) == KEPT
    assert resident_mib() - early < 3
    assert dispatcher.select(blend_family.BlendProblem(COUNT - 1)) is plan
